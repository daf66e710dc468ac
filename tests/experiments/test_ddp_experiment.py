"""The experiment ddp: its cells, a small one that really runs, and what its tables and figures show."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from ranks import RanksError, run_ranks
from workspace import ROOT

from perfscribe import config
from perfscribe.analytic import bucket_model
from perfscribe.base.cells import Cell, Measurement
from perfscribe.data import tokens
from perfscribe.experiments.ddp import levels, measure, program, show, tracing, variants
from perfscribe.experiments.ddp.program import Wrapped
from perfscribe.experiments.ddp.variants import Variant
from perfscribe.instruments.profiling.trace import OPERATOR, Kernel, Range, Trace, thread_key
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

RAW = config.load(ROOT / "config.yaml")
ALL = levels.LEVELS["properties"]["implementation"]["items"]["enum"]


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_gpu_preset_is_that_of_the_published_runs() -> None:
    cells = [one for one in plan.planned_cells(RAW, "ddp", "gpu") if not one.skip]
    shapes = {(c["size"], c["seq_len"], c["batch"], c["world_size"], c["backend"], c["dtype"]) for c in cells}
    assert shapes == {("xl", 128, 16, n, "nccl", "fp32") for n in (2, 4)}
    for cell in cells:
        assert {"cuda", f"cuda:{cell['world_size']}"} <= set(cell.requires)
        buckets = [f"overlap_bucketed:{size}" for size in (1, 10, 100, 1000)]
        assert cell["variants"].split() == ["naive", "flat", "overlap_individual", *buckets, "torch_ddp"]
        assert cell["turns"] >= 6


def test_a_batch_that_the_ranks_cannot_share_is_skipped() -> None:
    section = plan.own_section(config.resolve(RAW, "cpu"), "ddp") | {"world_size": [2, 3], "batch": [4]}
    skipped = {cell["world_size"]: cell.skip for cell in measure.cells(section)}
    assert skipped == {2: "", 3: "3 ranks cannot share a batch of 4 evenly"}


def test_variants_are_a_level_and_back() -> None:
    of = variants.variants(ALL, [0.0016, 1, 1000])
    assert variants.from_level(variants.as_level(of)) == of
    assert [one.key for one in variants.traced(of)] == ["naive", "flat", "overlap_individual", "overlap_bucketed:1"]


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


def as_record(factors: dict[str, Any], of: Measurement) -> Record:
    samples = {name: [samples] for name, samples in of.samples.items()}
    parts = {"values": dict(of.values), "series": dict(of.series), "timers": dict(of.timers)}
    return Record("ddp", factors, "ok", "", "measured", samples=samples, **parts)


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
    for figure in show.figures({table.id: table for table in tables.values()}):
        canvas = plt.figure(figsize=figure.size_in, layout="constrained")
        figure.draw(canvas)
        canvas.canvas.draw()
        plt.close(canvas)


def _checked(number: int, fault: str) -> None:
    """The check, where finish() leaves one tensor as it was, or no number in it after the last step."""
    calls = itertools.count(1)

    def finish(self: Any) -> None:
        gradient = self.ours.module.norm.weight.grad
        own = gradient.clone()
        self.ours.finish_gradient_synchronization()
        if fault == "not averaged":
            gradient.copy_(own)
        elif next(calls) == variants.CHECKED_STEPS:
            gradient.fill_(math.nan)

    Wrapped.finish = finish  # type: ignore[method-assign]
    rank: Any = SimpleNamespace(place=SimpleNamespace(rank=number, world_size=2), device=torch.device("cpu"), seed=7)
    ids = torch.randint(10_000, (4, 9), generator=torch.Generator().manual_seed(0))
    program.errors([Variant("naive")], {"device": "cpu", "dtype": "fp32"}, ids, rank)


@pytest.mark.parametrize("fault", ["not averaged", "no number"])
def test_the_check_refuses_what_does_not_average(fault: str) -> None:
    with pytest.raises(RanksError, match="naive: parameters after 3 steps differ from a single process's"):
        run_ranks(_checked, 2, fault)


def _gradients(rank: int) -> None:
    model = torch.nn.Linear(3, 2)
    for tensor in model.parameters():
        tensor.grad = torch.ones_like(tensor)
    program.require_equal_gradients(model, "flat")
    if rank == 1:
        assert model.bias.grad is not None
        model.bias.grad[0] = 1 + 2**-20
    program.require_equal_gradients(model, "flat")


def test_gradients_must_be_equal_to_the_last_bit() -> None:
    with pytest.raises(RanksError, match="flat: 1 of 2 gradients differ between ranks"):
        run_ranks(_gradients, 2)


def _left_behind(rank: int) -> bool:
    """Whether PyTorch's wrapper is still there once it was released."""
    gc.disable()
    wrapped = Wrapped(Variant("torch_ddp"), torch.nn.Linear(3, 2))
    wrapped.call(torch.ones(1, 3)).sum().backward()
    there = weakref.ref(wrapped.call)
    wrapped.release()
    return there() is not None


def test_nothing_of_pytorchs_wrapper_is_left_in_another_ones_turn() -> None:
    assert run_ranks(_left_behind, 2) == [False, False]


def test_the_slowest_rank_counts() -> None:
    def rank(step_ms: list[float], error: float) -> dict[str, Any]:
        said = {"samples": {"naive_step_ms": step_ms}, "warmup": {"naive_step_ms": [9.0]}, "timer": "host clock"}
        named = {"values": {"naive_error": error}, "traced_values": {"naive_own_stream": True}, "series": {}}
        return {**said, **named, "warmup_s": 1.0, "timed_s": 2.0}

    both = measure.combine([rank([1, 5], 0.1), rank([3, 4], 0.3)])
    assert both.samples == {"naive_step_ms": [3, 5]} and both.timers == {"naive_step_ms": "host clock"}
    assert both.values == {"naive_error": 0.3, "naive_own_stream": True}


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
    found = tracing.Lanes(1000, [(0, 10), (11, 20), (30, 40)], [(5, 6)], {}, False, "").series()
    assert found == {"lane": ["compute", "compute", "communication"], "start_ns": [0, 30, 5], "ns": [20, 10, 1]}


# --- tables of a fixture ----------------------------------------------------------------------------------------

TOTAL_BYTES, BYTES_PER_S, CALL_S = 8_000_000_000, 200e9, 10e-6
COUNTS = {
    "overlap_individual": 435,
    **{f"overlap_bucketed:{mb}": n for mb, n in ((1, 340), (10, 300), (100, 98), (1000, 9))},
}
DRIFT = [0.0, 3.0, 1.0, -2.0, 4.0, 2.0]


def fixture(turns: int = 6, **factors: Any) -> Record:
    """XL on two GPUs: steps of 500 ms, communication by the model, naive 40 and flat 36 ms; turns drift alike."""
    of = variants.variants(ALL, [1, 10, 100, 1000])
    added_ms = {"naive": 40.0, "flat": 36.0, "torch_ddp": 5.0}
    added_ms |= {key: 1e3 * bucket_model.overhead_s(TOTAL_BYTES, n, BYTES_PER_S, CALL_S) for key, n in COUNTS.items()}
    calls = {"naive": 435, "flat": 1, **COUNTS}
    samples: dict[str, list[float]] = {"flat_copies_ms": [4.0] * turns}
    values: dict[str, Any] = {"gradient_bytes": TOTAL_BYTES, "parameter_tensors": 435}
    for variant in of:
        key, extra = variant.key, added_ms[variant.key]
        samples[f"{key}_off_ms"] = [500 + d for d in DRIFT[:turns]]
        samples[f"{key}_step_ms"] = [500 + extra + d for d in DRIFT[:turns]]
        values |= {f"{key}_error": 1e-3, f"{key}_sent_bytes": TOTAL_BYTES}
        values |= {f"{key}_all_reduces": calls[key]} if key in calls else {}
        if variant.implementation in variants.PHASED:
            phases = {"forward": 150, "backward": 250, "communication": extra, "optimizer": 100, "marked_step": 540}
            samples |= {f"{key}_{phase}_ms": [float(ms)] * turns for phase, ms in phases.items()}
    for variant in variants.traced(of):
        times = {"step": 600.0, "compute": 500.0, "communication": 40.0, "both": 10.0}
        values |= {f"{variant.key}_traced_{name}_ms": ms for name, ms in times.items()}
        values |= {f"{variant.key}_own_stream": True, f"{variant.key}_trace_tool": "torch profiler"}
    levels = {"dtype": "tf32", "size": "xl", "seq_len": 128, "batch": 16, "world_size": 2, "backend": "nccl"}
    levels |= {"device": "cuda", "variants": variants.as_level(of), "traced": True, "turns": turns, "steps": 1}
    timers = dict.fromkeys(samples, "host clock")
    return as_record({**levels, "warmup_steps": 1, **factors}, Measurement(samples, values=values, timers=timers))


def made(records: list[Record], all_reduces: Sequence[Record] = ()) -> dict[str, Table]:
    tables = show.tables({"ddp": records, "all_reduce": list(all_reduces)})
    return {table.id.removeprefix("cs336.ddp_"): table for table in tables}


def row(record: Record, table: str, implementation: str, bucket: Any = show.NO_BUCKETS) -> Any:
    frame = made([record])[table].frame
    return frame[(frame["implementation"] == implementation) & (frame["bucket_mb"] == bucket)].iloc[0]


def test_exposed_is_turn_by_turn_so_that_drift_cancels() -> None:
    found = row(fixture(), "benchmark", "torch_ddp")
    assert found["exposed_ms"] == pytest.approx(5) and found["exposed_high_ms"] == pytest.approx(5)
    assert found["exposed_interval"] == "5.00 to 5.00 (96.9 %)" and found["turns"] == 6
    assert found["spent_how"] == "with less without"
    assert found["spent_percent"] == pytest.approx(100 * 5 / 506.5, rel=1e-3)
    assert row(fixture(turns=3), "benchmark", "flat")["exposed_interval"] == show.TOO_FEW_TURNS


def test_exposed_may_be_negative() -> None:
    record = fixture()
    record.samples["torch_ddp_step_ms"] = [[499.0, 502.0, 500.5, 496.0, 503.0, 501.0]]
    found = row(record, "benchmark", "torch_ddp")
    assert found["exposed_ms"] == pytest.approx(-1)
    assert (found["exposed_low_ms"], found["exposed_high_ms"]) == (pytest.approx(-2), pytest.approx(-0.5))


def test_naive_and_flat_are_timed_after_backward() -> None:
    record = fixture()
    record.samples["naive_communication_ms"] = [[38.0, 39.0, 40.0, 41.0, 42.0, 40.0]]
    naive = row(record, "benchmark", "naive")
    assert naive["spent_ms"] == 40 and naive["spent_how"] == "timed after backward"
    assert naive["spent_of_ms"] == 540 and naive["spent_percent"] == pytest.approx(100 * 40 / 540)
    assert naive["spent_ms_spread"] == t.summary(record, "naive_communication_ms").iqr > 0
    once = row(fixture(1), "benchmark", "naive")
    assert (once["spent_ms_spread"], once["exposed_ms_spread"]) == (t.ONE_SAMPLE, show.TOO_FEW_TURNS)


def plain(world_size: int = 2, **factors: Any) -> list[Record]:
    """All-reduces of three sizes between GPUs: a latency of 0.02 ms, and 250 GB/s of a message's bytes."""
    found = []
    for size_mb in (1, 100, 1000):
        sent = size_mb * 10**6
        levels = {"operation": "all_reduce", "backend": "nccl", "device": "cuda", "transport": "default"}
        levels |= {"world_size": world_size, "megabyte": "10^6", "size_mb": size_mb, "grid": "sizes", **factors}
        samples = {"time_ms": [[0.02 + 1e3 * sent / 250e9] * 3]}
        found.append(Record("all_reduce", levels, "ok", "", "measured", samples, values={"message_bytes": sent}))
    return found


def test_communication_stands_beside_what_its_bytes_take_alone() -> None:
    phases = made([fixture()], plain())["phases"].frame.set_index("implementation")
    # 8 GB at 250 GB/s; 435 latencies of 0.02 ms, and one.
    assert phases.loc["naive", "alone_ms"] == pytest.approx(32 + 435 * 0.02)
    assert phases.loc["flat", "alone_ms"] == pytest.approx(32 + 0.02)
    assert phases.loc["flat", "copies_ms"] == 4
    others = [*plain(4), *plain(transport="tcp"), *plain(operation="broadcast")]
    assert set(made([fixture()], others)["phases"].frame["alone_ms"]) == {show.NO_LINE}


def test_the_model_finds_what_made_the_times() -> None:
    found = row(fixture(), "overhead", "overlap_bucketed", 100)
    assert found["bandwidth"] == pytest.approx(200, rel=1e-6) and found["call_us"] == pytest.approx(10, rel=1e-6)
    assert found["residual_ms"] == pytest.approx(0, abs=1e-6)
    assert found["best_bucket_mb"] == pytest.approx(126.49, rel=1e-3)


NOISE = [30.0, -31.0, 20.0, -20.0, 5.0, -5.0]


@pytest.mark.parametrize(
    ("added_ms", "noise", "said"),
    [
        ([100 / n - n / 1000 for n in COUNTS.values()], DRIFT, show.NO_OPTIMUM),  # falls with every further bucket
        ([1, 60, 1, 1, 1], DRIFT, show.NO_MODEL),
        ([1, 2, 3, 4, 5], NOISE, show.NOT_TOLD),
    ],
)
def test_a_model_that_cannot_be_fitted_says_why(added_ms: list[float], noise: list[float], said: str) -> None:
    record = fixture()
    for key, extra in zip(COUNTS, added_ms, strict=True):
        record.samples[f"{key}_step_ms"] = [[500 + extra + d for d in noise]]
    assert row(record, "overhead", "overlap_individual")["best_bucket_mb"] == said
    record.values |= {f"{key}_all_reduces": 3 for key in COUNTS}
    assert row(record, "overhead", "overlap_individual")["bandwidth"] == show.NO_FIT


def test_published_figures_stand_beside_their_own_levels() -> None:
    naive, tens = row(fixture(), "benchmark", "naive"), row(fixture(), "benchmark", "overlap_bucketed", 10)
    assert naive["step_ms_brandon-snider"] == 531.74 and naive["communication_ms_brandon-snider"] == 42.76
    assert tens["step_ms_brandon-snider"] == 509.02 and naive["step_ms_note-h100-pair"] == 808.7
    assert row(fixture(world_size=4), "benchmark", "naive")["step_ms_brandon-snider"] == "none"


def test_cells_that_are_not_ok_have_a_row_for_each_implementation() -> None:
    record = replace(fixture(), status="skipped", reason="2 GPUs", samples={}, series={}, timers={})
    record.values = {"before_start": True}
    shown = made([record])
    assert list(shown["benchmark"].frame["implementation"]) == [*ALL[:3], *["overlap_bucketed"] * 4, "torch_ddp"]
    for table in shown.values():
        assert set(table.frame["status"]) == {"skipped"}
        for column in table.columns:
            if column.kind == "figure":
                assert table.frame[column.name].isna().all(), column.name
