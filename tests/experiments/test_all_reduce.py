"""all_reduce: sizes of messages, ranks that stay between cells, transports."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from perfscribe.analytic.traffic import size_bytes
from perfscribe.base.cells import Cell
from perfscribe.distributed import collectives, launch
from perfscribe.distributed.failures import RankError
from perfscribe.experiments.cs336.all_reduce import levels, measure
from perfscribe.plan import plan

NAME = "all_reduce"


def cells(preset: str, **keys: Any) -> list[Cell]:
    return [cell for cell in plan.planned_cells({"experiments": {NAME: keys}}, NAME, preset) if not cell.skip]


@pytest.mark.parametrize(("megabyte", "kilobyte"), [("2^20", 1024), ("10^6", 1000)])
def test_sizes_follow_the_meaning_of_a_megabyte_and_none_is_measured_twice(megabyte: str, kilobyte: int) -> None:
    found = cells("gpu", megabyte=megabyte)
    swept = [cell for cell in found if cell["grid"] == "sweep" and cell["backend"] == "nccl"]
    assert {kilobyte, 8 * kilobyte, 4194304 * kilobyte} <= {size_bytes(cell["size_mb"], megabyte) for cell in swept}
    assert {cell["transport"] for cell in found if cell["grid"] == "transports"} == {"nvlink", "shm", "tcp"}
    assert len({tuple(cell[name] for name in levels.FACTORS) for cell in found}) == len(found)


def small(size_mb: float = 0.0625, world_size: int = 2, operation: str = NAME, **more: Any) -> Cell:
    same = next(cell for cell in cells("tiny") if cell["backend"] == "gloo")
    factors = {"size_mb": size_mb, "world_size": world_size, "operation": operation, "samples": 4, **more}
    return replace(same, factors={**same.factors, **factors})


@pytest.fixture
def workers() -> Iterator[dict[Any, Any]]:
    yield launch._WAITING
    launch.dismiss()


def test_cells_share_their_ranks_and_a_failure_costs_its_cell_alone(workers: dict[Any, Any]) -> None:
    first = measure.run(small())
    (kept,) = workers.values()
    second = measure.run(small(0.125, operation="all_gather"))
    assert list(workers.values()) == [kept] and kept.is_open
    assert (first.values["message_bytes"], second.values["message_bytes"]) == (2**16, 2**17)
    for measurement in (first, second):
        assert len(measurement.samples["time_ms"]) == 4 and len(measurement.warmup["time_ms"]) == 5
        ranks = zip(measurement.series["rank_0_ms"], measurement.series["rank_1_ms"], strict=True)
        assert measurement.samples["time_ms"] == [max(call) for call in ranks]
        assert measurement.timers == {"time_ms": collectives.HOST_CLOCK}
        assert measurement.values["elements_checked"] > 0
    assert len(measure.run(small(1, samples=50, limit_s=1e-9)).samples["time_ms"]) == collectives.LEAST_CALLS
    with pytest.raises(RankError, match=r"^rank \d of 2: ValueError: size_bytes 4: expected at least 8"):
        measure.run(small(4 / 2**20))
    assert not kept.is_open and measure.run(small()).samples["time_ms"]


@pytest.mark.parametrize(
    ("transport", "way", "other"), [("shm", "SHM/direct/direct", "P2P"), ("tcp", "NET/Socket/0", "SHM")]
)
def test_a_forced_transport_is_the_one_that_was_taken(monkeypatch, transport: str, way: str, other: str) -> None:
    timing = {"samples_ms": [0.02] * 4, "warmup_ms": [1.0], "timer": "", "warmup_s": 0.5, "timed_s": 0.25}
    timing |= {"message_bytes": 2**20, "elements_checked": 1, "nccl_version": "2.28.9"}

    def joined_by(channel: str) -> Any:
        """Two ranks whose NCCL joins channels so, and which are timed twice."""

        def waiting(program: Any, nccl_log: bool = False, **_: Any) -> Any:
            assert nccl_log == (program is measure.send_once)
            log = f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {channel}"
            answer = ["NV18", ""] if nccl_log else [[timing] * 2] * 2
            return SimpleNamespace(ask=lambda *_: answer, nccl_log=[log])

        return waiting

    cell = small(1, backend="nccl", device="cuda", transport=transport)
    monkeypatch.setattr(launch, "waiting", joined_by(way))
    assert measure.run(cell).samples
    monkeypatch.setattr(launch, "waiting", joined_by(other))
    with pytest.raises(RuntimeError, match=f"transport {transport} was asked for, NCCL joined channels by {other}"):
        measure.run(cell)
