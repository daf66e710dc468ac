"""all_reduce: cells, ranks that stay between cells, the arithmetic of tables on made-up times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import rank_programs
from workspace import ROOT

from perfscribe import config
from perfscribe.analytic.traffic import bus_factor, size_bytes
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import collectives, launch
from perfscribe.distributed.failures import RankError
from perfscribe.experiments.all_reduce import fits, measure, show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show.tables import Table

NAME = "all_reduce"
RAW = config.load(ROOT / "config.yaml")
GPUS = 4
# Latency in us and bus bandwidth in GB/s of made-up links.
LINKS = {
    "gloo": (300.0, 1.5),
    "default": (18.0, 340.0),
    "nvlink": (18.0, 340.0),
    "shm": (50.0, 28.0),
    "tcp": (200.0, 4.8),
}
HOST_US = 15.0  # that launching adds on the host clock


def cells(preset: str, **keys: Any) -> list[Cell]:
    raw = {**RAW, "experiments": {**RAW["experiments"], NAME: {**RAW["experiments"].get(NAME, {}), **keys}}}
    return [cell for cell in plan.planned_cells(raw, NAME, preset) if not cell.skip]


def model_ms(cell: Cell) -> float:
    """Latency and bandwidth, the former growing with the number of processes."""
    latency_us, bandwidth = LINKS["gloo" if cell["backend"] == "gloo" else cell["transport"]]
    sent = size_bytes(cell["size_mb"], cell["megabyte"])
    factor = bus_factor(cell["operation"], cell["world_size"])
    return 1e-3 * latency_us * cell["world_size"] / 2 + sent * factor / bandwidth / 1e6


def measured(cell: Cell, time_ms: Callable[[Cell], float] = model_ms) -> Record:
    """The cell's record on a machine with GPUS GPUs."""
    factors, on_nccl = dict(cell.factors), cell["backend"] == "nccl"
    if on_nccl and cell["world_size"] > GPUS:
        return Record(NAME, factors, "skipped", f"{GPUS} GPUs", "measured")
    times = [time_ms(cell) * spread for spread in (0.9, 0.95, 1.0, 1.05, 1.1)]
    samples: dict[str, list[list[float]]] = {"time_ms": [times]}
    values: dict[str, Any] = {"message_bytes": size_bytes(cell["size_mb"], cell["megabyte"])}
    if on_nccl:
        samples["host_ms"] = [[ms + HOST_US * 1e-3 for ms in times]]
        said = {"default": "P2P", "nvlink": "P2P", "shm": "SHM", "tcp": "NET/Socket"}[cell["transport"]]
        values |= {"algorithm": "RING", "protocol": "SIMPLE", "channels": 24, "connections": said, "links": "NV18"}
        values["nccl_version"] = "2.28.9"
    timers = {"time_ms": collectives.CUDA_EVENTS if on_nccl else collectives.HOST_CLOCK}
    return Record(NAME, factors, "ok", "", "measured", samples, values=values, timers=timers)


def tables(records: list[Record]) -> dict[str, Table]:
    return {table.id.removeprefix("cs336."): table for table in show.tables({NAME: records})}


@pytest.fixture(scope="module")
def made() -> dict[str, Table]:
    return tables([measured(cell) for cell in cells("gpu")])


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_homeworks_grid() -> None:
    grid = [cell for cell in cells("gpu") if cell["grid"] == "sizes"]
    levels = [(cell["backend"], cell["world_size"], cell["size_mb"]) for cell in grid]
    assert levels == [(b, n, mb) for b in ("gloo", "nccl") for n in (2, 4, 6) for mb in (1, 10, 100, 1024)]
    for cell in grid:
        assert (cell["operation"], cell["transport"], cell["warmup_steps"]) == ("all_reduce", "default", 5)
        assert cell.requires == ((f"cuda:{cell['world_size']}",) if cell["backend"] == "nccl" else ())


@pytest.mark.parametrize(("megabyte", "kilobyte"), [("2^20", 1024), ("10^6", 1000)])
def test_sizes_follow_the_meaning_of_a_megabyte_and_none_is_measured_twice(megabyte: str, kilobyte: int) -> None:
    found = cells("gpu", megabyte=megabyte)
    swept = [cell for cell in found if cell["grid"] == "sweep" and cell["backend"] == "nccl"]
    assert {kilobyte, 8 * kilobyte, 4194304 * kilobyte} <= {size_bytes(cell["size_mb"], megabyte) for cell in swept}
    assert {cell["transport"] for cell in found if cell["grid"] == "transports"} == {"nvlink", "shm", "tcp"}
    assert len({tuple(cell[name] for name in measure.FACTORS) for cell in found}) == len(found)


def test_sizes_in_words() -> None:
    for size_mb, megabyte, text in ((1 / 1024, "2^20", "1 KB"), (1000, "2^20", "1000 MB"), (1000, "10^6", "1 GB")):
        record = Record(NAME, {"size_mb": size_mb, "megabyte": megabyte}, "ok", "", "measured")
        assert show.message(record) == text


# --- measuring --------------------------------------------------------------------------------------------------


@pytest.fixture
def workers() -> Iterator[dict[Any, Any]]:
    yield measure._GROUPS
    measure.close()


def small(size_mb: float = 0.0625, world_size: int = 2, operation: str = NAME, **more: Any) -> Cell:
    same = next(cell for cell in cells("tiny") if cell["backend"] == "gloo")
    factors = {"size_mb": size_mb, "world_size": world_size, "operation": operation, "samples": 4, **more}
    return replace(same, factors={**same.factors, **factors})


def test_cells_share_their_ranks_and_a_failure_costs_its_cell_alone(workers: dict[Any, Any]) -> None:
    first = measure.run(small())
    (kept,) = workers.values()
    second = measure.run(small(0.125, operation="all_to_all"))
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


def test_the_time_of_a_call_holds_no_wait_for_a_rank_that_fills_its_buffers() -> None:
    assert max(launch.launch(rank_programs.late_to_fill, {}, world_size=2, timeout_s=60).results) < 50


def test_a_cells_time_is_below_the_limits_of_worker_and_collectives() -> None:
    for cell in cells("gpu"):
        assert measure.STARTING_S < measure._timeout_s(cell, 2) <= measure.LONGEST_S < measure.COLLECTIVE_TIMEOUT_S
    assert config.resolve(RAW, "gpu")["experiments"][NAME]["timeout_s"] > measure.LONGEST_S + 30


class Nccl:
    """In place of a WorkerGroup: two ranks whose NCCL joins channels in this way."""

    way, is_open = "", True

    def __init__(self, program: Any, **options: Any) -> None:
        assert options["backend"] == "nccl" and options["nccl_log"] == (program is measure.send_once)
        said = [
            f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {self.way}",
            "h:1:1 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
        ]
        self.output = {0: said}

    def ask(self, arguments: Any, _: float) -> list[Any]:
        if "message" in arguments:
            return ["NV18", measure.NO_LINKS]
        return [[self.said(message, rank) for message in arguments["messages"]] for rank in range(2)]

    def said(self, message: dict[str, Any], rank: int) -> dict[str, Any]:
        timer = message["timer"] or collectives.CUDA_EVENTS
        ms = (0.05 if timer == collectives.HOST_CLOCK else 0.02) + 0.001 * rank
        told = {"message_bytes": message["size_bytes"], "elements_checked": 1, "nccl_version": "2.28.9"}
        return {"samples_ms": [ms] * 4, "warmup_ms": [1.0], "timer": timer, "warmup_s": 0.5, "timed_s": 0.25, **told}

    def close(self) -> None:
        pass


def nccl(monkeypatch: pytest.MonkeyPatch, transport: str, way: str, operation: str = NAME) -> Measurement:
    monkeypatch.setattr(Nccl, "way", way)
    monkeypatch.setattr(launch, "WorkerGroup", Nccl)
    monkeypatch.setattr(measure, "_GROUPS", {})
    return measure.run(small(1, operation=operation, backend="nccl", device="cuda", transport=transport))


def test_nccl_is_timed_by_both_clocks_and_says_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nccl(monkeypatch, "default", "P2P/CUMEM")
    assert found.samples == {"time_ms": [0.02 + 0.001] * 4, "host_ms": [0.05 + 0.001] * 4}
    assert found.timers == {"time_ms": collectives.CUDA_EVENTS, "host_ms": collectives.HOST_CLOCK}
    assert (found.warmup_s, found.timed_s) == (1.0, 0.5)
    said = {"algorithm": "RING", "protocol": "LL128", "channels": 16, "connections": "P2P", "links": "NV18"}
    assert said.items() <= found.values.items() and found.values["nccl_version"] == "2.28.9"
    assert nccl(monkeypatch, "default", "P2P", "all_to_all").values["algorithm"] == measure.NOT_LOGGED


@pytest.mark.parametrize(("transport", "way"), [("shm", "SHM/direct/direct"), ("tcp", "NET/Socket/0")])
def test_a_forced_transport_is_the_one_that_was_taken(
    monkeypatch: pytest.MonkeyPatch, transport: str, way: str
) -> None:
    assert nccl(monkeypatch, transport, way).samples
    other = "P2P" if transport == "shm" else "SHM"
    with pytest.raises(RuntimeError, match=f"transport {transport} was asked for, NCCL joined channels by {other}"):
        nccl(monkeypatch, transport, other)


# --- tables -----------------------------------------------------------------------------------------------------


def test_rates_and_what_nccl_said(made: dict[str, Table]) -> None:
    rows = made["all_reduce"].frame.set_index(["backend", "world_size", "message"])
    row = rows.loc[("nccl", 4, "1 GB")]
    time_ms = 1e-3 * 18 * 2 + 2**30 * 1.5 / 340 / 1e6
    assert row["time_ms"] == pytest.approx(time_ms) and row["host_ms"] == pytest.approx(time_ms + 0.015)
    assert row["algbw_gb_per_s"] == pytest.approx(2**30 / time_ms / 1e6)
    assert row["busbw_gb_per_s"] == pytest.approx(1.5 * 2**30 / time_ms / 1e6)
    assert list(row[list(show.NCCL)]) == ["2.28.9", "RING", "SIMPLE", 24, "P2P", "NV18"]
    skipped = rows.loc[("nccl", 6, "1 GB")]
    assert (skipped["status"], skipped["reason"]) == ("skipped", "4 GPUs")
    assert rows.loc[("gloo", 6, "1 MB")]["algorithm"] == show.NO_NCCL


def test_published_times_stand_beside_the_same_cell(made: dict[str, Table]) -> None:
    rows = made["all_reduce"].frame.set_index(["backend", "world_size", "message"])
    assert rows.loc[("nccl", 2, "100 MB")]["published_brandon-snider"] == 0.40
    assert rows.loc[("nccl", 6, "1 MB")]["published_brandon-snider"] == 0.05, "also where nothing was measured"
    assert rows.loc[("nccl", 2, "1 GB")]["busbw_brandon-snider"] == pytest.approx(334, abs=1)
    assert rows.loc[("nccl", 2, "1 GB")]["busbw_damek"] != "none", "1000 MB for 1024"
    for ref in references.load(NAME):
        if ref.source == "cs336-writeup-002":
            size = {1: "1 MB", 10: "10 MB", 100: "100 MB", 1024: "1 GB"}[int(ref.factors["size_mb"])]
            row = rows.loc[(ref.factors["backend"], ref.factors["world_size"], size)]
            assert row["published_cs336-writeup-002"] >= ref.value, "the longest of its ranks"


def test_lines_give_back_what_made_the_times(made: dict[str, Table]) -> None:
    rows = made["collectives_fit"].ok
    asked = {"NVLink": "nvlink", "shared memory of the host": "shm", "TCP over the loopback interface": "tcp"}
    for _, row in rows.iterrows():
        link = "gloo" if row["backend"] == "gloo" else asked.get(row["transport"], "default")
        latency_us, bandwidth = LINKS[link]
        assert row["latency_us"] == pytest.approx(latency_us * row["world_size"] / 2, rel=1e-6)
        assert row["bus_gb_per_s"] == pytest.approx(bandwidth, rel=1e-6)
        assert row["half_bandwidth_mib"] * 2**20 == pytest.approx(
            1e-6 * row["latency_us"] * row["bandwidth_gb_per_s"] * 1e9, rel=1e-6
        )
        assert abs(row["worst_residual_percent"]) < 1e-6
    assert (made["collectives"].ok["residual_percent"].astype(float).abs() < 1e-6).all()
    assert len(rows[rows["backend"] == "nccl"]) == 4 * 2 + 3 * 2


def test_where_no_line_fits_residuals_show_it_and_no_half_bandwidth_is_taken_from_it() -> None:
    def knee(cell: Cell) -> float:
        return model_ms(cell) * (3 if cell["size_mb"] in (1, 10) else 1)

    made = tables([measured(cell, knee) for cell in cells("gpu") if cell["operation"] == NAME])
    swept = made["collectives"].ok.set_index(["backend", "world_size", "message"])
    assert swept.loc[("nccl", 2, "10 MB")]["residual_percent"] > 50
    rows = made["collectives_fit"].ok
    assert set(rows["half_bandwidth_mib"]) == {fits.NOT_DESCRIBED}
    (row,) = rows.query("backend == 'nccl' and world_size == 2 and transport.str.startswith('NCCL')").to_dict("records")
    assert row["half_reached_mib"] == pytest.approx(32)


def test_without_a_gpu_what_was_left_out_stands_once_and_behind_what_was_measured() -> None:
    records = []
    for cell in plan.planned_cells(RAW, NAME, "cpu"):
        lost = ("unsupported", "no CUDA device") if cell.requires else ("skipped", cell.skip)
        record = Record(NAME, dict(cell.factors), *lost, "measured")
        records.append(record if cell.requires or cell.skip else measured(cell))
    assert [r for r in records if r.status == "skipped" and r.factors["size_mb"] == 1], "with the gpu preset's limits"
    made = tables(records)
    for name, table in made.items():
        statuses = [key for key, _ in itertools.groupby(zip(table.frame["status"], table.frame["reason"], strict=True))]
        assert [status for status, _ in statuses] in (["ok", "skipped", "unsupported"], ["ok", "unsupported"]), name
        assert not {"algorithm", "nccl_version"} & set(table.frame.columns), "nobody asked NCCL"
        assert len(table.ok) >= 3
    assert not made["collectives"].frame.duplicated(["operation", "backend", "world_size", "size_bytes"]).any()
    message = made["all_reduce"].frame["message"]
    assert (message == "1 MB").sum() == 6, "gloo with 2, 4 and 6 processes, NCCL with as many"
