"""strategies: cells measured for real with gloo, and what they say of themselves."""

from types import SimpleNamespace
from typing import Any

import fsdp_cases
import pytest
import torch

from perfscribe import config
from perfscribe.base.cells import Cell, read
from perfscribe.distributed.launch import launch
from perfscribe.experiments.fsdp.strategies import levels, measure, program
from perfscribe.instruments.correctness import WrongResult
from perfscribe.plan import plan

NAME = "strategies"
SECTION = plan.own_section(config.resolve({}, "tiny"), NAME)


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
    grid = [cell for cell in levels.cells(SECTION) if cell["part"] == measure.GRID and not cell.skip]
    return next(cell for cell in grid if cell["world_size"] == 2 and cell["strategy"] == "full_shard")


def test_a_model_that_computes_something_else_once_wrapped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rank: Any = SimpleNamespace(place=SimpleNamespace(rank=0, world_size=1), device=torch.device("cpu"))
    single = a_cell().factors | {"api": "single", "strategy": "single", "world_size": 1}
    losses = iter((3.0, 4.0))
    monkeypatch.setattr(program, "loss_of", lambda module, ids: torch.tensor(next(losses), requires_grad=True))
    with pytest.raises(WrongResult, match=r"the first loss is off by 0\.33 against the model's before it was wrapped"):
        program.Trained(measure.plan_of(single), read(single, measure.Steps), rank)


def test_a_loss_is_that_of_all_ranks_rows() -> None:
    assert measure._over([1.0, 2.0, 6.0], "last_loss") == 3.0
