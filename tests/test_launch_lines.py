"""The workshop's launch lines, read by a shell and run: what torchruns are told, and what their ranks have."""

from __future__ import annotations

from typing import Any

import pytest

from perfscribe.experiments.launch_lines import measure, present
from perfscribe.records import Record

MULTI_NODE, LARGE, OURS = measure.cells({"nodes": 2, "gpus_per_node": 2})
FOUR_RANKS = {"ranks": 4, "node_ranks": "0, 1", "world_size": "4"}


@pytest.fixture(scope="module")
def found() -> list[Any]:
    return [measure.run(cell).values for cell in (MULTI_NODE, LARGE, OURS)]


def test_what_is_told_and_what_comes_of_it(found: list[Any]) -> None:
    theirs, large, ours = found
    assert theirs == {
        "torchruns": 2,
        "torchruns_joined": 2,
        "workers_asked": 2,
        "ranks": 2,
        "node_ranks_told": "0",
        "node_ranks": "0, 1",
        "world_size_exported": "2",
        "world_size": "2",
        "visible": "1 of 1",
    }
    assert large == FOUR_RANKS | {
        "torchruns": 4,
        "torchruns_joined": 2,
        "workers_asked": 8,
        "node_ranks_told": "0",
        "world_size_exported": "2",
        "visible": "1 of 2",
    }
    assert ours == FOUR_RANKS | {
        "torchruns": 2,
        "torchruns_joined": 2,
        "workers_asked": 4,
        "node_ranks_told": "none",
        "world_size_exported": "none",
        "visible": "all",
    }


def test_sentences(found: list[Any]) -> None:
    records = [
        Record("launch_lines", dict(cell.factors), "ok", "", "measured", values=values)
        for cell, values in zip((MULTI_NODE, LARGE, OURS), found, strict=True)
    ]
    made = {table.id: table for table in present.tables({"launch_lines": records})}
    rank, agents, exports = present.findings(made)
    assert {one.verdict for one in (rank, agents, exports)} == {"contradicted"}
    assert "the torchruns of 2 nodes are all told --node_rank 0. It does no harm" in rank.text
    assert "4 torchruns start and ask for 8 ranks, 2 join and make 4" in agents.text
    assert "starts 16 on 2 nodes, which ask for 128 ranks where there are 16 GPUs" in agents.text
    assert "2 is exported, torchrun gives each rank 4" in exports.text and "a rank sees 1 of 2 GPUs" in exports.text
    alone = {table.id: table for table in present.tables({"launch_lines": records[2:]})}
    assert {one.verdict for one in present.findings(alone)} == {"cannot tell"}


def test_lines_that_fail_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RANK", "perfscribe.no_such_module")
    with pytest.raises(RuntimeError, match=r"here: ended with 1: "):
        measure.run(OURS)
