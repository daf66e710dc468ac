"""Forward, backward and both passes of one implementation of attention on one problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.attention import backends
from perfscribe.base.cells import Measurement
from perfscribe.base.partial import kept_on_failure
from perfscribe.experiments.flash_benchmarking import correctness, kernels
from perfscribe.experiments.flash_benchmarking.clocks import clocks
from perfscribe.instruments import precision
from perfscribe.instruments.timing import synchronise

if TYPE_CHECKING:
    from torch import Tensor

# Those of which it is known what they run; the others leave it to PyTorch.
OPEN = ("eager", "tiled", "triton", "triton_ieee")

Inputs = tuple["Tensor", "Tensor", "Tensor", "Tensor"]  # q, k, v and the gradient of the output


def measure(factors: Mapping[str, Any]) -> Measurement:
    """Compare with float64, then time, forward before backward: where backward has no room, forward is measured."""
    device, is_causal = factors["device"], factors["causal"]
    dtype = precision.tensor_dtype(factors["dtype"])
    call = backends.make_call(factors["implementation"], device, dtype, factors["head_dim"], is_causal)
    problem = Problem(call, _inputs(factors), is_causal)
    check = correctness.Check(problem.attend, problem.leaves(), correctness.TOLERANCE[factors["dtype"]])
    timers = clocks(device, factors["samples"])
    measurement = Measurement()
    with kept_on_failure(measurement):
        measurement.compile_s += _beyond_the_second_s(problem.forward(), check.forward, device)
        measurement.values |= check.largest_error()
        timers.time(measurement, "forward", problem.forward)
        measurement.compile_s += _beyond_the_second_s(problem.both(), check.both, device)
        measurement.values |= check.largest_error()
        if factors["implementation"] not in OPEN:
            measurement.values |= kernels.seen(problem.both(), device, factors["implementation"])
        timers.time(measurement, "backward", problem.backward)
        timers.time(measurement, "both", problem.both)
        measurement.values |= timers.values()
    return measurement


def _inputs(factors: Mapping[str, Any]) -> Inputs:
    """Random tensors (batch, heads, n, d)."""
    import torch

    shape = tuple(factors[name] for name in ("batch", "heads", "seq_len", "head_dim"))
    options: dict[str, Any] = {"device": factors["device"], "dtype": precision.tensor_dtype(factors["dtype"])}
    q, k, v, d_out = (torch.randn(shape, **options) for _ in range(4))
    return q, k, v, d_out


class Problem:
    """One implementation on one set of inputs; each method gives a call on copies of them, made on the current stream.

    Copies, so that several calls in a row find nothing of each other's in a cache; leaves of their own, so that
    autograd accumulates on the stream that the call runs on.
    """

    def __init__(self, call: backends.Call, inputs: Inputs, is_causal: bool) -> None:
        self._call, self._inputs, self._is_causal = call, inputs, is_causal

    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Fresh copies of q, k and v that ask for gradients."""
        q, k, v = (tensor.clone().requires_grad_() for tensor in self._inputs[:3])
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The output."""
        return self._call(q, k, v, self._is_causal)

    def forward(self) -> Callable[[], Tensor]:
        """A forward pass that keeps what backward needs."""
        q, k, v = self.leaves()
        return lambda: self.attend(q, k, v)

    def backward(self) -> Callable[[], Any]:
        """A backward pass alone, again and again over one forward pass."""
        import torch

        leaves, d_out = self.leaves(), self._inputs[3].clone()
        out = self.attend(*leaves)
        return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)

    def both(self) -> Callable[[], Any]:
        """A forward and a backward pass."""
        import torch

        leaves, d_out = self.leaves(), self._inputs[3].clone()
        return lambda: torch.autograd.grad(self.attend(*leaves), leaves, d_out)


def _beyond_the_second_s(first: Callable[[], object], second: Callable[[], object], device: str) -> float:
    """Run both; the s that the first call took beyond the second: compiling, autotuning, loading of libraries."""
    return max(0.0, _wall_s(first, device) - _wall_s(second, device))


def _wall_s(call: Callable[[], object], device: str) -> float:
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start
