"""The experiment communication: its cells, ranks that really run, the arithmetic of waiting, of ratios and of rates."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.distributed import link_rates
from perfscribe.experiments.communication import measure, reading, rows, show
from perfscribe.experiments.communication.waiting import Call, Split, matched, split
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show.tables import Table

RAW = config.load(ROOT / "config.yaml")
NAME = "communication"


def planned(preset: str) -> list[Cell]:
    return [one for one in plan.planned_cells(RAW, NAME, preset) if not one.skip and one["backend"] in backends(preset)]


def backends(preset: str) -> list[str]:
    found: list[str] = plan.own_section(config.resolve(RAW, preset), NAME)["backend"]
    return found


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_gpu_preset_is_the_homework() -> None:
    cells = planned("gpu")
    placed = [cell for cell in cells if cell["part"] == "placements"]
    assert [(cell["implementation"], cell["tool"]) for cell in placed] == [
        ("torch_ddp", "torch_profiler"),
        ("torch_ddp", "nsys"),
    ]
    for cell in cells:
        model = [cell[name] for name in ("features", "layers", "d_ff", "batch", "source_length", "target_length")]
        assert model == [512, 6, 2048, 32, 1, 20]
        assert [cell[name] for name in ("wait", "warmup_steps", "active")] == [1, 1, 2]
        assert {"cuda", f"cuda:{cell['world_size']}"} <= set(cell.requires)
    (alone,) = [cell for cell in cells if cell["part"] == "profiler"]
    assert (alone["epochs"], alone["training_steps"], alone["batches"]) == (2, 128, 64)


def test_the_cpu_preset_has_turns_enough_for_an_interval() -> None:
    cells = planned("cpu")
    assert {(cell["part"], cell["world_size"], cell["device"]) for cell in cells} == {
        ("placements", 2, "cpu"),
        ("profiler", 1, "cpu"),
    }
    assert all(cell["turns"] >= 6 and cell.requires == () for cell in cells)


def test_a_training_shorter_than_a_profile_is_skipped() -> None:
    section = plan.own_section(config.resolve(RAW, "tiny"), NAME) | {"samples": 12}
    (alone,) = [cell for cell in measure.cells(section) if cell["part"] == "profiler"]
    assert alone.skip == "3 steps of a training are fewer than the 4 of a profile"


def test_measuring_imports_nothing_that_presents_or_plans() -> None:
    from perfscribe.plan.fingerprint import Sources

    sources = Sources(ROOT)
    assert sources.fingerprint("perfscribe.experiments.communication.measure")
    assert "torch" in sources.libraries("perfscribe.experiments.communication.measure")


# --- waiting against transfer -----------------------------------------------------------------------------------


def calls(*durations: int, elements: int = 0) -> list[Call]:
    return [Call(elements, 1000 * number, duration) for number, duration in enumerate(durations)]


def test_the_least_time_of_any_rank_is_the_transfer_and_the_rest_is_waiting() -> None:
    # rank 0 comes early to the first collective, rank 1 to the second, both at once to the third
    found = split([calls(900, 110, 50), calls(100, 410, 50)])
    assert found == Split(calls=3, transfer_ns=100 + 110 + 50, wait_ns=(800, 300), total_ns=(1060, 560))
    for rank in (0, 1):
        assert found.transfer_ns + found.wait_ns[rank] == found.total_ns[rank]


def test_equal_ranks_do_not_wait_and_one_rank_never_does() -> None:
    assert split([calls(5, 7), calls(5, 7)]).wait_ns == (0, 0)
    assert split([calls(5, 7)]) == Split(2, 12, (0,), (12,))


def test_messages_that_begin_at_once_are_told_apart_by_size() -> None:
    large, small = Call(1000, 10, 80), Call(8, 11, 3)
    swapped = [Call(8, 9, 4), Call(1000, 12, 70)]
    assert {tuple(call.elements for call in calls) for calls in matched([[large, small], swapped])} == {
        (1000, 1000),
        (8, 8),
    }
    assert split([[large, small], swapped]).transfer_ns == 70 + 3


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (calls(1), "collectives cannot be matched: rank 0 has 2, rank 1 1"),
        (calls(1, 2, elements=9), "collectives cannot be matched: rank 0 has 2, rank 1 2 of other sizes"),
    ],
)
def test_unequal_ranks_are_refused(other: list[Call], text: str) -> None:
    with pytest.raises(ValueError, match=text + "$"):
        split([calls(1, 2), other])
    with pytest.raises(ValueError, match="no rank"):
        split([])


# --- traces -----------------------------------------------------------------------------------------------------


def event(name: str, cat: str, start_us: float, us: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": start_us, "dur": us, "tid": tid, "args": args}


def trace(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}))
    return path


def test_a_gpus_trace_is_its_kernels(tmp_path: Path) -> None:
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    path = trace(
        tmp_path / "trace.json",
        event(nccl, "kernel", 50.5, 20.25, **{"In msg nelems": 1024}),
        event(nccl, "kernel", 10.0, 5.0),
        event("void cutlass::gemm", "kernel", 10.0, 30.0),
        event("Memcpy HtoD", "gpu_memcpy", 1.0, 2.0),
        event("Memset (Device)", "gpu_memset", 3.0, 1.0),
        event("nccl:all_reduce", "gpu_user_annotation", 10.0, 90.0),
        event("aten::mm", "cpu_op", 0.0, 500.0),
    )
    found = reading.read(path, "cuda")
    assert [Call(**call) for call in found["calls"]] == [Call(0, 10_000, 5_000), Call(1024, 50_500, 20_250)]
    assert found["compute_ms"] == pytest.approx(0.033)


def test_a_cpus_trace_counts_nested_operators_once(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "trace.json",
        event("aten::linear", "cpu_op", 0, 100),
        event("aten::addmm", "cpu_op", 10, 80),
        event("aten::add", "cpu_op", 120, 10),
        event("aten::mm", "cpu_op", 120, 40, tid=2),
        event("c10d::allreduce_", "cpu_op", 200, 70),
        event("autograd::engine::evaluate_function", "cpu_op", 300, 90),
        event("ProfilerStep#2", "user_annotation", 0, 400),
        event("gloo:all_reduce", "user_annotation", 210, 33, tid=9, **{"Input Dims": [[3, 4], [5]]}),
    )
    found = reading.read(path, "cpu")
    assert [Call(**call) for call in found["calls"]] == [Call(17, 210_000, 33_000)]
    assert found["compute_ms"] == pytest.approx(0.150)


def test_what_is_no_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(ValueError, match="no trace of the torch profiler"):
        reading.read(tmp_path / "trace.json", "cpu")


# --- what ranks say, as a measurement ---------------------------------------------------------------------------


def said(*durations_ms: float, compute_ms: float = 30.0, **more: Any) -> dict[str, Any]:
    of = [vars(Call(7, number, round(1e6 * one))) for number, one in enumerate(durations_ms)]
    return {"calls": of, "compute_ms": compute_ms, "step_ms": [4.0, 6.0], "gradient_bytes": 400, "links": []} | more


def test_turns_become_samples_and_the_first_one_warms_up() -> None:
    turns = [[said(9, 9), said(9, 9)], [said(3, 1), said(1, 2)], [said(4, 1), said(2, 2)]]
    found = measure.combine({"intra": turns, "inter": turns}, "cpu")
    assert found.samples["intra_transfer_ms"] == [2, 3]
    assert found.samples["intra_rank0_total_ms"] == [4, 5]
    assert found.samples["intra_rank0_wait_ms"] == [2, 2]
    assert found.samples["intra_rank1_wait_ms"] == [1, 1]
    assert found.samples["inter_rank1_slowest_ms"] == [2, 2]
    assert found.samples["inter_rank1_step_ms"] == [5, 5]
    assert found.warmup["intra_transfer_ms"] == [18]
    assert found.series["intra_calls"] == [2, 2]
    assert found.values == {"gradient_bytes": 400, "intra_link": "not told", "inter_link": "not told"}
    assert found.timers["intra_transfer_ms"] == "torch profiler, host clock"


def test_a_trace_without_collectives_is_an_error() -> None:
    with pytest.raises(ValueError, match="the traces of 2 ranks hold no collective"):
        measure.combine({"intra": [[said(), said()]]}, "cuda")


# --- ranks that run ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Record], Path]]:
    """The tiny preset's cells, measured; beside the data sets their files."""
    folder = tmp_path_factory.mktemp("site")
    found = []
    for cell in planned("tiny"):
        of = measure.run(Cell(cell.factors, data_folder=str(folder / "data")))
        samples = {name: [sample] for name, sample in of.samples.items()}
        record = Record(NAME, dict(cell.factors), "ok", "", "measured", samples, values=of.values, series=of.series)
        record.timers = of.timers
        found.append(record)
    measure.close()
    yield found, folder / "traces"


def test_two_ranks_under_the_profiler(real: tuple[list[Record], Path]) -> None:
    (record,) = rows.of_placements(real[0])
    for placement in rows.PLACEMENTS:
        assert rows.calls(record, placement) >= record.factors["active"]
        for rank in range(2):
            samples = [rows.turns(record, f"{placement}_rank{rank}_{name}") for name in ("total_ms", "wait_ms")]
            for total, wait, transfer in zip(*samples, rows.turns(record, f"{placement}_transfer_ms"), strict=True):
                assert total == pytest.approx(wait + transfer) and transfer > 0
            assert all(one > 0 for one in rows.turns(record, f"{placement}_rank{rank}_compute_ms"))
    names = {row[1] for row in record.series["intra_operators"]}
    assert len(names) >= 3 and not any(name.startswith("ProfilerStep") for name in names)


def test_each_rank_leaves_a_trace_and_a_table(real: tuple[list[Record], Path]) -> None:
    found = {path.name for path in real[1].iterdir()}
    bases = [f"gloo-torch_ddp-{placement}-rank{rank}" for placement in rows.PLACEMENTS for rank in range(2)]
    assert found == {f"{base}{end}" for base in bases for end in (".csv", ".json.gz")}
    steps = json.loads(gzip.decompress((real[1] / f"{bases[0]}.json.gz").read_bytes()))["traceEvents"]
    assert {"ProfilerStep#2", "ProfilerStep#3"} == {e["name"] for e in steps if "ProfilerStep" in str(e.get("name"))}
    lines = list(csv.DictReader((real[1] / f"{bases[0]}.csv").read_text().splitlines()))
    assert any(line["name"].startswith("aten::") and int(line["count"]) > 0 for line in lines)


def test_one_rank_profiled_and_not(real: tuple[list[Record], Path]) -> None:
    (record,) = [one for one in real[0] if one.factors["part"] == "profiler"]
    assert {f"{name}_train_s" for name in rows.TRAININGS} <= set(record.samples)
    states = ("plain", "wait", "warmup", "active", "over")
    assert {f"{name}_step_ms" for name in states} <= set(record.samples)
    assert record.samples["profile_ms"][0][0] > record.samples["active_step_ms"][0][0]


def test_real_records_fill_every_table(real: tuple[list[Record], Path]) -> None:
    shown = made(real[0])
    assert all(len(table.ok) >= (2 if "bandwidth" in table.id else 3) for table in shown.values())


# --- tables -----------------------------------------------------------------------------------------------------


def record_of(
    inter: int = 16, intra: int = 16, backend: str = "nccl", slow: float = 10.0, waits: float = 1.0, **values: Any
) -> Record:
    """Six turns of two ranks; inter's times `slow` times intra's, whose transfer is 4 ms and rank 0's wait `waits`."""
    device = "cuda" if backend == "nccl" else "cpu"
    factors = {"part": "placements", "backend": backend, "device": device, "world_size": 2, "active": 2}
    factors |= {"implementation": "torch_ddp", "tool": "torch_profiler"}
    samples: dict[str, list[list[float]]] = {}
    jitter = [0.98, 0.99, 1.0, 1.0, 1.01, 1.02]
    for placement, scale in (("intra", 1.0), ("inter", slow)):
        samples[f"{placement}_transfer_ms"] = [[4 * scale * one for one in jitter]]
        for rank, wait in ((0, waits), (1, 0.5)):
            named = {"total_ms": 4 + wait, "wait_ms": wait, "slowest_ms": 2}
            for name, value in named.items():
                samples[f"{placement}_rank{rank}_{name}"] = [[value * scale * one for one in jitter]]
            samples[f"{placement}_rank{rank}_compute_ms"] = [[15.0] * 6]
            samples[f"{placement}_rank{rank}_step_ms"] = [[20.0] * 6]
    series = {"intra_calls": [intra] * 6, "inter_calls": [inter] * 6}
    given = {
        "gradient_bytes": 176_562_176,
        "intra_link": "NV18",
        "intra_rated_gb_per_s": 478.0,
        "intra_rated_by": "driver",
        "inter_link": "NV18",
    }
    timers = dict.fromkeys(samples, "torch profiler, GPU time stamps")
    return Record(NAME, factors, "ok", "", "measured", samples, values=given | values, series=series, timers=timers)


def all_reduce(transport: str, time_ms: float, size_bytes: int = 2**20) -> Record:
    factors = {"operation": "all_reduce", "backend": "nccl", "transport": transport, "world_size": 2}
    values = {"message_bytes": size_bytes, "connections": "P2P"}
    return Record("all_reduce", factors, "ok", "", "measured", {"time_ms": [[time_ms]]}, values=values)


def alone_record(**changed: Any) -> Record:
    factors = {"part": "profiler", "backend": "nccl", "device": "cuda", "world_size": 1, "epochs": 10}
    factors |= {"training_steps": 640, "wait": 1, "warmup_steps": 1, "active": 2, **show.HOMEWORK, **changed}
    samples = {"plain_train_s": [[7.0]], "profiled_train_s": [[7.5]], "first_profiled_train_s": [[9.0]]}
    return Record(NAME, factors, "ok", "", "measured", samples, timers=dict.fromkeys(samples, "host clock"))


def made(records: list[Record], plain: list[Record] | None = None) -> dict[str, Table]:
    return {table.id: table for table in show.tables({NAME: records, "all_reduce": plain or []})}


def metric(table: Table, name: str) -> Any:
    (row,) = [row for _, row in table.frame.iterrows() if row["metric"] == rows.METRICS[name]]
    return row


def test_the_homeworks_table() -> None:
    table = made([record_of()])["polaris.communication"]
    total, share, mean = (metric(table, name) for name in (rows.TOTAL, rows.SHARE, rows.MEAN))
    assert (total["inter"], total["intra"]) == (pytest.approx(50), pytest.approx(5))
    assert (share["inter"], share["intra"]) == (pytest.approx(100 * 50 / 65), pytest.approx(25))
    assert (mean["inter"], mean["intra"]) == (pytest.approx(50 / 16), pytest.approx(5 / 16))
    assert total["impact"] == pytest.approx(10) and total["impact_verdict"] == "more"
    low, high = (float(end) for end in total["impact_interval"].split(" to "))
    assert low <= 10 <= high
    assert (total["published_inter"], total["published_intra"], total["published_impact"]) == (677.21, 6.97, 97)
    count = metric(table, rows.CALLS)
    assert (count["inter"], count["intra"], count["impact"]) == ("16", "16", "equally many")
    assert count["published_inter"] == "22.0 (total / mean)" and count["published_intra"] == "15.8 (total / mean)"


def test_impact_is_refused_where_the_launch_counts_differ() -> None:
    table = made([record_of(inter=22)])["polaris.communication"]
    for name in rows.METRICS:
        row = metric(table, name)
        assert row["impact"] == row["impact_interval"] == row["impact_verdict"] == "refused: 22 calls against 16"
    assert metric(table, rows.TOTAL)["inter"] == pytest.approx(50)


def test_impact_is_refused_where_turns_differ_and_needs_turns() -> None:
    other = record_of()
    other.series["intra_calls"] = [16, 16, 15, 16, 16, 16]
    table = made([other])["polaris.communication"]
    assert metric(table, rows.TOTAL)["impact"] == "refused: calls differ from turn to turn"
    assert metric(table, rows.CALLS)["intra"] == "15 to 16"
    assert rows.impact(rows.TOTAL, [2.0, 2.0], [1.0, 1.0], 4, 4) == {
        "impact": 2,
        "impact_interval": "too few turns",
        "impact_verdict": "too few turns",
    }
    assert rows.impact(rows.WAIT, [2.0] * 6, [1.0] * 5 + [0.0], 4, 4)["impact"] == "a turn without any"


def test_ranks_tell_waiting_from_transfer() -> None:
    table = made([record_of(waits=12.0)])["polaris.communication_ranks"].frame
    own = table[table["placement"] == "intra"].set_index("rank")
    assert list(own["transfer_ms"]) == [pytest.approx(4), pytest.approx(4)]
    assert own.loc[0, "wait_percent"] == pytest.approx(75) and own.loc[1, "wait_percent"] == pytest.approx(100 / 9)
    assert set(own["link"]) == {"NCCL's choice (NV18)"}
    assert set(table[table["placement"] == "inter"]["link"]) == {rows.TCP}
    assert set(own["published_slowest_ms"]) == {1.5}


def test_rates_by_transfer_and_with_waiting() -> None:
    plain = [all_reduce("nvlink", 0.01), all_reduce("default", 0.011), all_reduce("shm", 0.06), all_reduce("tcp", 0.3)]
    table = made([record_of()], plain)["polaris.communication_bandwidth"].frame
    own = table[table["what"] != rows.ALONE].set_index("placement")
    # 2 steps of 176.562176 MB in 4 ms of transfer, 5 ms in all
    assert own.loc["intra", "gb_per_s"] == pytest.approx(88.281088)
    assert own.loc["intra", "with_waiting_gb_per_s"] == pytest.approx(70.6248704)
    assert own.loc["intra", "rated_percent"] == pytest.approx(100 * 88.281088 / 478)
    assert own.loc["inter", "rated_gb_per_s"] == rows.NO_LINK
    assert own.loc["intra", "message_mb"] == pytest.approx(2 * 176.562176 / 16)
    assert (own.loc["inter", "published_gb_per_s"], own.loc["intra", "published_gb_per_s"]) == (0.521, 50.7)
    alone = table[table["what"] == rows.ALONE].set_index("link")
    assert own.loc["intra", "rated_by"] == alone.loc["NVLink", "rated_by"] == "driver"
    assert alone.loc["NVLink", "rated_gb_per_s"] == 478 and alone.loc[rows.TCP, "rated_gb_per_s"] == rows.NO_LINK


def test_an_epoch_stands_beside_the_homeworks_where_it_is_the_same() -> None:
    def shown(*names: str, **changed: Any) -> list[list[Any]]:
        table = made([alone_record(**changed)])["polaris.communication_trainings"].frame
        return [list(table[name]) for name in names]

    of_ten = ["epoch_s", "published_epoch_s"]
    assert shown(*of_ten) == [[0.7, 0.9, 0.75], [1.64, 2.07, "none"]]
    assert shown(*of_ten, epochs=2, training_steps=128) == [[3.5, 4.5, 3.75], [1.64, 2.07, "none"]]
    for changed in ({"training_steps": 320}, {"layers": 1}, {"batch": 16}, {"dtype": "tf32"}):
        assert shown("published_epoch_s", **changed) == [["another workload"] * 2 + ["none"]]


def test_a_ratio_is_as_fine_as_its_interval() -> None:
    total = metric(made([record_of(waits=12.0)])["polaris.communication"], rows.TOTAL)
    low, high = (float(end) for end in total["impact_interval"].split(" to "))
    assert total["impact_spread"] == pytest.approx(min(high - total["impact"], total["impact"] - low), rel=0.1)


def test_a_rate_with_waiting_is_no_finer_than_the_waiting_spreads() -> None:
    wide = record_of(waits=12.0)
    wide.samples["intra_rank0_total_ms"] = [[12.0, 60.0, 12.3, 12.6, 71.0, 13.0]]
    tables = made([wide])
    rated = tables["polaris.communication_bandwidth"].frame.set_index("placement")
    assert rated.loc["intra", "with_waiting_gb_per_s_spread"] > 5


def test_waiting_is_no_finer_a_share_than_turns_are_apart() -> None:
    wide = record_of(waits=12.0)
    wide.samples["intra_rank0_wait_ms"] = [[0.0, 9.0, 12.0, 12.0, 12.0, 14.0]]
    tables = made([wide])
    own = tables["polaris.communication_ranks"].frame
    (row,) = [row for _, row in own.iterrows() if (row["placement"], row["rank"]) == ("intra", 0)]
    assert row["wait_percent"] == pytest.approx(100 * 59 / 96)
    waits, totals = (np.array(wide.samples[f"intra_rank0_{name}_ms"][0]) for name in ("wait", "total"))
    low, high = np.quantile(100 * waits / totals, [0.25, 0.75])
    assert row["wait_percent_spread"] == pytest.approx(high - low) and high - low > 10


def test_plain_rates_are_no_finer_than_their_times_spread() -> None:
    slow = all_reduce("tcp", 0.9)
    slow.samples["time_ms"] = [[0.8, 0.85, 0.9, 0.95, 1.0]]
    tables = made([record_of()], [all_reduce("nvlink", 0.01), slow])
    rated = tables["polaris.communication_bandwidth"].frame.set_index("link")
    rate = 2**20 / 0.9e6
    assert rated.loc[rows.TCP, "gb_per_s_spread"].iloc[-1] == pytest.approx(rate * 0.1 / 0.9)


def test_the_figure_has_a_bar_for_each_rank() -> None:
    (figure,) = show.figures(made([record_of()]))
    canvas = plt.figure()
    figure.draw(canvas)
    assert [len(axes.patches) for axes in canvas.axes] == [4, 4]
    plt.close(canvas)


# --- rated links ------------------------------------------------------------------------------------------------


class Nvml:
    """Two GPUs joined by links of 26.562 GB/s."""

    NVMLError = RuntimeError

    def __init__(self, nvlinks: int, speed: int, status: int = 0, capability: tuple[int, int] = (8, 6)) -> None:
        self._capability, self._nvlinks = capability, nvlinks
        self._field = SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=speed))

    def nvmlDeviceGetP2PStatus(self, *_: Any) -> int:
        return 0 if self._nvlinks else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, *_: Any) -> int:
        return 30

    def nvmlDeviceGetNvLinkState(self, _: Any, link: int) -> int:
        return int(link < self._nvlinks)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, *_: Any) -> int:
        return 1  # a switch

    def nvmlDeviceGetPciInfo(self, _: Any) -> Any:
        return SimpleNamespace(busId="0")

    def nvmlDeviceGetCudaComputeCapability(self, _: Any) -> tuple[int, int]:
        return self._capability

    def nvmlDeviceGetFieldValues(self, _: Any, fields: list[int]) -> list[Any]:
        assert fields == [90]
        return [self._field]


def test_a_pairs_rate_is_that_of_its_links() -> None:
    (pair,) = link_rates.rated(Nvml(18, 26562), [0, 1])
    assert (pair.kind, pair.gb_per_s, pair.by) == ("NV18", pytest.approx(18 * 26.562), "driver")
    assert link_rates.rated(Nvml(18, 0), [0, 1])[0].gb_per_s is None
    assert link_rates.rated(Nvml(18, 26562, status=3), [0, 1])[0].gb_per_s is None
    (pci,) = link_rates.rated(Nvml(0, 26562), [0, 1])
    assert (pci.kind, pci.gb_per_s, pci.by) == ("PHB", None, None)


def test_a_driver_that_does_not_tell_leaves_the_data_sheets_rate() -> None:
    (pair,) = link_rates.rated(Nvml(18, 0, capability=(9, 0)), [0, 1])
    assert (pair.kind, pair.gb_per_s, pair.by) == ("NV18", 450.0, "data sheet")
