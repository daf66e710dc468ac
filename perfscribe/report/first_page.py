"""The first page: what a site found, its headlines, and what to keep in mind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.report import fsdp
from perfscribe.report.cs336_devices import handed_in
from perfscribe.report.cs336_kernels import BOARD, board_entry, leaderboard
from perfscribe.report.problem import Problem, said
from perfscribe.report.site import NOTHING, Row, Site, ends, entry, figure, noisy
from perfscribe.show.rounding import GIB_AS_GB, LACKING, Figure
from perfscribe.subjects import YOURS

FEWEST_FINDINGS, MOST_FINDINGS, MOST_HEADLINES = 5, 7, 8
UNMEASURED = ("skipped", "unsupported", "not_run")
# At most so many findings of a part of a chapter.
MOST_OF = {"one device": 3, "several devices": 2, "polaris": MOST_FINDINGS, "fsdp": 2}
# Ids of figures, of which the first that the site has is shown.
FIGURES = (
    ("cs336.nsys_forward", "cs336.flash_times", "cs336.attention_by_length"),
    ("fsdp.custom_scaling", "fsdp.strategies", "cs336.ddp_steps", "polaris.io_times"),
)


@dataclass
class Page:
    """What sentences are made of: the site's tables and its problems by name."""

    site: Site
    problems: Mapping[str, Any]

    @property
    def gpu(self) -> bool:
        """Whether the site has GPUs."""
        return self.site.gpu

    def extreme(self, pick: Callable[..., Any], table: str, column: str, **levels: Any) -> Row | None:
        """The row of the least or greatest figure of a column. pick: min or max."""
        rows = [row for row in self.site.rows(table, **levels) if figure(row, column)]
        found: Row | None = pick(rows, key=lambda row: float(row[column]), default=None)
        return found

    def largest(self, table: str, column: str, by: Sequence[str], **levels: Any) -> Row | None:
        """The row of the greatest levels that has a figure in this column."""
        rows = [row for row in self.site.rows(table, **levels) if figure(row, column)]
        return max(rows, key=lambda row: [float(row[name]) for name in by], default=None)


# --- findings: a sentence each, dropped where it lacks a figure -------------------------------------------------------


def host_bound(page: Page) -> str:
    """Up to which size the GPU idles most of the time."""
    nsys = page.problems["nsys_profile"]
    idle = {cell: nsys.idle(*cell) for cell in nsys.traced()}
    waiting = [cell for cell, share in idle.items() if share.value > 50]
    if not waiting:
        return ""
    (size, context), big = waiting[-1], nsys.big
    return (
        f"Up to {size} at {context} tokens the GPU idles most of forward ({idle[size, context]} % there, "
        f"{nsys.idle(*big)} % at {big[0]}, {big[1]})."
    )


def whose(page: Page) -> str:
    """Whose attention is handed in."""
    return "your" if page.problems["flash_benchmarking"].whose == YOURS else "our"


def flash_against_pytorch(page: Page) -> str:
    """From which length ours is faster, launches counted."""
    first, last, plain, ours = page.problems["flash_benchmarking"].compare()
    if not first or not page.gpu:
        return ""
    return (
        f"In bf16, launches included, {whose(page)} FlashAttention-2 is faster than PyTorch from {first} × 64 on; at "
        f"{last} × 64 it takes {ours} ms, PyTorch {plain}."
    )


def strategies(page: Page) -> str:
    """The fastest and the smallest."""
    found = page.problems["fsdp_sharding_strategies_off_loading"]
    (fast, speed, _), (small, memory) = found.fastest(), found.smallest()
    return (
        f"Of {found.dtype.upper()} strategies on {page.site.ranks(found.world)} {fast} trains fastest, {speed} "
        f"samples/s; {small} needs least memory, {memory} GB per {fsdp.noun(page.site)}{found.mark}."
    )


def half_precision(page: Page) -> str:
    """What BF16 and TF32 alone give."""
    gain = page.problems["benchmarking_mixed_precision"].gain
    big, tf32, small = gain("bf16", "2.7B"), gain("tf32", "2.7B"), gain("bf16", "small")
    return (
        f"BF16 makes forward and backward of 2.7B {big} times as fast as FP32, TF32 alone {tf32} times; small "
        f"{'gains nothing beyond noise' if noisy(small) else f'{small} times'}."
    )


def scaling(page: Page) -> str:
    """BLOOM as given, and the custom model tuned."""
    bloom = page.problems["fsdp_multi_gpu_fine_tuning_with_fsdp"]
    custom = page.problems["fsdp_custom_model_fine_tuning_multi_gpu_with_fsdp"]
    if bloom.world == 1 or custom.world == 1 or not bloom.ways:
        return ""
    how, gain = bloom.gained()[0]
    return (
        f"{bloom.world} GPUs train BLOOM {gain} times as fast as one{f', {how}' if how else ''}{bloom.odd}; the tuned "
        f"custom model keeps {figure(custom.loop('tuned'), 'efficiency')} % of linear."
    )


def overlap(page: Page) -> str:
    """What naive DDP exposes, and what the best does."""
    ddp = page.problems["naive_ddp_benchmarking"]
    found = [(ddp.step(one, "exposed_ms", bucket), one, bucket) for one, bucket in ddp.handed_in()]
    least, one, bucket = min(found, key=lambda row: row[0].value if row[0] else math.inf)
    name = ddp.named(one) if bucket == "none" else f"buckets of {bucket} MB"
    naive = ddp.step("naive", "exposed_ms")
    shown = "none beyond noise" if least and least.value <= 0 else least
    return f"On {page.site.ranks(2)} naive DDP exposes {naive} ms of communication per step, {name} {shown}."


def flash_against_cudnn(page: Page) -> str:
    """The leaderboard's problem by the handout's closure."""
    ours, cudnn, row = leaderboard(page.site)
    return (
        f"On the leaderboard problem {whose(page)} FlashAttention-2 takes {ours} ms, cuDNN {cudnn}, the best "
        f"verified entry {entry(row, 'both_ms', LACKING)} (on {entry(row, 'hardware')})."
    )


def _all_reduce(page: Page, backend: str) -> Row | None:
    """1GB, or the largest message, on most processes."""
    levels = {"device": "cpu"} if backend == "gloo" else {}
    return page.largest("cs336.all_reduce", "busbw_gb_per_s", ("world_size", "size_bytes"), backend=backend, **levels)


def all_reduce(page: Page) -> str:
    """Bus bandwidth at 1GB, and Gloo beside it."""
    row = _all_reduce(page, "nccl")
    world, message = (entry(row, name) for name in ("world_size", "message"))
    gloo = page.site.row("cs336.all_reduce", backend="gloo", device="cpu", world_size=world, message=message)
    host = figure(gloo, "host_ms")
    rate, bound, nccl = (figure(row, name) for name in ("busbw_gb_per_s", "link_gb_per_s", "host_ms"))
    return (
        f"{world} GPUs reduce 1GB by NCCL in {nccl} ms, {host.over(nccl)} times as fast as Gloo, at "
        f"{rate.share(bound)} % of a plain copy's bandwidth (CUDA events)."
    )


def peak_memory(page: Page) -> str:
    """Peaks of the largest model."""
    least, most = (
        page.site.row("cs336.memory_by_context", size="2.7B", seq_len=n, dtype="fp32") for n in ("128", "512")
    )
    step, full = (figure(row, "full_step_gib", GIB_AS_GB) for row in (least, most))
    alone = figure(most, "inference_gib", GIB_AS_GB)
    return f"A full step of 2.7B peaks at {step} GB at 128 tokens and {full} at 512, forward alone at {alone}."


def sharded_optimizer(page: Page) -> str:
    """What it saves, and what it does to the step."""
    sharding = page.problems["optimizer_state_sharding_accounting"]
    row = _saved(page)
    saved, world = figure(row, "saved_gib", GIB_AS_GB), entry(row, "world_size")
    plain, sharded = (sharding.time("step_ms", one, world) for one in sharding.optimizers)
    sentence = (
        f"Sharding the optimizer state on {world} GPUs saves {saved} GB per GPU; a step takes {sharded.share(plain)} % "
        "of the unsharded one's time."
    )
    return sentence if saved.value >= 0.1 else ""


def _saved(page: Page) -> Row | None:
    whose = handed_in(page.site, "cs336.sharding_times", "sharded (ours)")  # what a user's own saves is in details
    levels = {"implementation": whose, "moment": "directly before the step"}
    return page.largest("cs336.sharding_saved", "saved_gib", ("world_size",), **levels)


def compiled(page: Page) -> str:
    """What torch.compile gives whole steps."""
    problem = page.problems["torch_compile"]
    first, last = problem.models()[0], problem.models()[-1]
    small, big = (problem.gain(problem.MODELS, "full_step", at) for at in (first, last))
    text = f"torch.compile makes a full step of {first['size']} {small} times as fast"
    return f"{text}." if first["size"] == last["size"] else f"{text}, of {last['size']} {big} times."


def formats(page: Page) -> str:
    """Compressed HDF5 against memory, and the other formats."""
    rows = {row["format"]: figure(row, "against_memory") for row in page.site.rows("polaris.io_formats", cache="warm")}
    least, most = ends(one for name, one in rows.items() if name not in ("memory", "hdf5_gzip"))
    return (
        f"Training from compressed HDF5 takes {rows.get('hdf5_gzip', LACKING)} times as long as from memory, from the "
        f"other formats {least} to {most} times{page.problems['polaris_5'].made[0].mark}."
    )


def dtypes(page: Page) -> str:
    """Autocast on the small model."""
    levels = {"target_length": "100", "d_model": "512"}
    bf16, fp16 = (
        page.site.value("polaris.dtypes_against_fp32", "time_ratio", dtype=one, **levels) for one in ("bf16", "fp16")
    )
    mark = page.problems["polaris_6"].made[1].mark
    half = "FP32's time within noise" if noisy(bf16) else f"{bf16} times FP32's time"
    return f"In later epochs of Polaris at length 100 BF16 takes {half}, FP16 {fp16} times{mark}."


def weak_scaling(page: Page) -> str:
    """Efficiency, and what the text's formula gives."""
    weak = page.problems["fsdp_weak_scaling_experiment_with_fsdp_custom_model"]
    return (
        f"Weak scaling keeps {weak.efficiency} % on {weak.on}; by the text's formula the same steps give "
        f"{weak.by_formula} %{weak.mark}."
    )


def warm_up(page: Page) -> str:
    """What the first forward costs."""
    size = (page.site.levels("cs336.benchmarking_warmup", "size") or [""])[-1]
    row = page.site.row("cs336.benchmarking_warmup", size=size, warmup_steps=0)
    times = figure(row, "first_forward_ms").over(figure(row, "forward_ms"))
    return f"Without warm-up the first forward of {size} takes {times} times a later one."


def one_to_four(page: Page) -> str:
    """The Polaris training on one GPU and on four."""
    several = next(iter(page.problems["polaris_2"].launches().values()), [None])[0]
    alone, together = figure(page.problems["polaris_1"].row(), "homework_clock_s"), figure(several, "training_s")
    sentence = (
        f"The Polaris training takes {alone} s on one GPU and {together} on four, which is {alone.over(together)} "
        "times as fast."
    )
    return sentence if page.gpu else ""


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
    found = [
        (text, part, problem)
        for finding, part, problem in FINDINGS
        if problem in page.problems and (text := said(finding(page)))
    ]
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


def headline(what: str, value: Figure, unit: str, share: Figure | None, problem: str, of: str = "") -> Headline:
    """A row of a figure, and a share in percent where there is one. of: of what."""
    return Headline(what, f"{value!s} {unit}", f"{share} %{of}" if share else NOTHING, problem)


def product(page: Page) -> Headline:
    """The best matrix product."""
    dtype = "bf16" if page.gpu else "fp32"
    row = page.extreme(max, "cs336.ceilings_products", "rate", dtype=dtype)
    what = f"matrix product, {dtype.upper()}, {entry(row, 'matrix_size')}"
    return headline(what, figure(row, "rate"), "TFLOP/s", figure(row, "share_percent"), "details/ceilings", " of peak")


def training_step(page: Page) -> Headline:
    """A step of the largest model."""
    levels = {"size": "2.7B", "seq_len": "512", "dtype": "bf16"} if page.gpu else {"dtype": "fp32"}
    row = page.largest("cs336.benchmarking_rates", "full_step_ms", ("step_tflop",), **levels)
    what = f"training step, {entry(row, 'size')}, {entry(row, 'dtype').upper()}, {entry(row, 'seq_len')}"
    mfu = figure(row, "mfu_percent")
    return headline(what, figure(row, "full_step_ms"), "ms", mfu, "details/benchmarking_script", " MFU")


def flash(page: Page) -> Headline:
    """The leaderboard's problem."""
    row = page.site.row(BOARD, entry=board_entry(page.site))
    launched, device, rate = (figure(row, name) for name in ("closure_ms", "both_ms", "tflop_per_s"))
    best = figure(page.extreme(max, "cs336.ceilings_products", "rate", dtype="bf16"), "rate")
    share = launched.of(100 * rate.value * device.value / launched.value / best.value, device)
    what = "flash forward+backward, leaderboard problem"
    return headline(what, launched if share else share, "ms", share, "flash_benchmarking", " of the best product")


def full_step_peak(page: Page) -> Headline:
    """Peak memory of the largest step."""
    levels = {"size": "2.7B", "seq_len": "512"} if page.gpu else {}
    row = page.largest("cs336.memory_peaks", "peak_gib", ("predicted_gib",), mode="full_step", dtype="fp32", **levels)
    peak, predicted = (figure(row, name, GIB_AS_GB) for name in ("peak_gib", "predicted_gib"))
    what = f"peak of a full step, {entry(row, 'size')}, FP32, {entry(row, 'seq_len')}"
    return headline(what, peak, "GB", peak.share(predicted), "memory_profiling", " of predicted")


def bus_bandwidth(page: Page) -> Headline:
    """All-reduce of the largest message."""
    row = _all_reduce(page, "nccl" if page.gpu else "gloo")
    rate, link = figure(row, "busbw_gb_per_s"), figure(row, "link_gb_per_s")
    what = f"all-reduce, {entry(row, 'message').replace(' ', '')}, {page.site.ranks(entry(row, 'world_size'))}"
    return headline(what, rate, "GB/s", rate.share(link), "distributed_communication_single_node", " of a plain copy")


def ddp_step(page: Page) -> Headline:
    """The quickest bucketed step."""
    table = "cs336.ddp_benchmark"
    whose = handed_in(page.site, table, "overlap_bucketed")
    row = page.extreme(min, table, "step_ms", implementation=whose, world_size="2", dtype="fp32")
    step, exposed = figure(row, "step_ms"), figure(row, "exposed_ms")
    size = entry(row, "size").replace("xl", "XL")
    what = f"DDP step, {size}, FP32, {page.site.ranks(2)}, buckets of {entry(row, 'bucket_mb')} MB"
    share = step.of(100 * (1 - exposed.value / step.value), exposed)
    return headline(what, step, "ms", share, "naive_ddp_benchmarking", " computing")


def state_saved(page: Page) -> Headline:
    """Optimizer state that sharding saves."""
    row = _saved(page)
    saved, predicted = (figure(row, name, GIB_AS_GB) for name in ("saved_gib", "predicted_gib"))
    size, on = entry(row, "size").replace("xl", "XL"), page.site.ranks(entry(row, "world_size"))
    what = f"memory saved by sharding optimizer state, {size}, {on}, {entry(row, 'moment')}"
    share = saved.share(predicted)
    return headline(what, saved, "GB", share, "details/optimizer_state_sharding_accounting", " of predicted")


def custom_model(page: Page) -> Headline:
    """Training rate of the workshop's own model."""
    rate, loop = "stepping_samples_per_second", "tuned" if page.gpu else "bare loop"
    row = page.largest("fsdp.custom_loops", rate, ("world_size",), loop=loop)
    what = f"custom model, {loop}, {page.site.ranks(entry(row, 'world_size'))}"
    problem = "fsdp_custom_model_fine_tuning_multi_gpu_with_fsdp"
    return headline(what, figure(row, rate), "samples/s", figure(row, "mfu"), problem, " MFU")


def one_device(page: Page) -> Headline:
    """The Polaris training."""
    row = page.largest("polaris.single_gpu", "homework_clock_s", ("layers",), batches="per_sample")
    return headline("Polaris on one device", figure(row, "homework_clock_s"), "s", None, "polaris_1")


def packed(page: Page) -> Headline:
    """Training from compressed HDF5."""
    time = page.site.value("polaris.io_formats", "training_total_s", format="hdf5_gzip", cache="warm")
    return headline("HDF5 compressed, training", time, "s", None, "polaris_5")


def attention_forward(page: Page) -> Headline:
    """Attention at the largest cell."""
    row = page.largest("cs336.pytorch_attention", "forward_ms", ("seq_len", "head_dim"))
    cell = {name: entry(row, name) for name in ("seq_len", "head_dim")}
    levels = {**cell, "pass": "forward", "name": "eager, no heads"}
    share = page.site.value("cs336.roofline", "share_percent", **levels)
    what = f"attention {' × '.join(cell.values())}, forward"
    return headline(what, figure(row, "forward_ms"), "ms", share, "pytorch_attention", " of the roofline")


HEADLINES: Sequence[Callable[[Page], Headline]] = (
    *(product, training_step, flash, full_step_peak, bus_bandwidth, ddp_step, state_saved, custom_model),
    *(one_device, packed, attention_forward),
)


def headlines(page: Page) -> list[Headline]:
    """The first eight that the site has."""
    found = [made(page) for made in HEADLINES]
    return [one for one in found if said(one.value)][:MOST_HEADLINES]


def figures(page: Page, there: Collection[str]) -> list[tuple[str, str]]:
    """Titles and ids of at most two figures, as in their problems."""
    titles = {one.figure: one.shown_title for one in page.problems.values() if one.figure in there}
    chosen = [[(titles[name], name) for name in wanted if titles.get(name)][:1] for wanted in FIGURES]
    return [one for found in chosen for one in found]


def caveats(page: Page, summary: Mapping[str, Any]) -> list[str]:
    """At most three sentences."""
    problems: Collection[Problem] = page.problems.values()
    texts = []
    if any(table.mark == "†" for problem in problems for table in problem.made):
        texts.append("Marked † is one machine: processes over TCP on its loopback interface, or its GPUs as two nodes.")
    if odd := summary["disturbed"]:
        measured = sum(number for status, number in summary["cells"].items() if status not in UNMEASURED)
        texts.append(f"{odd} of {measured} measured cells were throttled or disturbed ([appendix](appendix.md)).")
    if any(row["weights"] == fsdp.RANDOM for table in fsdp.TRAINED for row in page.site.table(table)):
        texts.append("Weights are random, so losses and scores say nothing about language.")
    return texts
