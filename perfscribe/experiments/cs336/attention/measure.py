"""pytorch_attention of CS336 assignment 2: forward and backward of attention without a head axis, and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement
from perfscribe.instruments import correctness, precision
from perfscribe.instruments.memory import PeakMemory
from perfscribe.instruments.timing import STEP, Mark, record, time_device, time_phases

if TYPE_CHECKING:
    from torch import Tensor

# CUDA events only check the host clock, so they time fewer calls.
DEVICE_SHARE = 5


def run(cell: Cell) -> Measurement:
    """Check the result against float64, then time forward and backward passes and count their memory."""
    import torch

    from perfscribe.attention.eager import scaled_dot_product_attention
    from perfscribe.attention.reference import Check

    device = cell["device"]
    precision.set_matmul_precision(cell["dtype"])
    dtype = precision.tensor_dtype(cell["dtype"])
    shape = (cell["batch"], cell["seq_len"], cell["head_dim"])
    q, k, v, d_out = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    for tensor in (q, k, v):
        tensor.requires_grad_()

    measurement = Measurement()
    check = Check(scaled_dot_product_attention, (q, k, v), is_causal=False)
    check.both()
    errors = check.errors()
    correctness.require(errors, correctness.EAGER_TOLERANCE[cell["dtype"]])
    measurement.values |= {f"{name}_relative_error": error for name, error in errors.items()}

    def one_pass(mark: Mark) -> None:
        out = scaled_dot_product_attention(q, k, v)
        mark("forward")
        out.backward(d_out)
        mark("backward")

    def without_gradients() -> None:
        q.grad = k.grad = v.grad = None

    timings = time_phases(
        one_pass, warmup=cell["warmup_passes"], timed=cell["passes"], device=device, prepare=without_gradients
    )
    for phase, name in (("forward", "forward_ms"), ("backward", "backward_ms"), (STEP, "both_ms")):
        record(measurement, name, timings[phase])
    if device == "cuda":
        _time_on_device(measurement, q, k, v, d_out, max(5, cell["passes"] // DEVICE_SHARE))
    measurement.values |= _memory(q, k, v, d_out, device)
    return measurement


def _time_on_device(measurement: Measurement, q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, timed: int) -> None:
    """Time the same passes by CUDA events with L2 flushed: the device's own time."""
    from perfscribe.attention.eager import scaled_dot_product_attention

    held: list[Tensor] = []

    def forward() -> None:
        held.clear()
        held.append(scaled_dot_product_attention(q, k, v))

    def fresh_output() -> None:
        q.grad = k.grad = v.grad = None
        forward()

    record(measurement, "forward_device_ms", time_device(forward, warmup=2, timed=timed, prepare=held.clear))
    backward = time_device(lambda: held[0].backward(d_out), warmup=2, timed=timed, prepare=fresh_output)
    record(measurement, "backward_device_ms", backward)


def _memory(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, device: str) -> dict[str, Any]:
    """Return bytes allocated before a backward pass and both passes' peaks, each from one untimed pass."""
    import torch

    from perfscribe.attention.eager import scaled_dot_product_attention

    q.grad = k.grad = v.grad = None
    if device == "cuda":
        torch.cuda.empty_cache()  # memory still reserved by the timers' buffers is not this pass's
    with PeakMemory(device) as forward:
        out = scaled_dot_product_attention(q, k, v)
    with PeakMemory(device) as both:
        del out
        out = scaled_dot_product_attention(q, k, v)
        both.mark("memory_before_backward")
        out.backward(d_out)
    values: dict[str, Any] = {
        "memory_before_backward_bytes": both.marks["memory_before_backward"],
        "peak_forward_bytes": forward.peak_allocated_bytes,
        "peak_allocated_bytes": both.peak_allocated_bytes,
        "memory_counter": both.counter,
    }
    if both.peak_reserved_bytes is not None:
        values["peak_reserved_bytes"] = both.peak_reserved_bytes
    return values
