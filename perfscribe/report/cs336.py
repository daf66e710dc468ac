"""CS336 assignment 2 (systems), spring 2025, version 1.0.4: the problems that one device answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import Any

from perfscribe.report.problem import Answer, Problem, Table
from perfscribe.report.site import (
    NO_SUCH_THING,
    NOTHING,
    Cell,
    Missing,
    Row,
    Site,
    as_cell,
    label,
    of,
    published,
    some,
    word,
)
from perfscribe.show.rounding import GIB_AS_GB, Figure

TITLE = "CS336 assignment 2 (systems)"
ON_GPU = ("small", "medium", "large", "xl", "2.7B")


def sizes(site: Site) -> Sequence[str]:
    """Model sizes of the site's preset."""
    if site.gpu:
        return ON_GPU
    return site.levels("cs336.benchmarking_script", "size", dtype="fp32") or ("nano", "micro")


def contexts(site: Site) -> Sequence[str]:
    """Context lengths of the site's preset."""
    if site.gpu:
        return ("128", "256", "512", "1024")
    return site.levels("cs336.benchmarking_script", "seq_len", dtype="fp32") or ("32", "64", "128")


def largest(site: Site) -> tuple[str, str]:
    """The size and context that answers speak of."""
    return ("2.7B", "512") if site.gpu else (sizes(site)[-1], contexts(site)[-1])


def one_device(site: Site) -> str:
    """Where a problem ran."""
    return "one GPU" if site.gpu else "CPU"


def on_device(site: Site) -> str:
    """The same at the head of a set-up."""
    return "One GPU" if site.gpu else "CPU"


def median_of(site: Site, table: str, column: str, **levels: str) -> str:
    """What ± is beside a median of so many, where cells differ in it of so many to so many."""
    found = sorted(map(int, site.levels(table, column, **levels)))
    count = f" of {found[0]}{f' to {found[-1]}' if found[-1] > found[0] else ''}" if found else ""
    return f"Median ± half IQR{count}"


def noisy(gain: Figure) -> bool:
    """Whether runs vary more than a speed-up differs from none."""
    return abs(gain.value - 1) <= (gain.spread or 0.0)


def printed_in(row: Row | None, column: str, unit: str = "") -> Cell:
    """A published figure that the site's table has beside its own."""
    text = (row or {}).get(column, "none")
    return label(NOTHING if text in ("none", "") else f"{text}{unit}")


def attention_grid(site: Site) -> list[tuple[str, str]]:
    """(head_dim, seq_len) of the attention problems."""
    gpu = site.gpu
    lengths = ("256", "1024", "4096", "8192", "16384") if gpu else ("64", "128", "256")
    return [(width, length) for width in ("16", "32", "64", "128") for length in lengths]


class BenchmarkingScript(Problem):
    """Forward and backward times, and warm-up."""

    name = "benchmarking_script"
    heading = "Problem (benchmarking_script)"
    details = (
        "cs336.benchmarking_script",
        "cs336.benchmarking_rates",
        "cs336.benchmarking_warmup",
        "cs336.benchmarking_steps",
    )
    letters = "(b)-(c)"
    figure = "cs336.benchmarking_steps"
    SCRIPT, WARMUP = "cs336.benchmarking_script", "cs336.benchmarking_warmup"

    def tables(self) -> list[Table]:
        """(b) and (c)."""
        site, warm_sizes = self.site, self.warm_sizes()
        passes = [
            [
                label(size),
                label(one),
                *(
                    site.cell(self.SCRIPT, f"{one}_ms_mean", size=size, seq_len=context, dtype="fp32")
                    for context in contexts(site)
                ),
            ]
            for size in sizes(site)
            for one in ("forward", "backward")
        ]
        warm = [
            [
                label(size),
                *(site.cell(self.WARMUP, "forward_ms_mean", **self.warm(size, steps)) for steps in (0, 1, 2, 5)),
                site.cell(self.WARMUP, "first_forward_ms", **self.warm(size, 0)),
            ]
            for size in warm_sizes
        ]
        context = next(iter(site.levels(self.WARMUP, "seq_len")), largest(site)[1])
        return [
            Table(
                "(b) Forward and backward pass, ms by context.",
                f"Mean ± std of 10; FP32, batch 4, {one_device(site)}, 5 warm-up steps, host clock with synchronise.",
                ["model_size", "pass_type", *contexts(site)],
                passes,
                [
                    "Published: 002, large: forward 169.07, backward 347.68 ms (by difference), std about 1.7; context "
                    "not stated."
                ],
            ),
            Table(
                f"(c) Forward pass after few warm-up steps, ms{self.mark()}.",
                f"Mean ± std of 10, and the forward of the very first step; context {context}, batch 4, "
                f"{one_device(site)}, host clock{'; ‡ TF32, not FP32' if self.mark() else ', FP32'}.",
                ["model_size", "warmup 0", "warmup 1", "warmup 2", "warmup 5", "first step, warmup 0"],
                warm,
            ),
        ]

    def answers(self) -> list[Answer]:
        """In the order of the letters."""
        command = "./run report --config 'chapters=[cs336]'"
        loads = "loads kernels, sets up cuBLAS and fills" if self.site.gpu else "fills"
        return [
            Answer("a", [f"`{command}` runs [measure.py](../../perfscribe/experiments/end_to_end/measure.py)."]),
            Answer("b", [self.ranges, self.deviations]),
            Answer("c", [self.first_step, f"The first step also {loads} the allocator's cache.", self.few_steps]),
        ]

    def title(self) -> str:
        """By how much a first step is slower."""
        size, *_ = self.slowest_first()
        first, later = (
            self.site.figure(self.WARMUP, column, **self.warm(size, 0)) for column in ("first_step_ms", "full_step_ms")
        )
        return (
            f"Without warm-up the first step takes {first.over(later).quoted} times a later one ({size}){self.mark()}"
        )

    def warm_sizes(self) -> Sequence[str]:
        """Sizes of the second table."""
        return sizes(self.site) if self.site.gpu else sizes(self.site)[:1]

    def warm(self, size: str, steps: int) -> dict[str, Any]:
        """Levels of a cell of the second table, in FP32 where that was measured."""
        dtypes = self.site.levels(self.WARMUP, "dtype")
        dtype = "fp32" if "fp32" in dtypes or not dtypes else dtypes[0]
        return {"size": size, "warmup_steps": str(steps), "dtype": dtype}

    def mark(self) -> str:
        """Whether warm-up was measured in another precision."""
        return "" if self.warm("", 0)["dtype"] == "fp32" else "‡"

    def time(self, size: str, of_pass: str, context: str) -> Figure:
        """Mean of a pass in FP32, ms."""
        return self.site.figure(self.SCRIPT, f"{of_pass}_ms_mean", size=size, seq_len=context, dtype="fp32")

    def slowest_first(self) -> tuple[str, Figure, Figure]:
        """Size, first forward and a later one where they differ most."""
        found = [
            (
                size,
                self.site.figure(self.WARMUP, "first_forward_ms", **self.warm(size, 0)),
                self.site.figure(self.WARMUP, "forward_ms", **self.warm(size, 0)),
            )
            for size in self.warm_sizes()
        ]
        return max(some(found), key=lambda one: one[1].value / one[2].value)

    def ranges(self) -> str:
        """Least and largest size at the context that answers speak of."""
        ends, at = (sizes(self.site)[0], sizes(self.site)[-1]), largest(self.site)[1]
        forward = [self.time(size, "forward", at).quoted for size in ends]
        backward = [self.time(size, "backward", at).quoted for size in ends]
        return f"Forward takes {forward[0]} to {forward[1]} ms, backward {backward[0]} to {backward[1]} ms at {at}."

    def gpu_limits(self, size: str, context: str) -> bool:
        """Whether the GPU is the limit: doubling the context takes the forward 1.75 times as long, at last 1.5."""
        at = list(contexts(self.site))
        place = at.index(context)
        last = place + 1 == len(at)
        first, second = (at[place - 1], context) if last else (context, at[place + 1])
        grows = self.time(size, "forward", second).value / self.time(size, "forward", first).value
        return grows >= (1.5 if last else 1.75)

    def deviations(self) -> str:
        """Largest standard deviations in percent."""
        found: dict[bool, list[Figure]] = {True: [], False: []}
        for size in sizes(self.site):
            for context in contexts(self.site):
                limits = self.site.gpu and self.gpu_limits(size, context)
                for one in ("forward", "backward"):
                    time = self.time(size, one, context)
                    found[limits].append(time.of(100 * (time.spread or 0.0) / time.value))
        most = {limits: max(these, key=lambda one: one.value).quoted for limits, these in found.items() if these}
        if not self.site.gpu:
            return f"The deviation is at most {most[False]} %."
        return (
            f"The deviation is at most {most[True]} % where the GPU is the limit, {most[False]} % where launches are."
        )

    def first_step(self) -> str:
        """What a first step costs, and does to a mean."""
        size, first, later = self.slowest_first()
        cold, warm = (self.site.figure(self.WARMUP, "forward_ms_mean", **self.warm(size, n)) for n in (0, 5))
        return (
            f"Without warm-up the first forward takes {first.quoted} ms, later ones {later.quoted} ({size}); "
            f"the mean is {cold} ms, not {warm.quoted}{self.mark()}."
        )

    def few_steps(self) -> str:
        """Sizes whose mean after one or two steps differs from that after five by more than both deviate."""
        differ = []
        for size in self.warm_sizes():
            *few, five = (self.site.figure(self.WARMUP, "forward_ms_mean", **self.warm(size, n)) for n in (1, 2, 5))
            if any(abs(one.value - five.value) > (one.spread or 0.0) + (five.spread or 0.0) for one in few):
                differ.append(size)
        if not differ:
            return "After one or two steps no mean differs from that after five beyond noise."
        only = (
            f"only {differ[0]}'s mean still differs" if len(differ) == 1 else f"the means of {', '.join(differ)} differ"
        )
        return f"After one or two steps {only} from that after five."


class MixedPrecisionAccumulation(Problem):
    """Four sums of 0.01."""

    name = "mixed_precision_accumulation"
    heading = "Problem (mixed_precision_accumulation)"
    details = ("cs336.mixed_precision_accumulation",)
    TABLE = "cs336.mixed_precision_accumulation"
    OF_004 = (
        ("fp32 += fp32", "10.0001"),
        ("fp16 += fp16", "9.9531"),
        ("fp32 += fp16", "10.0021"),
        ("fp32 += fp32(fp16)", "10.0021"),
    )

    def tables(self) -> list[Table]:
        """The four sums."""
        return [
            Table(
                "1000 additions of 0.01.",
                f"{on_device(self.site)}; exact is 10; 004: published.",
                ["accumulator += addend", "result", "004"],
                [[label(kind), self.total(kind), label(printed)] for kind, printed in self.OF_004],
            )
        ]

    def answers(self) -> list[Answer]:
        """Without letters."""
        return [Answer("", [self.errors, self.step, self.cause])]

    def total(self, kind: str) -> Cell:
        """A sum with four decimals."""
        row = self.site.row(self.TABLE, accumulation=kind)
        figure = of(row, "sum")
        return as_cell(row, "sum") if figure is None else Cell(f"{figure.value:.4f}")

    def off(self, kind: str) -> Figure:
        """By how many percent a sum is off."""
        return Figure(abs(100 * self.site.figure(self.TABLE, "relative_error", accumulation=kind).value))

    def errors(self) -> str:
        """All three errors."""
        return (
            f"An FP16 sum is {self.off('fp16 += fp16').quoted} % off, an FP32 sum of FP16 terms "
            f"{self.off('fp32 += fp16').quoted} %, of FP32 terms {self.off('fp32 += fp32').quoted} %."
        )

    def step(self) -> str:
        """What an FP16 sum can tell apart."""
        return (
            f"Near 10 an FP16 step is {self.site.figure(self.TABLE, 'ulp_at_sum', accumulation='fp16 += fp16').quoted}."
        )

    def cause(self) -> str:
        """Why the accumulator decides."""
        if self.off("fp16 += fp16").value <= self.off("fp32 += fp16").value:
            raise Missing("cause")
        return "The accumulator's precision decides: an FP16 term is rounded once, an FP16 sum at every addition."


class BenchmarkingMixedPrecision(Problem):
    """Dtypes under autocast, LayerNorm, and times with BF16."""

    name = "benchmarking_mixed_precision"
    heading = "Problem (benchmarking_mixed_precision)"
    details = (
        "cs336.autocast_dtypes",
        "cs336.layernorm_variance",
        "cs336.mixed_precision_passes",
        "cs336.mixed_precision_speedup",
    )
    letters = "(a)-(c)"
    figure = "cs336.mixed_precision_speedup"
    PASSES, SPEEDUP = "cs336.mixed_precision_passes", "cs336.mixed_precision_speedup"
    AUTOCAST, VARIANCE = "cs336.autocast_dtypes", "cs336.layernorm_variance"
    BOTH = "forward+backward"
    COMPONENTS = (
        ("Model parameters", "parameters"),
        ("Output of first feed-forward layer (fc1)", "fc1_output"),
        ("Output of layer norm (ln)", "layernorm_output"),
        ("Model's predicted logits", "logits"),
        ("Loss", "loss"),
        ("Model's gradients", "gradients"),
    )

    def tables(self) -> list[Table]:
        """(a) and (c)."""
        site = self.site
        context = next(iter(site.levels(self.PASSES, "seq_len")), largest(site)[1])
        return [
            Table(
                "(a) Dtypes under autocast.",
                f"{on_device(site)}, parameters in FP32.",
                ["component", "FP16", "BF16"],
                [[label(name), self.dtype(part, "fp16"), self.dtype(part, "bf16")]
                 for name, part in self.COMPONENTS],
            ),
            Table(
                "(c) Forward and backward with and without BF16, ms.",
                f"Mean ± std of 10; context {context}, batch 4, {one_device(site)}, host clock with synchronise; FP32 "
                "is true FP32, BF16 by autocast; avg_time_ms of forward+backward was timed in passes of its own.",
                ["model_size", "precision", "pass_type", "avg_time_ms", "forward_ms", "backward_ms", "002 (ms)"],
                [self.times(size, precision) for size in sizes(site) for precision in ("fp32", "bf16")],
            ),
            Table(
                "(c) Forward and backward by dtype, ms, and speed-up over FP32.",
                f"{median_of(site, self.SPEEDUP, 'n', pass_type=self.BOTH)}; context {context}, batch 4, "
                f"{one_device(site)}; 004: batch 32, vocabulary 50,000.",
                ["Model Size", "FP32", "BF16", "FP16", "BF16 Speedup", "FP16 Speedup", "TF32", "004 BF16 Speedup"],
                [self.gains_of(size) for size in sizes(site)],
            ),
        ]  # fmt: skip

    def answers(self) -> list[Answer]:
        """(b) and (c)."""
        return [Answer("b", [self.variance, self.squares, self.layer_norm]), Answer("c", [self.gains, self.tf32])]

    def title(self) -> str:
        """Speed-up at both ends."""
        ends = (sizes(self.site)[0], largest(self.site)[0])
        gains = [self.gain("bf16", size).quoted for size in ends]
        return f"BF16 is {gains[0]}x as fast as FP32 at {ends[0]} and {gains[1]}x at {ends[1]}"

    def dtype(self, part: str, precision: str) -> Cell:
        """Dtype of a part of the model, as torch names it."""
        row = self.site.row(self.AUTOCAST, dtype=precision)
        return word(f"torch.{row[f'{part}_dtype']}" if row is not None and row["status"] == "ok" else "")

    def time(self, size: str, precision: str, of_pass: str) -> Figure | None:
        """Mean and standard deviation of a pass, ms."""
        row = self.site.row(self.PASSES, model_size=size, precision=precision, pass_type=of_pass)
        mean, std = of(row, "avg_time_ms"), of(row, "pass_ms_std")
        return mean and Figure(mean.value, std.value if std else None)

    def times(self, size: str, precision: str) -> list[Cell]:
        """A row of (c)'s first table."""
        cells = []
        for one in (self.BOTH, "forward", "backward"):
            row = self.site.row(self.PASSES, model_size=size, precision=precision, pass_type=one)
            time = self.time(size, precision, one)
            cells.append(Cell(str(time)) if time else as_cell(row, "avg_time_ms"))
        both = self.site.row(self.PASSES, model_size=size, precision=precision, pass_type=self.BOTH)
        return [label(size), label(precision), label(self.BOTH), *cells, printed_in(both, "ms_cs336-writeup-002")]

    def gains_of(self, size: str) -> list[Cell]:
        """A row of (c)'s second table. A CPU has no TF32, and FP16 is not planned there."""
        row = self.site.row(self.SPEEDUP, model_size=size, pass_type=self.BOTH)
        cells = [
            NO_SUCH_THING
            if not self.site.gpu and not column.startswith(("fp32", "bf16"))
            else as_cell(row, column, unit="x" if column.endswith("speedup") else "")
            for column in ("fp32_ms", "bf16_ms", "fp16_ms", "bf16_speedup", "fp16_speedup", "tf32_ms")
        ]
        return [label(size), *cells, printed_in(row, "bf16_speedup_cs336-writeup-004", "x")]

    def gain(self, precision: str, size: str) -> Figure:
        """How many times as fast as FP32 forward+backward is."""
        return self.site.figure(self.SPEEDUP, f"{precision}_speedup", model_size=size, pass_type=self.BOTH)

    def variance(self) -> str:
        """What half precision does to a variance, and to LayerNorm's output in FP32."""
        fp16, bf16, norm = (
            (self.site.row(self.VARIANCE, dtype=dtype, variance_mean="100"), column)
            for dtype, column in (
                ("fp16", "variance_two_pass_relative_error"),
                ("bf16", "variance_two_pass_relative_error"),
                ("fp32", "layer_norm_relative_error"),
            )
        )
        times, off = of(*bf16), of(*norm, scale=100)
        if fp16[0] is None or fp16[0][fp16[1]] != "overflow" or times is None or off is None:
            raise Missing(self.VARIANCE)
        return (
            f"At mean 100 the FP16 variance overflows and the BF16 one is {times.quoted} times too large; "
            f"LayerNorm in FP32 is {off.quoted} % off."
        )

    def squares(self) -> str:
        """Why it does so."""
        self.variance()
        return "Sums of squares leave FP16's range; BF16 has the range and too few bits of mantissa."

    def layer_norm(self) -> str:
        """Whether autocast keeps LayerNorm in FP32 here."""
        norm = self.dtype("layernorm_output", "bf16").text
        if norm == "torch.float32":
            return "So with BF16, too, autocast keeps LayerNorm in FP32."
        if norm == NOTHING:
            raise Missing(self.AUTOCAST)
        return "So with BF16, too, LayerNorm should run in FP32; autocast on the CPU leaves it in BF16."

    def gains(self) -> str:
        """Times with and without BF16 of the largest and the smallest size."""
        said = []
        for size in (largest(self.site)[0], sizes(self.site)[0]):
            slow, fast = (self.time(size, precision, self.BOTH) for precision in ("fp32", "bf16"))
            if slow is None or fast is None:
                raise Missing(size)
            said.append((size, slow.quoted, fast.quoted, self.gain("bf16", size)))
        (big, *ends, gain), (small, *other, least) = said
        times = f"{gain.quoted}x by medians{', within noise' * noisy(gain)}"
        return (
            f"BF16 takes {big} from {ends[0]} to {ends[1]} ms ({times}), {small} from {other[0]} to {other[1]}"
            f"{' (within noise)' * noisy(least)}."
        )

    def tf32(self) -> str:
        """What TF32 gives without BF16."""
        size = largest(self.site)[0]
        return f"TF32 alone gives {self.gain('tf32', size).quoted}x at {size}."


class MemoryProfiling(Problem):
    """Peaks of inference and of a full step."""

    name = "memory_profiling"
    heading = "Problem (memory_profiling)"
    details = (
        "cs336.memory_by_context",
        "cs336.memory_peaks",
        "cs336.memory_timelines",
        "cs336.memory_residual",
        "cs336.memory_largest",
    )
    letters = "(a)-(e)"
    figure = "cs336.memory_timeline"
    TABLE, PEAKS = "cs336.memory_by_context", "cs336.memory_peaks"
    PHASES = ("forward", "backward", "optimizer")
    COLUMNS = (("inference", "fp32"), ("full_step", "fp32"), ("inference", "bf16"), ("full_step", "bf16"))

    def tables(self) -> list[Table]:
        """(b) and (c) in one."""
        return [
            Table(
                f"(b), (c) Peak of allocated memory, {self.size()}, GB.",
                f"Batch 4, {one_device(self.site)}, AdamW, one run each; FP32, then BF16 autocast.",
                ["Context length", "Peak memory – forward only", "Peak memory – full training step (fwd + bwd + opt)",
                 "BF16, forward only", "BF16, full step"],
                [[label(context), *(self.peak(context, mode, dtype) for mode, dtype in self.COLUMNS)]
                 for context in self.at()],
                [Answer("", [self.kept]).text(),
                 "Published: 002, graph kept: 24.5, 35.0, 70 G; full step at 512: 70 G."],
            )
        ]  # fmt: skip

    def answers(self) -> list[Answer]:
        """In the order of the letters."""
        return [
            Answer("a", [self.phases, self.course, self.plateau]),
            Answer("c", [self.half, self.copies]),
            Answer("d", [self.residual]),
            Answer("e", [self.allocations]),
        ]

    def title(self) -> str:
        """The peaks and their phase."""
        forward, step = (self.gb(mode, "peak").quoted for mode in ("inference", "full_step"))
        phase = "the optimizer" if self.top_phase() == "optimizer" else self.top_phase()
        return f"{self.size()} at {self.at()[-1]}: forward peaks at {forward} GB, a full step at {step} GB in {phase}"

    def size(self) -> str:
        """The size that is profiled."""
        return "2.7B" if self.site.gpu else [*self.site.levels(self.TABLE, "size"), "micro"][0]

    def at(self) -> Sequence[str]:
        """Context lengths, the one that answers speak of last."""
        if self.site.gpu:
            return ("128", "256", "512")
        return self.site.levels(self.TABLE, "seq_len", size=self.size()) or ("48", "96", "192")

    def peak(self, context: str, mode: str, dtype: str) -> Cell:
        """A peak with its unit."""
        return self.site.cell(
            self.TABLE, f"{mode}_gib", GIB_AS_GB, " GB", size=self.size(), seq_len=context, dtype=dtype
        )

    def gb(self, mode: str, part: str, dtype: str = "fp32", context: str = "") -> Figure:
        """Peak of a phase, or of all, in GB; at the last context where none is named."""
        levels = {"size": self.size(), "seq_len": context or self.at()[-1], "mode": mode, "dtype": dtype}
        return Figure(self.site.figure(self.PEAKS, f"{part}_gib", **levels).value * GIB_AS_GB)

    def kept(self) -> str:
        """Peaks of a forward pass whose graph is kept."""
        found = [
            self.site.cell(self.TABLE, "forward_gib", GIB_AS_GB, size=self.size(), seq_len=context, dtype="fp32").text
            for context in self.at()
        ]
        if not any(text[0].isdigit() for text in found):
            raise Missing(self.TABLE)
        return f"Forward with its graph kept: {', '.join(found)} GB."

    def top_phase(self) -> str:
        """The phase in which a full step peaks."""
        return max(self.PHASES, key=lambda phase: self.gb("full_step", phase).value)

    def phases(self) -> str:
        """Peaks by phase."""
        forward, backward, optimizer = (self.gb("full_step", phase).quoted for phase in self.PHASES)
        return (
            f"The step peaks at {forward} GB in forward, {backward} in backward and {optimizer} in the optimizer, "
            f"forward alone at {self.gb('inference', 'forward').quoted}."
        )

    def course(self) -> str:
        """How phases show in the timeline."""
        if self.top_phase() == "optimizer":
            return "Memory rises in forward, falls in backward layer by layer, and the optimizer adds a short plateau."
        return "Memory rises in forward and falls in backward layer by layer; the optimizer needs less."

    def plateau(self) -> str:
        """Whether the optimizer's peak depends on the context."""
        found = some([self.gb("full_step", "optimizer", context=context).value for context in self.at()])
        if max(found) > 1.05 * min(found):
            raise Missing("plateau")
        return "The optimizer's peak hardly depends on the context."

    def half(self) -> str:
        """What BF16 changes."""
        step, alone = ([self.gb(mode, "peak", dtype).quoted for dtype in ("fp32", "bf16")]
                       for mode in ("full_step", "inference"))  # fmt: skip
        if step[0] == step[1]:
            return f"BF16 leaves the step at {step[0]} GB and takes forward alone from {alone[0]} to {alone[1]}."
        return f"BF16 takes the step from {step[0]} to {step[1]} GB and forward alone from {alone[0]} to {alone[1]}."

    def copies(self) -> str:
        """What stays FP32, and what BF16 adds or saves."""
        grows = self.gb("inference", "peak", "bf16").value > self.gb("inference", "peak").value
        moved = "autocast keeps a BF16 copy of the weights besides" if grows else "activations in BF16 take half"
        return f"Weights, gradients and AdamW's state stay FP32; {moved}."

    def residual(self) -> str:
        """Size of a tensor of the residual stream."""
        *others, last = self.at()
        rows = {row["seq_len"]: row for row in self.site.rows("cs336.memory_residual", size=self.size(), dtype="fp32")}
        mib = {context: float(row["expected_mib"]) for context, row in rows.items() if row["status"] == "ok"}
        if last not in mib:
            raise Missing("memory_residual")
        shorter = ", ".join(f"{mib[context]:g} at {context}" for context in others if context in mib)
        return f"{rows[last]['derivation']} / 1024² = {mib[last]:g} MB{f'; {shorter}' if shorter else ''}."

    def allocations(self) -> str:
        """The largest allocations of a forward pass, and where they are made."""
        levels = {"size": self.size(), "mode": "inference", "dtype": "fp32"}
        rows = [row for row in self.site.rows("cs336.memory_largest", **levels) if row["status"] == "ok"]
        top = max(some([float(row["size_mib"]) for row in rows]))
        most = [row for row in rows if float(row["size_mib"]) == top and row["frame"].count(":") == 2]
        count = sum(int(row["count"]) for row in most)
        where = " and ".join(dict.fromkeys(f"`{row['frame'].split(':')[1]}`" for row in most))
        if not count:
            raise Missing("memory_largest")
        return (
            f"{count} allocation{'s' * (count > 1)} of {Figure(top, exact=top.is_integer()).quoted} MiB"
            f"{self.shape(top)}, made in {where}."
        )

    def shape(self, mib: float) -> str:
        """What has this size: scores of 32 heads, or logits over a vocabulary of 10000."""
        context = self.at()[-1]
        for what, shape, elements in (
            ("N × N scores and softmax", f"4 · 32 · {context}²", 4 * 32 * int(context) ** 2),
            ("the logits", f"4 · {context} · 10000", 4 * int(context) * 10000),
        ):
            if mib == elements * 4 / 2**20:
                return f": {what}, {shape} · 4 B"
        return ""


class PytorchAttention(Problem):
    """Attention without heads, timed or out of memory."""

    name = "pytorch_attention"
    heading = "Problem (pytorch_attention)"
    details = ("cs336.pytorch_attention", "cs336.attention_accounting")
    letters = "(a)"
    figure = "cs336.attention_by_length"
    TABLE = "cs336.pytorch_attention"
    MEMORY = "memory_before_backward_gib"

    def tables(self) -> list[Table]:
        """Times and memory by length and width."""
        timed = median_of(self.site, self.TABLE, "forward_ms_n", dtype="fp32")
        return [
            Table(
                "(a) Attention in PyTorch, no head axis.",
                f"{timed}, ms; memory before backward in GB; FP32, batch 8, {one_device(self.site)}, host clock with "
                "synchronise.",
                ["seq_len", "d_model", "forward_ms", "backward_ms", "mem_gb", "002 (ms, ms, GiB)"],
                [self.times(width, length) for width, length in attention_grid(self.site)],
                [Answer("", [self.working]).text()],
            )
        ]

    def answers(self) -> list[Answer]:
        """Without letters."""
        remedy = "Tiles with recomputation, as in FlashAttention, keep no N × N matrix."
        return [Answer("", [self.outcome, self.held, self.growth, remedy])]

    def title(self) -> str:
        """Growth per doubling of the length."""
        found = self.widest()[-3:]
        (start, first), (end, last) = found[0], found[-1]
        steps = log2(int(end) / int(start))
        times = Figure((float(last["forward_ms"]) / float(first["forward_ms"])) ** (1 / steps)).quoted
        return f"From {start} on forward at d {last['head_dim']} takes {times} times per doubling, on average"

    def row(self, width: str, length: str) -> Row | None:
        """The measured row of a cell."""
        return self.site.row(self.TABLE, head_dim=width, seq_len=length, dtype="fp32")

    def times(self, width: str, length: str) -> list[Cell]:
        """A row of the table."""
        row = self.row(width, length)
        printed = [
            published("attention", metric, "cs336-writeup-002", head_dim=int(width), seq_len=int(length))
            for metric in ("forward_ms", "backward_ms", self.MEMORY)
        ]
        return [
            label(length),
            label(width),
            as_cell(row, "forward_ms"),
            as_cell(row, "backward_ms"),
            as_cell(row, self.MEMORY, GIB_AS_GB),
            label(NOTHING if NOTHING in printed else ", ".join(str(Figure(float(one))) for one in printed)),
        ]

    def ended(self, status: str) -> list[Row]:
        """Rows of the cells that ended so, smallest first."""
        rows = [self.row(width, length) for width, length in attention_grid(self.site)]
        found = [row for row in rows if row is not None and row["status"] == status]
        return sorted(found, key=lambda row: int(row["seq_len"]) ** 2 * int(row["head_dim"]))

    def widest(self) -> list[tuple[str, Row]]:
        """Lengths that were measured at the largest width, with their rows."""
        width = attention_grid(self.site)[-1][0]
        found = [(row["seq_len"], row) for row in self.ended("ok") if row["head_dim"] == width]
        if len(found) < 2:
            raise Missing(self.TABLE)
        return found

    def working(self) -> str:
        """What the smallest cell without memory, or else the largest, holds."""
        rows = [row for row in self.site.table("cs336.attention_accounting") if row["status"] == "ok"]
        mib = {row["item"]: float(row["before_backward_mib"]) for row in rows if float(row["before_backward_mib"])}
        total = mib.pop("total", None)
        if total is None or not self.ended("oom") + self.ended("ok"):
            raise Missing("attention_accounting")
        items = sorted(mib, key=lambda item: item != "q, k, v")
        parts = [f"{'softmax' if 'softmax' in item else item} {mib[item]:g}" for item in items]
        cell = [*self.ended("oom"), *reversed(self.ended("ok"))][0]
        return f"{' + '.join(parts)} = {total:g} MiB before backward ({cell['seq_len']} × {cell['head_dim']})."

    def outcome(self) -> str:
        """Which cells run out of memory."""
        lacking, measured = self.ended("oom"), self.ended("ok")
        if lacking:
            cell = f"{lacking[0]['seq_len']} × {lacking[0]['head_dim']}"
            if len(lacking) == 1:
                return f"{cell} alone runs out of memory."
            return f"{cell} is the smallest of {len(lacking)} cells that run out of memory."
        if not measured:
            raise Missing(self.TABLE)
        return f"No cell of the {len(measured)} runs out of memory."

    def held(self) -> str:
        """Memory of the longest cell, and the softmax's part."""
        length, row = self.widest()[-1]
        memory = Figure(float(row[self.MEMORY]) * GIB_AS_GB)
        softmax = Figure(8 * int(length) ** 2 * 4 / 1e9)
        return (
            f"At {length} × {row['head_dim']}, {memory.quoted} GB are held before backward, of which the softmax, "
            f"8 · {length}² · 4 B, is {softmax.quoted}."
        )

    def growth(self) -> str:
        """How memory grows with the length."""
        (before, less), (after, more) = self.widest()[-2:]
        grows = Figure(float(more[self.MEMORY]) / float(less[self.MEMORY]))
        return f"From {before} to {after} memory grows {grows.quoted} times."


class TorchCompile(Problem):
    """Compiled attention and compiled models."""

    name = "torch_compile"
    heading = "Problem (torch_compile)"
    details = (
        "cs336.compiled_attention",
        "cs336.compiled_attention_speedup",
        "cs336.compiled_models",
        "cs336.compiled_models_speedup",
        "cs336.compile_cost",
    )
    letters = "(a)-(b)"
    figure = "cs336.compiled_speedups"
    ATTENTION, MODELS = "cs336.compiled_attention", "cs336.compiled_models"
    TIMES = ("eager_forward_ms", "eager_backward_ms", "compiled_forward_ms", "compiled_backward_ms")
    STEPS = ("eager_forward_ms", "compiled_forward_ms", "eager_full_step_ms", "compiled_full_step_ms")

    def tables(self) -> list[Table]:
        """(a) and (b)."""
        site = self.site
        attention, models = self.compiled(self.ATTENTION), self.compiled(self.MODELS)
        context = "context 512, " if site.gpu else ""
        return [
            Table(
                "(a) Compiled against plain attention, ms.",
                f"{median_of(site, self.ATTENTION, 'compiled_forward_ms_n', **attention)}; FP32, batch 8, no head "
                f"axis, {attention['backend']}, {one_device(site)}, host clock with synchronise.",
                ["seq_len", "d_model", *self.TIMES],
                [
                    [label(at["seq_len"]), label(at["head_dim"])]
                    + [site.cell(self.ATTENTION, column, **attention, **at) for column in self.TIMES]
                    for at in self.grid()
                ],
                ["Published: 002 at 16384 × 128: 63.4, 95.5, 53.9, 80.0 ms."],
            ),
            Table(
                "(b) Compiled models, ms.",
                f"{median_of(site, self.MODELS, 'compiled_forward_ms_n', **models)}; FP32, batch 4, {context}"
                f"{models['backend']}, {one_device(site)}, host clock with synchronise.",
                ["model_size", *self.STEPS, "002 full step (ms)"],
                [
                    [label(self.model_name(at))]
                    + [site.cell(self.MODELS, column, **models, **at) for column in self.STEPS]
                    + [label(self.of_002(at))]
                    for at in self.models()
                ],
            ),
        ]

    def answers(self) -> list[Answer]:
        """In the order of the letters."""
        return [
            Answer("a", [self.attention, self.short_lengths]),
            Answer("b", [self.steps, self.large_models]),
        ]

    def title(self) -> str:
        """Speed-up of the full step at both ends."""
        ends = (self.models()[0], self.models()[-1])
        gains = [self.gain(self.MODELS, "full_step", at).quoted for at in ends]
        names = [self.model_name(at) for at in ends]
        return f"Compiling makes the full step {gains[0]}x as fast at {names[0]} and {gains[1]}x at {names[1]}"

    def compiled(self, table: str) -> dict[str, Any]:
        """Levels that all cells of a table share: inductor where it ran."""
        backends = self.site.levels(table, "backend", implementation="compiled", dtype="fp32")
        backend = "inductor" if "inductor" in backends or not backends else backends[0]
        return {"implementation": "compiled", "dtype": "fp32", "backend": backend}

    def grid(self) -> list[dict[str, Any]]:
        """Levels of (a)'s rows: pytorch_attention's, on a CPU of one width."""
        widths = {width for width, _ in attention_grid(self.site)} if self.site.gpu else {"64"}
        return [{"head_dim": width, "seq_len": n} for width, n in attention_grid(self.site) if width in widths]

    def models(self) -> list[dict[str, Any]]:
        """Levels of (b)'s rows: all sizes, on a CPU the smallest by context."""
        if self.site.gpu:
            return [{"size": size, "seq_len": "512"} for size in ON_GPU]
        return [{"size": sizes(self.site)[0], "seq_len": context} for context in contexts(self.site)]

    def model_name(self, at: Mapping[str, str]) -> str:
        """A model as its row is labelled."""
        return at["size"] if self.site.gpu else f"{at['size']}, {at['seq_len']}"

    def of_002(self, at: Mapping[str, str]) -> str:
        """Full step of 002, eager and compiled."""
        printed = [published("torch_compile", "full_step_ms", "cs336-writeup-002", implementation=one, size=at["size"])
                   for one in ("eager", "compiled")]  # fmt: skip
        return NOTHING if NOTHING in printed else ", ".join(printed)

    def gain(self, table: str, what: str, at: Mapping[str, str]) -> Figure:
        """How many times as fast compiled code is, turn by turn."""
        gain = self.site.figure(f"{table}_speedup", f"{what}_speedup", **self.compiled(table), **at)
        return replace(gain, single=True)

    def said(self, table: str, what: str, at: Mapping[str, str]) -> str:
        """The same in words."""
        gain = self.gain(table, what, at)
        return f"{gain.quoted}x{' (within noise)' * noisy(gain)}"

    def ends(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Shortest and longest attention of the largest width."""
        last = self.grid()[-1]
        return next(at for at in self.grid() if at["head_dim"] == last["head_dim"]), last

    def attention(self) -> str:
        """Gains of attention at the longest and the shortest length."""
        short, last = self.ends()
        forward, backward = (self.said(self.ATTENTION, what, last) for what in ("forward", "backward"))
        return (
            f"Compiled attention is {forward} as fast forward and {backward} backward at {last['seq_len']} × "
            f"{last['head_dim']}, {self.said(self.ATTENTION, 'forward', short)} forward at {short['seq_len']} × "
            f"{short['head_dim']}."
        )

    def short_lengths(self) -> str:
        """Why short lengths lose."""
        gain = self.gain(self.ATTENTION, "forward", self.ends()[0])
        if gain.value >= 1 or noisy(gain):
            raise Missing("short lengths")
        return "At short lengths the guards and calls of compiled code cost more than fused kernels save."

    def steps(self) -> str:
        """Gains of the models at both ends."""
        ends = (self.models()[0], self.models()[-1])
        forward, step = ([self.said(self.MODELS, what, at) for at in ends] for what in ("forward", "full_step"))
        names = [self.model_name(at) for at in ends]
        return (
            f"The forward pass is {forward[0]} as fast at {names[0]} and {forward[1]} at {names[1]}, the full step "
            f"{step[0]} and {step[1]}."
        )

    def large_models(self) -> str:
        """Why large models gain less, or why nothing is gained."""
        if self.compiled(self.MODELS)["backend"] == "aot_eager":
            return "aot_eager traces the model and generates no code, so that there is nothing to gain."
        small, large = (self.gain(self.MODELS, "full_step", at).value for at in (self.models()[0], self.models()[-1]))
        if small <= large:
            raise Missing("large models")
        return "Compiling fuses elementwise kernels; in large models products, which it leaves, take more of the time."


PROBLEMS = (
    BenchmarkingScript,
    MixedPrecisionAccumulation,
    BenchmarkingMixedPrecision,
    MemoryProfiling,
    PytorchAttention,
    TorchCompile,
)
