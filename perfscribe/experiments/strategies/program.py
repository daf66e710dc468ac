"""What the ranks do for strategies; they stay for all cells of one number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from perfscribe.distributed.fsdp import wrap
from perfscribe.distributed.fsdp_training import Training, local_gradients
from perfscribe.experiments.strategies import model as models
from perfscribe.experiments.strategies.training import MODEL_SEED, Trained, discard, fresh, random_ids
from perfscribe.experiments.strategies.words import (
    ACCUMULATION,
    EACH,
    MICRO_BATCHES,
    WRAPPING,
    from_level,
    key_of,
    plan_of,
)
from perfscribe.instruments.interleaving import time_interleaved
from perfscribe.instruments.timing import STEP, Mark, synchronise, time_host

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """The program of a rank; see measure.combine for what it gives. Raises what Trained does."""
    if rank.device.type == "cpu":  # a rank is as quick whatever their number, and small tensors want no more
        torch.set_num_threads(1)
    fresh(rank.device)
    try:
        of_part = {WRAPPING: _interleaved, ACCUMULATION: _accumulated}
        return of_part.get(arguments["part"], _alone)(arguments, rank)
    finally:
        fresh(rank.device)


def _alone(factors: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """One plan: looked at, then timed, with nothing else on the device."""
    with closing(Trained(factors, rank)) as trained:
        values = _looked_at(trained)
        fresh(rank.device)
        timing = time_host(
            trained.step,
            warmup=factors["warmup_steps"],
            timed=factors["timed_steps"],
            device=rank.device,
            prepare=_together(rank),
        )
        return {
            "timings": {"step_ms": vars(timing)},
            "values": values | {"last_loss": float(trained.step()), "loss_scale": trained.training.loss_scale},
            "applied": trained.applied,
            "layout": trained.layout,
        }


def _looked_at(trained: Trained, beside: Iterable[Trained] = ()) -> dict[str, Any]:
    traffic = trained.traffic()
    return {"first_loss": trained.first_loss} | traffic | trained.memory(beside)


def _together(rank: Rank) -> Callable[[], None]:
    """Lets all ranks begin a step at once."""

    def wait() -> None:
        synchronise(rank.device)
        dist.barrier()

    return wait


def _interleaved(factors: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Variants of wrapping and prefetching: each looked at, then all timed interleaved."""
    with ExitStack() as stack:
        variants: dict[str, Trained] = {}
        for one in from_level(factors["variants"]):
            variants[key_of(one)] = stack.enter_context(closing(Trained({**factors, **one}, rank)))
        return _time_all(factors, variants, rank)


def _time_all(factors: Mapping[str, Any], variants: Mapping[str, Trained], rank: Rank) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, trained in variants.items():
        found = _looked_at(trained, [other for other in variants.values() if other is not trained])
        found.pop("peak_reserved_bytes", None)  # of all variants together
        values |= {f"{name}_{key}": value for key, value in (found | trained.applied).items()}
    fresh(rank.device)
    timed = time_interleaved(
        {name: _marked(trained) for name, trained in variants.items()},
        turns=factors["turns"],
        warmup=factors["warmup_steps"],
        timed=factors["timed_steps"],
        device=rank.device,
        prepare=_together(rank),
    )
    return {
        "timings": {f"{name}_step_ms": vars(phases[STEP]) for name, phases in timed.items()},
        "values": values,
        "applied": {},
        "layout": next(iter(variants.values())).layout,
    }


def _marked(trained: Trained) -> Callable[[Mark], None]:
    def step(mark: Mark) -> None:
        trained.step()
        mark("end")

    return step


def _accumulated(factors: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Norm of the gradients of two micro-batches, exchanged with each or with the last, over that of one process."""
    ids = random_ids({**factors, "batch": MICRO_BATCHES}, rank)
    model, kind = models.build(factors["model"], MODEL_SEED, rank.device)
    models.loss_of(model, ids).backward()  # type: ignore[no-untyped-call]
    squares = torch.zeros((), dtype=torch.float64, device=rank.device)
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        squares += (parameter.grad / rank.place.world_size).double().square().sum()
    expected = float(squares.sqrt())
    model.zero_grad(set_to_none=True)
    wrapped = wrap(model, plan_of(factors), rank.device, kind)
    training = Training(wrapped, models.loss_of, everywhere=factors["exchange"] == EACH)
    training.passes(ids.chunk(MICRO_BATCHES))
    parts = [part.double().square().sum().to(rank.device) for part in local_gradients(training.optimizer)]
    total = torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64, device=rank.device)
    dist.all_reduce(total)
    values = {"gradient_norm": float(total.sqrt()), "expected_norm": expected}
    discard(training, rank.device)
    return {"timings": {}, "values": values, "applied": {}, "layout": None}
