"""optimizer_state_sharding: cells measured for real with gloo against the prediction, and its tables."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from ranks import RanksError, run_ranks
from unmeasured import raw_config

from perfscribe import config
from perfscribe.analytic import sharding
from perfscribe.analytic.memory import total_bytes
from perfscribe.analytic.parameters import transformer_parameters, transformer_tensors
from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.sharding import Sharding
from perfscribe.analytic.workload import Workload
from perfscribe.base.cells import Cell, Measurement
from perfscribe.data import tokens
from perfscribe.distributed import broadcasting, sharded_optimizer
from perfscribe.experiments.optimizer_state_sharding import drawings, measure, memory, program, show
from perfscribe.experiments.optimizer_state_sharding.measure import IMPLEMENTATIONS, KINDS, PEER, SHARDED, UNSHARDED
from perfscribe.models.transformer import Model
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.run.child import as_answer
from perfscribe.show import references
from perfscribe.show.tables import MIB, Table

CONTEXT, BATCH, TURNS = 12, 6, 2
LEVELS: dict[str, Any] = {"backend": "gloo", "size": "nano", "seq_len": CONTEXT, "batch": BATCH, "dtype": "fp32"}
LEVELS |= {"turns": TURNS, "warmup_steps": 0, "timed_steps": 1, "optimizer_steps": 2}
NAME = "optimizer_state_sharding"
XL_BYTES = 4 * transformer_parameters(SIZES["xl"])


def test_cells_of_the_gpu_preset() -> None:
    cells = measure.cells(plan.own_section(config.resolve(raw_config(), "gpu"), NAME))
    levels = [(c["size"], c["seq_len"], c["world_size"], c["batch"], c["dtype"], c["backend"]) for c in cells]
    expected = [("xl", 128, ranks, 16, dtype, "nccl") for ranks in (2, 4) for dtype in ("tf32", "fp32")]
    assert levels == [*expected, ("xl", 128, 2, 32, "tf32", "nccl")]
    assert cells[0].requires == ("cuda", "tf32", "cuda:2")
    assert all(not c.skip and c["device"] == "cuda" and c["wrapper"] == "naive" for c in cells)


def test_a_batch_that_cannot_be_divided() -> None:
    (cell,) = measure.cells(plan.own_section(config.resolve(raw_config(), "tiny"), NAME) | {"world_size": [3]})
    assert cell.skip == "a batch of 4 cannot be divided among 3 ranks"


# --- measured ---------------------------------------------------------------------------------------------------


def cell(ranks: int, wrapper: str, folder: Path) -> Cell:
    return replace(measure._cell({**LEVELS, "world_size": ranks, "wrapper": wrapper}), data_folder=str(folder))


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data: Path = tmp_path_factory.mktemp("site") / "data"
    folder = data / tokens.dataset_name(BATCH, CONTEXT)
    folder.mkdir(parents=True)
    np.save(folder / tokens.FILE, tokens.arrays(BATCH, CONTEXT + 1, 10_000, 0)["tokens"])
    return data


@pytest.fixture(scope="module")
def measured(data_folder: Path) -> list[Record]:
    """A record of one round of two cells, as JSON hands it on."""
    found = []
    for ranks, wrapper in ((2, "naive"), (3, "flat")):
        one = cell(ranks, wrapper, data_folder)
        said = Measurement(**json.loads(json.dumps(as_answer(measure.run(one)))))
        samples = {name: [samples] for name, samples in said.samples.items()}
        parts = {"values": said.values, "series": said.series, "timers": said.timers}
        found.append(Record(NAME, dict(one.factors), "ok", "", "measured", samples=samples, **parts))
    return found


def test_memory_is_as_predicted(measured: list[Record]) -> None:
    for record in measured:
        for name, moment in itertools.product(IMPLEMENTATIONS, measure.MOMENTS):
            found = sum(record.series[f"{name}_{moment}_bytes"])
            where = record.factors["world_size"], name, moment
            assert found == pytest.approx(show.predicted_bytes(record, moment, name), rel=1e-3), where


def test_state_is_divided(measured: list[Record]) -> None:
    elements, tensors = transformer_parameters(SIZES["nano"]), len(transformer_tensors(SIZES["nano"]))
    moment = measure.BEFORE_STEP
    for record in measured:
        plain, ours = (
            record.series[f"{name}_{moment}_bytes"][KINDS.index(measure.STATE)] for name in (UNSHARDED, SHARDED)
        )
        assert plain == 8 * elements + 4 * tensors
        fullest = sharding.fullest_rank(Sharding(Workload(SIZES["nano"], 1, 1), record.factors["world_size"]))
        assert ours == 8 * sum(fullest) + 4 * len(fullest) < plain
        by_rank = record.series[f"{SHARDED}_{moment}_rank_bytes"]
        assert len(by_rank) == record.factors["world_size"]
        assert max(by_rank) == sum(record.series[f"{SHARDED}_{moment}_bytes"])


def test_times_and_check_of_a_cell(measured: list[Record]) -> None:
    for record in measured:
        assert record.values["difference"] == 0
        tensors = len(transformer_tensors(SIZES["nano"]))
        assert record.values["gradient_calls"] == (1 if record.factors["wrapper"] == "flat" else tensors)
        assert record.values["gradient_bytes"] == 4 * transformer_parameters(SIZES["nano"])
        for name in (*IMPLEMENTATIONS, measure.AGAIN):
            assert len(record.samples[f"{name}_step_ms"][0]) == TURNS
            assert len(record.samples[f"{name}_optimizer_ms"][0]) == 2 * TURNS
        parts = [record.samples[f"sharded_{part}_ms"][0] for part in ("update", "exchange")]
        assert all(len(part) == 2 * TURNS and min(part) > 0 for part in parts)
        assert set(record.timers.values()) == {"host clock"}


def test_tables_of_measured_cells(measured: list[Record]) -> None:
    assert all(len(table.ok) >= 3 for table in tables(measured).values())


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


# --- on a rank --------------------------------------------------------------------------------------------------


def a_training(rank: int, folder: Path, wrapper: str) -> program.Training:
    place = SimpleNamespace(rank=rank, world_size=2)
    me: Any = SimpleNamespace(place=place, device=torch.device("cpu"))
    factors = cell(2, wrapper, folder).factors | {"data_folder": str(folder)}
    return program.Training(Model(SIZES["nano"], CONTEXT), factors, me)


def checked(rank: int, folder: Path, fault: str) -> float:
    """The check, with our optimizer's learning rate a little off, or a parameter that is no number in the end."""
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

    with mock.patch.object(program, "make_optimizer", broken):
        return program.difference(a_training(rank, folder, "flat"))


@pytest.mark.parametrize(("fault", "off"), [("rate", r"\d"), ("nan", "nan")])
def test_a_wrong_optimizer_is_noticed(data_folder: Path, fault: str, off: str) -> None:
    with pytest.raises(RanksError, match=rf"a parameter is off by {off}.* after 10 steps, allowed 1e-07"):
        run_ranks(checked, 2, data_folder, fault)


def test_segments() -> None:
    kept = torch.empty(1000)
    with memory.Segments(torch.device("cpu")) as segments:
        scratch = torch.empty(500)
        del scratch
        segments.mark("first")
        more = torch.empty(250)
        segments.mark("second")
        segments.mark("third")
    base = segments.before_bytes
    assert base >= kept.nbytes
    assert segments.peaks == [("first", base + 2000), ("second", base + 1000), ("third", base + 1000)]
    assert more.nbytes == 1000


# --- the analytic model -----------------------------------------------------------------------------------------


def xl(ranks: int = 1, flat: bool = False, exchange: str = "") -> Sharding:
    return Sharding(Workload(SIZES["xl"], 8, 128, "tf32", "cuda"), ranks, flat, exchange)


def step_as_on_nccl(rank: int, folder: Path, piece_bytes: int) -> tuple[list[int], dict[str, int]]:
    """Counted bytes by kind and predicted ones by item at the peak of our step as on NCCL; rows are sent in place."""

    def gather(target: torch.Tensor, _: torch.Tensor, group: Any, async_op: bool) -> Any:
        for source, row in enumerate(target.chunk(2)):
            dist.broadcast(row, source, group=group)
        return SimpleNamespace(wait=lambda: None)

    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    with (
        mock.patch.object(dist, name, gather),
        mock.patch.object(sharded_optimizer, "backends", lambda group: {"cpu": "nccl"}),
        mock.patch.object(sharded_optimizer, "PIECE_BYTES", piece_bytes),
        mock.patch.object(sharding, "PIECE_BYTES", piece_bytes),
    ):
        trained = a_training(rank, folder, "naive")
        found = memory.measure_memory(trained, lambda: program.make_optimizer(SHARDED, trained.parameters))
        load = Workload(SIZES["nano"], BATCH // 2, CONTEXT, "fp32", "cpu")
        return found[measure.STEP], dict(sharding.step_peak(Sharding(load, 2, exchange="nccl")))


def test_memory_of_the_step_as_on_nccl(data_folder: Path) -> None:
    found = run_ranks(step_as_on_nccl, 2, data_folder, 2**18)
    counted, predicted = max(found, key=lambda one: sum(one[0]))
    assert predicted[sharding.COMMUNICATION] > 0
    assert sum(counted) == pytest.approx(total_bytes(predicted), rel=2e-3)
    buffers = counted[KINDS.index(measure.COMMUNICATION)]
    assert buffers == pytest.approx(predicted[sharding.COMMUNICATION], abs=2e-3 * sum(counted))


def test_chunks_of_gloo() -> None:
    assert sharding.GLOO_CHUNK_BYTES == broadcasting.CHUNK_BYTES
    sizes = [4 * size for size in transformer_tensors(SIZES["small"])]
    assert 32 * MIB < sharding.gloo_chunks_bytes(SIZES["small"], 2) <= 2 * max(32 * MIB, *sizes)
    assert sharding.gloo_chunks_bytes(SIZES["small"], 10**4) == 0  # a tensor each travels from where it lies


def test_traffic_beside_zero() -> None:
    for ranks in (2, 4):
        plain, ours, zero = sharding.schemes(SIZES["xl"], ranks)
        sent = [scheme.gradient_bytes + scheme.parameter_bytes for scheme in (plain, ours, zero)]
        assert sent == pytest.approx([factor * XL_BYTES * (ranks - 1) / ranks for factor in (2, 3, 2)])
        assert plain.state_bytes == 2 * XL_BYTES
        assert zero.state_bytes == pytest.approx(2 * XL_BYTES / ranks)
        assert 1 <= ours.balance < 1.01
    assert sharding.schemes(SIZES["nano"], 4)[1].balance > 1.5  # two of its tensors are half of it each


def test_published_savings_are_near_the_prediction() -> None:
    """brandon-snider's peaks up to the step, two H100, batch 16: their difference is half of the state."""
    known = references.load(NAME)
    plain, ours = (
        references.find(known, "memory_before_step_gib", dtype="tf32", batch=16, world_size=2, implementation=name)[0]
        for name in (UNSHARDED, SHARDED)
    )
    predicted = total_bytes(sharding.passes_peak(xl())) - total_bytes(sharding.passes_peak(xl(2)))
    assert plain.value - ours.value == pytest.approx(predicted / 2**30, rel=0.05)


# --- tables -----------------------------------------------------------------------------------------------------

FACTORS: dict[str, Any] = {**LEVELS, "device": "cuda", "backend": "nccl", "world_size": 2, "size": "xl"}
FACTORS |= {"seq_len": 128, "batch": 16, "dtype": "tf32", "wrapper": "naive"}


def fixture(ranks: int = 2) -> Record:
    """Memory as predicted; our step takes 0.9 of the time."""
    factors = {**FACTORS, "world_size": ranks}
    record = Record(NAME, factors, "ok", "", "measured", values={"difference": 0.0, "gradient_bytes": XL_BYTES})
    for name in IMPLEMENTATIONS:
        for moment in measure.MOMENTS:
            record.series[f"{name}_{moment}_bytes"] = [show.predicted_bytes(record, moment, name), 0, 0, 0, 0, 0]
    for name, factor in {UNSHARDED: 1.0, measure.AGAIN: 1.001, SHARDED: 0.9, PEER: 1.1}.items():
        for time, ms in (("step", 400.0), ("optimizer", 40.0)):
            record.samples[f"{name}_{time}_ms"] = [[ms * factor * (1 + 1e-3 * turn) for turn in range(6)]]
            record.timers[f"{name}_{time}_ms"] = "host clock"
    record.samples |= {"sharded_update_ms": [[20.0] * 6], "sharded_exchange_ms": [[15.0] * 6]}
    return record


def tables(records: list[Record]) -> dict[str, Table]:
    return {table.id.removeprefix("cs336.sharding_"): table for table in show.tables({NAME: records})}


def ours(table: Table, **levels: Any) -> pd.Series:
    """The one row of our optimizer at these levels."""
    chosen = table.ok[table.ok["implementation"] == drawings.NAMES[SHARDED]]
    for name, level in levels.items():
        chosen = chosen[chosen[name] == level]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_figures_of_a_record() -> None:
    made = tables([fixture(), fixture(4)])
    row = ours(made["saved"], world_size=2, moment=drawings.MOMENT_NAMES[measure.BEFORE_STEP])
    assert row["saved_gib"] == row["predicted_gib"] == pytest.approx(7.44, abs=0.01) and row["error_percent"] == 0
    memory, times = (ours(made[name], world_size=2) for name in ("memory", "times"))
    assert (times["optimizer_ms"], times["exchange_ms"]) == (pytest.approx(36, rel=0.01), 15)
    assert memory["memory_before_step_gib_brandon-snider"] == pytest.approx(26312.84 / 1024)
    assert times["step_ms_brandon-snider"] == 510.53
    assert ours(made["times"], world_size=4)["step_ms_brandon-snider"] == "none"


def test_cells_without_figures() -> None:
    skipped = Record(NAME, dict(FACTORS), "skipped", "4 GPUs", "measured", values={"before_start": True})
    for table in tables([skipped]).values():
        shown = table.frame.iloc[0]
        for column in table.columns:
            if column.kind in ("figure", "unshown"):
                assert shown[column.name] is None, column.name
