"""The first page: what a site found, its headlines, and what to keep in mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfscribe.report import fsdp
from perfscribe.report.cs336_kernels import leaderboard
from perfscribe.report.problem import Problem, said
from perfscribe.report.site import NOTHING, Missing, Row, Site, known, noisy, of, some
from perfscribe.show.rounding import GIB_AS_GB, Figure

FEWEST_FINDINGS, MOST_FINDINGS, MOST_HEADLINES = 5, 7, 8
# At most so many findings of a part of a chapter.
MOST_OF = {"one device": 3, "several devices": 2, "polaris": MOST_FINDINGS, "fsdp": 2}
LEADERBOARD = "cs336.flash_leaderboard"
OURS, CUDNN = "here: Triton (ours)", "here: SDPA, cuDNN"  # entries of the leaderboard
# Ids of figures, of which the first that the site has is shown.
FIGURES = (
    ("cs336.nsys_forward", "cs336.flash_times", "cs336.attention_by_length"),
    ("fsdp.custom_scaling", "fsdp.strategies", "cs336.ddp_steps", "polaris.io_times"),
)


@dataclass
class Page:
    """What sentences are made of: the site's tables and its problems by name."""

    site: Site
    problems: Mapping[str, Problem]

    def problem(self, name: str) -> Any:
        """A problem; Missing where its chapter is left out."""
        if name not in self.problems:
            raise Missing(name)
        return self.problems[name]

    @property
    def gpu(self) -> bool:
        """Whether the site has GPUs."""
        return self.site.gpu

    def ranks(self, count: int | str) -> str:
        """So many GPUs or processes."""
        one, several = ("GPU", "GPUs") if self.gpu else ("process", "processes")
        return f"{count} {one if str(count) == '1' else several}"

    def least(self, table: str, column: str, **levels: Any) -> tuple[Figure, Row]:
        """The least figure of a column, and its row."""
        rows = self.site.rows(table, **levels)
        found = [(figure, row) for row in rows if (figure := of(row, column)) is not None]
        return min(some(found), key=lambda one: one[0].value)

    def most(self, table: str, column: str, **levels: Any) -> tuple[Figure, Row]:
        """The greatest."""
        rows = self.site.rows(table, **levels)
        found = [(figure, row) for row in rows if (figure := of(row, column)) is not None]
        return max(some(found), key=lambda one: one[0].value)

    def largest(self, table: str, column: str, by: Sequence[str], **levels: Any) -> Row:
        """The row of the greatest levels that has a figure in this column."""
        rows = [row for row in self.site.rows(table, **levels) if of(row, column) is not None]
        return max(some(rows), key=lambda row: [float(row[name]) for name in by])


def host_bound(page: Page) -> str:
    """Up to which size the GPU idles most of the time."""
    nsys = page.problem("nsys_profile")
    idle = {cell: nsys.idle(*cell) for cell in nsys.traced()}
    size, context = list(some([cell for cell, share in idle.items() if share.value > 50]))[-1]
    big = nsys.big
    return (
        f"Up to {size} at {context} tokens the GPU idles most of forward ({idle[size, context].quoted} % "
        f"there, {nsys.idle(*big).quoted} % at {big[0]}, {big[1]})."
    )


def flash_against_pytorch(page: Page) -> str:
    """From which length ours is faster, launches counted."""
    flash = page.problem("flash_benchmarking")
    first, last, plain, ours = flash.compare()
    if not first or not page.gpu:
        raise Missing("first_faster")
    return (
        f"In bf16, launches included, our FlashAttention-2 is faster than PyTorch from {first} × 64 on; at {last} × 64 "
        f"it takes {ours.quoted} ms, PyTorch {plain.quoted}."
    )


def strategies(page: Page) -> str:
    """The fastest and the smallest."""
    found = page.problem("fsdp_sharding_strategies_off_loading")
    (fast, speed, _), (small, memory) = found.fastest(), found.smallest()
    unit = "GPU" if page.gpu else "process"
    return (
        f"Of {found.dtype().upper()} strategies on {page.ranks(found.world())} {fast} trains fastest, "
        f"{speed.quoted} samples/s; "
        f"{small} needs least memory, {memory.quoted} GB per {unit}{found.mark()}."
    )


def half_precision(page: Page) -> str:
    """What BF16 and TF32 alone give."""

    gain = page.problem("benchmarking_mixed_precision").gain
    big, tf32, small = gain("bf16", "2.7B"), gain("tf32", "2.7B"), gain("bf16", "small")
    return (
        f"BF16 makes forward and backward of 2.7B {big.quoted} times as fast as FP32, TF32 alone {tf32.quoted} times; "
        f"small {'gains nothing beyond noise' if noisy(small) else f'{small.quoted} times'}."
    )


def scaling(page: Page) -> str:
    """BLOOM as given, and the custom model tuned."""
    bloom, custom = (
        page.problem("fsdp_multi_gpu_fine_tuning_with_fsdp"),
        page.problem("fsdp_custom_model_fine_tuning_multi_gpu_with_fsdp"),
    )
    (how, gain), *_ = bloom.gained()
    tuned = of(custom.loop("tuned"), "efficiency")
    if tuned is None:
        raise Missing("tuned")
    return (
        f"{bloom.world()} GPUs train BLOOM {gain.quoted} times as fast as one{f', {how}' if how else ''}{bloom.odd()}; "
        f"the tuned custom model keeps {tuned.quoted} % of linear."
    )


def overlap(page: Page) -> str:
    """What naive DDP exposes, and what the best does."""
    levels = {"world_size": "2", "dtype": "fp32"}
    naive = page.site.figure("cs336.ddp_benchmark", "exposed_ms", implementation="naive", **levels)
    best, row = page.least("cs336.ddp_benchmark", "exposed_ms", **levels)
    name = row["implementation"] if row["bucket_mb"] == "none" else f"buckets of {row['bucket_mb']} MB"
    return f"On {page.ranks(2)} naive DDP exposes {naive.quoted} ms of communication per step, {name} {best.quoted}."


def flash_against_cudnn(page: Page) -> str:
    """The leaderboard's problem by the handout's closure."""
    ours, cudnn, row = leaderboard(page.site)
    if row is None or not ours or not cudnn:
        raise Missing(LEADERBOARD)
    return (
        f"On the leaderboard problem our FlashAttention-2 takes {ours.quoted} ms, cuDNN {cudnn.quoted}, the best "
        f"verified entry {row['both_ms']} (on {row['hardware']})."
    )


def _all_reduce(page: Page, backend: str = "") -> Row:
    """1GB, or the largest message, on most processes."""
    backend = backend or ("nccl" if page.gpu else "gloo")
    levels = {"device": "cpu"} if backend == "gloo" else {}
    return page.largest("cs336.all_reduce", "busbw_gb_per_s", ("world_size", "size_bytes"), backend=backend, **levels)


def all_reduce(page: Page) -> str:
    """Bus bandwidth at 1GB, and Gloo beside it."""
    row = _all_reduce(page, "nccl")
    gloo = page.site.row(
        "cs336.all_reduce", backend="gloo", device="cpu", world_size=row["world_size"], message=row["message"]
    )
    rate, bound, nccl, other = (
        of(row, "busbw_gb_per_s"),
        of(row, "link_gb_per_s"),
        of(row, "host_ms"),
        of(gloo, "host_ms"),
    )
    if rate is None or bound is None or nccl is None or other is None:
        raise Missing("cs336.all_reduce")
    return (
        f"On {row['world_size']} GPUs NCCL reduces 1GB in {nccl.quoted} ms, {other.over(nccl).quoted} times as fast as "
        f"Gloo; its bus bandwidth is {rate.share(bound).quoted} % of a plain copy's."
    )


def peak_memory(page: Page) -> str:
    """Peaks of the largest model."""

    def peak(column: str, n: str) -> str:
        figure = page.site.figure("cs336.memory_by_context", column, size="2.7B", seq_len=n, dtype="fp32")
        return replace(figure, value=figure.value * GIB_AS_GB).quoted

    step, alone = [peak("full_step_gib", n) for n in ("128", "512")], peak("inference_gib", "512")
    return f"A full step of 2.7B peaks at {step[0]} GB at 128 tokens and {step[1]} at 512, forward alone at {alone}."


def sharded_optimizer(page: Page) -> str:
    """What it saves, and what it does to the step."""
    sharding = page.problem("optimizer_state_sharding_accounting")
    row = _saved(page)
    saved = of(row, "saved_gib", GIB_AS_GB)
    plain, sharded = (sharding.time("step_ms", one, row["world_size"]) for one in sharding.OPTIMIZERS)
    change = sharded.share(plain)
    if saved is None or saved.value < 0.1:
        raise Missing("saved_gib")
    return (
        f"Sharding the optimizer state on {row['world_size']} GPUs saves {saved.quoted} GB per GPU; a step takes "
        f"{change.quoted} % of the unsharded one's time."
    )


def _saved(page: Page) -> Row:
    levels = {"implementation": "sharded (ours)", "moment": "directly before the step"}
    return page.largest("cs336.sharding_saved", "saved_gib", ("world_size",), **levels)


def compiled(page: Page) -> str:
    """What torch.compile gives whole steps."""
    problem = page.problem("torch_compile")
    found = [(at["size"], problem.gain(problem.MODELS, "full_step", at)) for at in problem.models()]
    (first, small), *_ = some(found)
    last, big = found[-1]
    said = f"torch.compile makes a full step of {first} {small.quoted} times as fast"
    return f"{said}." if first == last else f"{said}, of {last} {big.quoted} times."


def formats(page: Page) -> str:
    """Compressed HDF5 against memory, and the other formats."""
    rows = {row["format"]: of(row, "against_memory") for row in page.site.rows("polaris.io_formats", cache="warm")}
    packed = rows.get("hdf5_gzip")
    others = [one for name, one in rows.items() if one is not None and name not in ("memory", "hdf5_gzip")]
    if packed is None:
        raise Missing("polaris.io_formats")
    least, most = (pick(some(others), key=lambda one: one.value).quoted for pick in (min, max))
    return (
        f"Training from compressed HDF5 takes {packed.quoted} times as long as from memory, from the other formats "
        f"{least} to {most} times{page.problem('polaris_5').made[0].mark}."
    )


def dtypes(page: Page) -> str:
    """Autocast on the small model."""
    levels = {"target_length": "100", "d_model": "512"}
    bf16, fp16 = (
        page.site.figure("polaris.dtypes_against_fp32", "time_ratio", dtype=one, **levels) for one in ("bf16", "fp16")
    )
    mark = page.problem("polaris_6").made[1].mark
    half = "within noise" if noisy(bf16) else f"{bf16.quoted} times"
    return f"Polaris at length 100: later epochs take FP32's time {half} in BF16, {fp16.quoted} times in FP16{mark}."


def weak_scaling(page: Page) -> str:
    """Efficiency, and what the text's formula gives."""
    weak = page.problem("fsdp_weak_scaling_experiment_with_fsdp_custom_model")
    efficiency = weak.efficiency(weak.last()).quoted
    return (
        f"Weak scaling keeps {efficiency} % on {weak.on()}; by the text's formula the same steps give "
        f"{weak.by_formula()} %{weak.mark()}."
    )


def warm_up(page: Page) -> str:
    """What the first forward costs."""
    size = page.site.levels("cs336.benchmarking_warmup", "size")[-1:]
    first, later = (
        page.site.figure("cs336.benchmarking_warmup", column, size=next(iter(some(size))), warmup_steps=0)
        for column in ("first_forward_ms", "forward_ms")
    )
    return f"Without warm-up the first forward of {size[0]} takes {first.over(later).quoted} times a later one."


def one_to_four(page: Page) -> str:
    """The Polaris training on one GPU and on four."""
    one, several = page.problem("polaris_1").row(), next(iter(page.problem("polaris_2").launches().values()), [None])[0]
    alone, together = of(one, "homework_clock_s"), of(several, "training_s")
    if alone is None or together is None or not page.gpu:
        raise Missing("training_s")
    return (
        f"The Polaris training takes {alone.quoted} s on one GPU and {together.quoted} on four, which is "
        f"{alone.over(together).quoted} times as fast."
    )


# By rank, each with the part of its chapter and the problem that it links to.
FINDINGS: Sequence[tuple[Callable[[Page], str], str, str]] = (
    (host_bound, "one device", "nsys_profile"),
    (flash_against_pytorch, "one device", "flash_benchmarking"),
    (strategies, "fsdp", "fsdp_sharding_strategies_off_loading"),
    (half_precision, "one device", "benchmarking_mixed_precision"),
    (scaling, "fsdp", "fsdp_multi_gpu_fine_tuning_with_fsdp"),
    (overlap, "several devices", "naive_ddp_benchmarking"),
    (flash_against_cudnn, "one device", "flash_benchmarking"),
    (all_reduce, "several devices", "distributed_communication_single_node"),
    (peak_memory, "one device", "memory_profiling"),
    (sharded_optimizer, "several devices", "optimizer_state_sharding_accounting"),
    (compiled, "one device", "torch_compile"),
    (formats, "polaris", "polaris_5"),
    (dtypes, "polaris", "polaris_6"),
    (weak_scaling, "fsdp", "fsdp_weak_scaling_experiment_with_fsdp_custom_model"),
    (warm_up, "one device", "benchmarking_script"),
    (one_to_four, "polaris", "polaris_2"),
)


def findings(page: Page) -> list[tuple[str, str]]:
    """Sentences with the names of their problems, by rank; at least one of each measured chapter."""
    found: list[tuple[str, str, str]] = []
    for finding, part, problem in FINDINGS:
        if problem in page.problems:
            try:
                if text := said(finding(page)):
                    found.append((text, part, problem))
            except Missing:
                continue
    counts: Counter[str] = Counter()
    chosen: list[tuple[str, str, str]] = []
    more: list[tuple[str, str, str]] = []
    for one in found:
        counts[one[1]] += 1
        (chosen if counts[one[1]] <= MOST_OF[one[1]] else more).append(one)
    chosen = [one for one in found if one in chosen + more[: max(0, FEWEST_FINDINGS - len(chosen))]]
    firsts = {part: problem for _, part, problem in reversed(chosen)}
    while len(chosen) > MOST_FINDINGS:
        chosen.remove([one for one in chosen if firsts[one[1]] != one[2]][-1])
    return [(sentence, problem) for sentence, _, problem in chosen]


@dataclass(frozen=True)
class Headline:
    """A row of the headlines. share: of what bounds it, in words. problem: its name, or the page of details."""

    what: str
    value: str
    share: str
    problem: str


def product(page: Page) -> Headline:
    """The best matrix product."""
    dtype = "bf16" if page.gpu else "fp32"
    rate, row = page.most("cs336.ceilings_products", "rate", dtype=dtype)
    share = of(row, "share_percent")
    what = f"matrix product, {dtype.upper()}, {row['matrix_size']}"
    return Headline(what, f"{rate!s} TFLOP/s", f"{share.quoted} %" if share else NOTHING, "details/ceilings")


def training_step(page: Page) -> Headline:
    """A step of the largest model."""
    levels = {"size": "2.7B", "seq_len": "512", "dtype": "bf16"} if page.gpu else {"dtype": "fp32"}
    row = page.largest("cs336.benchmarking_rates", "full_step_ms", ("step_tflop",), **levels)
    share = of(row, "mfu_percent")
    what = f"training step, {row['size']}, {row['dtype'].upper()}, {row['seq_len']}"
    shown = f"{share.quoted} %" if share else NOTHING
    return Headline(what, f"{of(row, 'full_step_ms')!s} ms", shown, "details/benchmarking_script")


def flash(page: Page) -> Headline:
    """The leaderboard's problem."""
    row = page.site.row(LEADERBOARD, entry=OURS)
    launched, device, rate = (of(row, name) for name in ("both_launched_ms", "both_ms", "tflop_per_s"))
    best, _ = page.most("cs336.ceilings_products", "rate", dtype="bf16")
    if launched is None or device is None or rate is None:
        raise Missing(LEADERBOARD)
    share = launched.of(100 * rate.value * device.value / launched.value / best.value, device)
    return Headline(
        "flash forward+backward, leaderboard problem", f"{launched!s} ms", f"{share.quoted} %", "flash_benchmarking"
    )


def full_step_peak(page: Page) -> Headline:
    """Peak memory of the largest step."""
    levels = {"size": "2.7B", "seq_len": "512"} if page.gpu else {}
    row = page.largest("cs336.memory_peaks", "peak_gib", ("predicted_gib",), mode="full_step", dtype="fp32", **levels)
    peak, predicted = of(row, "peak_gib", GIB_AS_GB), of(row, "predicted_gib", GIB_AS_GB)
    share = f"{peak.share(predicted).quoted} % of predicted" if peak and predicted else NOTHING
    what = f"peak of a full step, {row['size']}, FP32, {row['seq_len']}"
    return Headline(what, f"{peak!s} GB", share, "memory_profiling")


def bus_bandwidth(page: Page) -> Headline:
    """All-reduce of the largest message."""
    row = _all_reduce(page)
    rate, link = of(row, "busbw_gb_per_s"), of(row, "link_gb_per_s")
    message = row["message"].replace(" ", "")
    what = f"all-reduce, {message}, {page.ranks(row['world_size'])}"
    share = f"{rate.share(link).quoted} %" if rate and link else NOTHING
    return Headline(what, f"{rate!s} GB/s", share, "distributed_communication_single_node")


def ddp_step(page: Page) -> Headline:
    """The quickest bucketed step."""
    levels = {"implementation": "overlap_bucketed", "world_size": "2", "dtype": "fp32"}
    step, row = page.least("cs336.ddp_benchmark", "step_ms", **levels)
    exposed = of(row, "exposed_ms")
    share = f"{step.of(100 * (1 - exposed.value / step.value), exposed).quoted} %" if exposed else NOTHING
    size = row["size"].replace("xl", "XL")
    what = f"DDP step, {size}, FP32, {page.ranks(2)}, buckets of {row['bucket_mb']} MB"
    return Headline(what, f"{step!s} ms", share, "naive_ddp_benchmarking")


def state_saved(page: Page) -> Headline:
    """Optimizer state that sharding saves."""
    row = _saved(page)
    saved, predicted = of(row, "saved_gib", GIB_AS_GB), of(row, "predicted_gib", GIB_AS_GB)
    share = f"{saved.share(predicted).quoted} % of predicted" if saved and predicted else NOTHING
    size = row["size"].replace("xl", "XL")
    what = f"memory saved by sharding optimizer state, {size}, {page.ranks(row['world_size'])}, {row['moment']}"
    return Headline(what, f"{saved!s} GB", share, "details/optimizer_state_sharding_accounting")


def custom_model(page: Page) -> Headline:
    """Training rate of the workshop's own model."""
    loop = "tuned" if page.gpu else "bare loop"
    row = page.largest(
        "fsdp.custom_loops", "stepping_samples_per_second", ("world_size",), loop=loop, origin="measured"
    )
    rate, share = of(row, "stepping_samples_per_second"), of(row, "mfu")
    what = f"custom model, {loop}, {page.ranks(row['world_size'])}"
    shown = f"{share.quoted} %" if share else NOTHING
    return Headline(what, f"{rate!s} samples/s", shown, "fsdp_custom_model_fine_tuning_multi_gpu_with_fsdp")


def one_device(page: Page) -> Headline:
    """The Polaris training."""
    row = page.largest("polaris.single_gpu", "homework_clock_s", ("layers",), batches="per_sample")
    return Headline("Polaris on one device", f"{of(row, 'homework_clock_s')!s} s", NOTHING, "polaris_1")


def packed(page: Page) -> Headline:
    """Training from compressed HDF5."""
    row = page.site.row("polaris.io_formats", format="hdf5_gzip", cache="warm")
    return Headline("HDF5 compressed, training", f"{known(row, 'training_total_s')!s} s", NOTHING, "polaris_5")


def attention_forward(page: Page) -> Headline:
    """Attention at the largest cell."""
    row = page.largest("cs336.pytorch_attention", "forward_ms", ("seq_len", "head_dim"))
    levels = {"seq_len": row["seq_len"], "head_dim": row["head_dim"], "pass": "forward", "name": "eager, no heads"}
    share = of(page.site.row("cs336.roofline", **levels), "share_percent")
    what = f"attention {row['seq_len']} × {row['head_dim']}, forward"
    return Headline(
        what, f"{of(row, 'forward_ms')!s} ms", f"{share.quoted} %" if share else NOTHING, "pytorch_attention"
    )


HEADLINES: Sequence[Callable[[Page], Headline]] = (
    *(product, training_step, flash, full_step_peak, bus_bandwidth, ddp_step, state_saved, custom_model),
    *(one_device, packed, attention_forward),
)


def headlines(page: Page) -> list[Headline]:
    """The first eight that the site has."""
    found = []
    for headline in HEADLINES:
        try:
            found.append(headline(page))
        except Missing:
            continue
    return found[:MOST_HEADLINES]


def figures(page: Page, there: Collection[str]) -> list[tuple[str, str]]:
    """Titles and ids of at most two figures, as in their problems."""
    shown = {problem.figure: problem for problem in page.problems.values() if problem.figure in there}
    chosen = []
    for wanted in FIGURES:
        for name in wanted:
            title = shown[name].shown_title if name in shown else ""
            if title:
                chosen.append((title, name))
                break
    return chosen


def caveats(page: Page, summary: Mapping[str, Any]) -> list[str]:
    """At most three sentences."""
    said = []
    text = "".join(table.mark for problem in page.problems.values() for table in problem.made)
    if "†" in text:
        said.append("Marked † is one machine: processes over TCP on its loopback interface, or its GPUs as two nodes.")
    if odd := summary["disturbed"]:
        said.append(
            f"{odd} of {sum(summary['cells'].values())} cells were throttled or disturbed ([appendix](appendix.md))."
        )
    trained = [row for table in fsdp.TRAINED for row in page.site.table(table)]
    if any(row["weights"] == fsdp.RANDOM for row in trained):
        said.append("Weights are random, so losses and scores say nothing about language.")
    return said[:3]
