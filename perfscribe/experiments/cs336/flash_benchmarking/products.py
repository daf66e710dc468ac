"""Rate of a large square product, the ceiling of a device. Imports no attention, because calibration uses it too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Measurement
from perfscribe.instruments import correctness, precision
from perfscribe.instruments.graph_timing import Clocks

if TYPE_CHECKING:
    from torch import Tensor

CHECKED_ROWS = 16


def measure(factors: Mapping[str, Any]) -> Measurement:
    """Compare some rows with float64, then time an n x n product of random matrices in the cell's dtype."""
    import torch

    device, size = factors["device"], factors["matrix_size"]
    dtype = precision.tensor_dtype(factors["dtype"])
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    expected = a[:CHECKED_ROWS].double() @ b.double()
    error = correctness.relative_error((a @ b)[:CHECKED_ROWS], expected)
    correctness.require({"product": error}, correctness.TOLERANCE[factors["dtype"]])
    measurement = Measurement(values={"relative_error": float(f"{error:.3g}")})

    def make() -> Callable[[], Tensor]:
        left, right = a.clone(), b.clone()
        return lambda: left @ right

    timers = Clocks(device, factors["samples"])
    timers.time(measurement, "product", make)
    measurement.values |= timers.values()
    return measurement
