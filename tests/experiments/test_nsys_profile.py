"""nsys_profile: what is read from a trace, who traces, and the tables made of it.

Times and names of kernels are made up; expected figures are computed by hand beside them.
"""

import csv
import dataclasses
from pathlib import Path

import pytest
from measured_cells import as_record, with_tokens
from workspace import ROOT

from perfscribe import config
from perfscribe.base import registry
from perfscribe.base.cells import Cell
from perfscribe.experiments.cs336.nsys_profile import levels, measure, reading, show
from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.profiling.families import family
from perfscribe.instruments.profiling.trace import Kernel, Range, Trace
from perfscribe.plan import plan
from perfscribe.plan.fingerprint import Sources

GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_tn_align1>(T1::Params)"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int, T2, T3)"
SOFTMAX = "void at::native::<unnamed>::softmax_warp_forward<float, float, float, (int)7>(T2 *, const T1 *)"
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(T3)"
ADAM = "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>(T1)"
MAIN, AUTOGRAD = 1, 2


def test_a_rule_for_families_needs_no_new_measurement() -> None:
    reached, shown = (Sources(ROOT).closure(registry.module_name("nsys_profile", one)) for one in ("measure", "show"))
    assert "perfscribe.instruments.profiling.summary" in reached
    assert "perfscribe.instruments.profiling.families" not in reached
    assert "perfscribe.instruments.profiling.families" in shown


def test_names_stay_different_and_have_the_family_of_the_full_one() -> None:
    other = MUL.replace("<4,", "<8,")
    short = reading.short_names([MUL, other, MEAN])
    assert short[MUL] != short[other] and short[MUL].startswith("vectorized_elementwise_kernel<MulFunctor>#")
    assert short[MEAN] == "reduce_kernel<MeanOps>"
    with open(ROOT / "tests" / "fixtures" / "kernel_names.csv", encoding="utf-8", newline="") as stream:
        families = {row["name"]: row["family"] for row in csv.DictReader(stream)}
    short = reading.short_names(families)
    assert len(set(short.values())) == len(families) > 100
    assert families == {name: family(name) for name in families} == {name: family(short[name]) for name in families}


def kernel(name: str, start: int, duration: int, launch: int, thread: int = MAIN) -> Kernel:
    return Kernel(name, start, start + duration, launch, launch + 5, thread)


@pytest.fixture
def trace() -> Trace:
    """A warm-up, an inference pass, and a step at 2000: forward to 2400, backward to 2800, optimizer to 3000."""
    spans = [(ranges.WARMUP, 90, 900), (ranges.STEP, 2000, 3000), (ranges.BACKWARD, 2400, 2800)]
    spans += [(ranges.OPTIMIZER, 2800, 3000)]
    kernels = []
    for begin, name in ((100, ranges.INFERENCE), (1000, ranges.INFERENCE), (2000, ranges.FORWARD)):
        spans += [(name, begin, begin + 400), (ranges.ATTENTION_SCORES, begin + 5, begin + 20)]
        spans += [(ranges.SOFTMAX, begin + 45, begin + 56), (ranges.FINAL_MATMUL, begin + 58, begin + 66)]
        kernels += [kernel(GEMM, begin + 20, 30, begin + 10)]
        kernels += [kernel(SOFTMAX, begin + 60, 30, begin + 50)]  # launched after the device ran dry
        kernels += [kernel(GEMM, begin + 90, 100, begin + 60)]  # queued before
        kernels += [kernel(MUL, begin + 200, 10, begin + 70)]  # launched long before it runs
    # backward launches from a thread of its own; two kernels overlap
    kernels += [kernel(GEMM, 2500, 100, 2450, AUTOGRAD), kernel(MUL, 2550, 100, 2455, AUTOGRAD)]
    kernels += [kernel(ADAM, 2850, 60, 2820), kernel(ADAM, 2910, 40, 2830)]
    all_ranges = [Range(*span, MAIN) for span in spans] + [Range(ranges.FORWARD, 2410, 2420, MAIN, domain="library")]
    return Trace("made up 1.0", kernels, sorted(all_ranges, key=lambda each: (each.start_ns, -each.end_ns)))


def test_times_of_phases(trace: Trace) -> None:
    of = {"inference": 400e-6, "forward": 400e-6, "backward": 400e-6, "optimizer": 200e-6}
    assert reading.host_ranges(trace) == {f"{phase}_range_ms": [spent] for phase, spent in of.items()}
    found = reading.device_times(trace)
    assert found["forward_span_ms"] == [190e-6]  # 20 to 210
    assert found["forward_busy_ms"] == [170e-6]  # 30 + 30 + 100 + 10
    assert found["forward_launch_bound_ms"] == [10e-6]  # 50 to 60; 190 to 200 had its launch over at 75
    assert found["backward_busy_ms"] == [150e-6]  # 2500 to 2650, the overlap once
    assert found["optimizer_busy_ms"] == [100e-6]


def test_a_trace_that_lacks_a_phases_kernels_leaves_torchs_profiler(trace: Trace, monkeypatch) -> None:
    """As an nsys gives that loses events; its ranges are good."""
    lacking = dataclasses.replace(trace, kernels=[one for one in trace.kernels if one.name != ADAM])
    monkeypatch.setattr(measure, "_by_nsys", lambda *_: (lacking, {}))
    monkeypatch.setattr(measure, "_by_torch", lambda *_: (trace, {}))
    traced = measure._trace(Cell({}), measure.Passes(1, 1, "cuda", "fp32", "nano", 1, 64, 1, False), full_step=True)
    assert (traced.kernels, traced.ranges) == (trace, lacking)
    assert traced.remark == "made up 1.0 recorded no kernel in a range optimizer"


def test_kernels_by_range(trace: Trace) -> None:
    series = reading.kernel_series(trace, detailed=True)
    names = reading.short_names([GEMM, SOFTMAX, MUL, ADAM])

    def of_range(label: str, figure: str) -> dict[str, int]:
        shown = [series["kernel_names"][place] for place in series[f"{label}_kernel"]]
        return dict(zip(shown, series[f"{label}_{figure}"], strict=True))

    in_forward = {names[GEMM]: 130, names[SOFTMAX]: 30, names[MUL]: 10}
    assert of_range("forward", "total_ns") == of_range("inference", "total_ns") == in_forward
    assert series["forward_total_ns"] == [130, 30, 10] and series["forward_launches"] == [2, 1, 1]
    assert of_range("backward", "total_ns") == {names[GEMM]: 100, names[MUL]: 100}
    figures = ("median", "min", "max", "std")
    assert [of_range("optimizer", f"{one}_ns")[names[ADAM]] for one in figures] == [50, 40, 60, 14]
    assert series["forward_std_ns"] == [49, 0, 0]
    parts = {label: of_range(label, "total_ns") for label in reading.PARTS}
    assert parts == {"scores": {names[GEMM]: 30}, "softmax": {names[SOFTMAX]: 30}, "final_matmul": {names[GEMM]: 100}}


@pytest.mark.parametrize("preset", ["tiny", "cpu"])
def test_the_cell_whose_kernels_a_cpus_hand_in_lists_keeps_every_kernel(preset: str) -> None:
    cells = levels.cells(plan.own_section(config.resolve({}, preset), "nsys_profile"))
    longest = max(one["seq_len"] for one in cells)
    assert [one["detailed"] for one in cells if one["seq_len"] == longest][-1]


def test_an_nsys_that_fails_leaves_torchs_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tiny preset's detailed cell, of few passes."""
    section = plan.own_section(config.resolve({}, "tiny"), "nsys_profile")
    chosen = next(found for found in levels.cells(section) if found["detailed"])
    few = {**chosen.factors, "warmup_steps": 1, "timed_steps": 2, "traced_steps": 2}
    folder = with_tokens(tmp_path / "data", chosen["batch"], chosen["seq_len"])
    cell = dataclasses.replace(chosen, factors=few, data_folder=str(folder))
    fake = tmp_path / "fake_nsys"
    fake.write_text(
        '#!/bin/sh\ncase "$1 $2" in\n--version*) echo "NVIDIA Nsight Systems version 2024.1.1.59-241133802077v0" ;;\n'
        '"profile --help") ;;\n*) echo "The driver is too new."; exit 3 ;;\nesac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PERFSCRIBE_NSYS", str(fake))
    measurement = measure.run(cell)
    assert measurement.values["kernel_tool"].startswith("torch profiler")
    assert measurement.values["tool_remark"] == "nsys profile: exit status 3: The driver is too new."
    samples, series = measurement.samples, measurement.series
    for phase in ("inference", "forward", "backward", "optimizer"):
        assert len(samples[f"{phase}_ms"]) == len(samples[f"{phase}_busy_ms"]) == 2
    spans = zip(samples["forward_busy_ms"], samples["forward_span_ms"], strict=True)
    assert all(0 < busy <= span for busy, span in spans)
    assert samples["forward_range_ms"] == pytest.approx(samples["forward_traced_ms"], rel=0.5)
    assert sum(series["softmax_launches"]) == 2 * cell["traced_steps"]  # layers of nano
    assert {"aten::mm", "aten::_softmax"} <= set(series["kernel_names"])
    made = show.tables({"nsys_profile": [as_record("nsys_profile", cell, measurement)]})
    assert all(len(table.ok) > 0 for table in made)
