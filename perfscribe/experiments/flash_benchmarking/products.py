"""The rate of a large square product: the ceiling that attention is compared with on the same device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Measurement
from perfscribe.experiments.flash_benchmarking.clocks import clocks
from perfscribe.instruments import precision

if TYPE_CHECKING:
    from torch import Tensor

CHECKED_ROWS = 16
# Relative error (Frobenius norm) that still counts as correct; that of fp32 tells true fp32 from TF32.
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2, "fp16": 5e-3}


def measure(factors: Mapping[str, Any]) -> Measurement:
    """Time an n x n product of random matrices, in the cell's dtype."""
    import torch

    device, size = factors["device"], factors["matrix_size"]
    dtype = precision.tensor_dtype(factors["dtype"])
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    measurement = Measurement(values={"relative_error": compare(a, b, TOLERANCE[factors["dtype"]])})

    def make() -> Callable[[], Tensor]:
        left, right = a.clone(), b.clone()
        return lambda: left @ right

    timers = clocks(device, factors["samples"])
    timers.time(measurement, "product", make)
    measurement.values |= timers.values()
    return measurement


def compare(a: Tensor, b: Tensor, tolerance: float) -> float:
    """Relative error of some rows of a b against float64; ValueError beyond the tolerance."""
    got = (a @ b)[:CHECKED_ROWS].double()
    expected = a[:CHECKED_ROWS].double() @ b.double()
    error = float((got - expected).norm() / expected.norm())
    if not error <= tolerance:
        raise ValueError(f"product is off by {error:.2g} against float64, allowed {tolerance:g}")
    return float(f"{error:.3g}")
