"""The first page: what a site found, its headlines, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from perfscribe.report import fsdp_rows
from perfscribe.report.cs336_devices import handed_in, saved, spelt
from perfscribe.report.cs336_kernels import BOARD, board_entry
from perfscribe.report.fsdp_several_gpus import CustomMultiGpu
from perfscribe.report.problem import Problem, said
from perfscribe.report.site import NOTHING, RAN, Site, entry, figure, so_many
from perfscribe.show.rounding import NO_FIGURE, Figure

FEWEST_FINDINGS, MOST_FINDINGS, MOST_HEADLINES = 5, 7, 8
# At most so many findings of a part of a chapter.
MOST_OF = {"one device": 3, "several devices": 2, "polaris": MOST_FINDINGS, "fsdp": 2}
# Ids of figures, of which the first that the site has is shown.
FIGURES = (
    ("cs336.nsys_forward", "cs336.flash_times", "cs336.attention_by_length"),
    ("fsdp.custom_scaling", "fsdp.strategies", "polaris.io_times"),
)


def findings(problems: Iterable[Problem]) -> list[tuple[str, str]]:
    """Sentences with the names of their problems, by rank; at least one of each measured chapter."""
    known = sorted(
        ((one, problem.name) for problem in problems for one in problem.findings), key=lambda one: one[0].rank
    )
    found = [(one.text, one.part, name) for one, name in known if said(one.text)]
    of = {part: [one for one in found if one[1] == part] for part in MOST_OF}
    chosen = [one for one in found if one in of[one[1]][: MOST_OF[one[1]]]]
    more = [one for one in found if one not in chosen][: max(0, FEWEST_FINDINGS - len(chosen))]
    chosen = [one for one in found if one in chosen + more]
    firsts = {part: problem for _, part, problem in reversed(chosen)}
    while len(chosen) > MOST_FINDINGS:
        chosen.remove([one for one in chosen if firsts[one[1]] != one[2]][-1])
    return [(sentence, problem) for sentence, _, problem in chosen]


class Headline:
    """A row of the headlines. share: percent of what bounds it, if known; problem: its name, or a page of details."""

    def __init__(
        self, what: str, found: Figure, unit: str, problem: str, share: Figure = NO_FIGURE, of: str = ""
    ) -> None:
        self.what, self.value, self.problem = what, f"{found!s} {unit}", problem
        self.bound = f"{share} % {of}".rstrip() if share else NOTHING


def _of_one_device(site: Site) -> Iterator[Headline]:
    dtype = "bf16" if site.gpu else "fp32"
    row = site.largest("cs336.ceilings_products", "rate", "rate", dtype=dtype)
    what, share = f"matrix product, {dtype.upper()}, {entry(row, 'matrix_size')}", figure(row, "share_percent")
    yield Headline(what, figure(row, "rate"), "TFLOP/s", "details/ceilings", share, "of peak")

    levels = {"size": "2.7B", "seq_len": "512", "dtype": "bf16"} if site.gpu else {"dtype": "fp32"}
    row = site.largest("cs336.benchmarking_rates", "full_step_ms", "step_tflop", **levels)
    what = f"training step, {entry(row, 'size')}, {entry(row, 'dtype').upper()}, {entry(row, 'seq_len')}"
    step, share = figure(row, "full_step_ms"), figure(row, "mfu_percent")
    yield Headline(what, step, "ms", "details/benchmarking_script", share, "MFU")

    row = site.row(BOARD, entry=board_entry(site))
    launched, device, rate = (figure(row, name) for name in ("closure_ms", "both_ms", "tflop_per_s"))
    best = figure(
        site.largest("cs336.roofline", "peak_tflop_per_s", "peak_tflop_per_s", dtype="bf16"), "peak_tflop_per_s"
    )
    share = launched.of(100 * rate.value * device.value / launched.value / best.value, device)
    what, shown = "flash forward+backward, leaderboard problem", launched if share else share
    yield Headline(what, shown, "ms", "flash_benchmarking", share, "of the roofline")

    levels = {"size": "2.7B", "seq_len": "512"} if site.gpu else {}
    row = site.largest("cs336.memory_peaks", "peak_gib", "predicted_gib", mode="full_step", dtype="fp32", **levels)
    peak, predicted = (figure(row, name) for name in ("peak_gib", "predicted_gib"))
    what = f"peak of a full step, {entry(row, 'size')}, FP32, {entry(row, 'seq_len')}"
    yield Headline(what, peak, "GB", "memory_profiling", peak.share(predicted), "of predicted")


def _of_several_devices(site: Site) -> Iterator[Headline]:
    levels = {"backend": "nccl"} if site.gpu else {"backend": "gloo", "device": "cpu"}
    row = site.largest("cs336.all_reduce", "busbw_gb_per_s", "world_size", "size_bytes", **levels)
    rate, link = figure(row, "busbw_gb_per_s"), figure(row, "link_gb_per_s")
    of = f"{entry(row, 'message').replace(' ', '')}, {site.ranks(entry(row, 'world_size'))}"
    what, problem = f"bus bandwidth of all-reduce, {of}", "details/distributed_communication_single_node"
    timer = ", CUDA events" * site.gpu
    copies = [one for one in site.rows("cs336.ceilings_bandwidths", status="ok") if one["work"].startswith("GPU ")]
    others = sorted({site.machine(one) for one in copies} - {site.machine(row) if row else ""})
    copy = f"of a plain copy{' on ' * bool(others)}{' and '.join(others)}"
    yield Headline(f"{what}{timer}", rate, "GB/s", problem, rate.share(link), copy)

    table = "cs336.ddp_benchmark"
    levels = {"implementation": handed_in(site, table, "overlap_bucketed"), "world_size": "2", "dtype": "fp32"}
    rows = [row for row in site.rows(table, **levels) if figure(row, "step_ms")]
    row = min(rows, key=lambda row: float(row["step_ms"]), default=None)
    step, exposed = figure(row, "step_ms"), figure(row, "exposed_ms")
    share = step.of(100 * (1 - exposed.value / step.value), exposed) if exposed.value >= 0 else NO_FIGURE
    what = f"DDP step, {spelt(entry(row, 'size'))}, FP32, {site.ranks(2)}, buckets of {entry(row, 'bucket_mb')} MB"
    yield Headline(what, step, "ms", "naive_ddp_benchmarking", share, "not exposed")

    row = saved(site)
    less, predicted = (figure(row, name) for name in ("saved_gib", "predicted_gib"))
    on = f"{spelt(entry(row, 'size'))}, {site.ranks(entry(row, 'world_size'))}, {entry(row, 'moment')}"
    what, problem = f"memory saved by sharding optimizer state, {on}", "details/optimizer_state_sharding_accounting"
    yield Headline(what, less, "GB", problem, less.share(predicted), "of predicted")


def _of_trainings(site: Site) -> Iterator[Headline]:
    rate, loop = "stepping_samples_per_second", "tuned" if site.gpu else "bare loop"
    row = site.largest("fsdp.custom_loops", rate, "world_size", loop=loop)
    size = fsdp_rows.parameters(site.row("fsdp.custom_multi_gpu"))
    what = ", ".join(filter(None, ("custom model", f"{loop}, steps alone", site.ranks(entry(row, "world_size")), size)))
    yield Headline(what, figure(row, rate), "samples/s", CustomMultiGpu.name, figure(row, "mfu"), "MFU")

    row = site.largest("polaris.single_gpu", "homework_clock_s", "layers", batches="per_sample")
    size = ", ".join(so_many(entry(row, f"{one}s"), one) for one in ("layer", "sample", "epoch"))
    yield Headline(f"Polaris on one device, {size}", figure(row, "homework_clock_s"), "s", "polaris_1")

    row = site.row("polaris.io_formats", format="hdf5_gzip", cache="warm")
    size = entry(row, "training_samples").replace(" ×", " samples ×")
    what = f"training from compressed HDF5, {size} epoch{'s' * (not size.endswith(' 1'))}"
    yield Headline(what, figure(row, "training_total_s"), "s", "polaris_5")

    row = site.largest("cs336.pytorch_attention", "forward_ms", "seq_len", "head_dim")
    cell = {name: entry(row, name) for name in ("seq_len", "head_dim")}
    levels = {**cell, "pass": "forward", "name": "eager, no heads"}
    modelled = site.row("cs336.roofline", **levels)
    forward = figure(row, "forward_ms")
    share = figure(modelled, "share_percent")
    # Of the time that is shown, which another clock took.
    share = share.of(share.value * figure(modelled, "time_ms").value / forward.value)
    what = f"attention, {' × '.join(cell.values())}, forward"
    yield Headline(what, forward, "ms", "pytorch_attention", share, "of the roofline")


def headlines(site: Site) -> list[Headline]:
    """Those that the site has; the first page shows the first MOST_HEADLINES."""
    found = [*_of_one_device(site), *_of_several_devices(site), *_of_trainings(site)]
    return [one for one in found if said(one.value)]


def figures(problems: Iterable[Problem], there: Collection[str]) -> list[tuple[str, str]]:
    """Titles and ids of at most two figures, as in their problems."""
    titles = {one.figure: one.shown_title for one in problems if one.figure in there}
    chosen = [[(titles[name], name) for name in wanted if titles.get(name)][:1] for wanted in FIGURES]
    return [one for found in chosen for one in found]


def caveats(site: Site, problems: Iterable[Problem], summary: Mapping[str, Any]) -> list[str]:
    """At most three sentences."""
    texts = []
    if any(table.mark == "†" for problem in problems for table in problem.made):
        ways = ["processes over its own TCP", "its GPUs as two nodes"]
        ways += ["name spaces as nodes, which test the workflow of a cluster, not its network"] * site.emulated
        texts.append(f"† means one machine: {', '.join(ways[:-1])} or {ways[-1]}.")
    if odd := summary["disturbed"]:
        measured = sum(number for status, number in summary["cells"].items() if status in RAN)
        texts.append(f"{odd} of {measured} measured cells were throttled or disturbed ([appendix](appendix.md)).")
    if any(row["weights"] == fsdp_rows.RANDOM for table in fsdp_rows.TRAINED for row in site.table(table)):
        texts.append("Weights are random, so losses and scores say nothing about language.")
    return texts
