"""CS336 assignment 2 (systems): the problems about kernels, traced by nsys or written in Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from perfscribe.report.cells import Cell, as_cell, shown
from perfscribe.report.cs336 import SCRIPT, contexts, sizes
from perfscribe.report.problem import Answer, Entries, Finding, Lettered, Part, Problem, Status, Table, Title, Why
from perfscribe.report.site import NOTHING, Row, Site, ends, entry, fault, figure, ok
from perfscribe.show.rounding import LACKING, NO_FIGURE, Figure
from perfscribe.subjects import YOURS

PRODUCTS, ELEMENTWISE = "gemm_percent", "elementwise_percent"  # columns of families
FLASH, BOARD = "cs336.flash_cells", "cs336.flash_leaderboard"
# The largest relative error that the experiment lets pass (flash_benchmarking/correctness.py).
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
HANDOUT_TOLERANCE = {"fp32": 1e-2, "bf16": 2e-2}  # of a subject (flash_benchmarking/subject.py)


class NsysProfile(Problem):
    """Forward pass by nsys, kernels with most time, share of products, attention."""

    details = (
        "cs336.nsys_forward",
        "cs336.nsys_top_kernels",
        "cs336.nsys_nvtx_kernels",
        "cs336.nsys_families",
        "cs336.nsys_attention",
    )
    letters = "(a)-(e)"
    figure = "cs336.nsys_forward"
    FORWARD, TOP, KERNELS, FAMILIES, ATTENTION = details
    KINDS = {  # noqa: RUF012
        "elementwise_percent": "elementwise kernels",
        "reduction_percent": "reductions",
        "softmax_percent": "softmax (the loss's too)",
        "copy_percent": "copies",
    }

    def _prepare(self, site: Site) -> None:
        first = next(site.rows(self.FORWARD, status="ok", dtype="fp32"), None)
        self.range_by, self.kernels_by = (
            "torch's profiler" if entry(first, column).startswith("torch") else "nsys"
            for column in ("range_tool", "kernel_tool")
        )
        self.times = " or ".join(site.levels(self.FORWARD, "forward_range_ms_n", dtype="fp32"))
        self.times += " " * bool(self.times)
        # Sizes and contexts with a trace in FP32, context by context.
        found = [(row["size"], row["seq_len"]) for row in site.rows(self.FORWARD, status="ok", dtype="fp32")]
        self.traced = sorted(found, key=lambda cell: int(cell[1]))
        last = self.traced[-1] if found else ("-", "-")
        # The cell that answers speak of, and that whose kernels are listed; on a CPU the largest.
        self.big, self.detailed = (("2.7B", "512"), ("small", "128")) if site.gpu else (last, last)

    def parts(self) -> Iterator[Part]:
        """Passes, then kernels; answers letter by letter."""
        by = self.range_by
        time = "kernel time" if by == "nsys" else "the time of operators, which stand for kernels"
        yield Table(
            "(a), (d), (e) Forward pass, matmul share, one layer's attention.",
            f"FP32, batch {self.site.batch_of(self.figure, '4')}, {self.site.one_device}; forward by {by}, median ± "
            f"half IQR of {self.times}traced passes, and by timeit, the host clock of the same passes; matmul share of "
            f"{time}; the two attention matmuls and the softmax of one layer.",
            [
                *("model_size", "context_len", "nsys forward (ms)", "timeit forward (ms)", "matmul, inference (%)"),
                *("matmul, full step (%)", "attn matmuls (μs)", "softmax (μs)"),
            ],
            [self.line(*at) for at in product(sizes(self.site, self.FORWARD), contexts(self.site, self.FORWARD))],
        )
        (size, context), tool = self.detailed, self.kernels_by
        most = {one: self.most(one, count) for one, count in (("forward", 5), ("backward", 2))}
        yield Table(
            f"(b), (c) {'Kernels' if tool == 'nsys' else 'Operators'} with most time in forward and backward, {size}.",
            f"By {tool}, mean of {self.times}passes; FP32, batch {self.site.batch_of(self.figure, '4')}, context "
            f"{context}.",
            ["NVTX Range", "Kern Inst", "Total Time", "Avg", "Med", "Min", "Max", "StdDev", "Kernel Name"],
            [self.kernel(one, row) for one, rows in most.items() for row in rows],
            "Published: 002 (size and context not stated): top kernel 47.2 %, elementwise over 15 %, matmuls 66.3 "
            "then 54.5 %, softmax 316 against 146 μs per matmul.",
        )
        at, before = ", ".join(self.big), self.of(SCRIPT, "forward_ms_mean", self.big)
        yield Lettered(
            "a",
            f"At {at} forward takes {self.of(self.FORWARD, 'forward_range_ms', self.big)} ms by {by} and "
            f"{by_timeit(self.row(self.FORWARD, self.big))} by timeit"
            f"{f', {before} in benchmarking_script' if before else ''}.",
            self.against_untraced(),
        )
        yield from self.where_time_goes()
        filled = {cell: share for cell in self.traced if (share := self.filled(*cell))}
        said = self.fill(filled)
        yield Title(said.replace("untraced forward", "untraced forward (◆)"))
        if self.site.gpu and ends(filled.values())[0].value < 60:
            yield Finding(1, "one device", f"{said}.")

    def where_time_goes(self) -> Iterator[Part]:
        """(b) to (e)."""
        at, where = ", ".join(self.big), ", ".join(self.detailed)
        top = self.row(self.TOP, self.detailed)
        count = figure(top, "forward_launches").value
        busy = "kernel time" if self.kernels_by == "nsys" else "operator time"
        kernel, both = (short(entry(top, f"{one}_kernel")) for one in ("forward", "both"))
        then = "it still" if both == kernel else both
        yield Lettered(
            "b",
            f"{kernel} takes {figure(top, 'forward_percent')} % of forward's {busy} in {count:g} "
            f"launch{'es' * (count > 1)} ({where}).",
            f"With backward {then} leads, at {figure(top, 'both_percent')} %.",
        )
        forward = self.row(self.FAMILIES, self.detailed, **{"pass": "forward"})
        families = [(figure(forward, column), name) for column, name in self.KINDS.items()]
        families = sorted((one for one in families if one[0] and one[0].value), key=lambda one: -one[0].value)[:3]
        shares = [f"{name} {share} %" for share, name in families]
        if families:
            share, name = families[0]
            shares[0] = f"{name} {'takes' if name.startswith('softmax') else 'take'} {share} % of that time"
        yield Lettered("c", f"Besides matmuls, {', '.join(shares)} ({where})." if families else "")
        inference, forward, step = (
            self.row(self.FAMILIES, self.big, **{"pass": one}) for one in ("inference", "forward", "full step")
        )
        products, in_step = (figure(row, PRODUCTS) for row in (inference, step))
        least, most = (figure(row, ELEMENTWISE) for row in (forward, step))
        optimizer = figure(step, "optimizer_percent")
        some = "at least " * (figure(forward, "other_percent").value > 0)  # rare kernels are one sum, of no family
        yield Lettered(
            "d",
            f"Matmuls take {products} % of inference and {in_step} % of a full step ({at}).",
            f"Elementwise kernels take {some}{least} % of forward and {most} % of the step"
            f"{f', the optimizer {optimizer} %' if optimizer and optimizer.value else ''}.",
        )
        spent, flop = (self.of(self.ATTENTION, column, self.big).percent() for column in ("time_ratio", "flop_ratio"))
        yield Lettered(
            "e",
            f"Softmax takes {spent} % of the attention matmuls' time with {flop} % of their FLOP ({at}).",
            Why(
                "Softmax moves whole N × N matrices and computes little; the matmuls reuse what they load.",
                spent.value >= 2 * flop.value,
            ),
        )

    def fill(self, filled: Mapping[tuple[str, str], Figure]) -> str:
        """Where forward is least a matter of its kernels. filled: share by size and context."""
        nowhere = ("", ""), NO_FIGURE
        (size, context), least = min(filled.items(), key=lambda one: one[1].value, default=nowhere)
        what, of = ("In FP32 kernels", "untraced forward") if self.site.gpu else ("Operators", "forward")
        big = "" if (size, context) == tuple(self.big) else f", {self.filled(*self.big)} % at {', '.join(self.big)}"
        return f"{what} fill {least} % of {of} at {size}, {context}{big}"

    def against_untraced(self) -> str:
        """What tracing adds to the host clock of a pass that is not traced."""
        rows = {cell: self.row(self.FORWARD, cell) for cell in self.traced}
        both = {cell: [figure(row, one) for one in ("forward_range_ms", "forward_ms")] for cell, row in rows.items()}
        both = {cell: pair for cell, pair in both.items() if all(pair)}
        ratios = {cell: one.over(two) for cell, (one, two) in both.items() if not one.within_noise(two)}
        longer = {cell: ratio for cell, ratio in ratios.items() if ratio.value > 1.02}
        cell, most = max(longer.items(), key=lambda one: one[1].value, default=(("", ""), NO_FIGURE))
        where = f"in {len(longer)} of {len(both)} cells, at most {most} times ({', '.join(cell)})"
        return f"Traced passes take over 2 % longer than untraced ones, beyond noise, {where}."

    def filled(self, size: str, context: str) -> Figure:
        """Share of forward that kernels take, percent: of the pass without a trace, which makes launches slower."""
        whole = "forward_ms" if self.site.gpu else "forward_range_ms"
        return self.of(self.FORWARD, "forward_busy_ms", (size, context)).share(
            self.of(self.FORWARD, whole, (size, context))
        )

    def row(self, table: str, cell: tuple[str, str], **levels: str) -> Row | None:
        """What a size and context gave in FP32."""
        return self.site.row(table, size=cell[0], seq_len=cell[1], dtype="fp32", **levels)

    def of(self, table: str, column: str, cell: tuple[str, str]) -> Figure:
        """A figure of it."""
        return figure(self.row(table, cell), column)

    def line(self, size: str, context: str) -> Entries:
        """A row of the first table."""
        at = (size, context)
        forward, attention = (self.row(one, at) for one in (self.FORWARD, self.ATTENTION))
        shares = (self.row(self.FAMILIES, at, **{"pass": one}) for one in ("inference", "full step"))
        scores, final = (figure(attention, f"{one}_matmul_us") for one in ("scores", "final"))
        return [
            *(size, context, as_cell(forward, "forward_range_ms"), shown(by_timeit(forward), forward)),
            *(as_cell(row, PRODUCTS) for row in shares),
            *(shown(scores.of(scores.value + final.value), attention), as_cell(attention, "softmax_us")),
        ]

    def kernel(self, of_range: str, row: Row | None) -> Entries:
        """A row of it."""
        launches = figure(row, "launches")
        columns = ("total_us", "mean_us", "median_us", "min_us", "max_us", "std_us")
        times = (as_cell(row, column, unit=" μs") for column in columns)
        name = f"`{row['kernel']}`" if row else NOTHING
        return [f":{of_range}", replace(launches, exact=launches.value.is_integer()), *times, name]

    def most(self, of_range: str, count: int) -> list[Row | None]:
        """The kernels of a range with most time, and None for those that the trace does not keep."""
        size, context = self.detailed
        levels = {"size": size, "seq_len": context, "dtype": "fp32", "range": of_range}
        found = sorted(filter(ok, self.site.rows(self.KERNELS, **levels)), key=lambda row: -float(row["total_us"]))
        return [*found[:count], *[None] * (count - len(found))]


def short(kernel: str) -> str:
    """A kernel's name without what all products' names share, and without what the trace cut."""
    parts = re.match(r"(\w+?_gemm)_\w*?_([nt]{2}_n_tilesize\d+x\d+x\d+)[^#]*(#\w+)?", kernel)
    return f"`{parts[1]}…{parts[2]}{parts[3] or ''}`" if parts else f"`{kernel}`"


def by_timeit(row: Row | None) -> Figure:
    """Forward of the traced passes by the host clock, ms."""
    traced, ratio = figure(row, "forward_range_ms"), figure(row, "range_over_traced")
    return traced.of(traced.value / ratio.value)


def ours(site: Site) -> str:
    """The implementation that was written for the homework: the user's own, where there is one."""
    return site.handed_in(FLASH, "triton" if site.gpu else "tiled", YOURS)


CHECKED_TOO = "; checked too: log-sum-exp, causal and not, 64 and 128 tokens"


class FlashForward(Problem):
    """Our FlashAttention-2, checked against float64."""

    CHECK = FLASH
    KERNEL = "triton_forward.py"

    def parts(self) -> Iterator[Part]:
        """The errors of all cells that were timed, how many are too far off; where code and tests are."""
        whose = ours(self.site)
        rows = [row for dtype in TOLERANCE for row in self.site.rows(FLASH, implementation=whose, dtype=dtype)]
        errors: dict[str, list[float]] = {dtype: [] for dtype in ("bf16", "fp32")}
        for row in rows:
            errors[row["dtype"]] += [one.value] if (one := figure(row, "largest_relative_error")) else []
        wrong = sum(
            row["status"] == "failed" and (whose == YOURS or "against float64" in row["reason"]) for row in rows
        )
        limits = HANDOUT_TOLERANCE if ours(self.site) == YOURS else TOLERANCE
        wrong += sum(error > limits[dtype] for dtype, found in errors.items() for error in found)
        if wrong or any(errors.values()):
            yield Status("check failed" if wrong else "checked")
        largest = ", ".join(
            f"{max(of):.3g} in {dtype} (allowed {limits[dtype]:g})" for dtype, of in errors.items() if of
        )
        # What the first wrong cell of the user's own code says.
        said = [fault(row) for row in rows if whose == YOURS and row["status"] == "failed"]
        first = f", the first: {said[0]}" if said else ""
        ended = sum(row["status"] in ("timeout", "oom") for row in rows)
        unwritten = (row["reason"] for row in self.site.rows(FLASH, implementation=YOURS, status="unsupported"))
        raised = next((reason for reason in unwritten if "NotImplementedError" in reason), "")
        code = self.KERNEL if self.site.gpu else "tiled.py"
        yield Answer(
            f"Yours {raised}: these rows are ours." if raised and whose != YOURS else "",
            f"Largest relative error of output and gradients against float64: {largest}." if largest else "",
            f"Failed: {wrong} of {len(rows)} cells{first}." if wrong else "",
            f"Not checked, as they did not end: {ended} of {len(rows)} cells." if ended else "",
            f"The code is yours{CHECKED_TOO if largest else ''} ([cells](details/subjects.md))."
            if whose == YOURS
            else f"Code: [{code}](../../perfscribe/attention/{code}), "
            "tests: [test_flash_attention.py](../../tests/attention/test_flash_attention.py).",
        )


class FlashBackward(FlashForward):
    """Its gradients, checked in the same cells."""

    KERNEL = "triton_backward.py"


class FlashBenchmarking(Problem):
    """Our FlashAttention-2 against plain PyTorch."""

    details = ("cs336.flash_cells", "cs336.flash_leaderboard")
    letters = "(a)"
    figure = "cs336.flash_times"
    PASSES = ("forward", "backward", "both")

    def _prepare(self, site: Site) -> None:
        self.both = ("eager", ours(site))  # PyTorch's and ours
        self.whose = "yours" if ours(site) == YOURS else "ours"
        lengths = [str(2**power) for power in range(7, 17)]
        self.lengths = site.swept(FLASH, "seq_len", lengths, (), implementation="tiled")
        widths = site.swept(FLASH, "head_dim", ("16", "32", "64", "128"), (), implementation="tiled")
        ran = site.swept(FLASH, "dtype", list(TOLERANCE), list(TOLERANCE), implementation="tiled")
        dtypes = [dtype for dtype in TOLERANCE if dtype in ran]
        self.problems = [(length, width, dtype) for length in self.lengths for width in widths for dtype in dtypes]

    def parts(self) -> Iterator[Part]:
        """All lengths, widths and dtypes; from where on ours is faster; where plain PyTorch ends."""
        gpu, site = self.site.gpu, self.site
        triton, cudnn, board = leaderboard(site)
        best, hardware = entry(board, "both_ms", LACKING), entry(board, "hardware")
        timed = f"both_{'launched_' * gpu}ms_n"
        counts = sorted({int(one) for whose in self.both for one in site.levels(FLASH, timed, implementation=whose)})
        number = " to ".join(map(str, dict.fromkeys([*counts[:1], *counts[-1:]])))
        clock = f"Median of {number}{', CUDA events' if gpu else ', host clock'}"
        language = "Triton" if gpu else "PyTorch" if self.whose == YOURS else "PyTorch tiles"
        products = "; in fp32 ours multiplies by three TF32 matmuls, vanilla in FP32"
        yield Table(
            f"(a) Attention latency{' with launches' if gpu else ''}, ms.",
            f"{clock}{self.widest()}; batch {site.batch_of(FLASH, '1')}, one head, causal, {site.one_device}; "
            f"vanilla is plain PyTorch, flash {self.whose} in {language}{products * (gpu and self.whose != YOURS)}.",
            [
                *("seq_len", "d_model", "precision"),
                *(f"{name}_{one}_ms" for one in ("fwd", "bwd", "fwd_bwd") for name in ("vanilla", "flash")),
            ],
            [
                [*cell, *(self.cell(who, one, *cell) for one in self.PASSES for who in self.both)]
                for cell in self.problems
            ],
            self.end_to_end() if gpu else "",
            f"Leaderboard problem: {self.whose} {triton} ms, cuDNN {cudnn}, best verified entry {best} ({hardware})."
            if gpu
            else "",
            "Published: 002 at 16384 × 64, bf16, end to end: vanilla 8.63, flash 7.37 ms.",
        )
        ratios = {cell: ratio for cell in self.problems if (ratio := self.times_as_long(*cell))}
        last = max((length for length, width, dtype in ratios if (width, dtype) == ("64", "bf16")), key=int, default="")
        plain, flash = (self.time(who, "both", last) for who in self.both)
        where = {dtype: self.where_faster(ratios, dtype) for dtype in ("bf16", "fp32")}
        at, times = (
            f"End to end{' with launches' * gpu} (bf16, d 64)",
            f"{where['bf16']}: {flash} against {plain} ms at {last}.",
        )
        shortest = next(iter(self.lengths), "")
        launched, kernels = (self.time(ours(site), "both", shortest, launched=one) for one in (True, False))
        yield Answer(
            f"{at} {self.whose} is faster {times}",
            self.slower(ratios),
            self.memory(),
            Why(
                "At short lengths launches take longer than kernels.",
                gpu and launched.value >= 2 * kernels.value,
            ),
        )
        our = self.whose.removesuffix("s")
        if where["bf16"] != "at no length" and gpu:
            yield Finding(2, "one device", f"{at} {our} FlashAttention-2 beats PyTorch {times}")
        entries = f"cuDNN {cudnn}, the best verified entry {best} (on {hardware})"
        said = f"On the leaderboard problem {our} FlashAttention-2 takes {triton} ms, {entries}."
        yield Finding(7, "one device", said)
        if self.whose == YOURS:  # the figure has ours
            return
        if gpu:
            said = ", ".join(f"{of} in {dtype}" for dtype, of in where.items())
            yield Title(f"With launches FlashAttention-2 is faster than PyTorch {said} (d 64)")
        else:
            yield Title(f"At {last} tokens FlashAttention-2 takes {flash} ms, PyTorch {plain} (bf16, d 64)")

    def row(self, who: str, length: str, width: str, dtype: str) -> Row | None:
        """What an implementation gave."""
        return self.site.row(FLASH, implementation=who, seq_len=length, head_dim=width, dtype=dtype)

    def time(
        self, who: str, one: str, length: str, width: str = "64", dtype: str = "bf16", launched: bool = True
    ) -> Figure:
        """A pass, ms, with launches or on the device alone; printed without spread."""
        column = self.column(one) if launched else f"{one}_ms"
        return replace(figure(self.row(who, length, width, dtype), column), single=True)

    def column(self, one: str) -> str:
        """The column of a pass; the host clock has the launches in any case."""
        return f"{one}_launched_ms" if self.site.gpu else f"{one}_ms"

    def cell(self, who: str, one: str, length: str, width: str, dtype: str) -> Cell:
        """The same as a cell."""
        return shown(self.time(who, one, length, width, dtype), self.row(who, length, width, dtype))

    def widest(self) -> str:
        """The largest spread in percent of its figure."""
        found = []
        for cell in self.problems:
            times = (figure(self.row(who, *cell), self.column(one)) for who in self.both for one in self.PASSES)
            found += [(one.of(100 * one.spread / one.value), cell) for one in times if one and one.spread]
        if not found:
            return ""
        most, (length, width, dtype) = max(found, key=lambda one: one[0].value)
        return f", half IQR at most {replace(most, most=3)} % of it ({length} × {width}, {dtype})"

    def times_as_long(self, length: str, width: str, dtype: str) -> Figure:
        """Ours over PyTorch's time, end to end; 1 within noise."""
        plain, flash = (self.time(who, "both", length, width, dtype) for who in self.both)
        return Figure(1, exact=True) if plain.within_noise(flash) else flash.over(plain)

    @staticmethod
    def where_faster(ratios: Mapping[tuple[str, str, str], Figure], dtype: str) -> str:
        """At which lengths ours is faster, at width 64. ratios: times as long, by cell."""
        of = {length: times.value for (length, *rest), times in ratios.items() if rest == ["64", dtype]}
        others = [length for length, times in of.items() if times >= 1]
        if len(others) == len(of):
            return "at no length" if of else LACKING
        if others and others == list(of)[: len(others)]:
            return f"from {list(of)[len(others)]} tokens on"
        but = ", ".join(others) if len(others) < 4 else f"{len(others)} of {len(of)}"
        noise = " (within noise)" * all(of[length] == 1 for length in others)
        return f"except at {but}{noise}" if others else "at every length"

    def slower(self, ratios: Mapping[tuple[str, str, str], Figure]) -> str:
        """In how many cells it is slower beyond noise, and by how much at most."""
        (length, width, dtype), most = max(ratios.items(), key=lambda one: one[1].value, default=(("",) * 3, NO_FIGURE))
        slow = sum(times.value > 1 for times in ratios.values())
        where = f"cells {self.whose} is slower, up to {most}x ({length} × {width}, {dtype})"
        return f"In {slow} of {len(ratios)} {where}." if slow else ""

    def memory(self) -> str:
        """Where plain PyTorch runs out of memory."""
        found = [cell for cell in self.problems if entry(self.row("eager", *cell), "status") == "oom"]
        named = [f"{length} × {width} in {dtype}" for length, width, dtype in found]
        if len(named) > 3:
            return f"PyTorch runs out of memory in {len(named)} cells, first {named[0]}."
        return f"PyTorch runs out of memory at {', '.join(named)}." if named else "PyTorch never runs out of memory."

    def end_to_end(self) -> str:
        """Ours and the kernels of libraries, launched and on the device."""
        names = {ours(self.site): self.whose, "sdpa_cudnn": "cuDNN", "sdpa_flash": "SDPA flash"}
        said = []
        for length in ("1024", "16384", "65536"):
            times = (
                f"{name} {self.time(who, 'both', length)} ({self.time(who, 'both', length, launched=False)})"
                for who, name in names.items()
            )
            said.append(f"at {length} {', '.join(times)}")
        return f"End to end (bf16, d 64), ms with launches (on the device): {'; '.join(said)}."


def board_entry(site: Site) -> str:
    """The entry that is handed in."""
    return f"here: {YOURS if ours(site) == YOURS else 'Triton (ours)'}"


def leaderboard(site: Site) -> tuple[Figure, Figure, Row | None]:
    """Ours and cuDNN by the leaderboard's closure, ms, and its best entry that was verified."""
    mine, cudnn = (site.value(BOARD, "closure_ms", entry=entry) for entry in (board_entry(site), "here: SDPA, cuDNN"))
    entries = [row for row in site.rows(BOARD) if row["standing"].startswith("verified") and figure(row, "both_ms")]
    return mine, cudnn, min(entries, key=lambda row: float(row["both_ms"]), default=None)
