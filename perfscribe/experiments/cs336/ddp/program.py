"""Runs on each rank of a ddp cell: check, time all implementations interleaved, trace a step of each.

Each turn of an implementation wraps the module again, which makes all replicas equal, and warms up. It then times steps
with and without communication, in an order that is reversed every turn, and for some implementations one step phase by
phase, synchronising the device after each.
"""

from __future__ import annotations

import copy
import gc
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import read
from perfscribe.data import tokens
from perfscribe.distributed.ddp import BY_NAME, BucketedDDP, DataParallel
from perfscribe.distributed.process_group import together
from perfscribe.experiments.cs336.ddp import tracing
from perfscribe.experiments.cs336.ddp import variants as v
from perfscribe.experiments.cs336.ddp.measure import Training
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import WrongResult, relative_error, require
from perfscribe.instruments.timing import CUDA_EVENTS, HOST_CLOCK, Mark, synchronise, time_host, time_phases
from perfscribe.models.training_step import Step
from perfscribe.models.transformer import Model, next_token_loss

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

COPIES = ("flatten", "unflatten")
Wrappers = Mapping[str, Callable[[nn.Module], DataParallel]]
# The model compared with a single process's.
CHECKED_SIZE, CHECKED_LENGTH = "nano", 32
# SGD does not normalise: a gradient that is off by a factor moves parameters by that factor.
CHECKED_RATE = 0.1


def on_rank(arguments: Mapping[str, Any], rank: Rank, wrappers: Wrappers = BY_NAME) -> dict[str, Any]:
    """Measure all implementations on this rank; samples and values are named as in measure.combine.

    wrappers: by implementation, except those with buckets and PyTorch's.
    """
    wrap = partial(Wrapped, wrappers=wrappers)
    level = read(arguments["factors"], Training)
    of = v.from_level(level.variants)
    precision.set_matmul_precision(level.dtype)
    whole = tokens.read(Path(arguments["data_folder"]), level.batch, level.seq_len)
    token_ids = torch.from_numpy(whole).to(rank.device)
    found = Found()
    found.values |= {f"{key}_error": error for key, error in errors(of, level.dtype, token_ids, rank, wrap).items()}
    bench = Bench(level, share(token_ids, rank), rank, found, wrap)
    for turn in range(level.turns):
        for variant in of if turn % 2 == 0 else reversed(of):
            bench.take_turn(variant, turn)
    for variant in v.traced(of):
        bench.trace(variant)
    marks_timer = CUDA_EVENTS if rank.device.type == "cuda" else HOST_CLOCK
    return vars(found) | {"timer": HOST_CLOCK, "marks_timer": marks_timer}


@dataclass
class Found:
    """Results of a rank so far."""

    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    warmup: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, float] = field(default_factory=dict)
    traced_values: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[Any]] = field(default_factory=dict)
    warmup_s: float = 0.0
    timed_s: float = 0.0


class Wrapped:
    """A module that one implementation keeps equal on all ranks, starting from rank 0's parameters.

    call(...) is the module's forward. ours: the wrapper, None for PyTorch's.
    """

    def __init__(self, variant: v.Variant, module: nn.Module, wrappers: Wrappers = BY_NAME) -> None:
        self.variant, self.ours = variant, _ours(variant, module, wrappers)
        views = variant.implementation == v.TORCH_VIEWS
        self.call: Any = self.ours if self.ours is not None else torch_ddp(module, views)

    def finish(self) -> None:
        """Finish a backward, so that gradients are averages. PyTorch's DDP does this by itself."""
        if self.ours is not None:
            self.ours.finish_gradient_synchronization()

    def without_communication(self) -> AbstractContextManager[Any]:
        """Return a context whose steps, forward included, send nothing; PyTorch's no_sync() also skips its copies."""
        found: AbstractContextManager[Any] = self.call.no_sync() if self.ours is None else self.ours.communication_off()
        return found

    def release(self) -> None:
        """Remove the wrapper's hooks from the module, and free what it holds."""
        if self.ours is not None:
            self.ours.release()
        del self.call  # PyTorch's goes with its last reference: the reducer removes its hooks

    def facts(self) -> dict[str, float]:
        """Return all-reduces since the last call, the bytes passed to them, and the number of buckets."""
        if self.ours is None:
            return {}
        traffic = self.ours.traffic
        found: dict[str, float] = {"all_reduces": traffic.calls, "sent_bytes": traffic.bytes}
        traffic.reset()
        if isinstance(self.ours, BucketedDDP):
            found["buckets"] = len(self.ours.bucket_sizes_bytes)
        return found


Wrap = Callable[[v.Variant, nn.Module], Wrapped]


def _ours(variant: v.Variant, module: nn.Module, wrappers: Wrappers) -> DataParallel | None:
    if variant.bucket_mb is not None:
        return BucketedDDP(module, variant.bucket_mb)
    return wrappers[variant.implementation](module) if variant.implementation in wrappers else None


def torch_ddp(module: nn.Module, views: bool) -> DistributedDataParallel:
    """Return PyTorch's DDP, but with no broadcast of buffers: they are constants, and ours skip it too.

    views: whether gradients are views of its buckets; its default is no.
    """
    device = next(module.parameters()).device
    with warnings.catch_warnings(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        warnings.simplefilter("ignore", FutureWarning)  # newer torch renames the argument for buffers
        # One device per rank, which holds the module already: no device_ids, which would only move the inputs.
        return DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=views)


class Moments:
    """When the marks of a step are reached, without waiting: by CUDA events on the current stream, or the host clock.

    An event after backward is reached when its kernels have ended, whatever NCCL's own stream still sends.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._at: dict[str, Any] = {}

    def mark(self, name: str) -> None:
        """Note the moment."""
        self._at[name] = time.perf_counter()
        if self._on_gpu:
            self._at[name] = torch.cuda.Event(enable_timing=True)
            self._at[name].record()

    def between_ms(self, first: str, second: str) -> float:
        """Return milliseconds between two marks, once the device was waited for."""
        start, end = self._at[first], self._at[second]
        return float(start.elapsed_time(end)) if self._on_gpu else (end - start) * 1e3


class Bench:
    """One model, its optimizer and this rank's part of the batch, around which implementations alternate."""

    def __init__(self, level: Training, token_ids: torch.Tensor, rank: Rank, found: Found, wrap: Wrap) -> None:
        self.level, self.rank, self.found, self.wrap = level, rank, found, wrap
        model = Model(SIZES[level.size], level.seq_len, device=rank.device)
        self.training = Step(model, token_ids, rank.device.type, level.dtype)
        self.training.make_optimizer()
        sizes = [tensor.nbytes for tensor in model.parameters()]
        found.values |= {"parameter_tensors": len(sizes), "gradient_bytes": sum(sizes)}

    def take_turn(self, variant: v.Variant, turn: int) -> None:
        """Warm up, then time steps with and without communication, and phases."""
        wrapped = self.wrap(variant, self.training.model)
        counted = self._warm_up(wrapped)
        if turn == 0:
            self.found.values |= {f"{variant.key}_{name}": one for name, one in counted.items()}
            require_equal_gradients(self.training.model, variant.key)
        began = time.perf_counter()
        order = ["step", "off"] * self.level.steps
        with without_collection():
            for name in order if turn % 2 == 0 else reversed(order):
                moments = Moments(self.rank.device)
                with wrapped.without_communication() if name == "off" else nullcontext():
                    self.found.samples[f"{variant.key}_{name}_ms"] += self._timed_ms(wrapped, moments.mark)
                backward_ms = moments.between_ms("forward", "backward")
                self.found.samples[f"{variant.key}_{name}_backward_ms"].append(backward_ms)
                if name == "step" and wrapped.ours is not None:  # PyTorch's backward ends when it has communicated
                    self.found.samples[f"{variant.key}_tail_ms"].append(moments.between_ms("backward", "communication"))
            if variant.implementation in v.PHASED:
                self._time_phases(wrapped)
        self.found.timed_s += time.perf_counter() - began
        wrapped.release()

    def trace(self, variant: v.Variant) -> None:
        """Trace one step, with equal replicas."""
        wrapped = self.wrap(variant, self.training.model)
        self._warm_up(wrapped)
        seen = tracing.record(self.prepare, lambda mark: self.step(wrapped, mark), self.rank.device.type)
        lanes = tracing.lanes(seen, self.rank.place.world_size, self.rank.device.type)
        self.found.traced_values |= {f"{variant.key}_{name}": one for name, one in lanes.values().items()}
        if self.rank.place.rank == 0:
            self.found.series |= {f"{variant.key}_{name}": one for name, one in lanes.series().items()}
        wrapped.release()

    def prepare(self) -> None:
        """Clear gradients and wait for all ranks."""
        self.training.zero_grad()
        together(self.rank.device)

    def step(self, wrapped: Wrapped, mark: Mark = lambda _: None) -> None:
        """Run a training step; mark(name) ends each phase. Phase communication is what finish() has left to do."""
        training = self.training
        with training.autocast():
            loss = next_token_loss(wrapped.call, training.inputs, training.targets)
        mark("forward")
        training.scaler.scale(loss).backward()
        del loss
        mark("backward")
        wrapped.finish()
        mark("communication")
        training.scaler.step(training.optimizer)
        training.scaler.update()
        mark("optimizer")

    def _timed_ms(self, wrapped: Wrapped, mark: Mark = lambda _: None) -> list[float]:
        def step() -> None:
            self.step(wrapped, mark)

        return time_host(step, warmup=0, timed=1, device=self.rank.device, prepare=self.prepare).samples_ms

    def _warm_up(self, wrapped: Wrapped) -> dict[str, float]:
        """Run warm-up steps; return all-reduces, buckets and peak memory of the last, whose gradients stay."""
        # PyTorch's DDP rearranges its buckets in its second step.
        steps = self.level.warmup_steps + (wrapped.ours is None)
        device, on_gpu = self.rank.device, self.rank.device.type == "cuda"
        began, counted = time.perf_counter(), dict[str, float]()
        for _ in range(steps):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(device)
            self.found.warmup[f"{wrapped.variant.key}_step_ms"] += self._timed_ms(wrapped)
            counted = wrapped.facts()
            if on_gpu:
                counted["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        self.found.warmup_s += time.perf_counter() - began
        return counted

    def _time_phases(self, wrapped: Wrapped) -> None:
        key, spent_ms = wrapped.variant.key, dict.fromkeys(COPIES, 0.0)
        if wrapped.variant.implementation == v.FLAT and wrapped.ours is not None:
            wrapped.ours.around = lambda part: _stopwatch(part, spent_ms, self.rank.device)
        phases = time_phases(
            lambda mark: self.step(wrapped, mark), warmup=0, timed=1, device=self.rank.device, prepare=self.prepare
        )
        for phase, timing in phases.items():
            name = "marked_step" if phase == "step" else phase
            self.found.samples[f"{key}_{name}_ms"] += timing.samples_ms
        if wrapped.variant.implementation == v.FLAT:
            self.found.samples[f"{key}_copies_ms"].append(sum(spent_ms.values()))


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect garbage before the context, not within it, like timeit: a collection may take a quarter of a step."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _stopwatch(part: str, spent_ms: dict[str, float], device: torch.device) -> Iterator[None]:
    """Add the milliseconds of a part listed in spent_ms; the device is synchronised before and after it."""
    if part not in spent_ms:
        yield
        return
    synchronise(device)
    began = time.perf_counter()
    yield
    synchronise(device)
    spent_ms[part] += (time.perf_counter() - began) * 1e3


# --- checks -----------------------------------------------------------------------------------------------------


def share(token_ids: Tensor, rank: Rank) -> Tensor:
    """Return this rank's part of the sequences (batch, length), in the order of ranks."""
    count = token_ids.shape[0] // rank.place.world_size
    return token_ids[rank.place.rank * count :][:count]


def errors(
    of: Sequence[v.Variant], dtype: str, token_ids: Tensor, rank: Rank, wrap: Wrap = Wrapped
) -> dict[str, float]:
    """Return by variant the largest error of any parameter tensor's change over v.CHECKED_STEPS steps.

    A small model on the rank's device. token_ids: the whole batch (batch, length + 1). Ranks other than 0 start with
    different parameters, which the wrapper must overwrite.
    Raises WrongResult for an error beyond the tolerance.
    """
    token_ids = token_ids[:, : CHECKED_LENGTH + 1]
    torch.manual_seed(rank.seed)
    begin = Model(SIZES[CHECKED_SIZE], token_ids.shape[1] - 1, device=rank.device)
    for tensor in begin.parameters():
        dist.broadcast(tensor.detach(), 0)
    alone = copy.deepcopy(begin)
    _train(alone, alone, lambda: None, token_ids, dtype)
    before, expected = dict(begin.named_parameters()), dict(alone.named_parameters())
    found = {}
    for variant in of:
        model = copy.deepcopy(begin)
        with torch.no_grad():
            for tensor in model.parameters() if rank.place.rank else ():
                tensor.add_(1)
        wrapped = wrap(variant, model)
        _train(model, wrapped.call, wrapped.finish, share(token_ids, rank), dtype)
        wrapped.release()
        changes = {
            f"{variant.key}: {name}'s change in {v.CHECKED_STEPS} steps": relative_error(
                got.double() - before[name], expected[name].double() - before[name]
            )
            for name, got in model.named_parameters()
        }
        found[variant.key] = require(changes, v.TOLERANCE[dtype], "a single process")
    return found


def _train(model: Model, call: nn.Module, finish: Callable[[], object], token_ids: Tensor, dtype: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=CHECKED_RATE)
    for _ in range(v.CHECKED_STEPS):
        model.zero_grad(set_to_none=True)
        with precision.autocast(token_ids.device.type, dtype):
            loss = next_token_loss(call, token_ids[:, :-1], token_ids[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        finish()
        optimizer.step()


def require_equal_gradients(model: nn.Module, who: str) -> None:
    """Raise WrongResult unless the gradients of all ranks are equal to the last bit and finite.

    Sums in float64 are compared, which ranks with equal gradients compute alike. (Parameters would differ after steps
    without communication, because the optimizer's moments keep these.)
    """
    with torch.no_grad():
        gradients = [tensor.grad for tensor in model.parameters() if tensor.grad is not None]
        sums = torch.stack([gradient.sum(dtype=torch.float64) for gradient in gradients])
    least, largest = sums.clone(), sums.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    differing = int((least != largest).sum())
    if differing or not bool(torch.isfinite(sums).all()):
        raise WrongResult(f"{who}: {differing} of {len(sums)} gradients differ between ranks, or are not finite")
