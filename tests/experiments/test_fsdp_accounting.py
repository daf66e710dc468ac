"""The experiment fsdp_accounting: memory as expected, waits of a trace, a wrong implementation, the plan."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from measured_cells import as_record, with_tokens
from ranks import run_ranks

from perfscribe.distributed.sharded_modules import FullyShardedModule
from perfscribe.experiments.cs336.fsdp_accounting import measure, program, show
from perfscribe.experiments.cs336.fsdp_accounting.measure import DDP, FSDP, PEER, SHARDED
from perfscribe.instruments.correctness import WrongResult
from perfscribe.plan import plan


def test_each_rank_has_its_share_of_the_editions_batch_of_four_on_two_gpus() -> None:
    cells = plan.planned_cells({}, "fsdp_accounting", "gpu")
    assert [(cell["size"], cell["seq_len"], cell["world_size"], cell["batch"], cell["dtype"]) for cell in cells] == [
        ("2.7B", 512, ranks, 2 * ranks, dtype) for dtype in ("fp32", "bf16") for ranks in (2, 4)
    ]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A measured cell's rows by implementation."""
    (cell,) = [cell for cell in plan.planned_cells({}, "fsdp_accounting", "tiny") if cell["device"] == "cpu"]
    folder = with_tokens(tmp_path_factory.mktemp("data"), cell["batch"], cell["seq_len"])
    cell = replace(cell, factors=cell.factors | {"turns": 1}, data_folder=str(folder))
    record = as_record("fsdp_accounting", cell, measure.run(cell))
    return {row.factors["implementation"]: row for row in show.by_implementation(record)}


def test_sharding_saves_what_is_expected(rows: dict[str, Any]) -> None:
    for name, row in rows.items():
        expected_bytes = show.expected_gib(row) * 2**30
        assert row.values["saved_bytes"] == pytest.approx(expected_bytes, rel=0.02), name
        assert row.values["init_bytes"] < row.values["before_step_bytes"] < row.values["peak_bytes"]
    whole = rows[DDP].values["init_bytes"]
    assert whole == rows[SHARDED].values["init_bytes"] and whole / 2 < rows[FSDP].values["init_bytes"] < 0.51 * whole


def test_only_those_that_shard_weights_gather_them_in_forward(rows: dict[str, Any]) -> None:
    gathering = {name for name, row in rows.items() if row.values["traced_gathers_forward_ms"] > 0}
    assert gathering == {FSDP, PEER}
    for row in rows.values():
        assert 0 <= row.values["traced_waits_forward_ms"] <= row.values["traced_gathers_forward_ms"]
        assert ("gathers" in row.series["lane"]) == (row.values["traced_gathers_ms"] > 0)
        assert min(map(min, row.samples["tail_ms"])) > 0
    assert {name for name, row in rows.items() if "wait_ms" in row.samples} == {FSDP}


def test_compute_waits_for_a_gather_that_ends_before_it_goes_on() -> None:
    compute = [(10, 20), (30, 40), (60, 70)]
    assert program.waited_ns([(0, 10)], compute, 100) == 10
    assert program.waited_ns([(15, 28)], compute, 100) == 8
    assert program.waited_ns([(15, 35)], compute, 100) == 0  # it goes on beside the gather
    assert program.waited_ns([(22, 24), (45, 50)], compute, 100) == 2 + 5
    assert program.waited_ns([(22, 24), (45, 50)], compute, 40) == 2


def refused(rank: int) -> str:
    """Return the refusal of ours where it sums gradients of shards."""
    me: Any = SimpleNamespace(place=SimpleNamespace(rank=rank, world_size=2), device=torch.device("cpu"), seed=7)
    ids = torch.randint(10_000, (4, 17), generator=torch.Generator().manual_seed(0))

    def wrap(*arguments: Any) -> program.Wrapped:
        training = program.WRAPS[FSDP](*arguments)
        assert isinstance(training.model, FullyShardedModule)
        training.model._divisor = 1
        return training

    with pytest.raises(WrongResult) as caught:
        program.error(FSDP, wrap, "fp32", ids, me)
    return str(caught.value)


def test_gradients_that_are_no_averages_are_noticed() -> None:
    for text in run_ranks(refused, 2):
        assert re.match(r"change of \S+ in 3 steps off by (1|0\.99) at rank \d, fsdp, fp32; allowed 0\.001", text)
