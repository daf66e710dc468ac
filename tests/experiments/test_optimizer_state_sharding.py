"""optimizer_state_sharding: the slowest and fullest rank, and a wrong optimizer. Memory: also in test_workflow.py."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from measured_cells import as_record, with_tokens
from ranks import run_ranks

from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.sharding import schemes
from perfscribe.base.cells import read
from perfscribe.experiments.cs336.optimizer_state_sharding import levels, measure, program, show
from perfscribe.experiments.cs336.optimizer_state_sharding.measure import IMPLEMENTATIONS, SHARDED
from perfscribe.instruments.correctness import WrongResult
from perfscribe.models.transformer import Model
from perfscribe.plan import plan

CONTEXT, BATCH = 12, 6
FACTORS: dict[str, Any] = {"backend": "gloo", "size": "nano", "seq_len": CONTEXT, "batch": BATCH, "dtype": "fp32"}
FACTORS |= {"world_size": 2, "turns": 1, "warmup_steps": 0, "timed_steps": 1, "optimizer_steps": 1}


def test_a_batch_of_the_further_cells_that_is_set_too_is_planned_once() -> None:
    raw = {"experiments": {"optimizer_state_sharding": {"batch": [16, 32], "dtype": ["tf32"]}}}
    cells = plan.planned_cells(raw, "optimizer_state_sharding", "gpu")
    planned = [(cell["batch"], cell["world_size"]) for cell in cells if not cell.skip]
    assert planned == [(16, 2), (32, 2), (16, 4), (32, 4)]


def test_memory_is_as_predicted_with_gradients_sent_one_by_one(tmp_path: Path) -> None:
    folder = with_tokens(tmp_path / "data", BATCH, CONTEXT)
    cell = replace(levels._cell(FACTORS | {"wrapper": "naive"}), data_folder=str(folder))
    record = as_record("optimizer_state_sharding", cell, measure.run(cell))
    for name, moment in itertools.product(IMPLEMENTATIONS, show.MODELS):
        found = sum(record.series[f"{name}_{moment}_bytes"])
        assert found == pytest.approx(show.predicted_bytes(record, moment, name), rel=1e-3), (name, moment)


@pytest.mark.parametrize(
    ("backend", "size", "sent"),
    [("nccl", "xl", ("all-reduce, all-gather", 16)), ("gloo", "nano", ("all-reduce, broadcast", 2))],
)
def test_updated_parameters_travel_in_pieces(backend: str, size: str, sent: tuple[str, int]) -> None:
    """4 GB of each rank in pieces of 256 MiB, or one broadcast from each rank."""
    ours = schemes(SIZES[size], 2, flat=False, backend=backend)[1]
    assert (ours.collectives, ours.parameter_messages) == sent


def test_times_are_those_of_the_slowest_rank() -> None:
    def rank(ms: float, held: int) -> dict[str, Any]:
        timing = {"samples_ms": [ms, 10 - ms], "warmup_ms": [ms], "timer": "host clock", "warmup_s": ms, "timed_s": 1.0}
        moments = {moment: [held, 1, 0, 0, 0, 0] for moment in measure.MOMENTS}
        memory, outside = (dict.fromkeys(IMPLEMENTATIONS, of) for of in (moments, 5 * held))
        said = {"memory": memory, "outside": outside, "traffic": {"gradient_calls": 1, "gradient_bytes": 4}}
        return said | {"difference": ms / 1e9, "timings": {"sharded_step_ms": timing}}

    found = measure.combine([rank(3, 10), rank(4, 20)])
    assert found.samples == {"sharded_step_ms": [4, 7]} and found.warmup == {"sharded_step_ms": [4]}
    assert (found.values["difference"], found.values["sharded_outside_bytes"]) == (4e-9, 100)
    assert found.series["sharded_step_bytes"] == [20, 1, 0, 0, 0, 0]
    assert found.series["sharded_step_rank_bytes"] == [11, 21]


def refusals(rank: int, folder: Path) -> list[str]:
    return [refusal(rank, folder, fault) for fault in ("rate", "nan")]


def refusal(rank: int, folder: Path, fault: str) -> str:
    """Return the check's message for a slightly wrong learning rate in our optimizer, or for a NaN parameter."""
    make, steps = program.make_optimizer, itertools.count(1)

    def broken(name: str, parameters: Any) -> Any:
        made, held = make(name, parameters), list(parameters)
        for group in made.param_groups if name == SHARDED and fault == "rate" else ():
            group["lr"] *= 1.001

        def spoil(*_: Any) -> None:
            if fault == "nan" and next(steps) > 2 * (program.CHECKED_STEPS - 1):  # the last of both
                held[-1].data.fill_(math.nan)

        made.register_step_post_hook(spoil)
        return made

    me: Any = SimpleNamespace(place=SimpleNamespace(rank=rank, world_size=2), device=torch.device("cpu"))
    level = read(FACTORS | {"device": "cpu", "wrapper": "flat", "data_folder": str(folder)}, measure.Sharding)
    with mock.patch.object(program, "make_optimizer", broken), pytest.raises(WrongResult) as caught:
        program.difference(program.ShardedTraining(Model(SIZES["nano"], CONTEXT), level, me))
    return str(caught.value)


def test_a_wrong_optimizer_is_noticed(tmp_path: Path) -> None:
    for by_rate, by_nan in run_ranks(refusals, 2, with_tokens(tmp_path / "data", BATCH, CONTEXT)):
        assert re.match(r"parameter \d+ is off by \d.* after 10 steps, allowed 1e-07", by_rate)
        assert re.match(r"parameter \d+ is off by nan.* after 10 steps, allowed 1e-07", by_nan)
