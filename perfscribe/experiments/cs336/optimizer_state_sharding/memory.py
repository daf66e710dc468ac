"""Memory of a training step with one optimizer, in bytes, at the MOMENTS and by the KINDS of measure.py."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from perfscribe.distributed.sharded_optimizer import ShardedOptimizer
from perfscribe.experiments.cs336.optimizer_state_sharding import measure as m
from perfscribe.instruments.memory import PeakMemory, allocated_bytes

if TYPE_CHECKING:
    from perfscribe.experiments.cs336.optimizer_state_sharding.program import ShardedTraining

WARMUP_STEPS = 2  # the first creates the state, and the workspaces of matrix products
CUDA_GRANULARITY_BYTES = 512
SETTLE_S = 0.03  # gloo's threads free sent buffers a moment after the wait returns
BEGIN = "begin"  # segment before a part of the step; at its end only surviving tensors are held

Kinds = dict[str, int]


def size_bytes(tensors: Iterable[Tensor], device: torch.device) -> int:
    """Return the bytes that tensors on the device occupy in its allocator, each in a separate block."""
    sizes = [tensor.nbytes for tensor in tensors if tensor.device.type == device.type]
    unit = CUDA_GRANULARITY_BYTES if device.type == "cuda" else 1
    return sum(-(-size // unit) * unit for size in sizes)


def after_init(parameters: list[Tensor], device: torch.device) -> list[int]:
    """Return bytes, in the order of KINDS, while only the model exists: its parameters, and the rest as OTHER."""
    known = size_bytes(parameters, device)
    return as_list({m.PARAMETERS: known, m.OTHER: allocated_bytes(settle(device)) - known})


def settle(device: torch.device) -> torch.device:
    """Wait on a CPU until gloo's threads have freed what they sent (SETTLE_S); return the device, for nested calls."""
    if device.type == "cpu":
        time.sleep(SETTLE_S)
    return device


def as_list(kinds: Kinds) -> list[int]:
    """Return bytes in the order of KINDS."""
    return [kinds.get(kind, 0) for kind in m.KINDS]


def measure_memory(training: ShardedTraining, make: Callable[[], torch.optim.Optimizer]) -> dict[str, list[int]]:
    """Return bytes by moment (all but INIT), in the order of KINDS, of one step after WARMUP_STEPS others."""
    optimizer = make()
    for _ in range(WARMUP_STEPS):
        training.zero_grad()
        training.passes()
        optimizer.step()
    training.zero_grad()
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    found = {m.PASSES: _of_passes(training, optimizer)} | _of_step(training, optimizer)
    training.zero_grad()
    del optimizer
    gc.collect()
    return {moment: as_list(kinds) for moment, kinds in found.items()}


def _of_passes(training: ShardedTraining, optimizer: torch.optim.Optimizer) -> Kinds:
    """Run forward, backward and averaging; return bytes by kind at their peak. Gradients stay, for the optimizer."""

    def handed(parameter: Tensor) -> None:
        """End a segment, named by the gradient's bytes, when a gradient is accumulated."""
        assert parameter.grad is not None
        segments.mark(str(size_bytes([parameter.grad], training.device)))

    with PeakMemory(settle(training.device)) as segments:
        hooks = [parameter.register_post_accumulate_grad_hook(handed) for parameter in training.parameters]
        training.passes(segments.mark)
        for hook in hooks:
            hook.remove()
    held = _held(training, optimizer)
    standing = held | {m.GRADIENTS: 0}
    standing[m.OTHER] = segments.allocated_before_bytes - sum(standing.values())
    handed_over, gradients, highest = 0, 0, (0, "", 0)
    for name, peak in segments.peaks:
        gradients = held[m.GRADIENTS] if name == "averaging" else handed_over
        highest = max(highest, (peak, name, gradients))
        if name.isdecimal():
            handed_over += int(name)
    peak, name, gradients = highest
    rest = m.COMMUNICATION if name == "averaging" else m.ACTIVATIONS
    return standing | {m.GRADIENTS: gradients, rest: peak - segments.allocated_before_bytes - gradients}


def _of_step(training: ShardedTraining, optimizer: torch.optim.Optimizer) -> dict[str, Kinds]:
    """Return bytes by kind before the optimizer step, at its peak and after it."""

    @contextmanager
    def part(name: str) -> Iterator[None]:
        segments.mark(BEGIN)
        yield
        segments.mark(name)

    with PeakMemory(settle(training.device)) as segments:
        if isinstance(optimizer, ShardedOptimizer):
            optimizer.around = part
        optimizer.step()
        segments.mark("update")
    held = _held(training, optimizer)
    held[m.OTHER] = segments.allocated_before_bytes - sum(held.values())
    rest = _above(segments)
    grown = allocated_bytes(settle(training.device)) - segments.allocated_before_bytes
    after_step = held | {m.OTHER: held[m.OTHER] + grown}
    return {m.BEFORE_STEP: held, m.STEP: held | rest, m.AFTER_STEP: after_step}


def _above(segments: PeakMemory) -> Kinds:
    """Return how far the optimizer step's peak is above its start, divided into communication and temporaries.

    In an exchange all of it is communication, in an update only what was held when the update began.
    """
    highest, found, travelling = -1, Kinds(), 0
    for name, peak in segments.peaks:
        above = peak - segments.allocated_before_bytes
        if name == BEGIN:
            travelling = above
        elif above > highest:
            highest = above
            sent = above if name == "exchange" else travelling
            found = {m.COMMUNICATION: sent, m.ACTIVATIONS: above - sent}
    return found


def _held(training: ShardedTraining, optimizer: torch.optim.Optimizer) -> Kinds:
    gradients = [parameter.grad for parameter in training.parameters if parameter.grad is not None]
    return {
        m.PARAMETERS: size_bytes(training.parameters, training.device),
        m.GRADIENTS: size_bytes(gradients, training.device),
        m.STATE: size_bytes(_state_tensors(optimizer), training.device),
    }


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of this rank's optimizer state; torch's sharded optimizer keeps them in an inner optimizer."""
    inner = getattr(optimizer, "optim", optimizer)
    return [value for state in inner.state.values() for value in state.values() if isinstance(value, Tensor)]


def outside_bytes(device: torch.device) -> int | None:
    """Return bytes used on this GPU but not reserved by this process's torch: CUDA, NCCL, others; None on a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))
