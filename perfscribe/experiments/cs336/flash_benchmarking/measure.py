"""flash_benchmarking of CS336 assignment 2: forward, backward and both of attention, by every implementation.

The factor `workload` distinguishes three kinds of cells: grid (the homework's problem), leaderboard (the course's
competition) and matmul (a large product, whose rate is the ceiling of the others).
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.attention import backends
from perfscribe.attention.reference import Check
from perfscribe.base.cells import Cell, Measurement
from perfscribe.base.partial import kept_on_failure
from perfscribe.experiments.cs336.flash_benchmarking import closure, products
from perfscribe.experiments.cs336.flash_benchmarking.products import Product
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import TOLERANCE
from perfscribe.instruments.graph_timing import Clocks
from perfscribe.instruments.timing import synchronise

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# Implementations whose kernels are known; for the others PyTorch chooses.
OPEN = ("eager", "tiled", "triton", "triton_ieee")
SHOWN_KERNELS = 2
NAME_LENGTH = 64
NOT_SEEN = "not seen by the profiler"
# Patterns in kernel names (on the CPU: operator names) that identify scaled_dot_product_attention's backend.
SDPA_BACKENDS = (
    ("CUDNN_ATTENTION", r"cudnn"),
    ("FLASH_ATTENTION", r"pytorch_flash|flash_fwd|flash_bwd|_scaled_dot_product_flash_attention"),
    ("EFFICIENT_ATTENTION", r"fmha_cutlass|AttentionKernel|AttentionBackwardKernel|efficient_attention"),
    ("MATH", r"_scaled_dot_product_attention_math|softmax"),
)

Inputs = tuple["Tensor", "Tensor", "Tensor", "Tensor"]  # q, k, v and the gradient of the output


@dataclass(frozen=True)
class Attention:
    """Factors of a cell that is no product."""

    workload: str
    device: str
    implementation: str
    dtype: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    samples: int


def run(cell: Cell) -> Measurement:
    """Time one cell, after a comparison of its result with float64."""
    keep_compiled_code(cell.data_folder)
    return (
        products.measure(cell.read(Product))
        if "matrix_size" in cell.factors
        else attention(cell.read(Attention), cell.round)
    )


def keep_compiled_code(data_folder: str) -> None:
    """Let Triton and inductor cache compiled code next to the site's results, unless the user has set a folder.

    Both read their variable when they first need the folder, which is later than this.
    """
    if not data_folder:
        return
    cache = Path(data_folder).resolve().parent / "cache"
    for variable, name in (("TRITON_CACHE_DIR", "triton"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        os.environ.setdefault(variable, str(cache / name))


def attention(of: Attention, number: int = 1) -> Measurement:
    """Compare with float64, then time; forward first, so that it is measured even if backward runs out of memory.

    number: of the round. Those after the first only time calls with launches, which vary between processes.
    """
    import torch

    precision.set_matmul_precision(of.dtype)
    device, dtype = of.device, precision.tensor_dtype(of.dtype)
    shape = (of.batch, of.heads, of.seq_len, of.head_dim)
    call = backends.make_call(of.implementation, device, dtype, of.head_dim, of.causal)
    q, k, v, d_out = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    problem = Problem(call, (q, k, v, d_out), of.causal)
    check, tolerance = Check(problem.attend, problem.leaves(), of.causal), TOLERANCE[of.dtype]
    timers = Clocks(device, of.samples, replays=number == 1)
    measurement = Measurement()
    with kept_on_failure(measurement):
        measurement.compile_s += _beyond_the_second_s(problem.forward(), check.forward, device)
        measurement.values |= check.largest_error(tolerance)
        timers.time(measurement, "forward", problem.forward)
        measurement.compile_s += _beyond_the_second_s(problem.both(), check.both, device)
        measurement.values |= check.largest_error(tolerance)
        if of.implementation not in OPEN and number == 1:
            measurement.values |= kernels_of(problem.both(), device, of.implementation)
        timers.time(measurement, "backward", problem.backward)
        timers.time(measurement, "both", problem.both)
        timers.time_on_one_thread(measurement, "both", problem.both)
        measurement.values |= timers.values()
        if number == 1 and of.workload == "leaderboard" and device == "cuda" and of.implementation in closure.TIMED:
            own = of.implementation == backends.ours(device)
            closure.measure(measurement, closure.SAMPLE, call, shape, dtype, compiled=own)
    return measurement


class Problem:
    """One implementation on one set of inputs; each method copies them on the current stream and returns a call.

    Copies, so that consecutive calls find none of each other's data in a cache; separate leaves, so that autograd
    accumulates on the stream that the call runs on. All tensors are (batch, heads, n, d).
    """

    def __init__(self, call: backends.Call, inputs: Inputs, is_causal: bool) -> None:
        self._call, self._inputs, self._is_causal = call, inputs, is_causal

    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return new copies of q, k and v that require gradients."""
        q, k, v = (tensor.clone().requires_grad_() for tensor in self._inputs[:3])
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the output."""
        return self._call(q, k, v, self._is_causal)

    def forward(self) -> Callable[[], Tensor]:
        """Return a forward pass that keeps the tensors for backward."""
        q, k, v = self.leaves()
        return lambda: self.attend(q, k, v)

    def backward(self) -> Callable[[], Any]:
        """Return a backward pass only, which repeats over one forward pass."""
        import torch

        leaves, d_out = self.leaves(), self._inputs[3].clone()
        out = self.attend(*leaves)
        return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)

    def both(self) -> Callable[[], Any]:
        """Return a forward and a backward pass."""
        import torch

        leaves, d_out = self.leaves(), self._inputs[3].clone()
        return lambda: torch.autograd.grad(self.attend(*leaves), leaves, d_out)


def _beyond_the_second_s(first: Callable[[], object], second: Callable[[], object], device: str) -> float:
    """Run both; return seconds that the first took beyond the second: compiling, autotuning, loading libraries."""
    return max(0.0, _wall_s(first, device) - _wall_s(second, device))


def _wall_s(call: Callable[[], object], device: str) -> float:
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def kernels_of(call: Callable[[], object], device: str, implementation: str) -> dict[str, str]:
    """Return kernels: those with most time, shortened; and sdpa_backend, the backend that was chosen, if it is SDPA.

    On the CPU, operators of attention replace kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # Kineto would print two lines for each profile
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        call()
        synchronise(device)
    times = times_by_name(profiler.events(), on_gpu)
    found = {}
    if on_gpu or times:
        found["kernels"] = "; ".join(_short(name) for name, _ in times.most_common(SHOWN_KERNELS)) or NOT_SEEN
    if backends.named(implementation).sdpa:
        found["sdpa_backend"] = backend_of(times)
    return found


def times_by_name(events: Any, on_gpu: bool) -> Counter[str]:
    """Return microseconds by name: on a GPU of kernels, without copies and fills; on a CPU of attention operators."""
    times: Counter[str] = Counter()
    for event in events:
        if not on_gpu and "_scaled_dot_product" in event.name:
            times[event.name] += event.cpu_time_total
        elif on_gpu and str(event.device_type).endswith("CUDA") and not event.name.startswith(("Memset", "Memcpy")):
            times[event.name] += event.time_range.elapsed_us()
    return times


def backend_of(names: Counter[str]) -> str:
    """Return the SDPBackend that kernels or operators of these names belong to."""
    return next((backend for backend, words in SDPA_BACKENDS if re.search(words, " ".join(names))), NOT_SEEN)


def _short(name: str) -> str:
    """Return a kernel's name without return type, template arguments and parameters."""
    bare = re.sub(r"^(void|std::enable_if\S*) ", "", name)
    return re.split(r"[<(]", bare, maxsplit=1)[0][:NAME_LENGTH].strip() or name[:NAME_LENGTH]
