"""strategies: cells measured for real with gloo, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fsdp_cases
import pytest
import torch
from measured_cells import as_record
from unmeasured import raw_config

from perfscribe import config
from perfscribe.analytic import fsdp_memory, fsdp_traffic
from perfscribe.base.cells import Cell
from perfscribe.distributed.launch import dismiss, launch
from perfscribe.experiments.strategies import measure, program, show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show.tables import Table

NAME = "strategies"


def section(preset: str) -> dict[str, Any]:
    """The experiment's part of the committed config."""
    return plan.own_section(config.resolve(raw_config(), preset), NAME)


def as_shown(cell: Cell) -> Record:
    """What it gives; skipped where it cannot run here."""
    if cell.skip or "cuda" in cell.requires:
        return Record(NAME, dict(cell.factors), "skipped", cell.skip or "no GPU", "measured")
    return as_record(NAME, cell, measure.run(cell))


@pytest.fixture(scope="module")
def measured() -> Iterator[list[Record]]:
    """The tiny preset, turns enough for an interval; in the order of its cells."""
    cells = measure.cells(section("tiny") | {"turns": 6, "timed_steps": 1})
    found = {}
    for cell in sorted(cells, key=lambda one: one.cost):
        found[id(cell)] = as_shown(cell)
    dismiss()
    yield [found[id(cell)] for cell in cells]


def grid(records: list[Record]) -> list[Record]:
    """Of each plan that was measured."""
    return [record for record in show.of_part(records, measure.GRID) if record.ok]


def tables(records: list[Record]) -> dict[str, Table]:
    return {table.id: table for table in show.tables({NAME: records})}


# --- measured ---------------------------------------------------------------------------------------------------


def test_state_and_traffic_are_as_predicted(measured: list[Record]) -> None:
    for record in grid(measured):
        load = show.load(record)
        exact = record.factors["api"] != "fsdp1"
        state = record.values["state_bytes"]
        assert state == pytest.approx(sum(fsdp_memory.state_bytes(load).values()), rel=0 if exact else 0.01)
        sent = fsdp_traffic.sent_bytes(fsdp_traffic.messages(load))
        assert record.values["sent_bytes"] == pytest.approx(sent, rel=0 if exact else 0.01)
        between = fsdp_cases.gathered_between_bytes(load)
        assert record.values["gathered_between_bytes"] == pytest.approx(between, rel=0 if exact else 0.01)


def test_all_strategies_train_alike(measured: list[Record]) -> None:
    """Same weights, same batches: the losses after the steps are those of DDP."""
    for ranks in (1, 2):
        same = [
            one
            for one in show.of_part(measured, measure.GRID)
            if one.ok and one.has(world_size=ranks, dtype="fp32", offload=False)
        ]
        assert len(same) >= 5
        for key in ("first_loss", "last_loss"):
            losses = [one.values[key] for one in same]
            assert max(losses) == pytest.approx(min(losses), rel=1e-4)
        assert same[0].values["last_loss"] < same[0].values["first_loss"]


def test_every_cell_says_what_wrapped_its_model(measured: list[Record]) -> None:
    two = [one for one in grid(measured) if one.factors["world_size"] == 2]
    assert {
        (one.factors["api"], one.factors["strategy"]): (one.values["applied_replicas"], one.values["applied_shards"])
        for one in two
    } == {
        ("fsdp2", "full_shard"): (1, 2),
        ("ddp", "ddp"): (2, 1),
        ("fsdp2", "shard_grad_op"): (1, 2),
        ("fsdp2", "hybrid_shard"): (2, 1),
        ("fsdp1", "full_shard"): (1, 2),
    }
    shown = tables(measured)["fsdp.world_of_one"].ok.set_index("api")
    applied = shown.loc["FSDP1", ["strategy", "applied_strategy", "mesh"]]
    assert list(applied) == ["FULL_SHARD", "NO_SHARD", "1 × 1"]


# --- memory -----------------------------------------------------------------------------------------------------

ONE_RANK: Any = SimpleNamespace(place=SimpleNamespace(rank=0, world_size=1), device=torch.device("cpu"))
SINGLE: dict[str, Any] = {"api": "single", "strategy": "single", "world_size": 1}
LEFT = [
    ("ddp", "ddp", "bf16", "per_block", "implicit"),
    ("fsdp2", "full_shard", "bf16", "per_block", "both"),
    ("fsdp2", "shard_grad_op", "bf16", "whole", "implicit"),
    ("fsdp1", "full_shard", "fp32", "per_block", "backward_pre"),
    ("fsdp1", "full_shard", "bf16", "whole", "backward_post_forward"),
]


def test_a_plan_knows_what_it_holds_and_leaves_nothing() -> None:
    names = ("api", "strategy", "dtype", "wrapping", "prefetch")
    plans = [{**a_cell().factors, **dict(zip(names, of, strict=True))} for of in LEFT]
    by_rank = launch(fsdp_cases.left_behind, {"plans": plans}, world_size=2, backend="gloo", timeout_s=120)
    for rank in by_rank:
        for of, found in zip(LEFT, rank, strict=True):
            assert found["known"] == pytest.approx(found["added"], rel=0.01), of
            assert found["left"] == 0 and found["known"] >= found["state"], of


# --- faults -----------------------------------------------------------------------------------------------------


def a_cell(**factors: Any) -> Cell:
    grid = [cell for cell in measure.cells(section("tiny")) if cell["part"] == measure.GRID and not cell.skip]
    chosen = next(cell for cell in grid if cell["world_size"] == 2 and cell["strategy"] == "full_shard")
    return replace(chosen, factors={**chosen.factors, **factors})


def test_a_model_that_computes_something_else_once_wrapped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter((3.0, 4.0))
    monkeypatch.setattr(program, "loss_of", lambda module, ids: torch.tensor(next(losses), requires_grad=True))
    with pytest.raises(ArithmeticError, match="the first loss is 4, that of the model before it was wrapped 3"):
        program.Trained(a_cell().factors | SINGLE, ONE_RANK)


def test_a_loss_is_that_of_all_ranks_rows() -> None:
    assert measure._over([1.0, 2.0, 6.0], "last_loss") == 3.0
