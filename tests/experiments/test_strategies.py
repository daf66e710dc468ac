"""strategies: cells measured for real with gloo, and what they say of themselves."""

from __future__ import annotations

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

NAME = "strategies"
SECTION = plan.own_section(config.resolve(raw_config(), "tiny"), NAME)


@pytest.fixture(scope="module")
def measured() -> list[Record]:
    """Each plan that the tiny preset can measure here, turns enough for an interval."""
    cells = measure.cells(SECTION | {"turns": 6, "timed_steps": 1})
    here = [cell for cell in sorted(cells, key=lambda one: one.cost) if not cell.skip and "cuda" not in cell.requires]
    found = [as_record(NAME, cell, measure.run(cell)) for cell in here]
    dismiss()
    return found


def grid(records: list[Record]) -> list[Record]:
    """Of each plan that was measured."""
    return [record for record in show.of_part(records, measure.GRID) if record.ok]


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
        same = [one for one in grid(measured) if one.has(world_size=ranks, dtype="fp32", offload=False)]
        assert len(same) >= 5
        for key in ("first_loss", "last_loss"):
            losses = [one.values[key] for one in same]
            assert max(losses) == pytest.approx(min(losses), rel=1e-4)
        assert same[0].values["last_loss"] < same[0].values["first_loss"]


def test_every_cell_says_what_wrapped_its_model(measured: list[Record]) -> None:
    two = [one for one in grid(measured) if one.factors["world_size"] == 2]
    told = {
        (one.factors["api"], one.factors["strategy"]): (one.values["applied_replicas"], one.values["applied_shards"])
        for one in two
    }
    shards = [("fsdp2", "full_shard"), ("fsdp2", "shard_grad_op"), ("fsdp1", "full_shard")]
    replicas = [("ddp", "ddp"), ("fsdp2", "hybrid_shard")]
    assert told == dict.fromkeys(shards, (1, 2)) | dict.fromkeys(replicas, (2, 1))
    tables = {table.id: table for table in show.tables({NAME: measured})}
    shown = tables["fsdp.world_of_one"].ok.set_index("api")
    assert list(shown.loc["FSDP1", ["strategy", "applied_strategy"]]) == ["FULL_SHARD", "NO_SHARD"]


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


def a_cell() -> Cell:
    grid = [cell for cell in measure.cells(SECTION) if cell["part"] == measure.GRID and not cell.skip]
    return next(cell for cell in grid if cell["world_size"] == 2 and cell["strategy"] == "full_shard")


def test_a_model_that_computes_something_else_once_wrapped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rank: Any = SimpleNamespace(place=SimpleNamespace(rank=0, world_size=1), device=torch.device("cpu"))
    single = a_cell().factors | {"api": "single", "strategy": "single", "world_size": 1}
    losses = iter((3.0, 4.0))
    monkeypatch.setattr(program, "loss_of", lambda module, ids: torch.tensor(next(losses), requires_grad=True))
    with pytest.raises(ArithmeticError, match="the first loss is 4, that of the model before it was wrapped 3"):
        program.Trained(single, rank)


def test_a_loss_is_that_of_all_ranks_rows() -> None:
    assert measure._over([1.0, 2.0, 6.0], "last_loss") == 3.0
