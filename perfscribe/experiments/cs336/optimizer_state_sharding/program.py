"""Runs on each rank of optimizer_state_sharding: count memory, compare with the plain optimizer, time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import read
from perfscribe.data import tokens
from perfscribe.distributed.ddp import BY_NAME
from perfscribe.distributed.process_group import together
from perfscribe.distributed.sharded_optimizer import ShardedOptimizer
from perfscribe.experiments.cs336.optimizer_state_sharding import measure as m
from perfscribe.experiments.cs336.optimizer_state_sharding.memory import after_init, measure_memory, outside_bytes
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import require
from perfscribe.instruments.interleaving import as_one, time_interleaved
from perfscribe.instruments.timing import STEP, Mark, Timing
from perfscribe.models.transformer import Model, next_token_loss

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

Make = Callable[[Iterable[Tensor]], Any]

LEARNING_RATE = 1e-4
CHECKED_STEPS = 10
# Below fp32's resolution: equal up to the last bits.
TOLERANCE = 1e-7


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Measure the cell on this rank; see measure.combine for the result.

    Raises WrongResult if a parameter differs from the plain optimizer's after ten steps.
    """
    make = {name: partial(make_optimizer, name) for name in m.IMPLEMENTATIONS}
    return measured(arguments, rank, make, difference, _time_steps)


def measured(
    arguments: Mapping[str, Any],
    rank: Rank,
    make: Mapping[str, Make],
    check: Callable[[ShardedTraining], float],
    time_steps: Callable[[ShardedTraining, m.Sharding], Mapping[str, Timing]],
) -> dict[str, Any]:
    """Return memory with each optimizer, traffic, the check's result, and times."""
    gc.collect()
    gc.freeze()  # exclude libraries: counting memory on a CPU traverses every other Python object
    level = read(arguments, m.Sharding)
    precision.set_matmul_precision(level.dtype)
    model = Model(SIZES[level.size], level.seq_len, device=rank.device)
    init = after_init(list(model.parameters()), rank.device)
    training = ShardedTraining(model, level, rank)
    memory, outside = {}, {}
    for name, one in make.items():
        memory[name] = {m.INIT: init} | measure_memory(training, partial(one, training.parameters))
        outside[name] = outside_bytes(rank.device)
    traffic = _traffic(training)
    return {
        "memory": memory,
        "outside": outside,
        "traffic": traffic,
        "difference": check(training),
        "timings": {name: vars(timing) for name, timing in time_steps(training, level).items()},
    }


class ShardedTraining:
    """The model as a data-parallel replica, and this rank's part of the batch.

    inputs, targets: token ids (B / world size, S), int64. Raises ValueError if there are too few token data.
    """

    def __init__(self, model: Model, level: m.Sharding, rank: Rank) -> None:
        self.device = rank.device
        self.replica = BY_NAME[level.wrapper](model)
        self.parameters = list(model.parameters())
        held = tokens.read(Path(level.data_folder), level.batch, level.seq_len)
        mine = torch.from_numpy(held).chunk(rank.place.world_size)[rank.place.rank].to(rank.device)
        self.inputs, self.targets = mine[:, :-1].contiguous(), mine[:, 1:].contiguous()

    def zero_grad(self) -> None:
        """Free the gradients' memory, as at the start of the homework's step."""
        for parameter in self.parameters:
            parameter.grad = None

    def passes(self, mark: Callable[[str], object] = lambda _: None) -> None:
        """Run forward, backward and the averaging of gradients over ranks, marking the end of each."""
        loss = next_token_loss(self.replica, self.inputs, self.targets)
        mark("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        mark("backward")
        self.replica.finish_gradient_synchronization()
        mark("averaging")


def make_optimizer(name: str, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return AdamW, plain, in our shards or in torch's; torch chooses its implementation."""
    if name == m.SHARDED:
        return ShardedOptimizer(parameters, torch.optim.AdamW, lr=LEARNING_RATE)
    if name == m.PEER:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, lr=LEARNING_RATE)
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE)


def _traffic(training: ShardedTraining) -> dict[str, int]:
    """Return calls and bytes of one step's averages."""
    traffic = training.replica.traffic
    traffic.reset()
    training.zero_grad()
    training.passes()
    return {"gradient_calls": traffic.calls, "gradient_bytes": traffic.bytes}


def difference(training: ShardedTraining) -> float:
    """Return the largest relative difference of a parameter from the plain optimizer's after ten steps.

    Both use the same gradients, which are the plain training's, because the parameters stay equal: no sum whose order
    varies between runs intervenes. Raises WrongResult if it is too large.
    """
    copies = [parameter.detach().clone() for parameter in training.parameters]
    plain, sharded = make_optimizer(m.UNSHARDED, copies), make_optimizer(m.SHARDED, training.parameters)
    for _ in range(CHECKED_STEPS):
        training.zero_grad()
        training.passes()
        for copy, parameter in zip(copies, training.parameters, strict=True):
            copy.grad = parameter.grad
        sharded.step()
        plain.step()
    training.zero_grad()
    pairs = zip(training.parameters, copies, strict=True)
    errors = {f"parameter {number}": _apart(*pair) for number, pair in enumerate(pairs)}
    return require(errors, TOLERANCE, f"the plain optimizer's after {CHECKED_STEPS} steps")


def _apart(parameter: Tensor, other: Tensor) -> float:
    """Return the largest relative difference of an element; NaN if either tensor has a NaN."""
    apart = (parameter.detach() - other).abs_()
    return float((apart / other.abs()).masked_fill_(apart == 0, 0).max())  # equal elements may be 0


def _time_steps(training: ShardedTraining, level: m.Sharding) -> dict[str, Timing]:
    """Time whole steps, then optimizer steps only, all optimizers interleaved; and the parts of our sharded step."""
    optimizers = {name: make_optimizer(name, training.parameters) for name in m.IMPLEMENTATIONS}
    found = time_steps(training, level, {**optimizers, m.AGAIN: optimizers[m.UNSHARDED]})
    sharded = optimizers[m.SHARDED]
    assert isinstance(sharded, ShardedOptimizer)
    counts = _counts(training, level) | {"timed": level.optimizer_steps}
    counts["prepare"] = partial(together, training.device)
    (parts,) = time_interleaved({m.SHARDED: _in_parts(sharded)}, **counts).values()
    return found | {f"{m.SHARDED}_{part}_ms": parts[part] for part in ("update", "exchange")}


def time_steps(training: ShardedTraining, level: m.Sharding, optimizers: Mapping[str, Any]) -> dict[str, Timing]:
    """Return <optimizer>_step_ms of whole steps and <optimizer>_optimizer_ms of optimizer steps, interleaved."""
    if training.device.type == "cuda":
        torch.cuda.empty_cache()
    for optimizer in dict.fromkeys(optimizers.values()):  # creates each one's state
        training.zero_grad()
        training.passes()
        optimizer.step()

    def fresh() -> None:
        training.zero_grad()
        together(training.device)

    counts = _counts(training, level)
    steps = {name: as_one(training.passes, one.step) for name, one in optimizers.items()}
    whole = time_interleaved(steps, timed=level.timed_steps, prepare=fresh, **counts)
    training.zero_grad()
    training.passes()
    steps = {name: as_one(one.step) for name, one in optimizers.items()}
    alone = time_interleaved(steps, timed=level.optimizer_steps, prepare=partial(together, training.device), **counts)
    found = {f"{name}_step_ms": phases[STEP] for name, phases in whole.items()}
    return found | {f"{name}_optimizer_ms": phases[STEP] for name, phases in alone.items()}


def _counts(training: ShardedTraining, level: m.Sharding) -> dict[str, Any]:
    return {"turns": level.turns, "warmup": level.warmup_steps, "device": training.device}


def _in_parts(optimizer: ShardedOptimizer) -> Callable[[Mark], None]:
    """Return our sharded step with a wait after each update and exchange, so that these do not overlap."""

    def step(mark: Mark) -> None:
        @contextmanager
        def around(name: str) -> Iterator[None]:
            yield
            mark(name)

        optimizer.around = around
        optimizer.step()

    return step
