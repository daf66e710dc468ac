"""The experiment ddp: its cells, small ones that really run, and what its tables and figures show."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from ranks import RanksError, run_ranks
from workspace import ROOT

from perfscribe import config
from perfscribe.analytic import bucket_model
from perfscribe.base.cells import Cell, Measurement
from perfscribe.data import tokens
from perfscribe.experiments.ddp import levels, measure, rows, show, tracing, variants
from perfscribe.experiments.ddp.variants import Variant
from perfscribe.instruments.profiling.trace import OPERATOR, Kernel, Range, Trace, thread_key
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

RAW = config.load(ROOT / "config.yaml")
ALL = levels.LEVELS["properties"]["implementation"]["items"]["enum"]


# --- cells ------------------------------------------------------------------------------------------------------


def planned(preset: str) -> list[Cell]:
    return [one for one in plan.planned_cells(RAW, "ddp", preset) if not one.skip]


def test_the_gpu_preset_is_that_of_the_published_runs() -> None:
    cells = planned("gpu")
    shapes = {(c["size"], c["seq_len"], c["batch"], c["world_size"], c["backend"], c["dtype"]) for c in cells}
    assert shapes == {("xl", 128, 16, n, "nccl", "fp32") for n in (2, 4)}
    for cell in cells:
        assert {"cuda", f"cuda:{cell['world_size']}"} <= set(cell.requires)
    (whole,) = {c["variants"] for c in cells}
    assert whole.split() == [
        "naive",
        "flat",
        "overlap_individual",
        *(f"overlap_bucketed:{size}" for size in (1, 10, 100, 1000)),
        "torch_ddp",
    ]
    assert all(c["turns"] >= 6 and c["traced"] for c in cells)


def test_the_cpu_preset_has_processes_alone() -> None:
    cells = planned("cpu")
    assert {(c["world_size"], c["traced"]) for c in cells} == {(2, True), (4, True)}
    assert {c["backend"] for c in cells} == {"gloo"}
    assert all(c.requires == () and c["device"] == "cpu" for c in cells)


def test_a_batch_that_the_ranks_cannot_share_is_skipped() -> None:
    section = plan.own_section(config.resolve(RAW, "cpu"), "ddp") | {"world_size": [2, 3], "batch": [4]}
    skipped = {cell["world_size"]: cell.skip for cell in measure.cells(section)}
    assert skipped == {2: "", 3: "3 ranks cannot share a batch of 4 evenly"}


def test_variants_are_a_level_and_back() -> None:
    of = variants.variants(ALL, [0.0016, 1, 1000])
    assert variants.from_level(variants.as_level(of)) == of
    assert [one.key for one in variants.traced(of)] == ["naive", "flat", "overlap_individual", "overlap_bucketed:1"]


def test_measuring_imports_nothing_that_presents_or_plans() -> None:
    from perfscribe.plan.fingerprint import Sources

    sources = Sources(ROOT)
    assert sources.fingerprint("perfscribe.experiments.ddp.measure")
    assert "torch" in sources.libraries("perfscribe.experiments.ddp.measure")


# --- ranks ------------------------------------------------------------------------------------------------------

FACTORS = {"device": "cpu", "dtype": "fp32", "size": "nano", "seq_len": 8, "batch": 4, "backend": "gloo"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A cell of two ranks as a record."""
    folder = tmp_path_factory.mktemp("data")
    file = folder / tokens.dataset_name(4, 8) / tokens.FILE
    file.parent.mkdir()
    np.save(file, tokens.arrays(16, 9, 10_000, 0)["tokens"])
    of = variants.variants(ALL, [0.01, 10])
    factors = {**FACTORS, "world_size": 2, "variants": variants.as_level(of), "traced": True}
    factors |= {"turns": 2, "steps": 1, "warmup_steps": 1}
    return as_record(factors, measure.run(Cell(factors, data_folder=str(folder))))


def as_record(factors: Mapping[str, Any], of: Measurement, turns: int = 0) -> Record:
    return Record(
        "ddp",
        dict(factors),
        "ok",
        "",
        "measured",
        samples={name: [samples] for name, samples in of.samples.items()},
        values=dict(of.values),
        series=dict(of.series),
        timers=dict(of.timers),
    )


def test_every_variant_is_timed_with_and_without_communication(real: Record) -> None:
    for variant in variants.from_level(real.factors["variants"]):
        for name in ("step", "off"):
            (samples,) = real.samples[f"{variant.key}_{name}_ms"]
            assert len(samples) == 2 and min(samples) > 0
        assert 0 < real.values[f"{variant.key}_error"] < 1e-4
        phased = f"{variant.key}_communication_ms" in real.samples
        assert phased == (variant.implementation in variants.PHASED)
    assert real.samples["flat_copies_ms"][0][0] > 0


def test_calls_and_bytes_are_those_of_a_step(real: Record) -> None:
    tensors, sent = real.values["parameter_tensors"], real.values["gradient_bytes"]
    calls = {"naive": tensors, "flat": 1, "overlap_individual": tensors, "overlap_bucketed:10": 1}
    for key, expected in calls.items():
        assert (real.values[f"{key}_all_reduces"], real.values[f"{key}_sent_bytes"]) == (expected, sent)
    assert 1 < real.values["overlap_bucketed:0.01_buckets"] < tensors
    assert "torch_ddp_all_reduces" not in real.values


def test_the_real_trace_shows_communication(real: Record) -> None:
    for key in ("naive", "flat", "overlap_individual", "overlap_bucketed:10"):
        values = {name: real.values[f"{key}_traced_{name}_ms"] for name in ("step", "compute", "communication", "both")}
        assert 0 < values["communication"] < values["step"] and 0 < values["compute"] < values["step"]
        assert values["both"] <= min(values["communication"], values["compute"])
        assert {"compute", "communication", "phase forward", "phase optimizer"} <= set(real.series[f"{key}_lane"])
    assert real.values["naive_traced_both_ms"] < 0.2 * real.values["naive_traced_communication_ms"]


def test_tables_and_figures_of_a_real_cell(real: Record) -> None:
    tables = made([real])
    for table in tables.values():
        assert len(table.ok) >= 2
    for figure in show.figures(tables):
        canvas = plt.figure(figsize=figure.size_in, layout="constrained")
        figure.draw(canvas)
        canvas.canvas.draw()
        plt.close(canvas)


def _fake_rank(number: int, world_size: int) -> Any:
    import torch

    place = SimpleNamespace(rank=number, world_size=world_size)
    return SimpleNamespace(place=place, device=torch.device("cpu"), seed=7, backend="gloo")


def _checked(rank: int, fault: str) -> dict[str, float]:
    import torch

    from perfscribe.experiments.ddp import program
    from perfscribe.experiments.ddp.program import Wrapped

    if fault == "nothing is averaged":
        Wrapped.finish = lambda self: None  # type: ignore[method-assign]
    if fault == "one tensor is not averaged":

        def finish(self: Any) -> None:
            gradient = self.ours.module.norm.weight.grad.clone()
            self.ours.finish_gradient_synchronization()
            self.ours.module.norm.weight.grad.copy_(gradient)

        Wrapped.finish = finish  # type: ignore[method-assign]
    if fault == "a gradient of the last step is no number":
        calls = itertools.count(1)

        def broken(self: Any) -> None:
            self.ours.finish_gradient_synchronization()
            if next(calls) == variants.CHECKED_STEPS:
                self.ours.module.norm.weight.grad.fill_(math.nan)

        Wrapped.finish = broken  # type: ignore[method-assign]
    ids = torch.randint(10_000, (4, 9), generator=torch.Generator().manual_seed(0))
    factors = {"device": "cpu", "dtype": "fp32"}
    return program.errors([Variant("naive"), Variant("flat")], factors, ids, _fake_rank(rank, 2))


def test_the_check_passes_what_averages() -> None:
    for errors in run_ranks(_checked, 2, ""):
        assert set(errors) == {"naive", "flat"} and max(errors.values()) < 1e-4


FAULTS = ("nothing is averaged", "one tensor is not averaged", "a gradient of the last step is no number")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_refuses_what_does_not_average(fault: str) -> None:
    with pytest.raises(RanksError, match="naive: parameters after 3 steps differ from a single process's"):
        run_ranks(_checked, 2, fault)


def _gradients(rank: int, differ: bool) -> None:
    import torch

    from perfscribe.experiments.ddp.program import require_equal_gradients

    model = torch.nn.Linear(3, 2)
    for tensor in model.parameters():
        tensor.grad = torch.ones_like(tensor)
    if differ and rank == 1:
        assert model.bias.grad is not None
        model.bias.grad[0] = 1 + 2**-20
    require_equal_gradients(model, "flat")


def test_gradients_must_be_equal_to_the_last_bit() -> None:
    run_ranks(_gradients, 2, False)
    with pytest.raises(RanksError, match="flat: 1 of 2 gradients differ between ranks"):
        run_ranks(_gradients, 2, True)


def _left_behind(rank: int) -> list[bool]:
    """Whether PyTorch's wrapper is still there once it was released, with and without steps taken."""
    import torch

    from perfscribe.experiments.ddp.program import Wrapped

    gc.disable()
    left = []
    for steps in range(2):
        wrapped = Wrapped(Variant("torch_ddp"), torch.nn.Linear(3, 2))
        for _ in range(steps):
            wrapped.call(torch.ones(1, 3)).sum().backward()
        there = weakref.ref(wrapped.call)
        wrapped.release()
        left.append(there() is not None)
    return left


def test_nothing_of_pytorchs_wrapper_is_left_in_another_ones_turn() -> None:
    assert run_ranks(_left_behind, 2) == [[False, False]] * 2


def test_the_slowest_rank_counts() -> None:
    def rank(step_ms: list[float], error: float) -> dict[str, Any]:
        said = {"samples": {"naive_step_ms": step_ms}, "warmup": {"naive_step_ms": [9.0]}, "timer": "host clock"}
        named = {"values": {"naive_error": error}, "traced_values": {"naive_own_stream": True}, "series": {}}
        return {**said, **named, "warmup_s": 1.0, "timed_s": 2.0}

    both = measure.combine([Variant("naive")], [rank([1, 5], 0.1), rank([3, 4], 0.3)])
    assert both.samples == {"naive_step_ms": [3, 5]} and both.timers == {"naive_step_ms": "host clock"}
    assert both.values == {"naive_error": 0.3, "naive_own_stream": True, "implementations": 1}


# --- the timeline -----------------------------------------------------------------------------------------------

MAIN, AUTOGRAD = thread_key(1, 1), thread_key(1, 2)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n"


def kernel(name: str, start: int, end: int, launched: int, stream: int, thread: int = MAIN) -> Kernel:
    return Kernel(name, start, end, launched, launched + 1, thread, stream)


def gpu_trace(*kernels: Kernel) -> Trace:
    spans = {"forward": (1000, 1010), "backward": (1010, 1030), "finish": (1030, 1032), "optimizer": (1032, 1040)}
    ranges = [Range("step", 1000, 1200, MAIN), *(Range(name, *span, MAIN) for name, span in spans.items())]
    barrier = kernel(NCCL, 900, 950, 890, 20)
    return Trace("torch profiler 2.11.0", [barrier, *kernels], ranges)


OVERLAPPING = (
    kernel(GEMM, 1010, 1050, 1002, 7),
    kernel(GEMM, 1050, 1120, 1012, 7, AUTOGRAD),
    kernel(NCCL, 1080, 1100, 1020, 20, AUTOGRAD),
    kernel(NCCL, 1110, 1150, 1025, 20, AUTOGRAD),
    kernel("multi_tensor_apply_kernel", 1150, 1190, 1035, 7),
)


def test_a_gpus_lanes_are_its_kernels() -> None:
    found = tracing.lanes(gpu_trace(*OVERLAPPING), 2, "cuda")
    assert found.compute == [(10, 120), (150, 190)] and found.communication == [(80, 100), (110, 150)]
    assert found.phases == {"forward": (10, 50), "backward": (50, 120), "optimizer": (150, 190)}
    values = found.values()
    assert values["traced_both_ms"] == pytest.approx(30e-6) and values["traced_communication_ms"] == 60e-6
    assert values["own_stream"] is True


def test_one_stream_for_both_is_said() -> None:
    shared = [replace(one, stream=7) for one in OVERLAPPING]
    assert tracing.lanes(gpu_trace(*shared), 2, "cuda").values()["own_stream"] is False


def test_a_trace_of_ranks_without_communication_in_the_step_is_an_error() -> None:
    silent = [one for one in OVERLAPPING if one.name != NCCL]
    with pytest.raises(ValueError, match="a trace of 2 ranks without a communication kernel"):
        tracing.lanes(gpu_trace(*silent), 2, "cuda")
    ops = [replace(one, kind=OPERATOR) for one in silent]
    with pytest.raises(ValueError, match="a trace of 4 ranks without a communication"):
        tracing.lanes(gpu_trace(*ops), 4, "cpu")


def test_close_spans_are_one_in_a_record() -> None:
    found = tracing.Lanes(1000, [(0, 10), (11, 20), (30, 40)], [(5, 6)], {}, tracing.NO_STREAMS, "")
    assert found.series() == {
        "lane": ["compute", "compute", "communication"],
        "start_ns": [0, 30, 5],
        "ns": [20, 10, 1],
    }


# --- figures of a fixture ---------------------------------------------------------------------------------------

TOTAL_BYTES, BYTES_PER_S, CALL_S = 8_000_000_000, 200e9, 10e-6
COUNTS = {
    "overlap_individual": 435,
    **{f"overlap_bucketed:{mb}": n for mb, n in ((1, 340), (10, 300), (100, 98), (1000, 9))},
}


def fixture(turns: int = 6, **factors: Any) -> Record:
    """XL on two GPUs: steps of 500 ms, communication by the model, naive 40 and flat 36 ms; turns drift alike."""
    of = variants.variants(ALL, [1, 10, 100, 1000])
    added_ms = {"naive": 40.0, "flat": 36.0, "torch_ddp": 5.0}
    added_ms |= {key: 1e3 * bucket_model.overhead_s(TOTAL_BYTES, n, BYTES_PER_S, CALL_S) for key, n in COUNTS.items()}
    drift = [0.0, 3.0, 1.0, -2.0, 4.0, 2.0, 0.5, -1.0][:turns]
    samples: dict[str, list[float]] = {}
    values: dict[str, Any] = {"gradient_bytes": TOTAL_BYTES, "parameter_tensors": 435}
    for variant in of:
        key, extra = variant.key, added_ms[variant.key]
        samples[f"{key}_off_ms"] = [500 + d for d in drift]
        samples[f"{key}_step_ms"] = [500 + extra + d for d in drift]
        values |= {f"{key}_error": 1e-3, f"{key}_sent_bytes": TOTAL_BYTES, f"{key}_peak_bytes": 2**35}
        calls = {"naive": 435, "flat": 1, **COUNTS}.get(key)
        values |= {} if calls is None else {f"{key}_all_reduces": calls, f"{key}_buckets": calls}
        if variant.implementation in variants.PHASED:
            for phase, ms in {"forward": 150, "backward": 250, "communication": extra, "optimizer": 100}.items():
                samples[f"{key}_{phase}_ms"] = [float(ms)] * turns
            samples[f"{key}_marked_step_ms"] = [500 + extra] * turns
    samples["flat_copies_ms"] = [4.0] * turns
    for variant in variants.traced(of):
        times = {"step": 600.0, "compute": 500.0, "communication": 40.0, "both": 10.0}
        values |= {f"{variant.key}_traced_{name}_ms": ms for name, ms in times.items()}
        values |= {f"{variant.key}_own_stream": True, f"{variant.key}_trace_tool": "torch profiler"}
    levels = {"dtype": "tf32", "size": "xl", "seq_len": 128, "batch": 16, "world_size": 2, "backend": "nccl"}
    levels |= {"device": "cuda", "variants": variants.as_level(of), "traced": True, "turns": turns, "steps": 1}
    timers = dict.fromkeys(samples, "host clock")
    return as_record({**levels, "warmup_steps": 1, **factors}, Measurement(samples, values=values, timers=timers))


def made(records: list[Record], all_reduces: Sequence[Record] = ()) -> dict[str, Table]:
    return {table.id: table for table in show.tables({"ddp": records, "all_reduce": list(all_reduces)})}


def plain(world_size: int = 2, latency_ms: float = 0.02, **factors: Any) -> list[Record]:
    """All-reduces of three sizes between GPUs: a latency, and 250 GB/s of a message's bytes."""
    found = []
    for size_mb in (1, 100, 1000):
        sent = size_mb * 10**6
        levels = {"operation": "all_reduce", "backend": "nccl", "device": "cuda", "transport": "default"}
        levels |= {"world_size": world_size, "megabyte": "10^6", "size_mb": size_mb, "grid": "sizes", **factors}
        samples = {"time_ms": [[latency_ms + 1e3 * sent / 250e9] * 3]}
        found.append(Record("all_reduce", levels, "ok", "", "measured", samples, values={"message_bytes": sent}))
    return found


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return made([fixture()])


def row(tables: Mapping[str, Table], table: str, implementation: str, bucket: Any = rows.NO_BUCKETS) -> Any:
    frame = tables[f"cs336.ddp_{table}"].frame
    return frame[(frame["implementation"] == implementation) & (frame["bucket_mb"] == bucket)].iloc[0]


def test_exposed_is_turn_by_turn_so_that_drift_cancels(tables: dict[str, Table]) -> None:
    found = row(tables, "benchmark", "torch_ddp")
    assert found["exposed_ms"] == pytest.approx(5) and found["exposed_high_ms"] == pytest.approx(5)
    assert found["exposed_interval"] == "5.00 to 5.00 (96.9 %)" and found["turns"] == 6
    assert found["spent_how"] == rows.EXPOSED and found["spent_percent"] == pytest.approx(100 * 5 / 506.5, rel=1e-3)


def test_communication_that_is_timed_has_a_spread_of_its_own() -> None:
    record = fixture()
    record.samples["naive_communication_ms"] = [[38.0, 39.0, 40.0, 41.0, 42.0, 40.0]]
    tables = made([record])
    naive, other = (row(tables, "benchmark", name) for name in ("naive", "torch_ddp"))
    assert naive["spent_ms_spread"] == t.summary(record, "naive_communication_ms").iqr > 0
    assert naive["exposed_ms_spread"] == pytest.approx(0)
    assert other["spent_ms_spread"] == other["exposed_ms_spread"]
    once = row(made([fixture(1)]), "benchmark", "naive")
    assert (once["spent_ms_spread"], once["exposed_ms_spread"]) == (t.ONE_SAMPLE, rows.TOO_FEW_TURNS)


def test_exposed_may_be_negative() -> None:
    record = fixture()
    record.samples["torch_ddp_step_ms"] = [[499.0, 502.0, 500.5, 496.0, 503.0, 501.0]]
    found = row(made([record]), "benchmark", "torch_ddp")
    assert found["exposed_ms"] == pytest.approx(-1)
    assert (found["exposed_low_ms"], found["exposed_high_ms"]) == (pytest.approx(-2), pytest.approx(-0.5))


def test_naive_and_flat_are_timed_after_backward(tables: dict[str, Table]) -> None:
    naive, flat = row(tables, "benchmark", "naive"), row(tables, "benchmark", "flat")
    assert naive["spent_ms"] == 40 and naive["spent_how"] == rows.TIMED
    assert naive["spent_of_ms"] == 540 and naive["spent_percent"] == pytest.approx(100 * 40 / 540)
    frame = tables["cs336.ddp_phases"].frame.set_index("implementation")
    assert flat["spent_ms"] == 36 and frame.loc["flat", "copies_ms"] == 4


def test_communication_stands_beside_what_its_bytes_take_alone() -> None:
    phases = made([fixture()], plain())["cs336.ddp_phases"].frame.set_index("implementation")
    # 8 GB at 250 GB/s; 435 latencies of 0.02 ms, and one.
    assert phases.loc["naive", "alone_ms"] == pytest.approx(32 + 435 * 0.02)
    assert phases.loc["flat", "alone_ms"] == pytest.approx(32 + 0.02)


@pytest.mark.parametrize("others", [[], plain(4), plain(transport="tcp"), plain(operation="broadcast")])
def test_without_a_line_among_as_many_no_time_stands_there(others: list[Record]) -> None:
    tables = made([fixture()], others)
    assert set(tables["cs336.ddp_phases"].frame["alone_ms"]) == {show.NO_LINE}


def test_each_panel_of_the_timeline_says_how_much_of_the_step_is_computing() -> None:
    record = fixture()
    for variant in variants.traced(variants.from_level(record.factors["variants"])):
        lanes = {"lane": ["compute", "communication"], "start_ns": [0, 10], "ns": [10, 5]}
        record.series |= {f"{variant.key}_{name}": of for name, of in lanes.items()}
    record.values["flat_traced_compute_ms"] = 124.0
    (figure,) = (one for one in show.figures(made([record])) if one.id == "cs336.ddp_timeline")
    canvas = plt.figure()
    figure.draw(canvas)
    shown = [text.get_text() for axes in canvas.axes for text in axes.texts]
    plt.close(canvas)
    assert shown == ["computing 500 of 600 ms", "computing 124 of 600 ms", *["computing 500 of 600 ms"] * 2]


def test_few_turns_give_no_interval() -> None:
    assert row(made([fixture(turns=3)]), "benchmark", "flat")["exposed_interval"] == rows.TOO_FEW_TURNS


def test_the_model_finds_what_made_the_times(tables: dict[str, Table]) -> None:
    found = row(tables, "overhead", "overlap_bucketed", 100)
    assert found["bandwidth"] == pytest.approx(200, rel=1e-6) and found["call_us"] == pytest.approx(10, rel=1e-6)
    assert found["residual_ms"] == pytest.approx(0, abs=1e-6)
    assert found["best_bucket_mb"] == pytest.approx(126.49, rel=1e-3)


def test_a_range_without_an_optimum_is_said() -> None:
    record = fixture()
    for key, count in COUNTS.items():  # falls with every further bucket
        record.samples[f"{key}_step_ms"] = [
            [500 + 100 / count - count / 1000 + d for d in (0.0, 3.0, 1.0, -2.0, 4.0, 2.0)]
        ]
    found = row(made([record]), "overhead", "overlap_individual")
    assert found["best_bucket_mb"] == rows.NO_OPTIMUM and found["call_us"] == "no such term"


NOISE = {1: (0, 30, -20), 10: (30, -5, 10), 100: (-20, 5, 0), 1000: (4, 40, -9)}


def noisy() -> Record:
    """Bucket sizes of which two give as many buckets; every turn strays by more than what is exposed."""
    record = fixture()
    record.values |= {f"overlap_bucketed:{size}_{name}": 435 for size in (1, 10) for name in ("buckets", "all_reduces")}
    for size, noise in NOISE.items():
        middle = 497.0 if size == 1000 else 500.0
        steps = [middle + extra for extra in (*noise, *(-extra for extra in noise))]
        record.samples[f"overlap_bucketed:{size}_step_ms"] = [steps]
    record.samples["overlap_individual_step_ms"] = [[510.0, 480.0, 520.0, 490.0, 530.0, 495.0]]
    return record


def test_nothing_is_fitted_to_exposed_times_that_may_all_be_none() -> None:
    tables = made([noisy()])
    frame = tables["cs336.ddp_overhead"].frame
    for name in ("model_ms", "residual_ms", "bandwidth", "call_us", "best_bucket_mb"):
        assert set(frame[name]) == {rows.NOT_TOLD}, name


def test_a_model_whose_residuals_are_as_large_as_the_times_is_not_shown() -> None:
    record = fixture()
    for (key, _), extra in zip(COUNTS.items(), (1, 60, 1, 1, 1), strict=True):
        record.samples[f"{key}_step_ms"] = [[500.0 + extra + d for d in (0.0, 3.0, 1.0, -2.0, 4.0, 2.0)]]
    assert row(made([record]), "overhead", "overlap_individual")["model_ms"] == rows.NO_MODEL


def test_one_number_of_buckets_cannot_be_fitted() -> None:
    record = fixture()
    record.values |= {f"{key}_{name}": 3 for key in COUNTS for name in ("all_reduces", "buckets")}
    found = row(made([record]), "overhead", "overlap_individual")
    assert found["bandwidth"] == rows.NO_FIT


def test_published_figures_stand_beside_their_own_levels(tables: dict[str, Table]) -> None:
    naive, tens = row(tables, "benchmark", "naive"), row(tables, "benchmark", "overlap_bucketed", 10)
    assert naive["step_ms_brandon-snider"] == 531.74 and naive["communication_ms_brandon-snider"] == 42.76
    assert tens["step_ms_brandon-snider"] == 509.02 and naive["step_ms_note-h100-pair"] == 808.7
    other = made([fixture(world_size=4)])["cs336.ddp_benchmark"].frame
    assert set(other["step_ms_brandon-snider"]) == {"none"}


SCATTER = (20.0, -20.0, 15.0, -15.0, 5.0, -5.0)


def strays(by_ms: Sequence[float], key: str, name: str = "off") -> Record:
    """The fixture whose steps of one implementation stray by so much from turn to turn."""
    record = fixture()
    (samples,) = record.samples[f"{key}_{name}_ms"]
    record.samples[f"{key}_{name}_ms"] = [[one + by for one, by in zip(samples, by_ms, strict=True)]]
    return record


def test_cells_that_are_not_ok_have_a_row_for_each_implementation() -> None:
    record = replace(fixture(), status="skipped", reason="2 GPUs", samples={}, series={}, timers={})
    record.values = {"before_start": True}
    shown = made([record])
    assert list(shown["cs336.ddp_benchmark"].frame["implementation"]) == [
        *ALL[:3],
        *["overlap_bucketed"] * 4,
        "torch_ddp",
    ]
    for table in shown.values():
        assert set(table.frame["status"]) == {"skipped"}
    for table in shown.values():
        for column in table.columns:
            if column.kind == "figure":
                assert table.frame[column.name].isna().all(), column.name
