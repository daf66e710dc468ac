"""all_reduce: cells, ranks that stay between cells, the arithmetic of tables on made-up times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import rank_programs
from workspace import ROOT

from perfscribe import config
from perfscribe.analytic.traffic import bus_factor, size_bytes
from perfscribe.base.cells import Cell, Measurement
from perfscribe.distributed import collectives
from perfscribe.distributed.failures import RankError
from perfscribe.distributed.nccl_log import parse_nccl_log
from perfscribe.experiments.all_reduce import fits, measure, show, worker_groups
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
    if cell["backend"] == "nccl" and cell["world_size"] > GPUS:
        return Record(NAME, dict(cell.factors), "skipped", f"{GPUS} GPUs", "measured")
    one = time_ms(cell)
    samples = [one * spread for spread in (0.9, 0.95, 1.0, 1.05, 1.1)]
    values = {"message_bytes": size_bytes(cell["size_mb"], cell["megabyte"])}
    timer = collectives.HOST_CLOCK
    samples_by_name = {"time_ms": [samples]}
    if cell["backend"] == "nccl":
        timer = collectives.CUDA_EVENTS
        samples_by_name["host_ms"] = [[ms + HOST_US * 1e-3 for ms in samples]]
        said = {"default": "P2P", "nvlink": "P2P", "shm": "SHM", "tcp": "NET/Socket"}[cell["transport"]]
        chosen = {"algorithm": "RING", "protocol": "SIMPLE", "channels": 24, "connections": said, "links": "NV18"}
        values |= {"nccl_version": "2.28.9", **chosen}
    ranks = {f"rank_{rank}_ms": [ms - 0.001 * one * rank for ms in samples] for rank in range(cell["world_size"])}
    environments = ["aaaaaaaaaaaa"]
    return Record(
        NAME,
        dict(cell.factors),
        "ok",
        "",
        "measured",
        samples_by_name,
        {},
        values,
        ranks,
        {"time_ms": timer},
        environments,
    )


def tables(records: list[Record]) -> dict[str, Table]:
    return {table.id.removeprefix("cs336."): table for table in show.tables({NAME: records})}


@pytest.fixture(scope="module")
def on_gpus() -> list[Record]:
    return [measured(cell) for cell in cells("gpu")]


@pytest.fixture(scope="module")
def made(on_gpus: list[Record]) -> dict[str, Table]:
    return tables(on_gpus)


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_homeworks_grid() -> None:
    grid = [cell for cell in cells("gpu") if cell["grid"] == "sizes"]
    levels = [(cell["backend"], cell["world_size"], cell["size_mb"]) for cell in grid]
    assert levels == [(b, n, mb) for b in ("gloo", "nccl") for n in (2, 4, 6) for mb in (1, 10, 100, 1024)]
    for cell in grid:
        assert (cell["operation"], cell["transport"], cell["warmup_steps"]) == ("all_reduce", "default", 5)
        assert cell.requires == ((f"cuda:{cell['world_size']}",) if cell["backend"] == "nccl" else ())


@pytest.mark.parametrize("preset", plan.PRESETS)
def test_nothing_is_measured_twice(preset: str) -> None:
    place = ("operation", "backend", "transport", "world_size", "size_mb")
    found = [tuple(cell[name] for name in place) for cell in cells(preset)]
    assert len(set(found)) == len(found)


def test_sizes_follow_the_meaning_of_a_megabyte() -> None:
    for megabyte, kilobyte in (("2^20", 1024), ("10^6", 1000)):
        swept = [
            cell for cell in cells("gpu", megabyte=megabyte) if cell["grid"] == "sweep" and cell["backend"] == "nccl"
        ]
        sizes = {size_bytes(cell["size_mb"], megabyte) for cell in swept}
        assert {1 * kilobyte, 8 * kilobyte, 4194304 * kilobyte} <= sizes
        assert {cell["megabyte"] for cell in swept} == {megabyte}
    forced = [cell for cell in cells("gpu") if cell["grid"] == "transports"]
    assert {cell["transport"] for cell in forced} == {"nvlink", "shm", "tcp"}


@pytest.mark.parametrize(
    ("size_mb", "megabyte", "text"),
    [
        (1 / 1024, "2^20", "1 KB"),
        (0.001, "10^6", "1 KB"),
        (0.01, "2^20", "0.01 MB"),
        (10, "2^20", "10 MB"),
        (1000, "2^20", "1000 MB"),
        (1000, "10^6", "1 GB"),
        (4096, "2^20", "4 GB"),
    ],
)
def test_sizes_in_words(size_mb: float, megabyte: str, text: str) -> None:
    factors = {"size_mb": size_mb, "megabyte": megabyte}
    assert show.message(Record(NAME, factors, "ok", "", "measured")) == text


# --- measuring --------------------------------------------------------------------------------------------------


@pytest.fixture
def workers() -> Iterator[dict[Any, Any]]:
    yield worker_groups._GROUPS
    worker_groups.close()


def small(size_mb: float = 0.0625, world_size: int = 2, operation: str = NAME, **more: Any) -> Cell:
    same = next(cell for cell in cells("tiny") if cell["backend"] == "gloo")
    factors = {"size_mb": size_mb, "world_size": world_size, "operation": operation, "samples": 4, **more}
    return replace(same, factors={**same.factors, **factors})


def test_cells_share_their_ranks(workers: dict[Any, Any]) -> None:
    first = measure.run(small())
    (kept,) = workers.values()
    second = measure.run(small(0.125, operation="all_to_all"))
    assert list(workers.values()) == [kept] and kept.is_open
    measure.run(small(world_size=3))
    assert len(workers) == 2
    assert (first.values["message_bytes"], second.values["message_bytes"]) == (2**16, 2**17)
    for measurement in (first, second):
        assert len(measurement.samples["time_ms"]) == 4 and len(measurement.warmup["time_ms"]) == 5
        ranks = zip(measurement.series["rank_0_ms"], measurement.series["rank_1_ms"], strict=True)
        assert measurement.samples["time_ms"] == [max(call) for call in ranks]
        assert measurement.timers == {"time_ms": collectives.HOST_CLOCK}
        assert measurement.values["elements_checked"] > 0


def test_a_failure_costs_its_cell_alone(workers: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    measure.run(small())
    with pytest.raises(RankError, match=r"^rank \d of 2: ValueError: size_bytes 4: expected at least 8"):
        measure.run(small(4 / 2**20))
    assert not next(iter(workers.values())).is_open
    assert measure.run(small()).samples["time_ms"]


def test_ranks_that_stay_wait_for_each_other_as_long_as_any_cell_may_take(workers: dict[Any, Any]) -> None:
    limits = worker_groups.ask(
        rank_programs.collective_limit, worker_groups.Way("gloo", "default", 2), {}, measure.STARTING_S
    )
    assert min(limits) > measure.LONGEST_S


def test_the_log_comes_from_ranks_of_its_own(workers: dict[Any, Any]) -> None:
    measure.run(small())
    way = worker_groups.Way("gloo", "default", 2)
    for _ in range(2):
        log, links = worker_groups.log_of(collectives.Message(NAME, 1024), way, 60)
        assert (log.version, log.choices, links) == (None, (), worker_groups.NO_LINKS), "gloo logs nothing"
    assert len(workers) == 2 and all(one.is_open for one in workers.values())


def test_slow_calls_are_fewer(workers: dict[Any, Any]) -> None:
    assert len(measure.run(small(1, samples=50, limit_s=1e-9)).samples["time_ms"]) == collectives.LEAST_CALLS
    assert len(measure.run(small(samples=8, limit_s=100)).samples["time_ms"]) == 8


def test_a_cells_time_is_below_the_workers_limit() -> None:
    for cell in cells("gpu"):
        assert measure.STARTING_S < measure._timeout_s(cell, 2) <= measure.LONGEST_S
    assert config.resolve(RAW, "gpu")["experiments"][NAME]["timeout_s"] > measure.LONGEST_S + 30


LOG = """\
h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {way}
h:1:1 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{{Lo..Hi}}={{0..15}}
"""


def nccl(monkeypatch: pytest.MonkeyPatch, transport: str, way: str, operation: str = NAME) -> Measurement:
    """A cell of NCCL's, the ranks' part made up."""
    asked: list[Any] = []

    def ask(program: Any, by: Any, arguments: Any, timeout_s: float, nccl_log: bool = False) -> list[Any]:
        asked.append(by)
        return [[_said(message, rank) for message in arguments["messages"]] for rank in range(2)]

    log = parse_nccl_log(LOG.format(way=way).splitlines())
    monkeypatch.setattr(worker_groups, "ask", ask)
    monkeypatch.setattr(worker_groups, "log_of", lambda *_: (log, "NV18"))
    cell = small(1, operation=operation, backend="nccl", device="cuda", transport=transport)
    measurement = measure.run(cell)
    assert asked == [worker_groups.Way("nccl", transport, 2)]
    return measurement


def _said(message: dict[str, Any], rank: int) -> dict[str, Any]:
    on_host = message["timer"] == collectives.HOST_CLOCK
    return {
        "samples_ms": [(0.05 if on_host else 0.02) + 0.001 * rank] * 4,
        "warmup_ms": [1.0],
        "timer": collectives.HOST_CLOCK if on_host else collectives.CUDA_EVENTS,
        "warmup_s": 0.5,
        "timed_s": 0.25,
        "message_bytes": message["size_bytes"],
        "elements_checked": 1,
        "nccl_version": "2.28.9",
    }


def test_nccl_is_timed_by_both_clocks_and_says_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    found = nccl(monkeypatch, "default", "P2P/CUMEM")
    assert found.samples == {"time_ms": [0.02 + 0.001] * 4, "host_ms": [0.05 + 0.001] * 4}
    assert found.timers == {"time_ms": collectives.CUDA_EVENTS, "host_ms": collectives.HOST_CLOCK}
    assert (found.warmup_s, found.timed_s) == (1.0, 0.5)
    said = {"algorithm": "RING", "protocol": "LL128", "channels": 16, "connections": "P2P", "links": "NV18"}
    assert said.items() <= found.values.items() and found.values["nccl_version"] == "2.28.9"
    assert nccl(monkeypatch, "default", "P2P", "all_to_all").values["algorithm"] == measure.NOT_LOGGED


@pytest.mark.parametrize(
    ("transport", "way"), [("nvlink", "P2P"), ("shm", "SHM/direct/direct"), ("tcp", "NET/Socket/0")]
)
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
    assert tuple(row[name] for name in ("nccl_version", "algorithm", "protocol", "channels", "connections")) == (
        ("2.28.9", "RING", "SIMPLE", 24, "P2P")
    )
    assert row["timer"] == "CUDA events"
    skipped = rows.loc[("nccl", 6, "1 GB")]
    assert (skipped["status"], skipped["reason"]) == ("skipped", "4 GPUs")
    assert rows.loc[("gloo", 6, "1 MB")]["algorithm"] == show.NO_NCCL


def test_published_times_stand_beside_the_same_cell(made: dict[str, Table]) -> None:
    rows = made["all_reduce"].frame.set_index(["backend", "world_size", "message"])
    assert rows.loc[("nccl", 2, "100 MB")]["published_brandon-snider"] == 0.40
    assert rows.loc[("nccl", 6, "1 MB")]["published_brandon-snider"] == 0.05, "also where nothing was measured"
    assert rows.loc[("nccl", 2, "1 GB")]["busbw_brandon-snider"] == pytest.approx(334, abs=1)
    assert rows.loc[("nccl", 2, "1 GB")]["busbw_damek"] != "none", "1000 MB for 1024"
    known = [ref for ref in references.load(NAME) if ref.source == "cs336-writeup-002"]
    for ref in known:
        size = {1: "1 MB", 10: "10 MB", 100: "100 MB", 1024: "1 GB"}[int(ref.factors["size_mb"])]
        row = rows.loc[(ref.factors["backend"], ref.factors["world_size"], size)]
        assert row["published_cs336-writeup-002"] >= ref.value


def test_lines_give_back_what_made_the_times(made: dict[str, Table]) -> None:
    rows = made["collectives_fit"].ok
    for _, row in rows.iterrows():
        latency_us, bandwidth = LINKS["gloo" if row["backend"] == "gloo" else _asked(row["transport"])]
        assert row["latency_us"] == pytest.approx(latency_us * row["world_size"] / 2, rel=1e-6)
        assert row["bus_gb_per_s"] == pytest.approx(bandwidth, rel=1e-6)
        assert row["half_bandwidth_mib"] * 2**20 == pytest.approx(
            1e-6 * row["latency_us"] * row["bandwidth_gb_per_s"] * 1e9, rel=1e-6
        )
        assert abs(row["worst_residual_percent"]) < 1e-6
    swept = made["collectives"].ok
    assert (swept["residual_percent"].astype(float).abs() < 1e-6).all()
    assert len(rows[rows["backend"] == "nccl"]) == 5 * 2 + 3 * 2 and len(swept) == len(set(_places(swept)))


def _asked(transport: str) -> str:
    return {"NVLink": "nvlink", "shared memory of the host": "shm", "TCP over the loopback interface": "tcp"}.get(
        transport, "default"
    )


def _places(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows[["operation", "backend", "world_size", "size_bytes"]].itertuples(index=False)]


def test_residuals_show_where_no_line_fits() -> None:
    def knee(cell: Cell) -> float:
        return model_ms(cell) * (3 if cell["size_mb"] == 1 else 1)

    made = tables([measured(cell, knee) for cell in cells("gpu") if cell["operation"] == NAME])
    row = made["collectives"].ok.set_index(["operation", "backend", "world_size", "message"])
    assert row.loc[("all_reduce", "nccl", 2, "1 MB")]["residual_percent"] > 50


def test_no_half_bandwidth_is_taken_from_a_line_that_does_not_describe_the_times() -> None:
    def knee(cell: Cell) -> float:
        return model_ms(cell) * (3 if cell["size_mb"] in (1, 10) else 1)

    made = tables([measured(cell, knee) for cell in cells("gpu") if cell["operation"] == NAME])
    rows = made["collectives_fit"].ok
    assert set(rows["half_bandwidth_mib"]) == {fits.NOT_DESCRIBED}
    (row,) = rows.query("backend == 'nccl' and world_size == 2 and transport.str.startswith('NCCL')").to_dict("records")
    assert row["half_reached_mib"] == pytest.approx(32)


def test_two_sizes_make_no_line() -> None:
    records = [measured(cell) for cell in cells("tiny")[:2]]
    assert fits.lines(records) == {}
    assert [row.status for row in fits.rows(records)] == ["not_run"]
    lost = [replace(record, status="failed", reason="why") for record in records]
    assert [(row.status, row.reason) for row in fits.rows(lost)] == [("failed", "why")]


def laptop() -> list[Record]:
    """The cpu preset's records, those of the full grid that it leaves out included, where there is no GPU."""

    def record(cell: Cell) -> Record:
        if not (cell.requires or cell.skip):
            return measured(cell)
        status, reason = ("unsupported", "no CUDA device") if cell.requires else ("skipped", cell.skip)
        return Record(NAME, dict(cell.factors), status, reason, "measured", values={"before_start": True})

    return [record(cell) for cell in plan.planned_cells(RAW, NAME, "cpu")]


def test_what_was_left_out_stands_in_one_row_a_reason_and_behind_what_was_measured() -> None:
    for name, table in tables(laptop()).items():
        frame = table.frame
        reasons = list(zip(frame["status"], frame["reason"], strict=True))
        runs = [one for one, before in zip(reasons, [None, *reasons], strict=False) if one != before]
        assert [status for status, _ in runs] in (["ok", "skipped", "unsupported"], ["ok", "unsupported"]), name
        assert not {"algorithm", "nccl_version"} & set(frame.columns), "nobody asked NCCL"


def test_a_message_that_other_limits_leave_out_is_no_row_of_its_own() -> None:
    records = laptop()
    assert [r for r in records if r.status == "skipped" and r.factors["size_mb"] == 1], "with the gpu preset's limits"
    frame = tables(records)["collectives"].frame
    assert len(set(_places(frame))) == len(frame)
    grid = tables(records)["all_reduce"].frame
    assert (grid["message"] == "1 MB").sum() == 6, "gloo with 2, 4 and 6 processes, NCCL with as many"


def test_a_cell_without_figures_shows_its_status_everywhere() -> None:
    values = {"before_start": True}
    lost = [
        Record(NAME, dict(cell.factors), "unsupported", "no CUDA device", "measured", values=values)
        for cell in cells("gpu")
        if cell["backend"] == "nccl"
    ]
    for table in tables(lost).values():
        names = [column.name for column in table.columns if column.kind == "figure"]
        assert names and table.frame[names].isna().all(axis=None), table.id


@pytest.mark.parametrize("preset", ["tiny", "cpu"])
def test_every_table_has_rows_without_a_gpu(preset: str) -> None:
    made = tables([measured(cell) for cell in cells(preset)])
    assert {name: len(table.ok) >= 3 for name, table in made.items()} == dict.fromkeys(made, True)


def test_figures_are_drawn(made: dict[str, Table], tmp_path: Path) -> None:
    from perfscribe.show import figures

    every = show.figures({f"cs336.{name}": table for name, table in made.items()})
    assert tuple(figure.id for figure in every) == show.FIGURES
    for figure in every:
        figures.write(figure, tmp_path, "made-up times")
        assert (tmp_path / f"{figure.id}.png").stat().st_size > 4000
