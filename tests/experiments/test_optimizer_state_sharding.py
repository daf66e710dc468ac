"""optimizer_state_sharding: cells measured for real with gloo against the prediction."""

from __future__ import annotations

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

from perfscribe.analytic.parameters import transformer_parameters, transformer_tensors
from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell
from perfscribe.experiments.optimizer_state_sharding import measure, program, show
from perfscribe.experiments.optimizer_state_sharding.measure import IMPLEMENTATIONS, SHARDED
from perfscribe.models.transformer import Model

CONTEXT, BATCH, TURNS = 12, 6, 2
LEVELS: dict[str, Any] = {"backend": "gloo", "size": "nano", "seq_len": CONTEXT, "batch": BATCH, "dtype": "fp32"}
LEVELS |= {"turns": TURNS, "warmup_steps": 0, "timed_steps": 1, "optimizer_steps": 2}
NAME = "optimizer_state_sharding"


def cell(ranks: int, wrapper: str, folder: Path) -> Cell:
    return replace(measure._cell({**LEVELS, "world_size": ranks, "wrapper": wrapper}), data_folder=str(folder))


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokens(tmp_path_factory.mktemp("site") / "data", BATCH, CONTEXT)


@pytest.mark.parametrize(("ranks", "wrapper"), [(2, "naive"), (3, "flat")])
def test_memory_is_as_predicted_and_all_is_timed(data_folder: Path, ranks: int, wrapper: str) -> None:
    one = cell(ranks, wrapper, data_folder)
    record = as_record(NAME, one, measure.run(one))
    for name, moment in itertools.product(IMPLEMENTATIONS, measure.MOMENTS):
        found = sum(record.series[f"{name}_{moment}_bytes"])
        assert found == pytest.approx(show.predicted_bytes(record, moment, name), rel=1e-3), (name, moment)
    assert record.values["difference"] == 0
    tensors = len(transformer_tensors(SIZES["nano"]))
    assert record.values["gradient_calls"] == (1 if wrapper == "flat" else tensors)
    assert record.values["gradient_bytes"] == 4 * transformer_parameters(SIZES["nano"])
    for name in (*IMPLEMENTATIONS, measure.AGAIN):
        assert len(record.samples[f"{name}_step_ms"][0]) == TURNS
        assert len(record.samples[f"{name}_optimizer_ms"][0]) == 2 * TURNS
    parts = [record.samples[f"sharded_{part}_ms"][0] for part in ("update", "exchange")]
    assert all(len(part) == 2 * TURNS and min(part) > 0 for part in parts)
    assert set(record.timers.values()) == {"host clock"}


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


def checked(rank: int, folder: Path) -> list[str]:
    return [refusal(rank, folder, fault) for fault in ("rate", "nan")]


def refusal(rank: int, folder: Path, fault: str) -> str:
    """What the check says of a learning rate a little off in our optimizer, or of a parameter that is no number."""
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
    factors = cell(2, "flat", folder).factors | {"data_folder": str(folder)}
    with mock.patch.object(program, "make_optimizer", broken), pytest.raises(ArithmeticError) as caught:
        program.difference(program.Training(Model(SIZES["nano"], CONTEXT), factors, me))
    return str(caught.value)


def test_a_wrong_optimizer_is_noticed(data_folder: Path) -> None:
    for texts in run_ranks(checked, 2, data_folder):
        for text, off in zip(texts, (r"\d", "nan"), strict=True):
            assert re.match(rf"a parameter is off by {off}.* after 10 steps, allowed 1e-07", text)
