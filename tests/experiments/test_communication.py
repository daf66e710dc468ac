"""The experiment communication: what is read from traces, the arithmetic of waiting and of rates."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscribe.distributed import links
from perfscribe.experiments.polaris.communication import measure, program


def event(name: str, cat: str, start_us: float, us: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": start_us, "dur": us, "tid": tid, "args": args}


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OF_A_GPU = [  # its kernels alone count
    event(NCCL, "kernel", 50.5, 20.25, **{"In msg nelems": 1024}),
    event(NCCL, "kernel", 10.0, 5.0),
    event("void cutlass::gemm", "kernel", 10.0, 30.0),
    event("Memcpy HtoD", "gpu_memcpy", 1.0, 2.0),
    event("Memset (Device)", "gpu_memset", 3.0, 1.0),
    event("nccl:all_reduce", "gpu_user_annotation", 10.0, 90.0),
    event("aten::mm", "cpu_op", 0.0, 500.0),
]
OF_A_CPU = [  # nested operators count once
    event("aten::linear", "cpu_op", 0, 100),
    event("aten::addmm", "cpu_op", 10, 80),
    event("aten::add", "cpu_op", 120, 10),
    event("aten::mm", "cpu_op", 120, 40, tid=2),
    event("c10d::allreduce_", "cpu_op", 200, 70),
    event("autograd::engine::evaluate_function", "cpu_op", 300, 90),
    event("ProfilerStep#2", "user_annotation", 0, 400),
    event("gloo:all_reduce", "user_annotation", 210, 33, tid=9, **{"Input Dims": [[3, 4], [5]]}),
]


@pytest.mark.parametrize(
    ("device", "events", "calls", "compute_ms"),
    [
        ("cuda", OF_A_GPU, [(0, 10_000, 5_000), (1024, 50_500, 20_250)], 0.033),
        ("cpu", OF_A_CPU, [(17, 210_000, 33_000)], 0.150),
    ],
)
def test_calls_and_computing_of_a_trace(tmp_path: Path, device: str, events, calls, compute_ms: float) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}))
    found = program.read_trace(path, device)
    assert sorted(found["calls"]) == calls and found["compute_ms"] == pytest.approx(compute_ms)


def said(*durations_ms: float, elements: int = 7) -> dict[str, Any]:
    calls = [(elements, number, round(1e6 * one)) for number, one in enumerate(durations_ms)]
    same = {"compute_ms": 30.0, "step_ms": [4.0, 6.0], "gradient_bytes": 400, "link": {"link": "not told"}}
    return {"calls": calls, **same}


def test_the_least_time_of_any_rank_is_the_transfer_and_the_first_turn_warms_up() -> None:
    turns = [[said(9, 9), said(9, 9)], [said(3, 1), said(1, 2)], [said(4, 1), said(2, 2)]]
    found = measure.combine({"intra": turns, "inter": turns}, "cpu")
    expected = {"transfer": [2, 3], "rank0_total": [4, 5], "rank0_wait": [2, 2], "rank1_wait": [1, 1]}
    expected |= {"rank1_slowest": [2, 2], "rank1_step": [5, 5]}
    assert {name: found.samples[f"intra_{name}_ms"] for name in expected} == expected
    assert found.warmup["intra_transfer_ms"] == [18]
    assert found.series["intra_calls"] == [2, 2]
    assert found.values == {"gradient_bytes": 400, "intra_link": "not told", "inter_link": "not told"}
    assert found.timers["intra_transfer_ms"] == "torch profiler, host clock"
    # Messages that begin at once are told apart by size.
    large, small, swapped = (1000, 10, 80), (8, 11, 3), [(8, 9, 4), (1000, 12, 70)]
    assert measure.transfer_and_totals([[large, small], swapped])[0] == 70 + 3


def test_unequal_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"collectives cannot be matched: rank 0 has 2, rank 1 1$"):
        measure.combine({"intra": [[said(1, 2), said(1)]]}, "cuda")
    with pytest.raises(ValueError, match=r"the traces of 2 ranks hold no collective$"):
        measure.combine({"intra": [[said(), said()]]}, "cuda")


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
def test_a_pairs_rate_is_that_of_its_links_by_the_driver_or_the_data_sheet(told, kind, gb_per_s, by) -> None:
    (pair,) = links.links(told, [0, 1])
    assert (pair.kind, pair.by) == (kind, by) and pair.gb_per_s == pytest.approx(gb_per_s)
