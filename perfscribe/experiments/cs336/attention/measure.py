"""pytorch_attention of CS336 assignment 2: forward and backward of attention without a head axis, and its memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import Attention
from perfscribe.base.cells import Cell, Measurement
from perfscribe.instruments.memory import PeakMemory
from perfscribe.instruments.timing import STEP, record, time_device, time_phases

if TYPE_CHECKING:
    from torch import Tensor

    from perfscribe.experiments.cs336.attention.passes import Passes

# CUDA events only check the host clock, so they time fewer calls.
DEVICE_SHARE = 5
TRACED = 5


@dataclass(frozen=True)
class TimedAttention(Attention):
    """Factors of a cell."""

    warmup_passes: int
    passes: int


def run(cell: Cell) -> Measurement:
    """Check the result against float64, then time forward and backward passes and count their memory."""
    from perfscribe.attention.eager import scaled_dot_product_attention
    from perfscribe.experiments.cs336.attention.passes import Passes

    level = cell.read(TimedAttention)
    passes = Passes((level.batch, level.seq_len, level.head_dim), level.dtype, level.device)
    errors = passes.errors(scaled_dot_product_attention)
    measurement = Measurement(values={f"{name}_relative_error": error for name, error in errors.items()})
    counts = {"warmup": level.warmup_passes, "timed": level.passes}
    one_pass = partial(passes.both, scaled_dot_product_attention)
    timings = time_phases(one_pass, **counts, device=level.device, prepare=passes.forget_gradients)
    for phase, name in (("forward", "forward_ms"), ("backward", "backward_ms"), (STEP, "both_ms")):
        record(measurement, name, timings[phase])
    if level.device == "cuda":
        _time_on_device(measurement, passes, max(5, level.passes // DEVICE_SHARE))
    measurement.values |= _memory(passes, level.device)
    if level.device == "cuda":
        measurement.values |= _kernels(passes)  # last, as a profile makes later launches slower
    return measurement


def _time_on_device(measurement: Measurement, passes: Passes, timed: int) -> None:
    """Time the same passes by CUDA events with L2 flushed: the device's own time."""
    from perfscribe.attention.eager import scaled_dot_product_attention

    held: list[Tensor] = []

    def forward() -> None:
        held.clear()
        held.append(scaled_dot_product_attention(*passes.leaves))

    def fresh_output() -> None:
        passes.forget_gradients()
        forward()

    record(measurement, "forward_device_ms", time_device(forward, warmup=2, timed=timed, prepare=held.clear))
    backward = time_device(lambda: held[0].backward(passes.d_out), warmup=2, timed=timed, prepare=fresh_output)
    record(measurement, "backward_device_ms", backward)


def _memory(passes: Passes, device: str) -> dict[str, Any]:
    """Return bytes allocated before a backward pass and both passes' peaks, each from one untimed pass."""
    import torch

    from perfscribe.attention.eager import scaled_dot_product_attention

    passes.forget_gradients()
    if device == "cuda":
        torch.cuda.empty_cache()  # memory still reserved by the timers' buffers is not this pass's
    with PeakMemory(device) as forward:
        out = scaled_dot_product_attention(*passes.leaves)
    with PeakMemory(device) as both:
        del out
        out = scaled_dot_product_attention(*passes.leaves)
        both.mark("memory_before_backward")
        out.backward(passes.d_out)
    values: dict[str, Any] = {
        "memory_before_backward_bytes": both.marks["memory_before_backward"],
        "peak_forward_bytes": forward.peak_allocated_bytes,
        "peak_allocated_bytes": both.peak_allocated_bytes,
        "memory_counter": both.counter,
    }
    if both.peak_reserved_bytes is not None:
        values["peak_reserved_bytes"] = both.peak_reserved_bytes
    return values


def _kernels(passes: Passes) -> dict[str, Any]:
    """Return softmax's kernel, and softmax's and matmuls' kernel time in a forward pass (ms), or why there is none."""
    from perfscribe.attention.eager import scaled_dot_product_attention
    from perfscribe.instruments.profiling.families import GEMM, SOFTMAX, family
    from perfscribe.instruments.profiling.torch_profiler import NoKernels, recording

    try:
        with recording("cuda") as recorded:
            for _ in range(TRACED):
                scaled_dot_product_attention(*passes.leaves)
    except NoKernels as error:
        return {"softmax_kernel": str(error)}
    spans: dict[str, int] = defaultdict(int)
    for kernel in recorded.trace.kernels:
        spans[family(kernel.name)] += kernel.end_ns - kernel.start_ns
    softmax = next(kernel.name for kernel in recorded.trace.kernels if family(kernel.name) == SOFTMAX)
    return {
        "softmax_kernel": softmax.partition("<")[0].rpartition("::")[2],
        "softmax_kernel_ms": spans[SOFTMAX] / TRACED / 1e6,
        "matmul_kernels_ms": spans[GEMM] / TRACED / 1e6,
    }
