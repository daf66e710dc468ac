"""The experiment ddp: its checks, and a GPU's trace. A cell that really runs: tests/workflow/test_workflow.py."""

import gc
import itertools
import math
import re
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import torch
from ranks import run_ranks

from perfscribe.experiments.cs336.ddp import drawings, measure, program, tracing, variants
from perfscribe.experiments.cs336.ddp.program import Wrapped
from perfscribe.experiments.cs336.ddp.variants import Variant
from perfscribe.instruments.profiling.trace import Kernel, Range, Trace, thread_key


def _checked(number: int, fault: str) -> None:
    """The check, where finish() leaves one tensor as it was, or no number in it after the last step."""
    calls = itertools.count(1)

    def finish(self: Any) -> None:
        gradient = self.ours.module.norm.weight.grad
        own = gradient.clone()
        self.ours.finish_gradient_synchronization()
        if fault == "not averaged":
            gradient.copy_(own)
        elif next(calls) == variants.CHECKED_STEPS:
            gradient.fill_(math.nan)

    rank: Any = SimpleNamespace(place=SimpleNamespace(rank=number, world_size=2), device=torch.device("cpu"), seed=7)
    ids = torch.randint(10_000, (4, 9), generator=torch.Generator().manual_seed(0))
    with mock.patch.object(Wrapped, "finish", finish):
        program.errors([Variant("naive")], "fp32", ids, rank)


def _gradients(rank: int) -> None:
    model = torch.nn.Linear(3, 2)
    for tensor in model.parameters():
        tensor.grad = torch.ones_like(tensor)
    program.require_equal_gradients(model, "flat")
    if rank == 1:
        assert model.bias.grad is not None
        model.bias.grad[0] = 1 + 2**-20
    program.require_equal_gradients(model, "flat")


def _on_ranks(rank: int) -> tuple[list[str], bool]:
    """Return the refusals of three checks, and whether PyTorch's wrapper still exists after its release."""
    refused = []
    for check in (partial(_checked, fault="not averaged"), partial(_checked, fault="no number"), _gradients):
        with pytest.raises(Exception, match=r"\S") as caught:
            check(rank)
        refused.append(str(caught.value))
    gc.disable()
    wrapped = Wrapped(Variant("torch_ddp"), torch.nn.Linear(3, 2))
    wrapped.call(torch.ones(1, 3)).sum().backward()
    there = weakref.ref(wrapped.call)
    wrapped.release()
    return refused, there() is not None


def test_checks_refuse_what_does_not_average_and_nothing_is_left_of_pytorchs_wrapper() -> None:
    for (*averages, gradients), left in run_ranks(_on_ranks, 2):
        for text in averages:
            assert re.match(r"naive: norm\.weight's change in 3 steps is off by \S+ against a single process", text)
        assert gradients.startswith("flat: 1 of 2 gradients differ between ranks") and not left


def test_the_slowest_rank_counts() -> None:
    def rank(step_ms: list[float], error: float) -> dict[str, Any]:
        answer = {"timer": "host clock", "marks_timer": "events", "warmup_s": 1.0, "timed_s": 2.0, "series": {}}
        answer |= {"samples": {"naive_step_ms": step_ms, "naive_tail_ms": [1.0]}, "warmup": {"naive_step_ms": [9.0]}}
        return answer | {"values": {"naive_error": error}, "traced_values": {"naive_own_stream": True}}

    both = measure.combine([rank([1, 5], 0.1), rank([3, 4], 0.3)])
    assert both.samples == {"naive_step_ms": [3, 5], "naive_tail_ms": [1]}
    assert both.timers == {"naive_step_ms": "host clock", "naive_tail_ms": "events"}
    assert both.values == {"naive_error": 0.3, "naive_own_stream": True}


MAIN, AUTOGRAD = thread_key(1, 1), thread_key(1, 2)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n"


def kernel(name: str, start: int, end: int, launched: int, stream: int, thread: int = MAIN) -> Kernel:
    return Kernel(name, start, end, launched, launched + 1, thread, stream)


OVERLAPPING = (
    kernel(GEMM, 1010, 1050, 1002, 7),
    kernel(GEMM, 1050, 1120, 1012, 7, AUTOGRAD),
    kernel(NCCL, 1080, 1100, 1020, 20, AUTOGRAD),
    kernel(NCCL, 1110, 1150, 1025, 20, AUTOGRAD),
    kernel("multi_tensor_apply_kernel", 1150, 1190, 1035, 7),
)


def test_a_gpus_lanes_are_its_kernels() -> None:
    spans = {"forward": (1000, 1010), "backward": (1010, 1030), "finish": (1030, 1032), "optimizer": (1032, 1040)}
    ranges = [Range("step", 1000, 1200, MAIN), *(Range(name, *span, MAIN) for name, span in spans.items())]
    barrier = kernel(NCCL, 900, 950, 890, 20)
    found = tracing.lanes(Trace("torch profiler 2.11.0", [barrier, *OVERLAPPING], ranges), 2, "cuda")
    assert found.compute == [(10, 120), (150, 190)] and found.communication == [(80, 100), (110, 150)]
    assert found.phases == {"forward": (10, 50), "backward": (50, 120), "optimizer": (150, 190)}
    values = found.values()
    assert values["traced_both_ms"] == pytest.approx(30e-6) and values["traced_communication_ms"] == 60e-6
    assert values["own_stream"] is True
    shared = [replace(one, stream=7) for one in OVERLAPPING]
    made = tracing.lanes(Trace("torch profiler 2.11.0", [barrier, *shared], ranges), 2, "cuda")
    assert made.values()["own_stream"] is False


def test_timelines_show_each_edition_s_model_once_in_fp32() -> None:
    cells = [("2.7B", 512, 2, "tf32"), ("xl", 128, 2, "fp32"), ("xl", 128, 4, "fp32"), ("2.7B", 512, 2, "fp32")]
    rows = [
        {"size": size, "seq_len": seq_len, "batch": 2, "world_size": ranks, "backend": "nccl", "dtype": dtype}
        for size, seq_len, ranks, dtype in cells
    ]
    shown = [key for key, _ in drawings.models(pd.DataFrame(rows))]
    assert [(key[0], key[3], key[5]) for key in shown] == [("xl", 2, "fp32"), ("2.7B", 2, "fp32")]
