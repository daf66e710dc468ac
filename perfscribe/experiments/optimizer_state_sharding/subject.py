"""A subject's sharded optimizer: compared with the plain one, then measured beside it and ours."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement
from perfscribe.experiments.optimizer_state_sharding import measure as m
from perfscribe.subjects import OPTIMIZER
from perfscribe.subjects.loading import adapters, subjects_code

if TYPE_CHECKING:
    import torch

    from perfscribe.distributed.rank import Rank

THEIRS = "subject"
# Of what ten steps of AdamW change, in fp32: rounded otherwise, not updated otherwise.
ALLOWED = 1e-3


def cells(of: Sequence[Cell], name: str, kernels: Mapping[str, str]) -> list[Cell]:
    """One beside each of ours."""
    return [replace(one, factors={**one.factors, "kernel": OPTIMIZER}) for one in of] if OPTIMIZER in kernels else []


def run(cell: Cell) -> Measurement:
    """Launch the ranks, and make one measurement of what they say."""
    import random

    from perfscribe.distributed.launch import launch

    launched = launch(
        on_rank,
        {**cell.factors, "data_folder": str(cell.data_folder)},
        world_size=cell["world_size"],
        timeout_s=m.LAUNCH_TIMEOUT_S,
        backend=cell["backend"],
        device=cell["device"],
        seed=random.getrandbits(31),
    )
    found = m.combine(launched.results)
    for named in (found.series, found.values):  # theirs have the place of torch's class in what ranks say
        for name in [name for name in named if name.startswith(m.PEER)]:
            named[name.replace(m.PEER, THEIRS)] = named.pop(name)
    return found


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """What program.on_rank says, with the subject's optimizer in the place of torch's. See measure.combine."""
    with subjects_code():
        return _on_rank(arguments, rank)


def _on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    import torch

    from perfscribe.analytic.shapes import SIZES
    from perfscribe.experiments.optimizer_state_sharding import program as p
    from perfscribe.experiments.optimizer_state_sharding.memory import after_init, measure_memory, outside_bytes
    from perfscribe.instruments import precision
    from perfscribe.models.transformer import Model

    gc.collect()
    gc.freeze()
    precision.set_matmul_precision(arguments["dtype"])
    (get,) = adapters(arguments["subject"], arguments["kernel"])
    assert get is not None
    model = Model(SIZES[arguments["size"]], arguments["seq_len"], device=rank.device)
    init = after_init(list(model.parameters()), rank.device)
    training = p.Training(model, arguments, rank)
    make: dict[str, Callable[[Any], Any]] = {name: partial(p.make_optimizer, name) for name in (m.UNSHARDED, m.SHARDED)}
    make[m.PEER] = lambda parameters: Theirs(get(parameters, torch.optim.AdamW, lr=p.LEARNING_RATE))
    apart = difference(dict(model.named_parameters()), training, make, rank.place.rank)
    memory, outside = {}, {}
    for name, one in make.items():
        memory[name] = {m.INIT: init} | measure_memory(training, partial(one, training.parameters))
        outside[name] = outside_bytes(rank.device)
    timings = _time_steps(training, arguments, make)
    return {
        "memory": memory,
        "outside": outside,
        "traffic": p._traffic(training),
        "difference": apart,
        "timings": {name: vars(timing) for name, timing in timings.items()},
    }


class Theirs:
    """A subject's optimizer. optim: what holds the state, in it or in optimizers that are attributes of it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step, self._optimizer = optimizer.step, optimizer

    @property
    def optim(self) -> SimpleNamespace:
        """All state, by parameter."""
        import torch

        of = [self._optimizer]
        for one in vars(self._optimizer).values():
            of += [
                each for each in (one if isinstance(one, list) else [one]) if isinstance(each, torch.optim.Optimizer)
            ]
        return SimpleNamespace(state={parameter: state for one in of for parameter, state in one.state.items()})


def difference(
    parameters: Mapping[str, torch.Tensor], training: Any, make: Mapping[str, Callable[[Any], Any]], rank: int
) -> float:
    """The largest error of a parameter after ten steps on the plain optimizer's gradients. WrongResult: too large."""
    from perfscribe.experiments.optimizer_state_sharding import program as p
    from perfscribe.subjects.checks import require_close

    copies = {name: one.detach().clone() for name, one in parameters.items()}
    begin = {name: one.clone() for name, one in copies.items()}
    plain, sharded = make[m.UNSHARDED](copies.values()), make[m.PEER](training.parameters)
    for _ in range(p.CHECKED_STEPS):
        training.zero_grad()
        training.passes()
        for name, one in parameters.items():
            copies[name].grad = one.grad
        sharded.step()
        plain.step()
    training.zero_grad()
    where = f"rank {rank}, after {p.CHECKED_STEPS} steps of AdamW"
    return max(
        require_close(f"change of {name}", one - begin[name], copies[name] - begin[name], ALLOWED, where)
        for name, one in parameters.items()
    )


def _time_steps(training: Any, factors: Mapping[str, Any], make: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Whole steps, then optimizer steps alone, all optimizers interleaved."""
    import torch.distributed as dist

    from perfscribe.experiments.optimizer_state_sharding import program as p
    from perfscribe.instruments.interleaving import time_interleaved
    from perfscribe.instruments.timing import STEP, synchronise

    names = {m.UNSHARDED: m.UNSHARDED, m.SHARDED: m.SHARDED, m.PEER: THEIRS}
    optimizers = {names[name]: one(training.parameters) for name, one in make.items()}
    for optimizer in optimizers.values():
        training.zero_grad()
        training.passes()
        optimizer.step()

    def together() -> None:
        synchronise(training.device)
        dist.barrier()

    def fresh() -> None:
        training.zero_grad()
        together()

    counts = {"turns": factors["turns"], "warmup": factors["warmup_steps"], "device": training.device}
    steps = {name: p._marked(training.passes, one.step) for name, one in optimizers.items()}
    whole = time_interleaved(steps, timed=factors["timed_steps"], prepare=fresh, **counts)
    training.zero_grad()
    training.passes()
    steps = {name: p._marked(one.step) for name, one in optimizers.items()}
    alone = time_interleaved(steps, timed=factors["optimizer_steps"], prepare=together, **counts)
    found = {f"{name}_step_ms": phases[STEP] for name, phases in whole.items()}
    return found | {f"{name}_optimizer_ms": phases[STEP] for name, phases in alone.items()}
