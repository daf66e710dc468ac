"""Answers about one device hold for what was measured: noise, cells out of memory, sizes that were not timed."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscribe.report.cs336 import BenchmarkingScript, PytorchAttention
from perfscribe.report.cs336_devices import DdpBucketedBenchmarking
from perfscribe.report.cs336_kernels import FlashBenchmarking, NsysProfile
from perfscribe.report.first_page import headlines
from perfscribe.report.fsdp import Defects
from perfscribe.report.fsdp_one_gpu import CustomSingleNode
from perfscribe.report.fsdp_several_gpus import CustomMultiGpu, LinkTest, MultiGpu
from perfscribe.report.handin import lacking
from perfscribe.report.polaris import CrossNode, DataTypes, Formats, RankMethods
from perfscribe.report.site import Row, Site

OK = {"status": "ok", "reason": "none", "device": "cuda", "dtype": "fp32", "batch": "4", "environment": "a"}
OK |= {"n": "10", "forward_range_ms_n": "3", "compiled_forward_ms_n": "16"}


def site(device: str = "cuda", of: str = "cs336", **tables: Sequence[Row]) -> Site:
    """A site of one device with these tables of one chapter."""
    return Site("made", Path("nowhere"), device, {f"{of}.{name}": list(rows) for name, rows in tables.items()})


def test_on_a_cpu_the_rows_are_the_grids_whatever_came_of_them() -> None:
    cell = {**OK, "device": "cpu", "head_dim": "48", "seq_len": "96", "forward_ms": "2", "forward_ms_n": "10"}
    late = {**cell, "seq_len": "512", "status": "timeout", "reason": "longer than 8 s"}
    unmeasured = {**cell, "seq_len": "1024", "status": "not_run", "reason": "not measured yet"}
    found = site("cpu", pytorch_attention=[cell, late, unmeasured])
    page = PytorchAttention(found).markdown({})
    assert "| 96 | 48 | 2.00 |" in page and "| 512 | 48 | timeout |" in page and "| 1024 | 48 | - |" in page
    assert "Not measured yet: " in lacking([PytorchAttention(found)])
    code = "```\nx = 1\n```"  # words behind it would not end it
    assert f"{code}\n\n[Details]" in PytorchAttention(found).markdown({}, has_details=True, notes=code)


def test_rows_and_captions_are_of_the_problems_own_levels() -> None:
    cell = {**OK, "device": "cpu", "forward_ms_n": "10", "warmup_steps": "5", "forward_ms_mean": "1"}
    own = {**cell, "size": "micro", "seq_len": "48", "forward_range_ms": "7", "kernel_tool": "torch profiler"}
    script = {**cell, "size": "nano", "seq_len": "32"}
    found = site("cpu", benchmarking_script=[script], nsys_forward=[own])
    assert "| micro | 48 | 7.00 |" in NsysProfile(found).markdown({})
    cell = {**OK, "head_dim": "64", "batch": "2", "forward_ms": "1", "forward_ms_n": "5"}
    page = PytorchAttention(site(pytorch_attention=[cell | {"seq_len": n} for n in ("256", "512")])).markdown({})
    assert "FP32, batch 2, " in page and "batch 8" not in page


def test_what_a_launcher_lacks_is_told_where_none_ran() -> None:
    trained = OK | {"device": "cpu", "used_device": "cpu", "training_s": "2", "method": "torchrun"}
    trained |= {"epochs": "1", "samples": "8", "world_size": "3"}
    ranks = [{**trained, "launcher": "torchrun", "rank": n, "local_rank": n} for n in ("0", "1", "2")]
    no_gpu = {"status": "unsupported", "reason": "no CUDA device", "used_device": "unsupported", "method": "Open MPI"}
    found = site("cpu", "polaris", rank_methods=[*ranks, trained | no_gpu])
    assert "CUDA" not in lacking([RankMethods(found)])  # Open MPI's launch takes no GPU either
    found = site("cpu", "polaris", rank_methods=[trained | no_gpu])
    assert "No CUDA device" in lacking([RankMethods(found)])


def test_published_times_stand_beside_four_ranks_alone_and_one_rank_is_by_the_same_launcher() -> None:
    row = OK | {"device": "cuda", "used_device": "cuda:0", "training_s": "2", "method": "mpi4py, rank mod devices"}
    row |= {"epochs": "10", "samples": "2048", "batch": "32", "launcher": "mpiexec (Open MPI)"}
    single = row | {"world_size": "1", "training_s": "7", "rank": "0", "local_rank": "0"}
    several = {
        n: [row | {"world_size": str(n), "rank": str(r), "local_rank": str(r)} for r in range(n)] for n in (2, 4)
    }
    found = {n: [single | {"launcher": "srun (Slurm)", "training_s": "9"}, single, *several[n]] for n in several}
    pages = {n: RankMethods(site(of="polaris", rank_methods=rows)).markdown({}) for n, rows in found.items()}
    assert "ranks 0-3" in pages[4] and "3.50 times as fast as by one rank (001: 3.64)." in pages[4]
    assert "| 4.50 |" in pages[4] and "| 4.50 |" not in pages[2] and "4.61" not in pages[2]


def test_two_machines_of_a_site_are_not_both_this_one() -> None:
    cell = OK | {
        "backend": "nccl",
        "on_nodes": "1",
        "busbw_gb_per_s": "300",
        "threshold_gb_per_s": "5",
        "exit_code": "0",
    }
    more = [cell | {"status": "skipped", "world_size": n, "reason": f"{has} GPUs"} for n, has in (("4", 2), ("8", 4))]
    text = lacking([LinkTest(site(of="fsdp", preflight=[cell | {"world_size": "2"}, *more]))])
    assert "- Skipped on a machine with 2 GPUs: " in text and "- Skipped on a machine with 4 GPUs: " in text


TRAINED = OK | {"dtype": "fp16", "batch_size": "1", "grad_acc": "4", "max_length": "512", "train_size": "500"}
TRAINED |= {"labels": "answer", "loop": "trainer", "nodes": "1", "num_epochs": "5", "wrapped_by": "FSDP1"}


def test_gains_over_another_machine_say_so(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    for name, gpus in (("a", 2), ("b", 4)):
        told = {"cpu_model": "C", "gpu_model": "G", "gpu_count": gpus}
        (tmp_path / "environments" / f"{name}.json").write_text(json.dumps(told), encoding="utf-8")
    rows = [TRAINED | {"world_size": ranks, "environment": of} for ranks, of in (("2", "a"), ("4", "a+b"))]
    mixed = "4 GPUs on 2 × G and 4 × G."
    for measured, said in ((rows, f"2 GPUs on 2 × G, {mixed}"), (rows[:1], ""), (rows[1:], mixed)):
        page = MultiGpu(Site("made", tmp_path / "tables", "cuda", {"fsdp.multi_gpu": measured})).made[0].setup
        assert page.partition("; machines: ")[2] == said
    rates = [("1", "none", "10", "a"), ("2", "FSDP1", "20", "a"), ("4", "FSDP1", "40", "b")]
    keys = ("world_size", "wrapped_by", "train_samples_per_second", "environment")
    trained = [TRAINED | dict(zip(keys, one, strict=True)) for one in rates]
    for measured, differ in ((trained, " (machines differ)"), (trained[:2], "")):
        answer = MultiGpu(Site("made", tmp_path / "tables", "cuda", {"fsdp.multi_gpu": measured})).answered[0].text()
        assert f"x the samples/s of one GPU without FSDP{differ}." in answer
    reduced = OK | {"backend": "nccl", "world_size": "4", "size_bytes": "1", "message": "1 GB", "environment": "b"}
    tables: dict[str, list[Row]] = {"cs336.all_reduce": [reduced | {"busbw_gb_per_s": "300", "link_gb_per_s": "400"}]}
    for copied, on in (("a", " on 2 × G"), ("b", "")):
        tables["cs336.ceilings_bandwidths"] = [OK | {"work": "GPU 0 to GPU 1", "environment": copied}]
        (reduces,) = headlines(Site("made", tmp_path / "tables", "cuda", dict(tables)))
        assert reduces.bound == f"75.0 % of a plain copy{on}"


def test_each_expectation_of_buckets_is_held_against_what_they_expose() -> None:
    cell = OK | {"device": "cuda", "world_size": "2", "batch": "32", "size": "xl", "seq_len": "128"}
    sizes = ("1", "10", "100", "1000")
    cell |= {"implementation": "overlap_bucketed", "step_ms": "9"}
    expectations = (
        ((5, 4, 2, 6), "Both"),
        ((13, 9, 17, 6), "The first"),
        ((1, 1, 2, 4), "The second"),
        ([2] * 4, "Neither"),
    )
    for exposed, said in expectations:
        rows = [
            cell | {"bucket_mb": size, "exposed_ms": str(ms), "all_reduces": calls}
            for size, calls, ms in zip(sizes, ("435", "435", "98", "9"), exposed, strict=True)
        ]
        assert said in DdpBucketedBenchmarking(site(ddp_benchmark=rows)).shown()


def test_a_scale_factor_is_no_finer_than_its_rates() -> None:
    alone = TRAINED | {"world_size": "1", "wrapped_by": "none", "train_samples_per_second": "12.5", "environment": "a"}
    many = {"world_size": "4", "train_samples_per_second": "18.778", "train_samples_per_second_spread": "3.8"}
    rows = [alone, alone | many | {"wrapped_by": "FSDP1", "samples_scale": "1.502"}]
    page = MultiGpu(site(of="fsdp", multi_gpu=rows)).markdown({})
    assert "| 4 | 19 ± 2 | 1.5 |" in page and "give 1.5x the samples/s" in page


def test_what_fewer_gpus_give_is_told_of_each_wrapping_within_noise_too() -> None:
    rates = [
        ("1", "none", "12.5"),
        ("2", "FSDP1", "12"),
        ("4", "FSDP1", "25"),
        ("2", "FSDP2", "5"),
        ("4", "FSDP2", "20"),
    ]
    keys = ("world_size", "wrapped_by", "train_samples_per_second")
    rows = [
        TRAINED | dict(zip(keys, one, strict=True)) | {"environment": "a", "train_samples_per_second_spread": "2"}
        for one in rates
    ]
    said = MultiGpu(site(of="fsdp", multi_gpu=rows)).answered[0].text()
    alone = "one GPU without FSDP, 2 GPUs 0.960x (within noise); wrapped per block 4 GPUs give 1.60x, 2 GPUs 0.40x."
    assert said == f"As given, 4 GPUs give 2.00x the samples/s of {alone}"


def test_rates_and_losses_of_the_custom_model_are_of_what_they_say() -> None:
    same = TRAINED | {"num_layers": "3", "hidden_size": "8", "vocab_size": "9", "environment": "a", "first_loss": "70"}
    same |= {"parameters": "5", "source_parameters": "5", "grad_acc": "1", "samples_per_s_callback": "9"}
    rates = {"1": "41.8", "2": "63.2", "4": "147"}
    rows = [
        same | {"world_size": n, "stepping_samples_per_second": of, "train_samples_per_second": "8"}
        for n, of in rates.items()
    ]
    rows[0] = rows[0] | {"wrapped_by": "none"}
    made = CustomMultiGpu(site(of="fsdp", custom_multi_gpu=rows, custom_loops=rows))
    assert made.made[0].notes[0].endswith("by steps alone: 41.8 on 1 GPU, 63.2 on 2 GPUs, 147 on 4 GPUs.")
    assert "first logged in the first row 70.0" in made.made[0].setup  # of Trainer the mean of ten steps
    assert "On 4 GPUs the Default rate is 8.00 samples/s" in made.answered[-1].text()
    outside = "94.6 % of the runtime is outside the steps, evaluation and checkpoints among it."
    assert (
        made.answered[0].text() == f"By steps alone 4 GPUs as given give 3.52x: {outside}"
    )  # the whole rate is 8, of steps 147


def test_what_is_trained_otherwise_than_the_scripts_have_it_is_marked() -> None:
    run = TRAINED | {"model_name": "SimpleGPTModel 1 x 1024", "rows": "500", "train_samples_per_s": "36"}
    for accumulation, mark in (("4", "‡"), ("1", "")):
        made = CustomSingleNode(site(of="fsdp", single_runs=[run | {"grad_acc": accumulation}]))
        assert made.status() == f"1 of 18{', 1‡' * bool(mark)}" and made.made[0].title.endswith(f"device{mark}.")
        assert f"FP16, batch 1, accumulation {accumulation}, 512 tokens, 500 rows" in made.made[0].setup
        assert ("; ‡ accumulation 4 in place of the script's 1." in made.made[0].setup) == bool(mark)
    alone = TRAINED | {"world_size": "1", "wrapped_by": "none", "train_samples_per_second": "12", "environment": "a"}
    tuned = alone | {"loop": "tuned", "dtype": "bf16", "batch": "80", "step_ms_n": "57", "num_epochs": "1"}
    tuned |= {"train_samples_per_second": "210", "stepping_samples_per_second": "217", "avg_mem_total_gb": "100"}
    many = {"world_size": "4", "stepping_samples_per_second": "868"}
    rows = [alone, alone | {"world_size": "4", "wrapped_by": "FSDP1"}, tuned, tuned | many]
    made_many = MultiGpu(site(of="fsdp", multi_gpu=rows))
    assert "| 4 GPUs, tuned | 4 | 868‡ | 4.00‡ | - | - | - | 107‡ |" in made_many.markdown({})
    assert made_many.made[0].setup.endswith(
        "; ‡ tuned: BF16, compiled, 80 rows per GPU, 57 steps timed alone, against one GPU, tuned."
    )
    assert made_many.answered[0].text().endswith("tuned, 4.00x one tuned GPU‡.")


def test_defects_are_seen_where_either_training_ran() -> None:
    scored = OK | {"labels": "answer", "training": "after", "identical_workshop_f1_percent": "99.9375"}
    made = Defects(site(of="fsdp", custom_single_node_answers=[scored]))
    assert "Answers equal to the reference score 99.9 % F1." in made.markdown({})
    assert "rows)" in lacking([made]) and "seen here" not in lacking([made])  # its only column of figures
    assert not any(cell.able for row in made.made[0].rows for cell in row if ".md)" in cell.text)


def test_the_epoch_of_the_lowest_loss() -> None:
    rows = [
        OK | {"labels": labels, "epoch": f"{n}.0", "eval_loss": loss}
        for labels, losses in (("answer", ("9.5", "9.2", "9.4")), ("source", ("4", "3", "2")))
        for n, loss in enumerate(losses, start=1)
    ]
    title = CustomSingleNode(site(of="fsdp", custom_single_node_losses=rows)).shown_title
    assert title.endswith("2.00 (epoch 3) with the scripts' labels, 9.20 (epoch 2) with answer labels")


def test_dtypes_of_one_width_and_length() -> None:
    trained = OK | {"device": "cpu", "training_s": "2", "d_model": "8", "target_length": "4"}
    low = trained | {"dtype": "bf16", "time_ratio": "0.5", "memory_ratio": "0.9", "epochs_apart": "all quicker"}
    page = DataTypes(site("cpu", "polaris", dtypes=[trained, low])).markdown({})
    assert "later epochs of Baseline take 0.500 times FP32's. Its peak is 0.900 of FP32's." in page


def test_half_of_an_even_number_of_passes_is_its_lower_half() -> None:
    means = {"forward_ms_mean": "100", "backward_ms_mean": "100"}
    cells = [
        OK | {"size": "small", "seq_len": length, "warmup_steps": "5", "forward_ms_n": "9"} | means | stds
        for length, stds in (
            ("128", {"forward_ms_std": "1", "backward_ms_std": "2"}),
            ("256", {"forward_ms_std": "3", "backward_ms_std": "4"}),
        )
    ]
    said = BenchmarkingScript(site(benchmarking_script=cells)).answered[1].text()
    assert "half of the passes have at most 2.00 %." in said


def test_a_slow_first_forward_is_told_whatever_it_adds_to_the_spread() -> None:
    times = {"0": (90, 10, 11), "1": (14, 10, 11), "2": (11, 10, 11)}
    cell = OK | {"size": "small", "seq_len": "512", "full_step_ms_n": "3", "forward_ms": "10", "kind": "timed"}
    cells = [
        {**cell, "warmup_steps": n, "first_forward_ms": f"{of[0]}", "forward_ms_mean": "37", "forward_ms_std": "46"}
        for n, of in times.items()
    ]
    steps = [{**cell, "warmup_steps": n, "forward_ms": f"{ms}"} for n, of in times.items() for ms in of]
    made = BenchmarkingScript(site(benchmarking_warmup=cells, benchmarking_steps=steps))
    assert made.answered[-1].text().endswith("above all others at small, after two at none.")
    assert "the mean is 37 ± 46 ms, after 2 warm-up steps 37." in made.answered[-1].text()
    cold = BenchmarkingScript(site(benchmarking_warmup=cells[:1], benchmarking_steps=steps[:3]))
    assert "the mean is 37 ± 46 ms." in cold.answered[-1].text()


def test_how_many_profiled_steps_a_total_is_of() -> None:
    row = OK | {"backend": "nccl", "implementation": "torch_ddp", "metric": CrossNode.TOTAL, "inter": "9", "intra": "3"}
    row |= {"impact": "3", "turns": "6", "layers": "6", "features": "512", "active": "3"}
    (table,) = CrossNode(site(of="polaris", communication=[row])).made
    assert "NCCL: rank 0 over 3 profiled steps, median ± half IQR of 6 turns" in table.setup


def flash(length: int, width: int, plain: float, ours: float) -> list[Row]:
    cell = {**OK, "dtype": "bf16", "seq_len": str(length), "head_dim": str(width), "both_launched_ms_n": "5"}
    return [
        {**cell, "implementation": name, "both_launched_ms": str(ms), "both_launched_ms_iqr": "0.2"}
        for name, ms in (("eager", plain), ("triton", ours))
    ]


def test_from_which_length_on_flash_is_faster() -> None:
    cells = [row for n, pair in enumerate([(1, 2), (1, 1.1), (4, 1)]) for row in flash(128 << n, 64, *pair)]
    said = FlashBenchmarking(site(flash_cells=cells)).answered[0].text()
    assert said.startswith(
        "End to end with launches (bf16, d 64) ours is faster from 512 tokens on: 1.00 against 4.00 ms"
    )


def test_passes_before_one_that_is_out_of_memory_keep_their_figures() -> None:
    plain, ours = flash(128, 64, 3, 1)
    plain |= {"status": "oom", "forward_launched_ms": "3", "both_launched_ms": "oom"}
    page = FlashBenchmarking(site(flash_cells=[plain, ours])).markdown({})
    assert "| 128 | 64 | bf16 | 3.00 | - | OOM | - | OOM | 1.00 |" in page


@pytest.mark.parametrize(("ratio", "found"), [("2.4", True), ("0.9", False)])
def test_compressed_files_that_take_less_time_are_no_finding(ratio: str, found: bool) -> None:
    formats = ("memory", "hdf5_gzip", "hdf5", "pt", "npz_compressed", "npz", "npy")
    same = {**OK, "cache": "warm", "against_memory": ratio, "loader_share_percent": "3"}
    rows = [{**same, "format": one} for one in formats]
    made = site(of="polaris", io_formats=rows, io_parts=rows, io_reads=[])
    assert [bool(one.text) for one in Formats(made).findings] == [found]
