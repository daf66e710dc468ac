"""all_reduce: sizes of messages, ranks that stay between cells, transports."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.analytic.traffic import size_bytes
from perfscribe.base.cells import Cell
from perfscribe.distributed import collectives, launch
from perfscribe.distributed.failures import RankError
from perfscribe.experiments.cs336.all_reduce import levels, measure
from perfscribe.plan import plan

NAME = "all_reduce"
RAW = config.load(ROOT / "config.yaml")


def cells(preset: str, **keys: Any) -> list[Cell]:
    raw = {**RAW, "experiments": {**RAW["experiments"], NAME: {**RAW["experiments"].get(NAME, {}), **keys}}}
    return [cell for cell in plan.planned_cells(raw, NAME, preset) if not cell.skip]


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


class Nccl:
    """In place of a WorkerGroup: two ranks whose NCCL joins channels in this way."""

    way, is_open = "", True

    def __init__(self, program: Any, **options: Any) -> None:
        assert options["backend"] == "nccl" and options.get("nccl_log", False) == (program is measure.send_once)
        self.nccl_log = [f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {self.way}"]

    def ask(self, arguments: Any, _: float) -> list[Any]:
        if "message" in arguments:
            return ["NV18", measure.NO_LINKS]
        told = {"samples_ms": [0.02] * 4, "warmup_ms": [1.0], "timer": "", "warmup_s": 0.5, "timed_s": 0.25}
        told |= {"message_bytes": 2**20, "elements_checked": 1, "nccl_version": "2.28.9"}
        return [[told] * len(arguments["messages"])] * 2

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("transport", "way"), [("shm", "SHM/direct/direct"), ("tcp", "NET/Socket/0")])
def test_a_forced_transport_is_the_one_that_was_taken(
    monkeypatch: pytest.MonkeyPatch, transport: str, way: str
) -> None:
    monkeypatch.setattr(launch, "WorkerGroup", Nccl)
    monkeypatch.setattr(launch, "_WAITING", {})
    asked = small(1, backend="nccl", device="cuda", transport=transport)
    monkeypatch.setattr(Nccl, "way", way)
    assert measure.run(asked).samples
    other = "P2P" if transport == "shm" else "SHM"
    monkeypatch.setattr(Nccl, "way", other)
    monkeypatch.setattr(launch, "_WAITING", {})
    with pytest.raises(RuntimeError, match=f"transport {transport} was asked for, NCCL joined channels by {other}"):
        measure.run(asked)
