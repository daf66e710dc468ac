"""The four accumulation loops of CS336, assignment 2: a constant added up in fp32, in fp16, and mixed.

In addition to the sum it measures the causes of its error: the addend's value after rounding, and the spacing of the
accumulator's dtype near the sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from perfscribe.base.cells import Cell, Measurement

if TYPE_CHECKING:
    import torch

# accumulation: dtype of the accumulator, dtype that rounds the addend, dtype in which it is added
ACCUMULATIONS = {
    "fp32": ("float32", "float32", "float32"),
    "fp16": ("float16", "float16", "float16"),
    "fp32_plus_fp16": ("float32", "float16", "float16"),
    "fp32_plus_upcast_fp16": ("float32", "float16", "float32"),
}
OF_THE_SUM = ("sum", "error", "relative_error", "error_from_accumulation", "ulp_at_sum", "last_increment")


@dataclass(frozen=True)
class Accumulation:
    """Factors of a cell."""

    device: str
    accumulation: str
    terms: int
    addend: float


def run(cell: Cell) -> Measurement:
    """Add the addend up term by term and compare with exact arithmetic.

    exact_sum: terms x addend, the addend taken as the decimal in the config. rounded_addend: the addend in its dtype;
    error_from_addend: error of the sum from that rounding only.
    Of the sum, or "overflow" if it is infinite: sum; error and relative_error against exact_sum;
    error_from_accumulation: the part from the additions; ulp_at_sum: distance between neighbouring values of the
    accumulator there; last_increment: the amount that the last addition really added.
    """
    import torch

    of = cell.read(Accumulation)
    accumulator_dtype, rounded_dtype, added_dtype = (getattr(torch, name) for name in ACCUMULATIONS[of.accumulation])
    term = torch.tensor(of.addend, dtype=rounded_dtype, device=of.device)
    before_last, total = accumulate(term, added_dtype, accumulator_dtype, of.terms)
    exact_sum = of.terms * Fraction(str(of.addend))
    rounded_sum = of.terms * Fraction(term.item())
    values: dict[str, float | str] = {
        "exact_sum": float(exact_sum),
        "rounded_addend": term.item(),
        "error_from_addend": float(rounded_sum - exact_sum),
    }
    if not math.isfinite(total):
        return Measurement(values=values | dict.fromkeys(OF_THE_SUM, "overflow"))
    of_the_sum = (
        total,
        float(Fraction(total) - exact_sum),
        float((Fraction(total) - exact_sum) / exact_sum),
        float(Fraction(total) - rounded_sum),
        ulp(total, accumulator_dtype),
        total - before_last,
    )
    return Measurement(values=values | dict(zip(OF_THE_SUM, of_the_sum, strict=True)))


def accumulate(term: torch.Tensor, added: torch.dtype, accumulator: torch.dtype, terms: int) -> tuple[float, float]:
    """Add `term`, cast to `added`, `terms` times in place to a scalar accumulator; return the last two sums.

    term: shape (). The cast is in the loop, as in the homework; torch promotes mixed dtypes.
    """
    import torch

    total = torch.zeros((), dtype=accumulator, device=term.device)
    before_last = 0.0
    for index in range(terms):
        if index == terms - 1:
            before_last = total.item()
        total += term.to(added)
    return before_last, total.item()


def ulp(value: float, dtype: torch.dtype) -> float:
    """Return the distance from |value| to the next larger number (IEEE 754: 2**(exponent + 1 - precision))."""
    import torch

    limits = torch.finfo(dtype)
    normal = max(abs(value), limits.smallest_normal)
    return limits.eps * 2.0 ** (math.frexp(normal)[1] - 1)
