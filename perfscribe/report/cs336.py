"""CS336 assignment 2 (systems), spring 2025, version 1.0.4: the problems that one device answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import log2, nan
from typing import Any

from perfscribe.report.cells import NO_SUCH_THING, Cell, as_cell, shown, word
from perfscribe.report.problem import Answer, Entries, Finding, Lettered, Part, Problem, Table, Title, Why
from perfscribe.report.site import NOTHING, Row, Site, ends, entry, figure, noisy, ok, printed, so_many
from perfscribe.show.rounding import NO_FIGURE, Figure

TITLE = "CS336 assignment 2 (systems)"
WIDTHS = ("16", "32", "64", "128")
ON_GPU = ("small", "medium", "large", "xl", "2.7B")
SCRIPT = "cs336.benchmarking_script"


def sizes(site: Site, table: str = SCRIPT) -> Sequence[str]:
    """Model sizes of a table's rows."""
    return site.swept(table, "size", ON_GPU, ("nano", "micro"), dtype="fp32")


def contexts(site: Site, table: str = SCRIPT) -> Sequence[str]:
    """Context lengths of a table's rows."""
    return site.swept(table, "seq_len", ("128", "256", "512", "1024"), ("32", "64", "128"), dtype="fp32")


def on_device(site: Site) -> str:
    """Where a problem ran, at the head of a set-up."""
    return "One GPU" if site.gpu else "CPU"


def printed_in(row: Row | None, column: str, unit: str = "") -> str:
    """A published figure that the site's table has beside its own."""
    text = entry(row, column)
    return NOTHING if text in ("none", "") else f"{text}{unit}"


def attention_grid(site: Site, table: str, on_cpu: Sequence[str] = WIDTHS) -> list[tuple[str, str]]:
    """(head_dim, seq_len) of an attention problem. on_cpu: widths there, where none ran."""
    lengths = site.swept(table, "seq_len", ("256", "1024", "4096", "8192", "16384"), ("64", "128", "256"))
    return [(width, length) for width in site.swept(table, "head_dim", WIDTHS, on_cpu) for length in lengths]


class BenchmarkingScript(Problem):
    """Forward and backward times, and warm-up."""

    details = (SCRIPT, "cs336.benchmarking_rates", "cs336.benchmarking_warmup")
    letters = "(b)-(c)"
    figure = "cs336.benchmarking_steps"
    SCRIPT, _, WARMUP = details
    PASSES = ("forward", "backward")

    def _prepare(self, site: Site) -> None:
        self.sizes, self.contexts = sizes(site), contexts(site)
        self.warm_sizes = site.swept(self.WARMUP, "size", ON_GPU, self.sizes[:1])

    def parts(self) -> Iterator[Part]:
        """(a) to (c)."""
        device = self.site.one_device
        warm = " and ".join(self.site.levels(self.SCRIPT, "warmup_steps")) or "5"
        yield Table(
            "(b) Forward and backward pass, ms by context.",
            f"{self.site.mean_of(self.SCRIPT, 'forward_ms_n', dtype='fp32')}; FP32, batch "
            f"{self.site.batch_of(self.SCRIPT, '4')}, {device}, {warm} warm-up steps, host clock with synchronise.",
            ["model_size", "pass_type", *self.contexts],
            [
                [size, one, *(as_cell(self.row(size, context), f"{one}_ms_mean") for context in self.contexts)]
                for size in self.sizes
                for one in self.PASSES
            ],
            "Published: 002, large: forward 169.07, backward 347.68 ms (by difference), std about 1.7; context not "
            "stated.",
        )
        at = "512" if self.site.gpu else self.contexts[-1]  # the context that answers speak of
        context = next(iter(self.site.levels(self.WARMUP, "seq_len")), at)
        warmups = self.site.swept(self.WARMUP, "warmup_steps", *[("0", "1", "2", "5")] * 2)
        yield Table(
            "(c) Forward pass after few warm-up steps, ms.",
            f"{self.site.mean_of(self.WARMUP, 'full_step_ms_n')}, and the forward of the very first step; context "
            f"{context}, batch {self.site.batch_of(self.WARMUP, '4')}, {device}, host clock, FP32.",
            ["model_size", *(f"warmup {steps}" for steps in warmups), "first step, warmup 0"],
            [
                [
                    size,
                    *(as_cell(self.warm(size, steps), "forward_ms_mean") for steps in warmups),
                    as_cell(self.warm(size, 0), "first_forward_ms"),
                ]
                for size in self.warm_sizes
            ],
        )
        script = "[measure.py](../../perfscribe/experiments/end_to_end/measure.py)"
        yield Lettered("a", Why(f"`./run report --config 'chapters=[cs336]'` runs {script}."))
        there = [size for size in self.sizes if all(self.time(size, one, at) for one in self.PASSES)] or self.sizes
        ends = list(dict.fromkeys([there[0], there[-1]]))
        forward, backward = (" to ".join(f"{self.time(size, one, at)}" for size in ends) for one in self.PASSES)
        said = f"From {there[0]} to {there[-1]} forward" if len(ends) > 1 else f"Forward of {there[0]}"
        said = f"{said} takes {forward} ms, backward {backward} ms at {at}."
        yield Lettered("b", said, self.deviations())
        yield from self.warming_up()

    def warming_up(self) -> Iterator[Part]:
        """(c): what a first step costs and does to a mean, of the size where it differs most."""
        rows = {size: self.warm(size, 0) for size in self.warm_sizes}
        found = [(size, figure(row, "first_forward_ms"), figure(row, "forward_ms")) for size, row in rows.items()]
        found = [one for one in found if all(one)] or [("", NO_FIGURE, NO_FIGURE)]
        size, first, later = max(found, key=lambda one: one[1].value / one[2].value)
        if self.first_over_later(size, 0) <= 1:
            said = f"Without warm-up a later forward takes as long as the first, {first} ms ({size})"
            yield Lettered("c", f"{said}.", self.few_steps())
            yield Title(said)
            return
        most = max(map(int, self.site.levels(self.WARMUP, "warmup_steps", size=size, dtype="fp32")), default=0)
        cold, warm = (figure(self.warm(size, steps), "forward_ms_mean") for steps in (0, most))
        warmed = f", after {so_many(most, 'warm-up step')} {warm}" if most else ""
        yield Lettered(
            "c",
            f"Without warm-up the first forward takes {first} ms, later ones {later} ({size}); the mean is "
            f"{cold!s} ms{warmed}.",
            Why(
                "The first step also loads kernels, sets up cuBLAS and fills the allocator's cache.",
                self.site.gpu and bool(first),
            ),
            self.few_steps(),
        )
        yield Title(f"Without warm-up the first forward takes {first.over(later)} times a later one ({size})")
        size = (self.site.levels(self.WARMUP, "size") or [""])[-1]
        first, later = (figure(self.warm(size, 0), column) for column in ("first_forward_ms", "forward_ms"))
        if self.first_over_later(size, 0) > 1:
            said = f"Without warm-up the first forward of {size} takes {first.over(later)} times a later one."
            yield Finding(16, "one device", said)

    def first_over_later(self, size: str, steps: int) -> float:
        """The first timed forward after so many warm-up steps over the longest of those that follow it."""
        levels = {"size": size, "warmup_steps": steps, "dtype": "fp32", "kind": "timed"}
        found = [figure(row, "forward_ms").value for row in self.site.rows("cs336.benchmarking_steps", **levels)]
        return found[0] / max(found[1:]) if found[1:] else nan

    def row(self, size: str, context: str) -> Row | None:
        """The cell in FP32."""
        return self.site.row(self.SCRIPT, size=size, seq_len=context, dtype="fp32")

    def time(self, size: str, of_pass: str, context: str) -> Figure:
        """Mean of a pass, ms."""
        return figure(self.row(size, context), f"{of_pass}_ms_mean")

    def warm(self, size: str, steps: int | str) -> Row | None:
        """The cell after so many warm-up steps."""
        return self.site.row(self.WARMUP, size=size, warmup_steps=steps, dtype="fp32")

    def deviations(self) -> str:
        """The largest standard deviation in percent, and the middle one."""
        found = []
        for cell in product(self.sizes, self.PASSES, self.contexts):
            if time := self.time(*cell):
                found.append((time.of(100 * (time.spread or 0.0) / time.value), " ".join(cell[:2]), cell[2]))
        found = sorted(found, key=lambda one: one[0].value) or [(NO_FIGURE, "", "")]
        (most, which, context), (middle, *_) = found[-1], found[(len(found) - 1) // 2]
        return f"The largest std is {most} % ({which}, {context}); half of the passes have at most {middle} %."

    def few_steps(self) -> str:
        """Sizes whose first timed forward is slow after one warm-up step, and after two."""
        there = [size for size in self.warm_sizes if all(ok(self.warm(size, steps)) for steps in (1, 2))]
        one, two = ([size for size in there if self.first_over_later(size, n) > 1.05] for n in (1, 2))
        longer = "is over 5 % above all others"
        if not one + two:
            return f"After one or two steps no first timed forward {longer}." if there else ""
        at, then = (", ".join(of) or "none" for of in (one, two))
        return f"After one step the first timed forward {longer} at {at}, after two at {then}."


class MixedPrecisionAccumulation(Problem):
    """Four sums of 0.01."""

    details = ("cs336.mixed_precision_accumulation",)
    OF_004 = {  # noqa: RUF012
        "fp32 += fp32": "10.0001",
        "fp16 += fp16": "9.9531",
        "fp32 += fp16": "10.0021",
        "fp32 += fp32(fp16)": "10.0021",
    }

    def parts(self) -> Iterator[Part]:
        """The four sums, with four decimals, and their errors."""
        rows = {kind: self.site.row(self.table, accumulation=kind) for kind in self.OF_004}
        sums = {kind: figure(row, "sum") for kind, row in rows.items()}
        yield Table(
            "1000 additions of 0.01.",
            f"{on_device(self.site)}; exact is 10; 004: published.",
            ["accumulator += addend", "result", "004"],
            [
                [kind, Cell(f"{sums[kind].value:.4f}") if sums[kind] else as_cell(rows[kind], "sum"), other]
                for kind, other in self.OF_004.items()
            ],
        )
        fp16, mixed, fp32 = (
            Figure(abs(100 * figure(rows[kind], "relative_error").value))
            for kind in ("fp16 += fp16", "fp32 += fp16", "fp32 += fp32")
        )
        decides = "The accumulator's precision decides: an FP16 term is rounded once, an FP16 sum at every addition."
        yield Answer(
            f"An FP16 sum is {fp16} % off, an FP32 sum of FP16 terms {mixed} %, of FP32 terms {fp32} %.",
            f"Near 10 FP16 values are {figure(rows['fp16 += fp16'], 'ulp_at_sum')} apart.",
            Why(decides, fp16.value > mixed.value),
        )


class BenchmarkingMixedPrecision(Problem):
    """Dtypes under autocast, LayerNorm, and times with BF16."""

    details = ("cs336.autocast_dtypes", "cs336.layernorm_variance", "cs336.mixed_precision_passes")
    letters = "(a)-(c)"
    figure = "cs336.mixed_precision_speedup"
    AUTOCAST, VARIANCE, PASSES = details
    BOTH = "forward+backward"
    GAINS = (
        *(("fp32", "median_ms"), ("bf16", "median_ms"), ("fp16", "median_ms")),
        *(("bf16", "speedup"), ("fp16", "speedup"), ("tf32", "median_ms")),
    )
    COMPONENTS = {  # noqa: RUF012
        "parameters": "Model parameters",
        "fc1_output": "Output of first feed-forward layer (fc1)",
        "layernorm_output": "Output of layer norm (ln)",
        "logits": "Model's predicted logits",
        "loss": "Loss",
        "gradients": "Model's gradients",
    }

    def parts(self) -> Iterator[Part]:
        """(a) and (c), then (b) and (c)."""
        site = self.site
        context = next(iter(site.levels(self.PASSES, "seq_len")), "512" if site.gpu else contexts(site)[-1])
        batch = site.batch_of(self.PASSES, "4")
        yield Table(
            "(a) Dtypes under autocast.",
            f"{on_device(site)}, parameters in FP32.",
            ["component", "FP16", "BF16"],
            [[name, self.dtype(one, "fp16"), self.dtype(one, "bf16")] for one, name in self.COMPONENTS.items()],
        )
        yield Table(
            "(c) Forward and backward with and without BF16, ms.",
            f"{site.mean_of(self.PASSES, 'pass_ms_n')}; context {context}, batch {batch}, {site.one_device}, host "
            "clock with synchronise; FP32 is true FP32, BF16 by autocast; avg_time_ms is forward+backward timed in "
            "separate passes.",
            ["model_size", "precision", "pass_type", "avg_time_ms", "forward_ms", "backward_ms", "002 (ms)"],
            [self.times(size, precision) for size in sizes(site) for precision in ("fp32", "bf16")],
        )
        yield Table(
            "(c) Forward and backward by dtype, ms, and speed-up over FP32.",
            f"{site.median_of(self.PASSES, 'pass_ms_n', pass_type=self.BOTH)}, of a speed-up both relative ones added;"
            f" context {context}, batch {batch}, {site.one_device}; 004: batch 32, vocabulary 50,000.",
            ["Model Size", "FP32", "BF16", "FP16", "BF16 Speedup", "FP16 Speedup", "TF32", "004 BF16 Speedup"],
            [self.gains_of(size) for size in sizes(site)],
        )
        yield self.variance()
        there = [size for size in sizes(site) if self.gain("bf16", size)] or sizes(site)
        big, small = there[-1], there[0]
        (slow, fast), (slow_small, fast_small) = (
            [self.time(size, precision, self.BOTH)[0] for precision in ("fp32", "bf16")] for size in (big, small)
        )
        gain, least = (self.gain("bf16", size) for size in (big, small))
        tf32 = self.gain("tf32", big)
        yield Lettered(
            "c",
            f"BF16 brings {big} from {slow} to {fast} ms, {gain}x as fast by medians{self.doubt(big)}"
            + (f"; {small} from {slow_small} to {fast_small}{self.doubt(small)}." if small != big else "."),
            f"TF32 alone gives {tf32}x at {big}.",
        )
        more = f" and {gain}x at {big}{self.doubt(big)}" if small != big else ""
        yield Title(f"Forward+backward in BF16 is {least}x as fast as in FP32 at {small}{self.doubt(small)}{more}")
        faster = f"At {big} BF16 runs forward and backward {gain} times as fast as FP32, TF32 alone {tf32} times"
        then = f"{small} does not gain" if self.doubt(small) else f"BF16 at {small} {least} times"
        yield Finding(4, "one device", f"{faster}; {then}." if small != big else f"{faster}.")

    def dtype(self, part: str, precision: str) -> Cell:
        """Dtype of a part of the model, as torch names it."""
        row = self.site.row(self.AUTOCAST, dtype=precision)
        return word(f"torch.{entry(row, f'{part}_dtype')}" if ok(row) else "")

    def row(self, size: str, precision: str, of_pass: str = BOTH) -> Row | None:
        """A pass of a model."""
        return self.site.row(self.PASSES, model_size=size, precision=precision, pass_type=of_pass)

    def time(self, size: str, precision: str, of_pass: str) -> tuple[Figure, Row | None]:
        """Mean and standard deviation of a pass, ms, and its row."""
        row = self.row(size, precision, of_pass)
        std = figure(row, "pass_ms_std")
        return Figure(figure(row, "avg_time_ms").value, std.value if std else None), row

    def times(self, size: str, precision: str) -> Entries:
        """A row of (c)'s first table."""
        found = [self.time(size, precision, one) for one in (self.BOTH, "forward", "backward")]
        cells = (shown(*one) for one in found)
        return [size, precision, self.BOTH, *cells, printed_in(found[0][1], "ms_cs336-writeup-002")]

    def gains_of(self, size: str) -> Entries:
        """A row of (c)'s second table. A CPU has no TF32, and FP16 is not planned there."""
        cells = [
            NO_SUCH_THING
            if not self.site.gpu and dtype not in ("fp32", "bf16")
            else as_cell(self.row(size, dtype), column, unit="x" if column == "speedup" else "")
            for dtype, column in self.GAINS
        ]
        return [size, *cells, printed_in(self.row(size, "bf16"), "speedup_cs336-writeup-004", "x")]

    def gain(self, precision: str, size: str) -> Figure:
        """How many times as fast as FP32 forward+backward is."""
        return figure(self.row(size, precision), "speedup")

    def doubt(self, size: str) -> str:
        """That BF16's gain is within noise, or that of its two passes is, which were timed apart."""
        if noisy(self.gain("bf16", size)):
            return " (within noise)"
        apart = [[self.time(size, dtype, one)[0] for one in ("forward", "backward")] for dtype in ("fp32", "bf16")]
        slow, fast = (Figure(sum(one.value for one in of), sum(one.spread or 0.0 for one in of)) for of in apart)
        return " (the sum of its passes timed apart: within noise)" if slow.within_noise(fast) else ""

    def variance(self) -> Lettered:
        """(b): what half precision does to a variance, and whether autocast keeps LayerNorm in FP32 here."""
        fp16, bf16, fp32 = (
            self.site.row(self.VARIANCE, dtype=one, variance_mean="100") for one in ("fp16", "bf16", "fp32")
        )
        times = figure(bf16, "variance_two_pass_relative_error")
        low, bits, off = (figure(row, "layer_norm_relative_error", 100) for row in (fp16, bf16, fp32))
        overflows = entry(fp16, "variance_two_pass_relative_error") == "overflow" and bool(times and off)
        norms = {"torch.float32": "Autocast keeps LayerNorm in FP32 with BF16 too.", NOTHING: ""}
        other = "LayerNorm should run in FP32 with BF16 too; autocast on the CPU leaves it in BF16."
        at_100 = f"At mean 100 a variance summed left to right overflows in FP16 and is {times} times too large in BF16"
        return Lettered(
            "b",
            f"{at_100}." if overflows else "",
            f"LayerNorm is {low} % off in FP16, {bits} in BF16, {off} in FP32.",
            Why("FP16 lacks range, BF16 mantissa bits.", overflows),
            norms.get(self.dtype("layernorm_output", "bf16").text, other),
        )


class MemoryProfiling(Problem):
    """Peaks of inference and of a full step."""

    details = ("cs336.memory_peaks", "cs336.memory_residual", "cs336.memory_largest")
    letters = "(a)-(e)"
    figure = "cs336.memory_timeline"
    PEAKS, RESIDUAL, LARGEST = details
    PHASES = ("forward", "backward", "optimizer")
    COLUMNS = (("inference", "fp32"), ("full_step", "fp32"), ("inference", "bf16"), ("full_step", "bf16"))

    def _prepare(self, site: Site) -> None:
        self.size = site.swept(self.PEAKS, "size", ["2.7B"], ["micro"])[0]
        lengths = ("128", "256", "512"), ("48", "96", "192")
        self.at = site.swept(self.PEAKS, "seq_len", *lengths, size=self.size)

    def parts(self) -> Iterator[Part]:
        """(b) and (c) in one table; (a), (c), (d) and (e) in words."""
        kept = [self.peak(context, "forward", "fp32").text for context in self.at]
        yield Table(
            f"(b), (c) Peak of allocated memory, {self.size}, GB.",
            f"Batch {self.site.batch_of(self.PEAKS, '4')}, {self.site.one_device}, AdamW, one run each; FP32, then "
            "BF16 autocast.",
            ["Context length", "Peak memory – forward only", "Peak memory – full training step (fwd + bwd + opt)",
             "BF16, forward only", "BF16, full step"],
            [[context, *(self.peak(context, *column, " GB") for column in self.COLUMNS)] for context in self.at],
            f"Forward with its graph kept: {', '.join(kept)} GB." if any(one[0].isdigit() for one in kept) else "",
            "Published: 002 (pass not stated): 24.5, 35.0, 70 G; full step at 512: 70 G, in BF16 60.",
        )  # fmt: skip
        phases = {phase: self.gb("full_step", phase) for phase in self.PHASES}
        top = max(phases, key=lambda phase: phases[phase].value) if all(phases.values()) else ""
        forward, backward, optimizer = phases.values()
        yield Lettered(
            "a",
            f"The step peaks at {forward} GB in forward, {backward} in backward and {optimizer} in the optimizer, "
            f"forward alone at {self.gb('inference', 'forward')}.",
            *self.course(top),
        )
        (step, half), (alone, half_alone) = (
            [self.gb(mode, "peak", dtype) for dtype in ("fp32", "bf16")] for mode in ("full_step", "inference")
        )
        grows = half_alone.value > alone.value
        copy = "; autocast also keeps a BF16 copy of the weights" * grows
        takes = f"takes the step from {step} to {half} GB and"
        if step.quoted == half.quoted:
            takes = f"leaves the step at {step} GB and {'raises' if grows else 'lowers'}"
        yield Lettered(
            "c",
            f"At {self.at[-1]} BF16 {takes} forward alone from {alone} to {half_alone}.",
            Why(f"Weights, gradients and AdamW's state stay FP32{copy}.", bool(alone and half_alone)),
        )
        yield Lettered("d", self.residual())
        yield Lettered("e", self.allocations())
        phase = "the optimizer" if top == "optimizer" else top
        peaks = f"forward peaks at {alone} GB, a full step at {step} GB in {phase}"
        yield Title(f"{self.size} at {self.at[-1]}: {peaks}" * bool(top))
        if self.site.gpu:
            short, long = (self.gb("full_step", "peak", context=n) for n in self.at[::2])
            peaks = f"A full step of {self.size} peaks at {short} GB at {self.at[0]} tokens and {long} at {self.at[-1]}"
            yield Finding(9, "one device", f"{peaks}, forward alone at {alone}.")

    def peak(self, context: str, mode: str, dtype: str, unit: str = "") -> Cell:
        """A peak as a cell."""
        return as_cell(self.row(mode, dtype, context), "peak_gib", unit=unit)

    def gb(self, mode: str, part: str, dtype: str = "fp32", context: str = "") -> Figure:
        """Peak of a phase, or of all, in GB; at the last context where none is named."""
        return figure(self.row(mode, dtype, context or self.at[-1]), f"{part}_gib").plain()

    def row(self, mode: str, dtype: str, context: str) -> Row | None:
        """The cell of a pass."""
        return self.site.row(self.PEAKS, size=self.size, seq_len=context, mode=mode, dtype=dtype)

    def course(self, top: str) -> list[str]:
        """How phases show in the timeline, and whether the optimizer's peak depends on the context."""
        if not top:
            return []
        said = "Memory rises in forward and falls in backward layer by layer; the optimizer needs less."
        if top == "optimizer":
            said = "Memory rises in forward, falls in backward layer by layer, and the optimizer adds a short plateau."
        peaks = [self.gb("full_step", "optimizer", context=context) for context in self.at]
        least, most = ends(peaks)
        flat = len(peaks) > 1 and all(peaks) and most.value <= 1.05 * least.value
        return [said, "The optimizer's peak hardly depends on the context." if flat else ""]

    def residual(self) -> str:
        """Size of a tensor of the residual stream."""
        *others, last = self.at
        rows = {row["seq_len"]: row for row in self.site.rows(self.RESIDUAL, size=self.size, dtype="fp32")}
        mib = {context: f"{float(row['expected_mib']):g}" for context, row in rows.items() if ok(row)}
        shorter = ", ".join(f"{mib[one]} at {one}" for one in others if one in mib)
        end = f"; {shorter}" if shorter else ""
        return f"{rows[last]['derivation']} / 1024² = {mib[last]} MB{end}." if last in mib else ""

    def allocations(self) -> str:
        """The largest allocations of a forward pass, and where they are made."""
        levels = {"size": self.size, "mode": "inference", "dtype": "fp32"}
        rows = list(filter(ok, self.site.rows(self.LARGEST, **levels)))
        top = max((float(row["size_mib"]) for row in rows), default=0.0)
        most = [row for row in rows if float(row["size_mib"]) == top and row["frame"].count(":") == 2]
        count = sum(int(row["count"]) for row in most)
        where = " and ".join(dict.fromkeys(f"`{row['frame'].split(':')[1]}`" for row in most))
        size, context = Figure(top, exact=top.is_integer()), int(self.at[-1])
        # By MiB: scores of 32 heads, or logits over a vocabulary of 10000.
        shapes = {
            4 * 32 * context**2 * 4 / 2**20: f": N × N scores and softmax, 4 · 32 · {context}² · 4 B",
            4 * context * 10000 * 4 / 2**20: f": the logits, 4 · {context} · 10000 · 4 B",
        }
        what = f"{size} MiB{shapes.get(top, '')}"
        return f"{count} allocation{'s' * (count > 1)} of {what}, made in {where}." if count else ""


class PytorchAttention(Problem):
    """Attention without heads, timed or out of memory."""

    details = ("cs336.pytorch_attention", "cs336.attention_accounting")
    letters = "(a)"
    figure = "cs336.attention_by_length"
    MEMORY = "memory_before_backward_gib"

    def _prepare(self, site: Site) -> None:
        self.grid = attention_grid(site, self.table)

    def parts(self) -> Iterator[Part]:
        """Times and memory by length and width; where memory ends, what is held, how both grow."""
        yield Table(
            "(a) Attention in PyTorch, no head axis.",
            f"{self.site.median_of(self.table, 'forward_ms_n', dtype='fp32')}, ms; memory before backward in GB; FP32, "
            f"batch {self.site.batch_of(self.table, '8')}, {self.site.one_device}, host clock with synchronise.",
            ["seq_len", "d_model", "forward_ms", "backward_ms", "mem_gb", "002 (ms, ms, GiB)"],
            [self.line(*cell) for cell in self.grid],
            self.working(),
        )
        widest = [row for row in self.ended("ok") if row["head_dim"] == self.grid[-1][0]]
        tiles = Why("Tiling with recomputation, as in FlashAttention, stores no N × N matrix.")
        if len(widest) < 2:
            yield Answer(self.outcome(), tiles)
            return
        start, before, last = widest[-3:][0], *widest[-2:]
        length, batch = int(last["seq_len"]), int(entry(last, "batch", "8"))
        held, less = (figure(row, self.MEMORY).plain() for row in (last, before))
        yield Answer(
            self.outcome(),
            f"At {length} × {last['head_dim']}, {held} GB are held before backward; the softmax, "
            f"{batch} · {length}² · 4 B, is {Figure(batch * length**2 * 4 / 1e9)} of them.",
            f"From {before['seq_len']} to {length} tokens memory grows {held.over(less)} times.",
            tiles,
        )
        ratio = float(last["forward_ms"]) / float(start["forward_ms"])
        times = Figure(ratio ** (1 / log2(length / int(start["seq_len"]))))
        grows = f"each doubling multiplies forward's time by {times} on average"
        yield Title(f"From {start['seq_len']} tokens on, {grows} (d {last['head_dim']})")

    def row(self, width: str, length: str) -> Row | None:
        """The measured row of a cell."""
        return self.site.row(self.table, head_dim=width, seq_len=length, dtype="fp32")

    def line(self, width: str, length: str) -> Entries:
        """A row of the table."""
        row = self.row(width, length)
        levels = {"head_dim": int(width), "seq_len": int(length)}
        columns = ("forward_ms", "backward_ms", self.MEMORY)
        published = [printed("attention", column, "cs336-writeup-002", **levels) for column in columns]
        return [
            *(length, width, as_cell(row, "forward_ms"), as_cell(row, "backward_ms")),
            as_cell(row, self.MEMORY),
            NOTHING if NOTHING in published else ", ".join(str(Figure(float(one))) for one in published),
        ]

    def ended(self, status: str) -> list[Row]:
        """Rows of the cells that ended so, smallest first."""
        rows = [self.row(width, length) for width, length in self.grid]
        found = [row for row in rows if row is not None and row["status"] == status]
        return sorted(found, key=lambda row: int(row["seq_len"]) ** 2 * int(row["head_dim"]))

    def working(self) -> str:
        """What the smallest cell without memory, or else the largest, holds."""
        rows = filter(ok, self.site.table("cs336.attention_accounting"))
        mib = {row["item"]: float(row["before_backward_mib"]) for row in rows if float(row["before_backward_mib"])}
        cell = next(iter([*self.ended("oom"), *reversed(self.ended("ok"))]), None)
        total = mib.pop("total", None)
        if total is None or cell is None:
            return ""
        items = sorted(mib, key=lambda item: item != "q, k, v")
        parts = [f"{'softmax' if 'softmax' in item else item} {mib[item]:g}" for item in items]
        return f"{' + '.join(parts)} = {total:g} MiB before backward ({cell['seq_len']} × {cell['head_dim']})."

    def outcome(self) -> str:
        """Which cells run out of memory."""
        lacking, measured = self.ended("oom"), self.ended("ok")
        if not lacking:
            said = f"All {len(measured)} cells fit" if len(measured) > 1 else "The one cell fits"
            return f"{said} in memory." if measured else ""
        cell = f"{lacking[0]['seq_len']} × {lacking[0]['head_dim']}"
        smallest = f"is the smallest of {len(lacking)} cells that run" if len(lacking) > 1 else "alone runs"
        return f"{cell} {smallest} out of memory."


class TorchCompile(Problem):
    """Compiled attention and compiled models."""

    details = (
        "cs336.compiled_attention",
        "cs336.compiled_attention_speedup",
        "cs336.compiled_models",
        "cs336.compiled_models_speedup",
        "cs336.compile_cost",
    )
    letters = "(a)-(b)"
    figure = "cs336.compiled_speedups"
    ATTENTION, _, MODELS, _, _ = details
    TIMES = ("eager_forward_ms", "eager_backward_ms", "compiled_forward_ms", "compiled_backward_ms")
    STEPS = ("eager_forward_ms", "compiled_forward_ms", "eager_full_step_ms", "compiled_full_step_ms")

    def _prepare(self, site: Site) -> None:
        # Levels of (a)'s rows, which are pytorch_attention's, on a CPU of one width; and of (b)'s.
        cells = attention_grid(site, self.ATTENTION, on_cpu=["64"])
        self.grid = [{"head_dim": width, "seq_len": length} for width, length in cells]
        levels = (ON_GPU, ["512"]) if site.gpu else (sizes(site, self.MODELS), contexts(site, self.MODELS))
        self.models = [{"size": size, "seq_len": context} for size, context in product(*levels)]

    def parts(self) -> Iterator[Part]:
        """(a) the cells of pytorch_attention; (b) all sizes, on a CPU the smallest by context."""
        levels = self.compiled(self.ATTENTION)
        yield Table(
            "(a) Compiled against plain attention, ms.",
            f"{self.site.median_of(self.ATTENTION, 'compiled_forward_ms_n', **levels)}; FP32, batch "
            f"{self.site.batch_of(self.ATTENTION, '8')}, no head axis, {levels['backend']}, "
            f"{self.site.one_device}, host clock with synchronise.",
            ["seq_len", "d_model", *self.TIMES],
            [[at["seq_len"], at["head_dim"], *self.cells(self.ATTENTION, self.TIMES, at)] for at in self.grid],
            "Published: 002 at 16384 × 128: 63.4, 95.5, 53.9, 80.0 ms.",
        )
        levels = self.compiled(self.MODELS)
        yield Table(
            "(b) Compiled models, ms.",
            f"{self.site.median_of(self.MODELS, 'compiled_forward_ms_n', **levels)}; FP32, batch "
            f"{self.site.batch_of(self.MODELS, '4')}, {'context 512, ' if self.site.gpu else ''}"
            f"{levels['backend']}, {self.site.one_device}, host clock with synchronise.",
            ["model_size", *self.STEPS, "002 full step (ms)"],
            [[self.model_name(at), *self.cells(self.MODELS, self.STEPS, at), self.of_002(at)] for at in self.models],
        )
        # On a CPU attention is compiled at one width.
        widths = [at for at in self.grid if at["head_dim"] == self.grid[-1]["head_dim"]]
        short, long = widths[0], widths[-1]
        forward, backward = (self.gain(self.ATTENTION, one, long) for one in ("forward", "backward"))
        brief = self.gain(self.ATTENTION, "forward", short)
        loses = brief.value < 1 and not noisy(brief)
        yield Lettered(
            "a",
            f"Turn by turn compiled attention runs forward {times(forward)} and backward {times(backward)} as fast at "
            f"{long['seq_len']} × {long['head_dim']}, forward {times(brief)} at {short['seq_len']} × "
            f"{short['head_dim']}.",
            Why("At short lengths the guards and calls of compiled code cost more than fused kernels save.", loses),
        )
        there = [at for at in self.models if self.gain(self.MODELS, "full_step", at)] or self.models
        models = (there[0], there[-1])
        small, big = map(self.model_name, models)

        def several(one: Figure, other: Figure) -> str:
            more = f" and {times(other)} at {big}" if big != small else ""
            return f"{times(one)} as fast at {small}{more}"

        forward, forward_big, step, step_big = (
            self.gain(self.MODELS, one, at) for one in ("forward", "full_step") for at in models
        )
        why = "Compiling fuses elementwise kernels; large models spend more of their time in matmuls, which it leaves."
        holds = step.value > step_big.value
        backend = self.compiled(self.MODELS)["backend"]
        if backend == "aot_eager":
            why, holds = "aot_eager traces the model and generates no code, so there is nothing to gain.", True
        yield Lettered(
            "b",
            f"Turn by turn the forward pass is {several(forward, forward_big)}, the full step {times(step)}"
            + (f" and {times(step_big)}." if big != small else "."),
            Why(why, holds),
        )
        said = f"makes the full step {several(step, step_big)}"
        yield Title(f"Compiling {said}")
        tells = not (noisy(step) and noisy(step_big))
        yield Finding(11, "one device", f"torch.compile ({backend}) {said}." if tells else "")

    def cells(self, table: str, columns: Sequence[str], at: Mapping[str, Any]) -> list[Cell]:
        """Times of a row."""
        return [as_cell(self.site.row(table, **self.compiled(table), **at), column) for column in columns]

    def compiled(self, table: str) -> dict[str, Any]:
        """Levels that all cells of a table share: inductor where it ran."""
        backends = self.site.levels(table, "backend", implementation="compiled", dtype="fp32")
        backend = "inductor" if "inductor" in backends or not backends else backends[0]
        return {"implementation": "compiled", "dtype": "fp32", "backend": backend}

    def model_name(self, at: Mapping[str, str]) -> str:
        """A model as its row is labelled."""
        return at["size"] if self.site.gpu else f"{at['size']}, {at['seq_len']}"

    def of_002(self, at: Mapping[str, str]) -> str:
        """Full step of 002, eager and compiled."""
        of_steps = "torch_compile", "full_step_ms", "cs336-writeup-002"
        times = [printed(*of_steps, implementation=one, size=at["size"]) for one in ("eager", "compiled")]
        return NOTHING if NOTHING in times else ", ".join(times)

    def gain(self, table: str, what: str, at: Mapping[str, str]) -> Figure:
        """How many times as fast compiled code is, turn by turn."""
        row = self.site.row(f"{table}_speedup", **self.compiled(table), **at)
        gain = figure(row, f"{what}_speedup")
        if entry(row, f"{what}_verdict") == "cannot tell":
            gain = replace(gain, spread=max(gain.spread or 0.0, abs(gain.value - 1)))
        return replace(gain, single=True)


def times(gain: Figure) -> str:
    """A speed-up in words."""
    return f"{gain}x{' (within noise)' * noisy(gain)}"
