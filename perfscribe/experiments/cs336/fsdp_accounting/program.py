"""Runs on each rank of fsdp_accounting: check, count memory, trace a step, time, one implementation at a time."""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from perfscribe.analytic.shapes import SIZES, Shape
from perfscribe.base.cells import read
from perfscribe.data import tokens
from perfscribe.distributed.ddp import OverlappedDDP
from perfscribe.distributed.fsdp import shard
from perfscribe.distributed.process_group import together
from perfscribe.distributed.sharded_modules import FullyShardedModule
from perfscribe.distributed.sharded_optimizer import ShardedOptimizer
from perfscribe.experiments.cs336.ddp import program as ddp
from perfscribe.experiments.cs336.ddp import tracing
from perfscribe.experiments.cs336.ddp.measure import Training
from perfscribe.experiments.cs336.ddp.variants import CHECKED_STEPS, TOLERANCE
from perfscribe.experiments.cs336.fsdp_accounting import measure as m
from perfscribe.experiments.cs336.optimizer_state_sharding.memory import settle
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import require_close
from perfscribe.instruments.memory import PeakMemory, allocated_bytes
from perfscribe.instruments.profiling.summary import Span, length_ns
from perfscribe.instruments.timing import CUDA_EVENTS, HOST_CLOCK, Mark, time_host
from perfscribe.models.training_step import LEARNING_RATE
from perfscribe.models.transformer import Model

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank


@dataclass
class Wrapped:
    """A model in one implementation. finish: ends a backward. whole: returns all parameters by name.

    autocast: dtype of the passes; fp32 where the implementation casts the weights itself. release: detaches hooks.
    """

    model: nn.Module
    finish: Callable[[], object]
    whole: Callable[[], Mapping[str, Tensor]]
    autocast: str = "fp32"
    release: Callable[[], object] = lambda: None
    optimizer: Any = None


Wrap = Callable[[Model, str], Wrapped]  # of a model and a dtype


def _torch_ddp(model: Model, dtype: str) -> Wrapped:
    return Wrapped(ddp.torch_ddp(model, views=True), lambda: None, lambda: dict(model.named_parameters()), dtype)


def _sharded_optimizer(model: Model, dtype: str) -> Wrapped:
    replica = OverlappedDDP(model)
    finish = replica.finish_gradient_synchronization
    return Wrapped(replica, finish, lambda: dict(model.named_parameters()), dtype, replica.release)


def _fsdp(model: Model, dtype: str) -> Wrapped:
    sharded = FullyShardedModule(model, precision.tensor_dtype(dtype))
    return Wrapped(sharded, sharded.finish_gradient_synchronization, sharded.gather_full_params)


def _fully_shard(model: Model, dtype: str) -> Wrapped:
    for tensor in model.parameters():  # it takes each rank's own part
        dist.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    low = "bf16" if dtype == "bf16" else "fp32"
    shard(model, model.blocks, low, low, mesh=mesh)
    parameters: Any = model.named_parameters
    return Wrapped(model, lambda: None, lambda: {name: tensor.full_tensor() for name, tensor in parameters()})


WRAPS: Mapping[str, Wrap] = dict(
    zip(m.IMPLEMENTATIONS, (_torch_ddp, _sharded_optimizer, _fsdp, _fully_shard), strict=True)
)


def on_rank(arguments: Mapping[str, Any], rank: Rank, wraps: Mapping[str, Wrap] = WRAPS) -> dict[str, Any]:
    """Measure all variants on this rank; samples and values are named as in ddp.measure.combine.

    wraps: by variant. Raises WrongResult for one whose parameters differ from those of one process.
    """
    level = read(arguments["factors"], Training)
    gc.collect()
    gc.freeze()  # libraries: counting memory on a CPU goes through all other Python objects
    precision.set_matmul_precision(level.dtype)
    held = tokens.read(Path(arguments["data_folder"]), level.batch, level.seq_len)
    token_ids, variants = torch.from_numpy(held).to(rank.device), level.variants.split()
    bench = Bench(level, ddp.share(token_ids, rank), rank, wraps)
    for name in variants:
        bench.found.values[f"{name}_error"] = error(name, wraps[name], level.dtype, token_ids, rank)
    for name in variants:
        bench.count_and_trace(name)
    for turn in range(level.turns):
        for name in variants if turn % 2 == 0 else reversed(variants):
            bench.take_turn(name)
    marks_timer = CUDA_EVENTS if rank.device.type == "cuda" else HOST_CLOCK
    return vars(bench.found) | {"timer": HOST_CLOCK, "marks_timer": marks_timer}


def error(
    name: str, wrap: Wrap, dtype: str, token_ids: Tensor, rank: Rank, shape: Shape = SIZES[ddp.CHECKED_SIZE]
) -> float:
    """Return the largest error of any parameter's change over a few steps of SGD, against one process.

    A small model on the cell's device, the same on all ranks. token_ids: the whole batch (batch, length + 1). Raises
    WrongResult.
    """
    token_ids = token_ids[:, : ddp.CHECKED_LENGTH + 1] % shape.vocab_size
    torch.manual_seed(rank.seed)
    begin = Model(shape, token_ids.shape[1] - 1, device=rank.device)
    model = copy.deepcopy(begin)
    alone, several = Wrapped(model, lambda: None, dict, dtype), wrap(copy.deepcopy(begin), dtype)
    for wrapped, mine in ((alone, token_ids), (several, ddp.share(token_ids, rank))):
        wrapped.optimizer = _optimizer(name, wrapped, torch.optim.SGD, lr=ddp.CHECKED_RATE)
        for _ in range(CHECKED_STEPS):
            step(wrapped, mine)
            wrapped.optimizer.zero_grad()
    whole, allowed, where = several.whole(), TOLERANCE[dtype], f"rank {rank.place.rank}, {name}, {dtype}"
    errors = []
    for (parameter, wanted), before in zip(model.named_parameters(), begin.parameters(), strict=True):
        require_close(f"gathered {parameter}", whole.get(parameter), wanted, math.inf, where)  # its shape
        changes = (whole[parameter] - before, wanted - before)
        errors.append(require_close(f"change of {parameter} in {CHECKED_STEPS} steps", *changes, allowed, where))
    several.release()
    return max(errors)


def _optimizer(name: str, wrapped: Wrapped, make: type[torch.optim.Optimizer], **settings: Any) -> Any:
    parameters = wrapped.model.parameters()
    return ShardedOptimizer(parameters, make, **settings) if name == m.SHARDED else make(parameters, **settings)


def step(wrapped: Wrapped, token_ids: Tensor, mark: Mark = lambda _: None) -> None:
    """Run a training step; mark(name) ends each phase. token_ids: (batch, length + 1)."""
    with precision.autocast(token_ids.device.type, wrapped.autocast):
        logits = wrapped.model(token_ids[:, :-1].contiguous()).flatten(0, 1).float()
    loss = nn.functional.cross_entropy(logits, token_ids[:, 1:].flatten())
    del logits
    mark("forward")
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    mark("backward")
    wrapped.finish()
    mark("communication")
    wrapped.optimizer.step()
    mark("optimizer")


class Bench:
    """This rank's part of the batch, for which a model is made in one implementation after the other."""

    def __init__(self, level: Training, token_ids: Tensor, rank: Rank, wraps: Mapping[str, Wrap]) -> None:
        self.level, self.token_ids, self.rank, self.wraps = level, token_ids, rank, wraps
        self.device, self.found, self.moments = rank.device, ddp.Found(), ddp.Moments(rank.device)
        self.waits: list[ddp.Moments] = []  # for gathers in the step under way
        self.forward_waits = 0

    def make(self, name: str) -> Wrapped:
        """Return the model in an implementation with AdamW, once the one before is freed."""
        gc.collect()
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.empty_cache()
        torch.manual_seed(self.rank.seed)
        model = Model(SIZES[self.level.size], self.level.seq_len, device=self.device)
        model.blocks[0].register_forward_pre_hook(self._watch)
        wrapped = self.wraps[name](model, self.level.dtype)
        # foreach: PyTorch's choice on a GPU, but not for fully_shard's parameters.
        wrapped.optimizer = _optimizer(name, wrapped, torch.optim.AdamW, lr=LEARNING_RATE, foreach=on_gpu or None)
        if isinstance(wrapped.model, FullyShardedModule):
            wrapped.model.around = self._wait
        return wrapped

    def _watch(self, _: nn.Module, inputs: Sequence[Any]) -> None:
        """Mark where backward has gone through all blocks."""
        if inputs[0].requires_grad:
            inputs[0].register_hook(lambda _: self.moments.mark("blocks"))

    @contextmanager
    def _wait(self, _: str) -> Iterator[None]:
        self.waits.append(moments := ddp.Moments(self.device))
        moments.mark("begin")
        yield
        moments.mark("end")

    def _prepare(self, wrapped: Wrapped) -> None:
        wrapped.optimizer.zero_grad()
        self.waits.clear()
        together(self.device)

    def _mark(self, name: str) -> None:
        self.moments.mark(name)
        if name == "forward":
            self.forward_waits = len(self.waits)

    def _step_ms(self, wrapped: Wrapped) -> list[float]:
        run, prepare = partial(step, wrapped, self.token_ids, self._mark), partial(self._prepare, wrapped)
        return time_host(run, warmup=0, timed=1, device=self.device, prepare=prepare).samples_ms

    def _warm_up(self, name: str, wrapped: Wrapped) -> None:
        began = time.perf_counter()
        for _ in range(self.level.warmup_steps):
            self.found.warmup[f"{name}_step_ms"] += self._step_ms(wrapped)
        self.found.warmup_s += time.perf_counter() - began

    def take_turn(self, name: str) -> None:
        """Time steps, what is left of their communication when backward has gone through all blocks, and our waits."""
        wrapped = self.make(name)
        self._warm_up(name, wrapped)
        began, samples = time.perf_counter(), self.found.samples
        with ddp.without_collection():
            for _ in range(self.level.steps):
                samples[f"{name}_step_ms"] += self._step_ms(wrapped)
                samples[f"{name}_tail_ms"].append(self.moments.between_ms("blocks", "communication"))
                if self.waits:
                    waited = [wait.between_ms("begin", "end") for wait in self.waits[: self.forward_waits]]
                    samples[f"{name}_wait_ms"].append(sum(waited))
        self.found.timed_s += time.perf_counter() - began
        wrapped.release()

    def count_and_trace(self, name: str) -> None:
        """Count memory before the first step and in a later one, and trace a step."""
        wrapped = self.make(name)
        held = {"init": allocated_bytes(settle(self.device))}
        self._warm_up(name, wrapped)
        self._prepare(wrapped)
        after: dict[str, int] = {}  # of each phase

        def mark(phase: str) -> None:
            memory.mark(phase)
            after[phase] = allocated_bytes(settle(self.device))  # gloo's threads free what the CPU's counter misses

        with PeakMemory(self.device) as memory:
            step(wrapped, self.token_ids, mark)
        peaks, before_step = dict(memory.peaks), after["communication"]
        held |= {"forward": peaks["forward"], "backward": max(peaks["backward"], peaks["communication"])}
        held |= {"before_step": before_step, "step": before_step + peaks["optimizer"] - memory.marks["communication"]}
        held["after_step"] = after["optimizer"]
        self.found.values |= {f"{name}_{moment}_bytes": size for moment, size in held.items()}
        run, device = partial(step, wrapped, self.token_ids), self.device.type
        trace = tracing.record(partial(self._prepare, wrapped), run, device)
        lanes = tracing.lanes(trace, self.rank.place.world_size, device)
        self.found.traced_values |= {f"{name}_{lane}": ms for lane, ms in {**lanes.values(), **_gathers(lanes)}.items()}
        if self.rank.place.rank == 0:
            series = lanes.series(gathers=lanes.gathers)
            self.found.series |= {f"{name}_{lane}": values for lane, values in series.items()}
        wrapped.release()


def _gathers(lanes: tracing.Lanes) -> dict[str, float]:
    """Return milliseconds of all-gathers, and of compute waiting for them, in the step and up to forward's end."""
    times_ms = {}
    for part, end in {"": lanes.step_ns, "_forward": lanes.phases["forward"][1]}.items():
        spans = [span for span in lanes.gathers if span[0] < end]
        times_ms[f"traced_gathers{part}_ms"] = length_ns(spans) / 1e6
        times_ms[f"traced_waits{part}_ms"] = waited_ns(spans, lanes.compute, end) / 1e6
    return times_ms


def waited_ns(gathers: Sequence[Span], compute: Sequence[Span], end: int) -> int:
    """Return the time without compute, up to `end`, in which a gather ran that ended before compute went on."""
    waited = idle_from = 0
    for start, stop in [*compute, (end, end)]:
        start = min(start, end)
        waited += sum(last - max(first, idle_from) for first, last in gathers if idle_from < last <= start)
        idle_from = stop
    return waited
