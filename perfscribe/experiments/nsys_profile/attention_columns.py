"""Columns about one layer's attention: softmax against the two products."""

from __future__ import annotations

from collections.abc import Callable

from perfscribe import tables as t
from perfscribe.counters import flops
from perfscribe.experiments.nsys_profile import shares
from perfscribe.experiments.nsys_profile.columns import factors
from perfscribe.models.shapes import SIZES
from perfscribe.profiling.families import GEMM
from perfscribe.records import Record

NS_PER_US = 1e3
FP32_BYTES = 4
# A softmax takes, for each element: maximum, subtraction, exponential, sum, division.
SOFTMAX_FLOP_PER_ELEMENT = 5
NO_PRODUCT = "no product traced"


def _calls(record: Record) -> int:
    return SIZES[record.factors["size"]].layers * shares.traced(record)


def _matmul_us(label: str) -> Callable[[Record], float]:
    """Mean time of one call's matrix product in an attention range."""
    return lambda r: shares.family_ns(r, [label])[GEMM] / _calls(r) / NS_PER_US


def scale_and_mask_us(record: Record) -> float:
    """Mean time of one call's kernels in the attention scores besides the product."""
    times = shares.family_ns(record, ["scores"])
    return (times.total() - times[GEMM]) / _calls(record) / NS_PER_US


def softmax_us(record: Record) -> float:
    """Mean time of one call's kernels in the softmax."""
    return shares.family_ns(record, ["softmax"]).total() / _calls(record) / NS_PER_US


def matmul_flop(record: Record) -> float:
    """FLOP of one of a layer's two attention products."""
    f = record.factors
    shape = SIZES[f["size"]]
    return flops.forward_matmul_flop(shape, f["batch"], f["seq_len"])["attention scores"] / shape.layers


def softmax_flop(record: Record) -> float:
    """FLOP of one layer's softmax."""
    f = record.factors
    return float(SOFTMAX_FLOP_PER_ELEMENT * f["batch"] * SIZES[f["size"]].heads * f["seq_len"] ** 2)


def _time_ratio(record: Record) -> float | str:
    products_us = _matmul_us("scores")(record) + _matmul_us("final_matmul")(record)
    return softmax_us(record) / products_us if products_us > 0 else NO_PRODUCT


def _scores_rate(record: Record) -> float | str:
    us = _matmul_us("scores")(record)
    return matmul_flop(record) / us / 1e6 if us > 0 else NO_PRODUCT


def softmax_gb_per_s(record: Record) -> float | str:
    """Least traffic of the softmax, each element read and written once, over its time; fp32 elements alone."""
    f = record.factors
    if f["dtype"] not in ("fp32", "tf32"):
        return "under autocast"
    least_bytes = 2 * FP32_BYTES * f["batch"] * SIZES[f["size"]].heads * f["seq_len"] ** 2
    return float(least_bytes / softmax_us(record) / 1e3)


def _traced_alone(get: Callable[[Record], float]) -> Callable[[Record], float]:
    """The figure, of cells that have a trace of the softmax; KeyError for others, so that they show their status."""

    def figure(record: Record) -> float:
        shares.kernels(record, "softmax")
        return get(record)

    return figure


def attention() -> list[t.Column]:
    """One layer's attention in a training step's forward pass."""
    return [
        *factors(),
        t.derived("scores_matmul_us", "Scores, product (µs)", _matmul_us("scores")),
        t.derived("scale_and_mask_us", "Scale and mask (µs)", scale_and_mask_us),
        t.derived("softmax_us", "Softmax (µs)", softmax_us),
        t.derived("final_matmul_us", "Final product (µs)", _matmul_us("final_matmul")),
        t.derived("time_ratio", "Softmax / both products, time", _time_ratio),
        t.derived("matmul_mflop", "One product (MFLOP)", _traced_alone(lambda r: matmul_flop(r) / 1e6)),
        t.derived("softmax_mflop", "Softmax (MFLOP)", _traced_alone(lambda r: softmax_flop(r) / 1e6)),
        t.derived(
            "flop_ratio",
            "Softmax / both products, FLOP",
            _traced_alone(lambda r: softmax_flop(r) / (2 * matmul_flop(r))),
        ),
        t.derived("scores_tflop_per_s", "Scores (TFLOP/s)", _scores_rate),
        t.derived("softmax_tflop_per_s", "Softmax (TFLOP/s)", lambda r: softmax_flop(r) / softmax_us(r) / 1e6),
        t.derived("softmax_gb_per_s", "Softmax, least traffic (GB/s)", softmax_gb_per_s),
    ]
