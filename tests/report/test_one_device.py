"""Answers about one device hold for what was measured: noise, cells out of memory, sizes that were not timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscribe.report.cs336 import BenchmarkingMixedPrecision, BenchmarkingScript, PytorchAttention, TorchCompile
from perfscribe.report.cs336_kernels import FlashBenchmarking, NsysProfile
from perfscribe.report.handin import lacking
from perfscribe.report.polaris import DataTypes, Formats, RankMethods, SingleGpu
from perfscribe.report.site import Row, Site

OK = {"status": "ok", "reason": "none", "device": "cuda", "dtype": "fp32", "batch": "4"}
OK |= {"n": "10", "forward_range_ms_n": "3", "compiled_forward_ms_n": "16"}


def site(device: str = "cuda", of: str = "cs336", **tables: Sequence[Row]) -> Site:
    """A site of one device with these tables of one chapter."""
    return Site("made", Path("nowhere"), device, {f"{of}.{name}": list(rows) for name, rows in tables.items()})


def test_on_a_cpu_the_rows_are_what_ran_whatever_came_of_it() -> None:
    cell = {**OK, "device": "cpu", "head_dim": "48", "seq_len": "96", "forward_ms": "2", "forward_ms_n": "10"}
    late = {**cell, "seq_len": "512", "status": "timeout", "reason": "longer than 8 s"}
    unmeasured = {**cell, "seq_len": "1024", "status": "not_run", "reason": "not measured yet"}
    found = site("cpu", pytorch_attention=[cell, late, unmeasured])
    page = PytorchAttention(found).markdown({})
    assert "| 96 | 48 | 2.00 |" in page and "| 512 | 48 | timeout |" in page and "1024" not in page
    code = "```\nx = 1\n```"  # words behind it would not end it
    assert f"{code}\n\n[Details]" in PytorchAttention(found).markdown({}, has_details=True, notes=code)


def test_each_problems_rows_are_of_its_own_levels() -> None:
    cell = {**OK, "device": "cpu", "backend": "aot_eager", "implementation": "compiled", "eager_forward_ms": "3"}
    steps = {**cell, "size": "nano", "seq_len": "32", "forward_ms_n": "10", "warmup_steps": "5", "forward_ms_mean": "1"}
    own = {**cell, "size": "micro", "seq_len": "48", "forward_range_ms": "7", "kernel_tool": "torch profiler"}
    assert "| micro | 48 | 7.00 |" in NsysProfile(
        site("cpu", benchmarking_script=[steps], nsys_forward=[own])
    ).markdown({})
    compiled = [own, {**own, "size": "mini"}]
    page = TorchCompile(site("cpu", benchmarking_script=[steps], compiled_models=compiled)).markdown({})
    assert "| micro, 48 | 3.00 |" in page and "| mini, 48 | 3.00 |" in page and "nano" not in page
    warm = {**steps, "size": "micro", "full_step_ms_n": "10"}
    page = BenchmarkingScript(site("cpu", benchmarking_script=[steps], benchmarking_warmup=[warm])).markdown({})
    assert "| micro | 1.00 |" in page


def test_captions_have_the_batch_and_the_epochs_that_were_measured() -> None:
    cells = [
        {**OK, "head_dim": "64", "seq_len": n, "batch": "2", "forward_ms": "1", "forward_ms_n": "5"}
        for n in ("256", "512")
    ]
    page = PytorchAttention(site(pytorch_attention=cells)).markdown({})
    assert "FP32, batch 2, " in page and "batch 8" not in page
    trained = {**OK, "batches": "per_batch", "samples": "64", "epochs": "3"}
    assert "64 samples, 3 epochs" in SingleGpu(site(of="polaris", single_gpu=[trained])).made[0].markdown()


def test_polaris_speaks_of_the_ranks_lengths_and_widths_that_ran() -> None:
    trained = OK | {"device": "cpu", "used_device": "cpu", "training_s": "2", "epochs": "1", "samples": "8"}
    trained |= {"method": "torchrun", "launcher": "torchrun", "d_model": "8", "target_length": "4"}
    ranks = [{**trained, "rank": n, "local_rank": n} for n in ("0", "1", "2")]
    page = RankMethods(site("cpu", "polaris", rank_methods=ranks)).markdown({})
    assert "DDP in FP32, 3 ranks, 1 epoch of 8 samples, batch 4 per rank;" in page
    assert "1 method gives ranks 0-2 and local ranks 0-2." in page
    no_gpu = {"status": "unsupported", "reason": "no CUDA device", "used_device": "unsupported", "method": "Open MPI"}
    found = site("cpu", "polaris", rank_methods=[*ranks, trained | no_gpu])
    assert "CUDA" not in lacking([RankMethods(found)])  # Open MPI's launch takes no GPU either
    found = site("cpu", "polaris", rank_methods=[trained | no_gpu])
    assert "No CUDA device" in lacking([RankMethods(found)])
    low = trained | {"dtype": "bf16", "time_ratio": "0.5", "memory_ratio": "0.9", "epochs_apart": "all quicker"}
    page = DataTypes(site("cpu", "polaris", dtypes=[trained, low])).markdown({})
    assert "| Baseline | BF16 | 2.00 |" in page and "Large_Seq_4" not in page and "Large_Feature_8" not in page
    assert "later epochs of Baseline take 0.500 times FP32's. Its peak is 0.900 of FP32's." in page


def flash(length: int, width: int, plain: float, ours: float) -> list[Row]:
    cell = {**OK, "dtype": "bf16", "seq_len": str(length), "head_dim": str(width), "both_launched_ms_n": "5"}
    return [
        {**cell, "implementation": name, "both_launched_ms": str(ms), "both_launched_ms_iqr": "0.2"}
        for name, ms in (("eager", plain), ("triton", ours))
    ]


@pytest.mark.parametrize(
    ("times", "where"),
    [
        ([(2, 1), (2, 1.9), (4, 1)], "except at 256 (within noise)"),
        ([(1, 2), (1, 1.1), (4, 1)], "from 512 tokens on"),
        ([(4, 1), (1, 2), (4, 1)], "except at 256"),
        ([(4, 1), (4, 1), (4, 1)], "at every length"),
        ([(1, 2), (1, 2), (1, 2)], "at no length"),
    ],
)
def test_where_flash_is_faster_and_how_much_slower_elsewhere(times: list[tuple[float, float]], where: str) -> None:
    cells = [*flash(128, 16, 1, 3), *(row for n, pair in enumerate(times) for row in flash(128 << n, 64, *pair))]
    problem = FlashBenchmarking(site(flash_cells=cells))
    plain, ours = times[-1]
    start = f"End to end with launches (bf16, d 64) ours is faster {where}: {ours:.2f} against {plain:.2f} ms at 512."
    said = problem.answered[0].text()
    assert said.startswith(start) and "of 4 cells ours is slower, up to 3.00x (128 × 16, bf16)." in said
    assert [one.text for one in problem.findings if where in one.text and where != "at no length"] or "no" in where


def test_a_cell_out_of_memory_takes_no_answer_away() -> None:
    times = {"small": (10, 12, 24, 48), "2.7B": (20, 40, 80)}
    script = [
        {**OK, "size": size, "seq_len": str(128 << n), "warmup_steps": "5", "forward_ms_n": "10"}
        | {f"{one}_ms_{what}": str(ms * share) for one in ("forward", "backward") for what, share in parts.items()}
        for size, of in times.items()
        for n, ms in enumerate(of)
        for parts in [{"mean": 1, "std": 0.02 if ms > 10 else 0.5}]
    ]
    script.append({**OK, "size": "2.7B", "seq_len": "1024", "status": "oom"})
    text = BenchmarkingScript(site(benchmarking_script=script)).answered[1].text()
    assert text.startswith("From small to 2.7B forward takes 24.0 to 80.0 ms")
    assert text.endswith("The largest std is 50 % (small backward, 128); half of the passes have at most 2.00 %.")


def test_a_loss_that_the_passes_timed_apart_lack_is_called_noise() -> None:
    of = {"fp32": (20, 30, 50), "bf16": (19, 32, 60)}
    names = ("forward", "backward", "forward+backward")
    same = {**OK, "seq_len": "512", "model_size": "small", "pass_ms_std": "1", "pass_ms_n": "10"}
    passes: list[dict[str, str]] = [
        {**same, "precision": dtype, "pass_type": name, "avg_time_ms": str(ms)}
        for dtype, times in of.items()
        for name, ms in zip(names, times, strict=True)
    ]
    passes[-1] |= {"speedup": "0.83", "speedup_spread": "0.1"}
    problem = BenchmarkingMixedPrecision(site(mixed_precision_passes=passes))
    text = problem.answered[-1].text()
    assert "60.0 ms, 0.830x as fast by medians (the sum of its passes timed apart: within noise)" in text
    assert problem.shown_title.count("0.830x") == 1


@pytest.mark.parametrize(("verdict", "noise"), [("cannot tell", " (within noise)"), ("faster", "")])
def test_a_gain_that_turns_cannot_tell_is_within_noise(verdict: str, noise: str) -> None:
    """Whatever half of its interval's width is: an interval may lie askew."""
    levels = {**OK, "seq_len": "512", "implementation": "compiled", "backend": "inductor", "full_step_speedup": "1.3"}
    spread = {"forward_speedup": "1.54", "forward_speedup_spread": "0.83"}
    gains = [
        {**levels, **spread, "size": "small", "forward_verdict": verdict},
        {**levels, "size": "large", "forward_speedup": "1.3"},
    ]
    text = TorchCompile(site(compiled_models_speedup=gains, compiled_models=gains)).answered[-1].text()
    assert text.startswith(f"Turn by turn the forward pass is 1.5x{noise} as fast at small and 1.30x at large")


def test_a_first_step_that_a_later_one_exceeds_is_no_finding() -> None:
    cold = {**OK, "size": "small", "seq_len": "512", "warmup_steps": "0", "first_forward_ms": "25", "forward_ms": "12"}
    cold["full_step_ms_n"] = "10"
    for later, stands_out in (("20", True), ("26", False)):
        steps = [cold | {"step": step, "forward_ms": ms} for step, ms in (("1", "25"), ("2", later))]
        problem = BenchmarkingScript(site(benchmarking_warmup=[cold], benchmarking_steps=steps))
        assert problem.shown_title.startswith("Without warm-up " + ("the first" if stands_out else "a later"))
        assert bool(problem.findings) == stands_out


@pytest.mark.parametrize(("ratio", "found"), [("2.4", True), ("0.9", False)])
def test_compressed_files_that_take_less_time_are_no_finding(ratio: str, found: bool) -> None:
    formats = ("memory", "hdf5_gzip", "hdf5", "pt", "npz_compressed", "npz", "npy")
    same = {**OK, "cache": "warm", "against_memory": ratio, "loader_share_percent": "3"}
    rows = [{**same, "format": one} for one in formats]
    made = site(of="polaris", io_formats=rows, io_parts=rows, io_reads=[])
    assert [bool(one.text) for one in Formats(made).findings] == [found]
