"""Runs on each rank of fsdp_accounting: check, count memory, trace a step, time, one implementation at a time."""

from __future__ import annotations

import copy
import gc
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

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import read
from perfscribe.data import tokens
from perfscribe.distributed.ddp import OverlappedDDP
from perfscribe.distributed.fsdp import shard
from perfscribe.distributed.process_group import together
from perfscribe.distributed.sharded_modules import FullyShardedModule
from perfscribe.distributed.sharded_optimizer import ShardedOptimizer
from perfscribe.experiments.cs336.ddp import program as ddp
from perfscribe.experiments.cs336.ddp import tracing
from perfscribe.experiments.cs336.ddp.variants import CHECKED_STEPS, TOLERANCE
from perfscribe.experiments.cs336.fsdp_accounting import measure as m
from perfscribe.experiments.cs336.optimizer_state_sharding.memory import settle
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import relative_error, require
from perfscribe.instruments.memory import PeakMemory, allocated_bytes
from perfscribe.instruments.profiling.summary import Span, length_ns
from perfscribe.instruments.timing import CUDA_EVENTS, HOST_CLOCK, Mark, time_host
from perfscribe.models.training_step import LEARNING_RATE
from perfscribe.models.transformer import Model

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank


@dataclass(frozen=True)
class Levels:
    """Factors of a cell."""

    variants: str
    dtype: str
    size: str
    seq_len: int
    batch: int
    turns: int
    warmup_steps: int
    steps: int


@dataclass(frozen=True)
class Training:
    """A model in one implementation. finish: ends a backward. whole: returns all parameters by name.

    autocast: dtype of the passes; fp32 where the implementation casts the weights itself. release: detaches hooks.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    finish: Callable[[], object]
    whole: Callable[[], Mapping[str, Tensor]]
    autocast: str = "fp32"
    release: Callable[[], object] = lambda: None


Optimizer = tuple[type[torch.optim.Optimizer], dict[str, Any]]  # a class and its settings
Wrap = Callable[[Model, str, Optimizer], Training]  # of a model, a dtype and an optimizer


def _torch_ddp(model: Model, dtype: str, optimizer: Optimizer) -> Training:
    make, settings = optimizer
    own = make(model.parameters(), **settings)
    return Training(ddp.torch_ddp(model, views=True), own, lambda: None, lambda: dict(model.named_parameters()), dtype)


def _sharded_optimizer(model: Model, dtype: str, optimizer: Optimizer) -> Training:
    wrapped, (make, settings) = OverlappedDDP(model), optimizer
    sharded, finish = ShardedOptimizer(model.parameters(), make, **settings), wrapped.finish_gradient_synchronization
    return Training(wrapped, sharded, finish, lambda: dict(model.named_parameters()), dtype, wrapped.release)


def _fsdp(model: Model, dtype: str, optimizer: Optimizer) -> Training:
    wrapped, (make, settings) = FullyShardedModule(model, precision.tensor_dtype(dtype)), optimizer
    finish, whole = wrapped.finish_gradient_synchronization, wrapped.gather_full_params
    return Training(wrapped, make(wrapped.parameters(), **settings), finish, whole)


def _fully_shard(model: Model, dtype: str, optimizer: Optimizer) -> Training:
    for tensor in model.parameters():  # it takes each rank's own part
        dist.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    low = "bf16" if dtype == "bf16" else "fp32"
    shard(model, model.blocks, low, low, mesh=mesh)
    make, settings = optimizer

    def whole() -> Mapping[str, Tensor]:
        return {name: tensor.full_tensor() for name, tensor in model.named_parameters()}  # type: ignore[attr-defined]

    return Training(model, make(model.parameters(), **settings), lambda: None, whole)


WRAPS: Mapping[str, Wrap] = dict(
    zip(m.IMPLEMENTATIONS, (_torch_ddp, _sharded_optimizer, _fsdp, _fully_shard), strict=True)
)


def on_rank(arguments: Mapping[str, Any], rank: Rank, wraps: Mapping[str, Wrap] = WRAPS) -> dict[str, Any]:
    """Measure all variants on this rank; samples and values are named as in ddp.measure.combine.

    wraps: by variant. Raises WrongResult for one whose parameters differ from those of one process.
    """
    factors = read(arguments["factors"], Levels)
    gc.collect()
    gc.freeze()  # libraries: counting memory on a CPU goes through all other Python objects
    precision.set_matmul_precision(factors.dtype)
    held = tokens.read(Path(arguments["data_folder"]), factors.batch, factors.seq_len)
    token_ids, variants = torch.from_numpy(held).to(rank.device), factors.variants.split()
    bench = Bench(factors, ddp.share(token_ids, rank), rank, wraps)
    for name in variants:
        bench.found.values[f"{name}_error"] = error(name, wraps[name], factors.dtype, token_ids, rank)
    for name in variants:
        bench.count_and_trace(name)
    for turn in range(factors.turns):
        for name in variants if turn % 2 == 0 else reversed(variants):
            bench.take_turn(name)
    marks_timer = CUDA_EVENTS if rank.device.type == "cuda" else HOST_CLOCK
    return vars(bench.found) | {"timer": HOST_CLOCK, "marks_timer": marks_timer}


def error(name: str, wrap: Wrap, dtype: str, token_ids: Tensor, rank: Rank) -> float:
    """Return the largest error of any parameter's change over a few steps of SGD, against one process.

    A small model on the cell's device. token_ids: the whole batch (batch, length + 1). Raises WrongResult.
    """
    token_ids = token_ids[:, : ddp.CHECKED_LENGTH + 1]
    torch.manual_seed(rank.seed)
    begin = Model(SIZES[ddp.CHECKED_SIZE], token_ids.shape[1] - 1, device=rank.device)
    model, sgd = copy.deepcopy(begin), torch.optim.SGD
    alone = Training(model, sgd(model.parameters(), lr=ddp.CHECKED_RATE), lambda: None, dict, dtype)
    several = wrap(copy.deepcopy(begin), dtype, (sgd, {"lr": ddp.CHECKED_RATE}))
    for training, mine in ((alone, token_ids), (several, ddp.share(token_ids, rank))):
        for _ in range(CHECKED_STEPS):
            step(training, mine)
            training.optimizer.zero_grad()
    before, got = dict(begin.named_parameters()), several.whole()
    changes = {
        f"{name}: {one}'s change in {CHECKED_STEPS} steps": relative_error(got[one] - before[one], wanted - before[one])
        for one, wanted in model.named_parameters()
    }
    several.release()
    return require(changes, TOLERANCE[dtype], "one process")


def step(training: Training, token_ids: Tensor, mark: Mark = lambda _: None) -> None:
    """Run a training step; mark(name) ends each phase. token_ids: (batch, length + 1)."""
    with precision.autocast(token_ids.device.type, training.autocast):
        logits = training.model(token_ids[:, :-1].contiguous()).flatten(0, 1).float()
    loss = nn.functional.cross_entropy(logits, token_ids[:, 1:].flatten())
    del logits
    mark("forward")
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    mark("backward")
    training.finish()
    mark("communication")
    training.optimizer.step()
    mark("optimizer")


class Bench:
    """This rank's part of the batch, for which a model is made in one implementation after the other."""

    def __init__(self, factors: Levels, token_ids: Tensor, rank: Rank, wraps: Mapping[str, Wrap]) -> None:
        self.factors, self.token_ids, self.rank, self.wraps = factors, token_ids, rank, wraps
        self.device, self.found, self.moments = rank.device, ddp.Found(), ddp.Moments(rank.device)
        self.waits: list[ddp.Moments] = []  # for gathers in the step under way
        self.forward_waits = 0

    def make(self, name: str) -> Training:
        """Return the model in an implementation with AdamW, once the one before is freed."""
        gc.collect()
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.empty_cache()
        torch.manual_seed(self.rank.seed)
        model = Model(SIZES[self.factors.size], self.factors.seq_len, device=self.device)
        model.blocks[0].register_forward_pre_hook(self._watch)
        # PyTorch's choice on a GPU, but not for fully_shard's parameters.
        settings = {"lr": LEARNING_RATE, "foreach": on_gpu or None}
        training = self.wraps[name](model, self.factors.dtype, (torch.optim.AdamW, settings))
        if isinstance(training.model, FullyShardedModule):
            training.model.around = self._wait
        return training

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

    def _prepare(self, training: Training) -> None:
        training.optimizer.zero_grad()
        self.waits.clear()
        together(self.device)

    def _mark(self, name: str) -> None:
        self.moments.mark(name)
        if name == "forward":
            self.forward_waits = len(self.waits)

    def _step_ms(self, training: Training) -> list[float]:
        run, prepare = partial(step, training, self.token_ids, self._mark), partial(self._prepare, training)
        return time_host(run, warmup=0, timed=1, device=self.device, prepare=prepare).samples_ms

    def _warm_up(self, name: str, training: Training) -> None:
        began = time.perf_counter()
        for _ in range(self.factors.warmup_steps):
            self.found.warmup[f"{name}_step_ms"] += self._step_ms(training)
        self.found.warmup_s += time.perf_counter() - began

    def take_turn(self, name: str) -> None:
        """Time steps, what is left of their communication when backward has gone through all blocks, and our waits."""
        training = self.make(name)
        self._warm_up(name, training)
        began, samples = time.perf_counter(), self.found.samples
        with ddp.without_collection():
            for _ in range(self.factors.steps):
                samples[f"{name}_step_ms"] += self._step_ms(training)
                samples[f"{name}_tail_ms"].append(self.moments.between_ms("blocks", "communication"))
                if self.waits:
                    waited = [one.between_ms("begin", "end") for one in self.waits[: self.forward_waits]]
                    samples[f"{name}_wait_ms"].append(sum(waited))
        self.found.timed_s += time.perf_counter() - began
        training.release()

    def count_and_trace(self, name: str) -> None:
        """Count memory before the first step and in a later one, and trace a step."""
        training = self.make(name)
        held = {"init": allocated_bytes(settle(self.device))}
        self._warm_up(name, training)
        self._prepare(training)
        after: dict[str, int] = {}  # of each phase

        def mark(phase: str) -> None:
            memory.mark(phase)
            after[phase] = allocated_bytes(settle(self.device))  # gloo's threads free what the CPU's counter misses

        with PeakMemory(self.device) as memory:
            step(training, self.token_ids, mark)
        peaks, before_step = dict(memory.peaks), after["communication"]
        held |= {"forward": peaks["forward"], "backward": max(peaks["backward"], peaks["communication"])}
        held |= {"before_step": before_step, "step": before_step + peaks["optimizer"] - memory.marks["communication"]}
        held["after_step"] = after["optimizer"]
        self.found.values |= {f"{name}_{moment}_bytes": size for moment, size in held.items()}
        run, device = partial(step, training, self.token_ids), self.device.type
        trace = tracing.record(partial(self._prepare, training), run, device)
        lanes = tracing.lanes(trace, self.rank.place.world_size, device)
        self.found.traced_values |= {f"{name}_{one}": ms for one, ms in {**lanes.values(), **_gathers(lanes)}.items()}
        if self.rank.place.rank == 0:
            series = lanes.series(gathers=lanes.gathers)
            self.found.series |= {f"{name}_{one}": values for one, values in series.items()}
        training.release()


def _gathers(lanes: tracing.Lanes) -> dict[str, float]:
    """Return milliseconds of all-gathers, and of compute waiting for them, in the step and up to forward's end."""
    found = {}
    for part, end in {"": lanes.step_ns, "_forward": lanes.phases["forward"][1]}.items():
        spans = [span for span in lanes.gathers if span[0] < end]
        found[f"traced_gathers{part}_ms"] = length_ns(spans) / 1e6
        found[f"traced_waits{part}_ms"] = waited_ns(spans, lanes.compute, end) / 1e6
    return found


def waited_ns(gathers: Sequence[Span], compute: Sequence[Span], end: int) -> int:
    """Return the time without compute, up to `end`, in which a gather ran that ended before compute went on."""
    waited = idle_from = 0
    for start, stop in [*compute, (end, end)]:
        start = min(start, end)
        waited += sum(last - max(first, idle_from) for first, last in gathers if idle_from < last <= start)
        idle_from = stop
    return waited
