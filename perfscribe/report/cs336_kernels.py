"""CS336 assignment 2 (systems): the problems about kernels, traced by nsys or written in Triton."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from perfscribe.report.cs336 import contexts, one_device, sizes
from perfscribe.report.problem import Answer, Problem, Table
from perfscribe.report.site import NOT_MEASURED, NOTHING, Cell, Missing, Row, Site, as_cell, label, of, some
from perfscribe.show.rounding import Figure

DTYPES = ("fp32", "bf16")
FLASH = "cs336.flash_cells"
# The largest relative error that the experiment lets pass (flash_benchmarking/correctness.py).
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


def short(kernel: str) -> str:
    """A kernel's name without what all products' names share, and without what the trace cut."""
    parts = re.match(r"(\w+?_gemm)_\w*?_([nt]{2}_n_tilesize\d+x\d+x\d+)", kernel)
    return f"`{parts[1]}…{parts[2]}`" if parts else f"`{kernel}`"


def made(figure: Figure | None, row: Row | None) -> Cell:
    """A cell of a figure that was computed, or the word of its row's status."""
    return Cell(str(figure)) if figure else as_cell(row, "")


def ours(site: Site) -> str:
    """The implementation that was written for the homework."""
    return "triton" if site.gpu else "tiled"


class NsysProfile(Problem):
    """Forward pass by nsys, kernels with most time, share of products, attention."""

    name = "nsys_profile"
    heading = "Problem (nsys_profile)"
    details = (
        "cs336.nsys_forward",
        "cs336.nsys_top_kernels",
        "cs336.nsys_nvtx_kernels",
        "cs336.nsys_families",
        "cs336.nsys_matmul_share",
        "cs336.nsys_attention",
    )
    letters = "(a)-(e)"
    figure = "cs336.nsys_forward"
    FORWARD, SHARE, ATTENTION = "cs336.nsys_forward", "cs336.nsys_matmul_share", "cs336.nsys_attention"
    KERNELS, FAMILIES, TOP = "cs336.nsys_nvtx_kernels", "cs336.nsys_families", "cs336.nsys_top_kernels"
    KINDS = (
        ("elementwise_percent", "elementwise kernels"),
        ("reduction_percent", "reductions"),
        ("softmax_percent", "softmax"),
        ("copy_percent", "copies"),
    )
    COUNTED = ("nothing", "one kernel", "two kernels", "three kernels", "four kernels")

    def tables(self) -> list[Table]:
        """Passes, then kernels."""
        return [self.passes(), self.kernels()]

    def answers(self) -> list[Answer]:
        """Letter by letter."""
        return [
            Answer("a", [self.forward, self.untraced]),
            Answer("b", [self.top, self.top_of_both]),
            Answer("c", [self.others]),
            Answer("d", [self.products, self.elementwise]),
            Answer("e", [self.softmax, self.why_softmax]),
        ]

    def title(self) -> str:
        """Where the GPU waits for launches."""
        idle = {cell: self.idle(*cell) for cell in self.traced()}
        (size, context), most = max(some(idle.items()), key=lambda one: one[1].value)
        if not self.site.gpu:
            return f"Between operators the host spends at most {most.quoted} % of forward ({size}, {context})"
        if most.value <= 50:
            return f"In FP32 the GPU idles at most {most.quoted} % of forward ({size}, {context})"
        for before, cell in pairwise(idle):
            if before[1] == cell[1] and idle[before].value > 50 >= idle[cell].value:
                return f"Below {cell[0]} at {cell[1]} the GPU idles most of the time"
        return f"At {size} and {context} the GPU idles {most.quoted} % of forward"

    def passes(self) -> Table:
        """Each size and context."""
        by = self.tool("range_tool")
        time = "kernel time" if by == "nsys" else "the time of operators, which stand for kernels"
        return Table(
            "(a), (d), (e) Forward pass, share of products, one layer's attention.",
            f"FP32, batch 4, {one_device(self.site)}; forward by {by}, median ± half IQR of {self.times()}traced "
            f"passes, and by timeit, the host clock of the same passes; products' share of {time}; one layer's two "
            "attention products and softmax.",
            [
                *("model_size", "context_len", "nsys forward (ms)", "timeit forward (ms)", "matmul, inference (%)"),
                *("matmul, full step (%)", "attn matmuls (μs)", "softmax (μs)"),
            ],
            [self.cells(size, context) for size in sizes(self.site) for context in contexts(self.site)],
        )

    def cells(self, size: str, context: str) -> list[Cell]:
        """A row of it."""
        levels = {"size": size, "seq_len": context, "dtype": "fp32"}
        forward, share, attention = (self.site.row(table, **levels) for table in
                                     (self.FORWARD, self.SHARE, self.ATTENTION))  # fmt: skip
        products = [of(attention, f"{one}_matmul_us") for one in ("scores", "final")]
        both = products[0].of(products[0].value + products[1].value) if products[0] and products[1] else None
        return [
            label(size),
            label(context),
            as_cell(forward, "forward_range_ms"),
            made(by_timeit(forward), forward),
            as_cell(share, "inference_percent"),
            as_cell(share, "full_step_percent"),
            made(both, attention),
            as_cell(attention, "softmax_us"),
        ]

    def kernels(self) -> Table:
        """Kernels with most time, of the smallest size."""
        size, context = self.detailed()
        by, mark = self.tool("kernel_tool"), self.mark()
        kept = len(self.most("forward", 5))
        at = f"context {context}"
        if mark:
            at = f"‡ context {context} in place of 128"
            at += f", of which the trace keeps {self.COUNTED[kept]} per range" if kept < 5 else ""
        return Table(
            f"(b), (c) {'Kernels' if by == 'nsys' else 'Operators'} with most time in forward and backward, "
            f"{size}{mark}.",
            f"By {by}, mean of {self.times()}passes; FP32, batch 4{'; ' if mark else ', '}{at}.",
            ["NVTX Range", "Kern Inst", "Total Time", "Avg", "Med", "Min", "Max", "StdDev", "Kernel Name"],
            [
                self.kernel(one, row)
                for one, rows in (("forward", 5), ("backward", 2))
                for row in self.padded(one, rows)
            ],
            [
                "Published: 002 (size and context not stated): top kernel 47.2 %, elementwise over 15 %, products 66.3 "
                "then 54.5 %, softmax 316 against 146 μs per product."
            ],
        )

    def kernel(self, of_range: str, row: Row | None) -> list[Cell]:
        """A row of it."""
        launches = of(row, "launches")
        count = replace(launches, exact=launches.value == round(launches.value)) if launches else None
        times = ("total_us", "mean_us", "median_us", "min_us", "max_us", "std_us")
        return [
            label(f":{of_range}"),
            Cell(str(count)) if count else NOT_MEASURED,
            *(as_cell(row, column, unit=" μs") for column in times),
            label(f"`{row['kernel']}`" if row else NOTHING),
        ]

    def most(self, of_range: str, count: int) -> list[Row]:
        """The kernels of a range with most time."""
        size, context = self.detailed()
        found = [
            row
            for row in self.site.rows(self.KERNELS, size=size, seq_len=context, dtype="fp32", range=of_range)
            if row["status"] == "ok"
        ]
        return sorted(found, key=lambda row: -float(row["total_us"]))[:count]

    def padded(self, of_range: str, count: int) -> list[Row | None]:
        """The same, with None for those that the trace does not keep."""
        found = self.most(of_range, count)
        return [*found, *[None] * (count - len(found))]

    def detailed(self) -> tuple[str, str]:
        """Size and context whose kernels are listed: small at 128, else at what was traced; on a CPU the largest."""
        traced = self.traced()
        if not self.site.gpu:
            return traced[-1] if traced else ("-", "-")
        return next((cell for cell in traced if cell[0] == "small"), ("small", "128"))

    def mark(self) -> str:
        """Whether the kernels are of another context."""
        return "‡" if self.site.gpu and self.detailed()[1] != "128" else ""

    def traced(self) -> list[tuple[str, str]]:
        """Sizes and contexts with a trace in FP32, context by context."""
        found = [(row["size"], row["seq_len"]) for row in self.site.rows(self.FORWARD, status="ok", dtype="fp32")]
        return sorted(found, key=lambda cell: int(cell[1]))

    def tool(self, column: str) -> str:
        """What traced."""
        row = next(self.site.rows(self.FORWARD, status="ok", dtype="fp32"), None)
        return "torch's profiler" if row is not None and row[column].startswith("torch") else "nsys"

    def times(self) -> str:
        """How many passes were traced, with a blank."""
        numbers = self.site.levels(self.FORWARD, "forward_range_ms_n", dtype="fp32")
        return f"{' or '.join(numbers)} " if numbers else ""

    def big(self) -> tuple[str, str]:
        """The cell that answers speak of: the largest size, at 512."""
        return ("2.7B", "512") if self.site.gpu else self.traced()[-1]

    def small(self) -> tuple[str, str]:
        """The smallest size at the least context."""
        return next(cell for cell in self.traced() if cell[0] == sizes(self.site)[0])

    def value(self, table: str, column: str, cell: tuple[str, str], **levels: str) -> Figure:
        """A figure of a size and context in FP32."""
        return self.site.figure(table, column, size=cell[0], seq_len=cell[1], dtype="fp32", **levels)

    def idle(self, size: str, context: str) -> Figure:
        """Share of forward without any kernel, percent."""
        idle, whole = (self.value(self.FORWARD, f"forward_{one}_ms", (size, context)) for one in ("idle", "range"))
        return idle.share(whole)

    def clocks(self, cell: tuple[str, str]) -> tuple[str, str]:
        """Forward by nsys and by timeit."""
        timeit = by_timeit(self.site.row(self.FORWARD, size=cell[0], seq_len=cell[1], dtype="fp32"))
        if timeit is None:
            raise Missing(self.FORWARD)
        return self.value(self.FORWARD, "forward_range_ms", cell).quoted, timeit.quoted

    def forward(self) -> str:
        """Both clocks."""
        (long, timeit), (brief, brief_timeit) = (self.clocks(cell) for cell in (self.big(), self.small()))
        return (
            f"Forward takes {long} ms by {self.tool('range_tool')} and {timeit} by timeit at {', '.join(self.big())}, "
            f"{brief} and {brief_timeit} at {', '.join(self.small())}."
        )

    def untraced(self) -> str:
        """The same without a profiler."""
        big, small = (self.value(self.FORWARD, "forward_ms", cell) for cell in (self.big(), self.small()))
        by = self.tool("range_tool")
        return f"Without {by if by == 'nsys' else 'the profiler'} it takes {big.quoted} and {small.quoted} ms."

    def where(self) -> str:
        """Of which model the kernels are."""
        size, context = self.detailed()
        return size if self.site.gpu else f"{size}, {context}"

    def top(self) -> str:
        """The kernel with most time in forward."""
        size, context = self.detailed()
        row = self.site.row(self.TOP, size=size, seq_len=context, dtype="fp32")
        share, count = (self.value(self.TOP, f"forward_{one}", self.detailed()) for one in ("percent", "launches"))
        kernel = short(row["forward_kernel"]) if row else NOTHING
        launches = f"{count.value:g} launch{'es' if count.value > 1 else ''}"
        return f"{kernel} takes {share.quoted} % of forward in {launches} ({self.where()})."

    def top_of_both(self) -> str:
        """The same with backward."""
        size, context = self.detailed()
        row = self.site.row(self.TOP, size=size, seq_len=context, dtype="fp32")
        share = self.value(self.TOP, "both_percent", (size, context))
        same = row is not None and row["both_kernel"] == row["forward_kernel"]
        kernel = "the same" if same or row is None else short(row["both_kernel"])
        return f"With backward it is {kernel}, {share.quoted} %{self.mark()}."

    def others(self) -> str:
        """What else takes time in forward."""
        shares = [
            (self.value(self.FAMILIES, column, self.detailed(), **{"pass": "forward"}), name)
            for column, name in self.KINDS
        ]
        (most, first), *rest = sorted((one for one in shares if one[0].value), key=lambda one: -one[0].value)[:3]
        takes = f"{first} {'takes' if first == 'softmax' else 'take'} {most.quoted} % of forward"
        more = "".join(f", {name} {share.quoted} %" for share, name in rest)
        return f"Besides products, {takes}{more} ({self.where()}){self.mark()}."

    def products(self) -> str:
        """Share of products in inference and in a step."""
        big = self.big()
        inference, step = (self.value(self.SHARE, f"{one}_percent", big) for one in ("inference", "full_step"))
        return f"Products take {inference.quoted} % of inference and {step.quoted} % of a full step ({', '.join(big)})."

    def elementwise(self) -> str:
        """Share of other kernels in both; inference where it has a row, else forward."""
        big = self.big()
        column = "elementwise_percent"
        inference = self.site.row(self.FAMILIES, size=big[0], seq_len=big[1], dtype="fp32", **{"pass": "inference"})
        first = "inference" if of(inference, column) else "forward"
        least, step = (self.value(self.FAMILIES, column, big, **{"pass": one}) for one in (first, "full step"))
        optimizer = self.value(self.FAMILIES, "optimizer_percent", big, **{"pass": "full step"})
        last = f", the optimizer {optimizer.quoted} %" if optimizer.value else ""
        return f"Elementwise kernels take {least.quoted} % of {first} and {step.quoted} % of the step{last}."

    def softmax_shares(self) -> list[Figure]:
        """Time and FLOP of softmax, in percent of the attention products'."""
        found = [self.value(self.ATTENTION, column, self.big()) for column in ("time_ratio", "flop_ratio")]
        return [one.of(100 * one.value) for one in found]

    def softmax(self) -> str:
        """Softmax against the attention products."""
        time, flop = (one.quoted for one in self.softmax_shares())
        return f"Softmax takes {time} % of the products' time with {flop} % of their FLOP ({', '.join(self.big())})."

    def why_softmax(self) -> str:
        """Why, where its share of time is far above its share of FLOP."""
        time, flop = self.softmax_shares()
        if time.value < 2 * flop.value:
            raise Missing(self.ATTENTION)
        return "Softmax moves whole N × N matrices and computes little; the products reuse what they load."


def by_timeit(row: Row | None) -> Figure | None:
    """Forward of the traced passes by the host clock, ms."""
    traced, ratio = of(row, "forward_range_ms"), of(row, "range_over_traced")
    return traced.of(traced.value / ratio.value) if traced and ratio else None


class FlashForward(Problem):
    """Our FlashAttention-2, checked against float64."""

    name = "flash_forward"
    heading = "Problem (flash_forward)"
    KERNEL = "triton_forward.py"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.by = self.checked()

    def answers(self) -> list[Answer]:
        """The error, and where code and tests are."""
        code = self.KERNEL if self.site.gpu else "tiled.py"
        links = (
            f"Code: [{code}](../../perfscribe/attention/{code}), "
            "tests: [test_flash_attention.py](../../tests/test_flash_attention.py)."
        )
        return [Answer("", [self.error, self.failed, links])]

    def errors(self, dtype: str) -> list[float]:
        """Of all cells of a dtype that were timed."""
        rows = self.site.rows(FLASH, implementation=ours(self.site), dtype=dtype)
        return [found.value for row in rows if (found := of(row, "largest_relative_error"))]

    def wrong(self) -> int:
        """Cells that are further off than allowed, which are not timed."""
        rows = [row for dtype in DTYPES for row in self.site.rows(FLASH, implementation=ours(self.site), dtype=dtype)]
        stopped = sum(row["status"] == "failed" and "against float64" in row["reason"] for row in rows)
        return stopped + sum(error > TOLERANCE[dtype] for dtype in DTYPES for error in self.errors(dtype))

    def checked(self) -> str:
        """How the checks ended, for the first page."""
        if self.wrong():
            return "check failed"
        return "checked" if any(self.errors(dtype) for dtype in DTYPES) else ""

    def error(self) -> str:
        """The largest ones."""
        errors = {dtype: self.errors(dtype) for dtype in reversed(DTYPES)}
        found = [
            f"{max(these):.3g} in {dtype} (allowed {TOLERANCE[dtype]:g})" for dtype, these in errors.items() if these
        ]
        return f"Largest relative error of output and gradients against float64: {', '.join(some(found))}."

    def failed(self) -> str:
        """How many cells are too far off."""
        if not self.wrong():
            raise Missing(FLASH)
        return f"Cells further off: {self.wrong()}."


class FlashBackward(FlashForward):
    """Its gradients, checked in the same cells."""

    name = "flash_backward"
    heading = "Problem (flash_backward)"
    KERNEL = "triton_backward.py"


class FlashBenchmarking(Problem):
    """Our FlashAttention-2 against plain PyTorch."""

    name = "flash_benchmarking"
    heading = "Problem (flash_benchmarking)"
    details = ("cs336.flash_cells", "cs336.flash_implementations", "cs336.flash_rates", "cs336.flash_leaderboard")
    letters = "(a)"
    figure = "cs336.flash_times"
    BOARD = "cs336.flash_leaderboard"
    PASSES = ("forward", "backward", "both")

    def tables(self) -> list[Table]:
        """All lengths, widths and dtypes."""
        gpu = self.site.gpu
        clock = "median of 5, as do_bench" if gpu else f"median of {self.timings()}, host clock"
        return [
            Table(
                f"(a) Attention latency{' with launches' if gpu else ''}, ms.",
                f"{self.widest()}{clock}; batch 1, one head, causal, {one_device(self.site)}; vanilla is plain "
                f"PyTorch, flash ours in {'Triton' if gpu else 'PyTorch tiles'}.",
                [
                    *("seq_len", "d_model", "precision"),
                    *(f"{name}_{one}_ms" for one in ("fwd", "bwd", "fwd_bwd") for name in ("vanilla", "flash")),
                ],
                [
                    [*map(label, cell), *(self.cell(who, one, *cell) for one in self.PASSES for who in self.both())]
                    for cell in self.problems()
                ],
                [
                    *([Answer("", [self.end_to_end]).text(), Answer("", [self.leaderboard]).text()] if gpu else []),
                    "Published: 002 at 16384 × 64, bf16, end to end: 8.63, 7.37 ms.",
                ],
            )
        ]

    def answers(self) -> list[Answer]:
        """What the table shows."""
        return [Answer("", [self.faster, self.below, self.memory, self.launches])]

    def title(self) -> str:
        """From where on ours is faster."""
        said = [f"{first}{{}} in {dtype}" for dtype in reversed(DTYPES) if (first := self.first_faster(dtype, False))]
        if said and self.site.gpu:
            first, *rest = said
            starts = ", ".join([first.format(" tokens on"), *(one.format("") for one in rest)])
            return f"On the device FlashAttention-2 is faster than PyTorch from {starts} (d 64)"
        last = max(some(self.compared()), key=int)
        plain, flash = (self.time(who, "both", last).quoted for who in self.both())
        return f"At {last} tokens FlashAttention-2 takes {flash} ms, PyTorch {plain} (bf16, d 64)"

    def lengths(self) -> Sequence[str]:
        """Of the homework, or of the preset."""
        if self.site.gpu:
            return tuple(str(2**power) for power in range(7, 17))
        return self.site.levels(FLASH, "seq_len", implementation=ours(self.site))

    def problems(self) -> list[tuple[str, str, str]]:
        """Length, width and dtype of every row."""
        cuda = self.site.gpu
        widths = ("16", "32", "64", "128") if cuda else self.site.levels(FLASH, "head_dim", implementation="tiled")
        return [(length, width, dtype) for length in self.lengths() for width in widths for dtype in DTYPES]

    def both(self) -> tuple[str, str]:
        """Implementations that are compared."""
        return ("eager", ours(self.site))

    def timings(self) -> str:
        """How often each pass was timed."""
        return " or ".join(self.site.levels(FLASH, "both_ms_n", implementation=ours(self.site)))

    def row(self, who: str, length: str, width: str, dtype: str) -> Row | None:
        """What an implementation gave."""
        return self.site.row(FLASH, implementation=who, seq_len=length, head_dim=width, dtype=dtype)

    def time(
        self, who: str, one: str, length: str, width: str = "64", dtype: str = "bf16", launched: bool = True
    ) -> Figure:
        """A pass, ms, with launches or on the device alone; printed without spread."""
        found = of(self.row(who, length, width, dtype), self.column(one) if launched else f"{one}_ms")
        if found is None:
            raise Missing(FLASH)
        return replace(found, single=True)

    def column(self, one: str) -> str:
        """The column of a pass; the host clock has the launches in any case."""
        return f"{one}_launched_ms" if self.site.gpu else f"{one}_ms"

    def cell(self, who: str, one: str, length: str, width: str, dtype: str) -> Cell:
        """The same as a cell."""
        try:
            return Cell(self.time(who, one, length, width, dtype).quoted)
        except Missing:
            return as_cell(self.row(who, length, width, dtype), self.column(one))

    def widest(self) -> str:
        """The largest spread in percent of its figure."""
        found = []
        for cell in self.problems():
            for who in self.both():
                times = [of(self.row(who, *cell), self.column(one)) for one in self.PASSES]
                found += [(one.of(100 * one.spread / one.value), cell) for one in times if one and one.spread]
        if not found:
            return ""
        most, (length, width, dtype) = max(found, key=lambda one: one[0].value)
        return f"Largest half IQR {replace(most, most=3).quoted} % of its median ({length} × {width}, {dtype}); "

    def compared(self, dtype: str = "bf16") -> list[str]:
        """Lengths of which both have a time, at width 64."""
        column = self.column("both")
        return [
            length
            for length in self.lengths()
            if all(of(self.row(who, length, "64", dtype), column) for who in self.both())
        ]

    def first_faster(self, dtype: str, launched: bool = True) -> str:
        """The least length from which on ours is faster by more than it varies; nothing where there is none."""
        first = ""
        for length in reversed(self.compared(dtype)):
            plain, flash = (self.time(who, "both", length, dtype=dtype, launched=launched) for who in self.both())
            if plain.value - flash.value <= (plain.spread or 0.0) + (flash.spread or 0.0):
                break
            first = length
        return first

    def faster(self) -> str:
        """From which length on ours is faster."""
        first, last = self.first_faster("bf16"), max(some(self.compared()), key=int)
        plain, flash = (self.time(who, "both", last).quoted for who in self.both())
        where = f"faster end to end from {first} tokens on" if first else "nowhere faster end to end"
        return f"Ours is {where} (bf16, 64): {flash} against {plain} ms at {last}."

    def below(self) -> str:
        """What both take at shorter lengths."""
        lengths, first = self.compared(), self.first_faster("bf16")
        brief = lengths[: lengths.index(first)] if first in lengths else []
        times = sorted(
            (self.time(who, "both", length) for length in brief for who in self.both()), key=lambda t: t.value
        )
        if not times:
            raise Missing(FLASH)
        return f"Below that both take {times[0].quoted} to {times[-1].quoted} ms."

    def memory(self) -> str:
        """Where plain PyTorch runs out of memory."""
        found = [cell for cell in self.problems() if (row := self.row("eager", *cell)) and row["status"] == "oom"]
        named = [f"{length} × {width} in {dtype}" for length, width, dtype in found]
        if len(named) > 3:
            return f"PyTorch runs out of memory in {len(named)} cells, the shortest {named[0]}."
        return f"PyTorch runs out of memory at {', '.join(named)}." if named else "PyTorch nowhere runs out of memory."

    def launches(self) -> str:
        """Why it is not faster at short lengths, where launches take most of the time."""
        shortest = self.lengths()[0]
        kernels = of(self.row(ours(self.site), shortest, "64", "bf16"), "both_ms")
        if not self.site.gpu or kernels is None:
            raise Missing(FLASH)
        if self.time(ours(self.site), "both", shortest).value < 2 * kernels.value:
            raise Missing(FLASH)
        return "At short lengths launches from Python take longer than the kernels."

    def end_to_end(self) -> str:
        """Ours and the kernels of libraries, launched and on the device."""
        names = {ours(self.site): "ours", "sdpa_cudnn": "cuDNN", "sdpa_flash": "SDPA flash"}
        said = []
        for length in ("1024", "16384", "65536"):
            times = []
            for who, name in names.items():
                device = of(self.row(who, length, "64", "bf16"), "both_ms")
                if device is None:
                    raise Missing(FLASH)
                launched = self.time(who, "both", length).quoted
                times.append(f"{name} {launched} ({replace(device, single=True).quoted})")
            said.append(f"{length} {', '.join(times)}")
        return f"End to end, bf16, 64, launched (on the device): {'; '.join(said)}."

    def leaderboard(self) -> str:
        """Ours, cuDNN and the best entry that was verified."""
        triton, cudnn = (self.site.figure(self.BOARD, "both_launched_ms", entry=f"here: {entry}").quoted
                         for entry in ("Triton (ours)", "SDPA, cuDNN"))  # fmt: skip
        entries = [row for row in self.site.rows(self.BOARD) if row["standing"].startswith("verified")]
        best = min(some(entries), key=lambda row: float(row["both_ms"]))
        verified = f"{best['both_ms']} ms ({best['hardware']})"
        return f"Leaderboard closure: ours {triton}, cuDNN {cudnn}, best verified {verified}."


PROBLEMS = (NsysProfile, FlashForward, FlashBackward, FlashBenchmarking)
