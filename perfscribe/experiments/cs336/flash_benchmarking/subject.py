"""Checks a subject's FlashAttention against float64, then times it in turns with ours."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfscribe.attention import backends
from perfscribe.attention.reference import Check, attention
from perfscribe.base.cells import Cell, Measurement
from perfscribe.base.partial import kept_on_failure
from perfscribe.experiments.cs336.flash_benchmarking import closure
from perfscribe.experiments.cs336.flash_benchmarking import measure as m
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import WrongResult, require_close
from perfscribe.instruments.graph_timing import Clocks
from perfscribe.instruments.memory import allocated_bytes, is_oom
from perfscribe.subjects import FLASH, Subject
from perfscribe.subjects.loading import adapters, subjects_code

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Largest relative errors (Frobenius norm) of outputs and gradients; those of fp32 and TF32 as in the course's tests.
ALLOWED = {"fp32": 1e-2, "tf32": 1e-2, "bf16": 2e-2, "fp16": 1e-2}
CHECKED_LENGTHS = (64, 128)  # with every head dimension and dtype of the cells, causal and not
# Both handouts let the PyTorch version ignore is_causal, and the course's tests never set it.
MAY_IGNORE_CAUSAL = FLASH["cpu"]
NOT_CAUSAL = "not_causal"
TURNS = 2
LEAK_CALLS = 3
PASSES = ("forward", "backward", "both")


def cells(of: Sequence[Cell], name: str, kernels: Collection[str]) -> list[Cell]:
    """Return our implementation's cells as the subject's, where the subject has the cell's kernel."""
    found = []
    for cell in of:
        kernel = FLASH[cell["device"]]
        if cell.factors.get("implementation") == backends.ours(cell["device"]) and kernel in kernels:
            found.append(replace(cell, factors={**cell.factors, "implementation": name, "kernel": kernel}))
    return found


def run(cell: Cell) -> Measurement:
    """Check and time one cell."""
    m.keep_compiled_code(cell.data_folder)
    with subjects_code():
        return _measured(cell.read(m.Attention), cell.read(Subject))


def _measured(of: m.Attention, subject: Subject) -> Measurement:
    import torch

    device, dtype = of.device, precision.tensor_dtype(of.dtype)
    (get,) = adapters(subject.subject, subject.kernel)
    assert get is not None
    theirs = as_call(get().apply)
    precision.set_matmul_precision(of.dtype)
    error, remark = checked(theirs, of, subject.kernel, dtype)
    is_causal = of.causal and not remark
    if "torch._dynamo" in sys.modules:  # after the check's lengths, code would be compiled for dynamic lengths
        torch._dynamo.reset()
    shape = (of.batch, of.heads, of.seq_len, of.head_dim)
    inputs = tuple(torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    problem = m.Problem(theirs, inputs, is_causal)  # type: ignore[arg-type]
    full = Check(problem.attend, problem.leaves(), is_causal)
    measurement = Measurement(values={"largest_relative_error": error} | ({NOT_CAUSAL: remark} if remark else {}))
    with kept_on_failure(measurement):
        measurement.compile_s += m._beyond_the_second_s(problem.both(), full.both, device)
        try:
            at_length = full.largest_error(ALLOWED[of.dtype])
        except WrongResult as wrong:
            raise WrongResult(f"{wrong}, at {of.seq_len} tokens, d {of.head_dim}") from None
        measurement.values["largest_relative_error"] = max(error, *at_length.values())
        measurement.values["kept_bytes"] = kept_bytes(problem.both(), device)
        our_call = backends.make_call(backends.ours(device), device, dtype, of.head_dim, is_causal)
        ours = m.Problem(our_call, inputs, is_causal)  # type: ignore[arg-type]
        for turn in range(TURNS):
            clocks = Clocks(device, -(-of.samples // TURNS), launched_turns=1)
            for one in PASSES:
                named = [(one, problem), (f"ours_{one}", ours)]
                for name, what in named if turn % 2 == 0 else reversed(named):
                    _time(measurement, clocks, name, getattr(what, one))
            measurement.values |= clocks.values()
        if of.workload == "leaderboard" and device == "cuda":
            try:
                closure.measure(measurement, closure.SAMPLE, theirs, shape, dtype, compiled=True)
            except Exception as error:  # theirs runs uncompiled; its row reports that it does not compile
                measurement.values[closure.WHY_NOT] = cause(error)
    if "torch._dynamo" in sys.modules:  # in our code they would be a fault; a subject may have them
        measurement.values["graph_breaks"] = sum(torch._dynamo.utils.counters["graph_break"].values())
    return measurement


def cause(error: Exception) -> str:
    """Return the last line of the text that names an error, where torch.compile puts the original error."""
    named = [line.strip() for line in str(error).splitlines() if "Error" in line]
    return f"{type(error).__name__}: {named[-1] if named else error}"


def as_call(apply: Callable[..., Tensor]) -> backends.Call:
    """Return a call on (batch, heads, n, d) of a function on the course's (batch, n, d): heads join the batch."""

    def call(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
        return apply(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), is_causal).reshape(q.shape)

    return call


def _time(measurement: Measurement, clocks: Clocks, name: str, make: Callable[[], Callable[[], object]]) -> None:
    """Append the samples of another turn to those before."""
    turn = Measurement()
    clocks.time(turn, name, make)
    for sample, times in turn.samples.items():
        measurement.samples.setdefault(sample, []).extend(times)
    measurement.timers |= turn.timers
    measurement.warmup_s += turn.warmup_s
    measurement.timed_s += turn.timed_s


def checked(call: backends.Call, of: m.Attention, kernel: str, dtype: torch.dtype) -> tuple[float, str]:
    """Return the largest error and, if it covers only calls that are not causal, the reason; else ""."""
    import torch

    device, head_dim, allowed = of.device, of.head_dim, ALLOWED[of.dtype]
    error = check(call, device, dtype, head_dim, allowed, is_causal=False)
    try:
        return max(error, check(call, device, dtype, head_dim, allowed, is_causal=True)), ""
    except Exception as wrong:
        if kernel != MAY_IGNORE_CAUSAL or is_oom(wrong):
            raise
        q, k, v = (torch.randn((1, 1, CHECKED_LENGTHS[0], head_dim), device=device, dtype=dtype) for _ in range(3))
        with contextlib.suppress(Exception):
            if torch.equal(call(q, k, v, True), call(q, k, v, False)):
                return error, "ignores is_causal, as the handout allows in PyTorch: its times, and ours, are not causal"
        why = str(wrong) if isinstance(wrong, WrongResult) else f"{type(wrong).__name__}: {wrong}"
        return error, f"not right where is_causal, which the handout allows in PyTorch ({why}): times are not causal"


def check(
    call: backends.Call, device: str, dtype: torch.dtype, head_dim: int, allowed: float, is_causal: bool
) -> float:
    """Return the largest error of output, log-sum-exp and gradients against float64 at several lengths.

    The log-sum-exp is the only tensor of its shape that the function saved, as in the course's tests.
    Raises WrongResult for an error above `allowed`, or unless there is exactly one such tensor.
    """
    import torch

    worst = 0.0
    for length in CHECKED_LENGTHS:
        where = f"{'causal' if is_causal else 'not causal'}, d {head_dim}, {length} tokens"
        q, k, v, d_out = (torch.randn((1, 2, length, head_dim), device=device, dtype=dtype) for _ in range(4))
        exact = [one.double().requires_grad_() for one in (q, k, v)]
        hidden = torch.ones((length, length), dtype=torch.bool, device=device).triu(1) if is_causal else None
        want_out, want_sums = attention(exact[0], exact[1], exact[2], hidden)
        want = [want_out, want_sums[0], *torch.autograd.grad(want_out, exact, d_out.double())]
        leaves = [one.requires_grad_() for one in (q, k, v)]
        out = call(leaves[0], leaves[1], leaves[2], is_causal)
        saved = _saved(out, (2, length))
        if len(saved) > 1:
            raise WrongResult(f"{len(saved)} saved tensors of shape {(2, length)} at {where}; expected the log-sum-exp")
        sums = saved[0] if saved else None
        got = [out, sums, *torch.autograd.grad(out, leaves, d_out)]
        for what, one, expected in zip(("output", "log-sum-exp", "dQ", "dK", "dV"), got, want, strict=True):
            worst = max(worst, require_close(what, one, expected, allowed, where))
    return float(f"{worst:.3g}")


def _saved(out: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """Return tensors of this shape saved by the autograd function that made `out`, behind views."""
    nodes, found = [out.grad_fn], []
    while nodes:
        node = nodes.pop()
        found += [one for one in getattr(node, "saved_tensors", ()) if one is not None and one.shape == shape]
        if not hasattr(node, "saved_tensors"):
            nodes += [inner for inner, _ in node.next_functions if inner is not None] if node is not None else []
    return found


def kept_bytes(call: Callable[[], object], device: str) -> float:
    """Return the growth of memory per further call: of CUDA's allocator, or of tensors known to Python on a CPU."""
    call()
    before = allocated_bytes(device)
    for _ in range(LEAK_CALLS):
        call()
    return max(0.0, (allocated_bytes(device) - before) / LEAK_CALLS)
