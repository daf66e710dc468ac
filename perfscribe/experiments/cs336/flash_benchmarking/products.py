"""Rate of a large square product, the ceiling of a device. Imports no attention, because calibration uses it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscribe.base.cells import Measurement
from perfscribe.instruments import correctness, precision
from perfscribe.instruments.graph_timing import Clocks

if TYPE_CHECKING:
    from torch import Tensor

CHECKED_ROWS = 16


@dataclass(frozen=True)
class Product:
    """Factors of a cell; matrix_size: n."""

    device: str
    dtype: str
    matrix_size: int
    samples: int


def measure(of: Product) -> Measurement:
    """Compare some rows with float64, then time an n x n product of random matrices in the cell's dtype."""
    import torch

    precision.set_matmul_precision(of.dtype)
    shape, dtype = (of.matrix_size, of.matrix_size), precision.tensor_dtype(of.dtype)
    a, b = (torch.randn(shape, device=of.device, dtype=dtype) for _ in range(2))
    expected = a[:CHECKED_ROWS].double() @ b.double()
    error = correctness.relative_error((a @ b)[:CHECKED_ROWS], expected)
    correctness.require({"product": error}, correctness.TOLERANCE[of.dtype])
    measurement = Measurement(values={"relative_error": float(f"{error:.3g}")})

    def make() -> Callable[[], Tensor]:
        left, right = a.clone(), b.clone()
        return lambda: left @ right

    timers = Clocks(of.device, of.samples)
    timers.time(measurement, "product", make)
    measurement.values |= timers.values()
    return measurement
