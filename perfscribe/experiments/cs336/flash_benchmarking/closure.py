"""The leaderboard's measurement: attention, the sum of its output, backward, by triton.testing.do_bench."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfscribe.attention import backends
from perfscribe.base.cells import Measurement

if TYPE_CHECKING:
    import torch

REP_MS, WARMUP_MS = 10_000, 1_000  # the handout's
TIMED = ("triton", "sdpa_flash", "sdpa_cudnn")
SAMPLE, WHY_NOT = "closure_ms", "no_closure"
DIGITS = 4


def measure(
    measurement: Measurement, sample: str, call: backends.Call, shape: Sequence[int], dtype: torch.dtype, compiled: bool
) -> None:
    """Time calls by do_bench, keeping every time. compiled: by torch.compile, as the handout does with own kernels."""
    import torch
    from triton.testing import do_bench

    attend = torch.compile(call) if compiled else call
    q, k, v = torch.randn(3, *shape, device="cuda", dtype=dtype, requires_grad=True)
    started = time.perf_counter()
    times = do_bench(lambda: attend(q, k, v, True).sum().backward(), warmup=WARMUP_MS, rep=REP_MS, return_mode="all")
    measurement.timed_s += time.perf_counter() - started
    measurement.samples[sample] = [float(f"{ms:.{DIGITS}g}") for ms in times]
    measurement.timers[sample] = "triton.testing.do_bench"
