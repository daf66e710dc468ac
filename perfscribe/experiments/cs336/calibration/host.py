"""Measures what the host spends per Python call, per operation that it launches, and per step of autograd.

Work that takes the device less than that waits for the host. Each sample is the mean of CALLS calls in a row, by the
host clock, without waiting for the device, whose queue has room for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from perfscribe.base.cells import Measurement
from perfscribe.instruments.timing import HOST_CLOCK, synchronise

if TYPE_CHECKING:
    from torch import Tensor

PYTHON, LAUNCH, AUTOGRAD, ONE_THREAD = "Python call", "launch", "autograd", "autograd, one thread"
CALLS = 500
WARMUP = 2
FACTOR = 2.0


def measure(operation: str, device: str, count: int) -> Measurement:
    """Time one operation on one number; ValueError if the number or its gradient is wrong afterwards.

    samples: call_us. Python call: of a function that does nothing. launch: `x.add_(1)`. autograd: forward and backward
    of `w * 2`; a GPU's backward goes through a thread of autograd's own, unless it stays on the calling thread.
    """
    import torch

    x = torch.zeros((), device=device)
    w = torch.ones((), device=device, requires_grad=True)
    call: Callable[[], object] = partial(_backward, w)
    if operation in (PYTHON, LAUNCH):
        call = _nothing if operation == PYTHON else partial(x.add_, 1)
    turns = WARMUP + count
    with torch.autograd.set_multithreading_enabled(operation != ONE_THREAD):
        samples = [_mean_us(call, device) for _ in range(turns)]
    if (operation == LAUNCH and float(x) != turns * CALLS) or (w.grad is not None and float(w.grad) != FACTOR):
        raise ValueError(f"{operation}: x is {x}, the gradient {w.grad}")
    measurement = Measurement(timers={"call_us": HOST_CLOCK})
    measurement.warmup["call_us"], measurement.samples["call_us"] = samples[:WARMUP], samples[WARMUP:]
    return measurement


def _nothing() -> None:
    pass


def _backward(w: Tensor) -> None:
    w.grad = None
    (w * FACTOR).backward()


def _mean_us(call: Callable[[], object], device: str) -> float:
    synchronise(device)
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6
