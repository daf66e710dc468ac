"""Memory of one training step with one optimizer, at each moment and by kind."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from perfscribe.experiments.optimizer_state_sharding.names import (
    ACTIVATIONS,
    AFTER_STEP,
    BEFORE_STEP,
    COMMUNICATION,
    GRADIENTS,
    KINDS,
    OTHER,
    PARAMETERS,
    PASSES,
    STATE,
    STEP,
)
from perfscribe.experiments.optimizer_state_sharding.segments import Segments
from perfscribe.experiments.optimizer_state_sharding.training import Training, make_optimizer, state_tensors

WARMUP_STEPS = 2  # the first makes the state, and the workspaces of matrix products
CUDA_GRANULARITY_BYTES = 512
BEGIN = "begin"  # the stretch before a part of the step, at whose end only what lives on is held

Kinds = dict[str, int]


def size_bytes(tensors: Iterable[Tensor], device: torch.device) -> int:
    """What tensors on the device take of its allocator, each in a block of its own."""
    sizes = [tensor.nbytes for tensor in tensors if tensor.device.type == device.type]
    unit = CUDA_GRANULARITY_BYTES if device.type == "cuda" else 1
    return sum(-(-size // unit) * unit for size in sizes)


def after_init(parameters: list[Tensor], device: torch.device) -> list[int]:
    """Bytes by kind of a model alone; to be called before anything else takes memory."""
    known = size_bytes(parameters, device)
    return as_list({PARAMETERS: known, OTHER: _allocated_bytes(device) - known})


def _allocated_bytes(device: torch.device) -> int:
    """What is allocated now. On a CPU found anew: a block that a thread of gloo gave back is not seen to go."""
    with Segments(device) as now:
        pass
    return now.before_bytes


def as_list(kinds: Kinds) -> list[int]:
    """Bytes in the order of KINDS."""
    return [kinds.get(kind, 0) for kind in KINDS]


def measure_memory(training: Training, name: str) -> dict[str, list[int]]:
    """Bytes by kind from the forward pass to the end of the step, in a step after the first ones; by moment."""
    optimizer = make_optimizer(name, training.parameters)
    for _ in range(WARMUP_STEPS):
        training.zero_grad()
        training.passes()
        optimizer.step()
    training.zero_grad()
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    found = {PASSES: _of_passes(training, optimizer)} | _of_step(training, optimizer)
    training.zero_grad()
    del optimizer
    gc.collect()
    return {moment: as_list(kinds) for moment, kinds in found.items()}


def _of_passes(training: Training, optimizer: torch.optim.Optimizer) -> Kinds:
    """At the peak of the passes; their gradients stay."""
    with Segments(training.device) as segments, _mark_each_gradient(training, segments):
        training.passes(segments.mark)
    held = _held(training, optimizer)
    standing = held | {GRADIENTS: 0}
    standing[OTHER] = segments.before_bytes - sum(standing.values())
    handed_over, gradients, highest = 0, 0, (0, "", 0)
    for name, peak in segments.peaks:
        gradients = held[GRADIENTS] if name == "averaging" else handed_over
        highest = max(highest, (peak, name, gradients))
        if name.isdecimal():
            handed_over += int(name)
    peak, name, gradients = highest
    rest = COMMUNICATION if name == "averaging" else ACTIVATIONS
    return standing | {GRADIENTS: gradients, rest: peak - segments.before_bytes - gradients}


@contextmanager
def _mark_each_gradient(training: Training, segments: Segments) -> Iterator[None]:
    """End a segment, named by its bytes, whenever a gradient has been handed over."""

    def mark(parameter: Tensor) -> None:
        assert parameter.grad is not None
        segments.mark(str(size_bytes([parameter.grad], training.device)))

    handles = [parameter.register_post_accumulate_grad_hook(mark) for parameter in training.parameters]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of_step(training: Training, optimizer: torch.optim.Optimizer) -> dict[str, Kinds]:
    """Before the optimizer step, at its peak and after it."""
    with Segments(training.device) as segments, _mark_parts(optimizer, segments):
        optimizer.step()
        segments.mark("update")
    held = _held(training, optimizer)
    held[OTHER] = segments.before_bytes - sum(held.values())
    rest = _above(segments)
    after_step = held | {OTHER: held[OTHER] + _allocated_bytes(training.device) - segments.before_bytes}
    return {BEFORE_STEP: held, STEP: held | rest, AFTER_STEP: after_step}


def _above(segments: Segments) -> Kinds:
    """What the step takes at its peak: what travels, which an update begins with, and the update's temporaries."""
    highest, found, travelling = -1, Kinds(), 0
    for name, peak in segments.peaks:
        above = peak - segments.before_bytes
        if name == BEGIN:
            travelling = above
        elif above > highest:
            highest = above
            sent = above if name == "exchange" else travelling
            found = {COMMUNICATION: sent, ACTIVATIONS: above - sent}
    return found


@contextmanager
def _mark_parts(optimizer: torch.optim.Optimizer, segments: Segments) -> Iterator[None]:
    """End a segment with each part of our sharded step; other optimizers have none."""
    before = getattr(optimizer, "around", None)
    if before is None:
        yield
        return

    @contextmanager
    def around(name: str) -> Iterator[None]:
        segments.mark(BEGIN)
        yield
        segments.mark(name)

    optimizer.around = around  # type: ignore[attr-defined]
    try:
        yield
    finally:
        optimizer.around = before  # type: ignore[attr-defined]


def _held(training: Training, optimizer: torch.optim.Optimizer) -> Kinds:
    gradients = [parameter.grad for parameter in training.parameters if parameter.grad is not None]
    return {
        PARAMETERS: size_bytes(training.parameters, training.device),
        GRADIENTS: size_bytes(gradients, training.device),
        STATE: size_bytes(state_tensors(optimizer), training.device),
    }


def outside_bytes(device: torch.device) -> int | None:
    """What this GPU's memory holds beyond torch's caching allocator: CUDA's context, NCCL's buffers; None on a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))
