"""The experiment communication: ranks that really run, the arithmetic of waiting, of ratios and of rates."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from measured_cells import as_record
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.distributed import links
from perfscribe.distributed.launch import dismiss
from perfscribe.experiments.communication import measure, program, show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show.tables import Table

RAW = config.load(ROOT / "config.yaml")
NAME = "communication"


def planned(preset: str) -> list[Cell]:
    return measure.cells(plan.own_section(config.resolve(RAW, preset), NAME))


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
    found = program.read_trace(path, "cuda")
    assert sorted(found["calls"]) == [(0, 10_000, 5_000), (1024, 50_500, 20_250)]
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
    found = program.read_trace(path, "cpu")
    assert found["calls"] == [(17, 210_000, 33_000)]
    assert found["compute_ms"] == pytest.approx(0.150)


# --- what ranks say, as a measurement ---------------------------------------------------------------------------


def said(*durations_ms: float, elements: int = 7) -> dict[str, Any]:
    calls = [(elements, number, round(1e6 * one)) for number, one in enumerate(durations_ms)]
    return {
        "calls": calls,
        "compute_ms": 30.0,
        "step_ms": [4.0, 6.0],
        "gradient_bytes": 400,
        "link": {"link": "not told"},
    }


def test_the_least_time_of_any_rank_is_the_transfer_and_the_first_turn_warms_up() -> None:
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


def test_messages_that_begin_at_once_are_told_apart_by_size() -> None:
    large, small = (1000, 10, 80), (8, 11, 3)
    swapped = [(8, 9, 4), (1000, 12, 70)]
    assert measure.transfer_and_totals([[large, small], swapped])[0] == 70 + 3


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (said(1, 2), said(1), "collectives cannot be matched: rank 0 has 2, rank 1 1"),
        (said(), said(), "the traces of 2 ranks hold no collective"),
    ],
)
def test_unequal_ranks_are_refused(one: Any, other: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text + "$"):
        measure.combine({"intra": [[one, other]]}, "cuda")


# --- ranks that run ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Record], Path]]:
    """The tiny preset's cells, measured; beside the data sets their files."""
    folder = tmp_path_factory.mktemp("site")
    found = []
    for cell in planned("tiny"):
        one = Cell(cell.factors, data_folder=str(folder / "data"))
        found.append(as_record(NAME, one, measure.run(one)))
    dismiss()
    yield found, folder / "traces"


def test_two_ranks_under_the_profiler(real: tuple[list[Record], Path]) -> None:
    (record,) = show.of_placements(real[0])
    for placement in measure.PLACEMENTS:
        assert min(record.series[f"{placement}_calls"]) >= record.factors["active"]
        (transfer,) = record.samples[f"{placement}_transfer_ms"]
        for rank in range(2):
            total, wait, compute = (
                record.samples[f"{placement}_rank{rank}_{name}_ms"][0] for name in ("total", "wait", "compute")
            )
            assert total == pytest.approx(np.add(wait, transfer)) and min(*transfer, *compute) > 0


def test_each_rank_leaves_a_trace_and_a_table(real: tuple[list[Record], Path]) -> None:
    bases = [f"gloo-torch_ddp-{placement}-rank{rank}" for placement in measure.PLACEMENTS for rank in range(2)]
    wanted = {f"{base}{end}" for base in bases for end in (".csv", ".json.gz")}
    assert {path.name for path in real[1].iterdir()} == wanted
    steps = json.loads(gzip.decompress((real[1] / f"{bases[0]}.json.gz").read_bytes()))["traceEvents"]
    assert {"ProfilerStep#2", "ProfilerStep#3"} == {e["name"] for e in steps if "ProfilerStep" in str(e.get("name"))}
    assert "\naten::" in (real[1] / f"{bases[0]}.csv").read_text()


def made(records: list[Record]) -> dict[str, Table]:
    return {table.id: table for table in show.tables({NAME: records, "all_reduce": []})}


def test_impact_is_refused_where_calls_differ(real: tuple[list[Record], Path]) -> None:
    (record,) = show.of_placements(real[0])
    turns = len(record.series["intra_calls"])
    for last, said in ((16, "22 calls against 16"), (15, "22 calls against 15 to 16")):
        series = record.series | {"intra_calls": [*[16] * (turns - 1), last], "inter_calls": [22] * turns}
        table = made([replace(record, series=series)])["polaris.communication"].frame.set_index("metric")
        assert table.loc[show.TOTAL, "impact"] == f"refused: {said}"


# --- rated links ------------------------------------------------------------------------------------------------


def nvml(nvlinks: int, speed: int, status: int = 0, capability: tuple[int, int] = (8, 6)) -> Any:
    """Two GPUs joined by these links, through a switch."""
    field = SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=speed))
    return SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlDeviceGetP2PStatus=lambda *_: 0 if nvlinks else 1,
        nvmlDeviceGetTopologyCommonAncestor=lambda *_: 30,
        nvmlDeviceGetNvLinkState=lambda _, link: int(link < nvlinks),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda *_: 1,
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId="0"),
        nvmlDeviceGetCudaComputeCapability=lambda _: capability,
        nvmlDeviceGetFieldValues=lambda _, fields: [field] if fields == [90] else [],
    )


@pytest.mark.parametrize(
    ("told", "kind", "gb_per_s", "by"),
    [
        (nvml(18, 26562), "NV18", 18 * 26.562, "driver"),
        (nvml(18, 26562, status=3), "NV18", None, None),
        (nvml(18, 0, capability=(9, 0)), "NV18", 450.0, "data sheet"),
        (nvml(0, 26562), "PHB", None, None),
    ],
)
def test_a_pairs_rate_is_that_of_its_links_by_the_driver_or_the_data_sheet(
    told: Any, kind: str, gb_per_s: float | None, by: str | None
) -> None:
    (pair,) = links.links(told, [0, 1])
    assert (pair.kind, pair.by) == (kind, by) and pair.gb_per_s == pytest.approx(gb_per_s)
