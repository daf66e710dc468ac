"""A subject's sharded optimizer: compared with the plain one, then measured with it and ours."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement, read
from perfscribe.experiments.cs336.optimizer_state_sharding import measure as m
from perfscribe.instruments.correctness import require_close
from perfscribe.subjects import OPTIMIZER, Subject
from perfscribe.subjects.loading import adapters, subjects_code

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank
    from perfscribe.experiments.cs336.optimizer_state_sharding.program import Make, ShardedTraining

THEIRS = "subject"
# Relative to the change in ten AdamW steps, fp32: allows other rounding, not other updates.
ALLOWED = 1e-3


def cells(of: Sequence[Cell], name: str, kernels: Collection[str]) -> list[Cell]:
    """Return a subject's cell for each of ours."""
    return [replace(one, factors={**one.factors, "kernel": OPTIMIZER}) for one in of] if OPTIMIZER in kernels else []


def run(cell: Cell) -> Measurement:
    """Launch the ranks and combine their results."""
    found = m.launched(cell, on_rank)
    for named in (found.series, found.values):  # ranks report theirs under the name of torch's class
        for name in [name for name in named if name.startswith(m.PEER)]:
            named[name.replace(m.PEER, THEIRS)] = named.pop(name)
    return found


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return program.on_rank's results with the subject's optimizer instead of torch's. See measure.combine."""
    with subjects_code():
        return _on_rank(arguments, rank)


def _on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    import torch

    from perfscribe.experiments.cs336.optimizer_state_sharding import program as p

    (get,) = adapters(**vars(read(arguments, Subject)))
    assert get is not None
    make: dict[str, p.Make] = {name: partial(p.make_optimizer, name) for name in (m.UNSHARDED, m.SHARDED)}
    make[m.PEER] = lambda parameters: Theirs(get(parameters, torch.optim.AdamW, lr=p.LEARNING_RATE))

    def check(training: p.ShardedTraining) -> float:
        return difference(training, make, rank.place.rank)

    def time_steps(training: p.ShardedTraining, level: m.Sharding) -> Mapping[str, Any]:
        names = {m.PEER: THEIRS}
        made = {names.get(name, name): one(training.parameters) for name, one in make.items()}
        return p.time_steps(training, level, made)

    return p.measured(arguments, rank, make, check, time_steps)


class Theirs:
    """A subject's optimizer. optim: state of the optimizers inside it, wherever it keeps them."""

    def __init__(self, optimizer: Any) -> None:
        self.step, self._optimizer = optimizer.step, optimizer

    @property
    def optim(self) -> SimpleNamespace:
        """All state, by parameter; empty if none is found."""
        found = {}
        for one in within(self._optimizer):
            state = getattr(one, "state", None)
            if isinstance(state, Mapping):
                found.update({key: of for key, of in state.items() if isinstance(of, Mapping)})
        return SimpleNamespace(state=found)


def within(holder: Any) -> Iterator[Any]:
    """Yield the object and all that its attributes, containers and closures hold, except tensors, modules and types."""
    import torch

    seen, waiting = set(), [holder]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (torch.Tensor, ModuleType, type, str, bytes, int, float)):
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (list, tuple, set, frozenset, deque)):
            waiting += one
        elif isinstance(one, (FunctionType, MethodType, partial)):
            waiting += [cell.cell_contents for cell in getattr(one, "__closure__", None) or () if _is_full(cell)]
            waiting += [getattr(one, name) for name in ("__self__", "args", "keywords", "func") if hasattr(one, name)]
        else:
            yield one
            waiting += getattr(one, "__dict__", {}).values()
            slots = [name for kind in type(one).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
            waiting += [getattr(one, name) for name in slots if hasattr(one, name)]


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def difference(training: ShardedTraining, make: Mapping[str, Make], rank: int) -> float:
    """Return a parameter's largest error after ten steps on the plain optimizer's gradients; WrongResult: too large."""
    from perfscribe.experiments.cs336.optimizer_state_sharding import program as p

    parameters = dict(training.replica.module.named_parameters())
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
