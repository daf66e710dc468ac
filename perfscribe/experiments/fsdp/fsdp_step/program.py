"""Runs on the ranks of fsdp_step; they stay for all cells of one number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from perfscribe.base.cells import read
from perfscribe.distributed.process_group import together
from perfscribe.experiments.cs336.ddp import tracing
from perfscribe.experiments.fsdp.strategies.measure import Steps, plan_of
from perfscribe.experiments.fsdp.strategies.program import Trained, fresh
from perfscribe.instruments.timing import time_host

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank


def on_rank(factors: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return step times, and computing and communication of a traced step (ms). Raises what Trained raises."""
    if rank.device.type == "cpu":  # as in strategies
        torch.set_num_threads(1)
    of = read(factors, Steps)
    fresh(rank.device)
    try:
        with closing(Trained(plan_of(factors), of, rank)) as trained:
            values = {"peak_allocated_bytes": trained.memory()["peak_allocated_bytes"], **trained.applied}
            prepare = partial(together, rank.device)
            counts = {"warmup": of.warmup_steps, "timed": of.timed_steps}
            timing = time_host(trained.step, device=rank.device, prepare=prepare, **counts)
            trace = tracing.record(prepare, lambda _: trained.step(), rank.device.type)
            values |= tracing.lanes(trace, rank.place.world_size, rank.device.type).values()
            return {"step_ms": vars(timing), "values": values | {"threads": torch.get_num_threads()}}
    finally:
        fresh(rank.device)
