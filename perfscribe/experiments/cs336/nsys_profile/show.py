"""Tables and figure of nsys_profile."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.patches import Patch

from perfscribe.analytic import flops
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.cs336.nsys_profile.levels import SHOWN
from perfscribe.experiments.cs336.nsys_profile.reading import PARTS, PHASES, REST
from perfscribe.instruments.profiling.families import FAMILIES, GEMM, OTHER, family
from perfscribe.instruments.statistics import format_figure
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

FACTORS = [*t.factors(size="Size", seq_len="Context", dtype="Dtype", device="Device"), *t.settings("batch")]
TABLES, FIGURES = SHOWN.tables, SHOWN.figures
FORWARD_NOTE = (
    "Forward of a training step, to the loss; busy, idle and ends are those of the traced pass of median length. "
    "Waiting for a launch: idle time before kernels whose launch was not over when the device ran dry."
)
KERNELS_NOTE = (
    "Share: of the kernel time of the pass. A name that several kernels share once shortened ends in # and the start "
    "of a digest of the full one."
)
FAMILY_NOTE = (
    "Share of the pass's kernel time; rare kernels that a record keeps as one sum count as other. None kept: any of "
    "the family are among those."
)
ATTENTION_NOTE = (
    "Means over layers and traced passes. FLOP: causal masking saves none, and softmax has five an element."
)
NVTX_NOTE = "Complete for the cells that config.yaml calls detailed, else the largest kernels of each phase."
FORWARD_CAPTION = (
    "Where the time of forward goes in the traced pass of median length, its milliseconds above; marked: the median "
    "time of the same pass by the host clock, without a profiler."
)
PASSES = {
    "inference": ("inference",),
    "forward": ("forward",),
    "backward": ("backward",),
    "forward and backward": ("forward", "backward"),
    "full step": ("forward", "backward", "optimizer"),
}
FAMILIES_SHOWN = ("inference", "forward", "backward", "full step")
# Kernels per range in the CSV for a cell that does not keep every kernel, and these ranges.
KERNELS_SHOWN = 3
RANGES_SHOWN = ("forward", "backward", "optimizer")
NS_PER_US = 1e3
# Per element of a softmax: maximum, subtraction, exponential, sum, division.
SOFTMAX_FLOP_PER_ELEMENT = 5
NO_PRODUCT = "no product traced"


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return forward, kernels with most time, attention, shares of families, every range with its kernels."""
    cells = records["nsys_profile"]
    by_pass = [replace(cell, factors={**cell.factors, "pass": name}) for cell in cells for name in FAMILIES_SHOWN]
    by_kernel = t.expanded(cells, ["range", "kernel"], _by_kernel)
    return [
        t.make(TABLES[0], "Forward by its range and by the host clock", cells, FORWARD, [FORWARD_NOTE]),
        t.make(TABLES[1], "Kernels with most time", cells, TOP_KERNELS, [KERNELS_NOTE]),
        t.make(TABLES[2], "Softmax and the attention products", cells, ATTENTION, [ATTENTION_NOTE]),
        t.make(TABLES[3], "Kernel time by family", by_pass, BY_FAMILY, [FAMILY_NOTE]),
        t.make(TABLES[4], "Ranges and their kernels", by_kernel, KERNELS, [NVTX_NOTE]),
    ]


# --- kernels of a record --------------------------------------------------------------------------------------------


def _kernels(record: Record, *labels: str) -> list[tuple[str, int, int]]:
    """Return the kernels of these ranges, each once: name, launches and ns of all traced passes together.

    Kernels of one range keep the record's order, largest first. KeyError if the record lacks a range.
    """
    launches: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    for label in labels:
        parallel = (record.series[f"{label}_{name}"] for name in ("kernel", "launches", "total_ns"))
        for place, count, ns in zip(*parallel, strict=True):
            launches[record.series["kernel_names"][place]] += count
            total_ns[record.series["kernel_names"][place]] += ns
    return [(name, launches[name], ns) for name, ns in total_ns.items()]


def _family(kernel: str) -> str:
    """Return a kernel's family; rare kernels summed in one row have none."""
    return OTHER if kernel == REST else family(kernel)


def _family_ns(record: Record, *labels: str) -> Counter[str]:
    """Return device time by family in these ranges, over all traced passes."""
    times: Counter[str] = Counter()
    for name, _, ns in _kernels(record, *labels):
        times[_family(name)] += ns
    return times


def _a_pass(launches: int, record: Record) -> float:
    """Return launches per pass to a tenth: a mean of several need not be whole, and counts are not rounded later."""
    return round(launches / int(record.factors["traced_steps"]), 1)


# --- forward by its range and by the host clock ---------------------------------------------------------------------


def _same_tool(record: Record) -> bool:
    """Return whether ranges and kernels come from one trace, and so from the same passes."""
    return bool(record.values["range_tool"] == record.values["kernel_tool"])


def _of_median_pass(record: Record, name: str) -> float:
    """Return a time of the traced forward pass of median length, so that parts add up; the shorter of two middles."""
    lengths = record.samples["forward_range_ms" if _same_tool(record) else "forward_span_ms"][0]
    middle = sorted(range(len(lengths)), key=lengths.__getitem__)[(len(lengths) - 1) // 2]
    return float(record.samples[f"forward_{name}_ms"][0][middle])


def _idle_ms(record: Record) -> float:
    """Return idle time between the first and the last kernel of forward."""
    return _of_median_pass(record, "span") - _of_median_pass(record, "busy")


def _launch_bound_percent(record: Record) -> float | str:
    """Return the share of that idle time in which the device waited for a launch; a CPU has no launches."""
    if record.factors["device"] == "cpu":
        return "no launches"
    idle = _idle_ms(record)
    return 100 * _of_median_pass(record, "launch_bound") / idle if idle > 0 else "no idle time"


def _bound_by(record: Record) -> str:
    """Return `host` where the device is busy for less than half of forward's range and mostly waits for launches."""
    waits_for = _launch_bound_percent(record)
    if isinstance(waits_for, str):
        return waits_for
    is_idle = _of_median_pass(record, "busy") < _range_ms(record) / 2
    return "host" if is_idle and waits_for > 50 else "device"


def _edges_ms(record: Record) -> float | str:
    """Return the time of forward's range before its first and after its last kernel."""
    if not _same_tool(record):
        return "of two tools"
    return _of_median_pass(record, "range") - _of_median_pass(record, "span")


def _range_ms(record: Record) -> float:
    return t.summary(record, "forward_range_ms").median


def _launches(record: Record) -> float:
    return _a_pass(sum(count for _, count, _ in _kernels(record, "forward")), record)


FORWARD = [
    *FACTORS,
    # not rounded by its spread: its parts are not either, and might exceed the rounded whole
    t.derived("forward_range_ms", "Forward by its range (ms)", _range_ms),
    t.iqr("forward_range_ms", "IQR (ms)"),
    t.published("nsys_profile", "brandon-snider", "forward_nsys_ms", "brandon-snider (ms)"),
    *t.timed("forward_ms", "Host clock, not traced (ms)", "n"),
    t.derived(
        "range_over_traced",
        "Range / host clock, traced",
        lambda r: _range_ms(r) / t.summary(r, "forward_traced_ms").median,
    ),
    t.derived("forward_busy_ms", "Device busy (ms)", lambda r: _of_median_pass(r, "busy")),
    t.derived("forward_idle_ms", "Idle between kernels (ms)", _idle_ms),
    t.derived("launch_bound_percent", "of it waiting for a launch (%)", _launch_bound_percent),
    t.derived("bound_by", "Bound by", _bound_by, exact=True),
    t.derived("forward_edges_ms", "Before the first and after the last kernel (ms)", _edges_ms),
    t.derived("forward_launches", "Launches a pass", _launches, exact=True),
    t.count("forward_range_ms", "n traced"),
    *t.exact(range_tool="Ranges by", kernel_tool="Kernels by"),
]


# --- kernels and families -------------------------------------------------------------------------------------------


def _top(name: str, column: str, title: str) -> list[t.Column]:
    """Return columns of the kernel with most time in a pass."""

    def first(record: Record) -> tuple[str, int, int]:
        named = (kernel for kernel in _kernels(record, *PASSES[name]) if kernel[0] != REST)
        return max(named, key=lambda kernel: kernel[2])

    def percent(record: Record) -> float:
        return 100 * first(record)[2] / _family_ns(record, *PASSES[name]).total()

    return [
        t.derived(f"{column}_kernel", f"{title}: kernel", lambda r: first(r)[0], exact=True),
        t.derived(f"{column}_percent", "Share (%)", percent),
        t.derived(f"{column}_launches", "Launches a pass", lambda r: _a_pass(first(r)[1], r), exact=True),
    ]


TOP_KERNELS = [
    *FACTORS,
    *_top("forward", "forward", "Forward"),
    t.published(
        "nsys_profile",
        "brandon-snider",
        "top_kernel_count",
        "brandon-snider, launches",
        levels=lambda r: {**r.factors, "pass": "forward"},
    ),
    *_top("forward and backward", "both", "Both"),
]


def _of_family(name: str) -> t.Column:
    """Return the column of a family's share of a pass; none kept: its kernels, if any, are rare and in other."""

    def percent(record: Record) -> float | str:
        times = _family_ns(record, *PASSES[record.factors["pass"]])
        return 100 * times[name] / times.total() if times[name] or not times[OTHER] else "none kept"

    return t.derived(f"{name}_percent", f"{name} (%)", percent)


BY_FAMILY = [*FACTORS, t.factor("pass", "Pass"), *map(_of_family, FAMILIES)]


def _by_kernel(record: Record) -> Iterator[tuple[str, str, dict[str, Any]]]:
    detailed, series = record.factors["detailed"], record.series
    for label in (*PHASES, *PARTS) if detailed else RANGES_SHOWN:
        kernels = _kernels(record, label)
        range_ns = sum(ns for *_, ns in kernels)
        for place, (name, launches, ns) in enumerate(kernels if detailed else kernels[:KERNELS_SHOWN]):
            values = {
                "family": _family(name),
                "launches": _a_pass(launches, record),
                "percent": round(100 * ns / range_ns, 3),
                "total_us": round(ns / record.factors["traced_steps"] / NS_PER_US, 3),
                "mean_us": round(ns / launches / NS_PER_US, 3),
            }
            for figure in ("median", "min", "max", "std"):
                statistic = series.get(f"{label}_{figure}_ns")
                values[f"{figure}_us"] = statistic[place] / NS_PER_US if statistic else "not kept"
            rare = series.get(f"{label}_rest_kernels", [1])[0]
            yield label, f"{rare} {REST}" if name == REST else name, values


KERNELS = [
    *FACTORS,
    *t.factors(range="Range", kernel="Kernel"),
    *t.exact(family="Family", launches="Launches a pass"),
    *t.values(percent="Share of the range (%)", total_us="Total a pass (µs)", mean_us="Mean (µs)"),
    *t.values(median_us="Median (µs)", min_us="Shortest (µs)", max_us="Longest (µs)", std_us="Std (µs)"),
]


# --- one layer's attention ------------------------------------------------------------------------------------------


PARTS_SHOWN = {
    "scores_matmul_us": "Scores, product (µs)",
    "softmax_us": "Softmax (µs)",
    "final_matmul_us": "Final product (µs)",
    "time_ratio": "Softmax / both products, time",
    "flop_ratio": "Softmax / both products, FLOP",
}


def _of_attention(name: str, record: Record) -> float | str:
    """Return one of these values; KeyError if the record has no trace of attention's ranges."""
    size, batch, seq_len = (record.factors[name] for name in ("size", "batch", "seq_len"))
    shape = SIZES[size]
    ns = {label: _family_ns(record, label) for label in PARTS}
    calls = shape.layers * record.factors["traced_steps"]
    scores_us, final_us = (ns[label][GEMM] / calls / NS_PER_US for label in ("scores", "final_matmul"))
    softmax_us = ns["softmax"].total() / calls / NS_PER_US
    matmul_flop = flops.forward_matmul_flop(shape, batch, seq_len)["attention scores"] / shape.layers
    softmax_flop = float(SOFTMAX_FLOP_PER_ELEMENT * batch * shape.heads * seq_len**2)
    values: dict[str, float | str] = {
        "scores_matmul_us": scores_us,
        "softmax_us": softmax_us,
        "final_matmul_us": final_us,
        "time_ratio": softmax_us / (scores_us + final_us) if scores_us + final_us > 0 else NO_PRODUCT,
        "flop_ratio": softmax_flop / (2 * matmul_flop),
    }
    return values[name]


ATTENTION = [*FACTORS, *(t.derived(name, title, partial(_of_attention, name)) for name, title in PARTS_SHOWN.items())]


# --- where forward's time goes --------------------------------------------------------------------------------------


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure that divides forward's time into parts."""
    draw = f.of(tables[TABLES[0]].ok, _draw_forward)
    return [f.Figure(FIGURES[0], FORWARD_CAPTION, draw, sample="forward_range_ms")]


def _draw_forward(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw one bar per cell: busy, waiting for a launch, other idle time, ends; the host clock's time as a mark."""
    axes = canvas.subplots()
    # Cells of several precisions are not mixed: the homework's fp32 if present.
    rows = rows[rows["dtype"] == ("fp32" if "fp32" in set(rows["dtype"]) else rows["dtype"].iloc[0])]
    sizes = list(dict.fromkeys(rows["size"]))  # two editions' levels are one after the other
    rows = rows.sort_values(
        ["size", "seq_len"], key=lambda level: level.map(sizes.index) if level.name == "size" else level
    )

    def figure(column: str) -> pd.Series:
        """Return a column as numbers, 0 where a text explains a missing one."""
        return pd.to_numeric(rows[column], errors="coerce").astype(float).fillna(0)

    busy, idle, ends = (figure(f"forward_{name}_ms") for name in ("busy", "idle", "edges"))
    percent = 100 / (busy + idle + ends)
    waiting = idle * percent * figure("launch_bound_percent") / 100
    parts = [
        ("device busy", busy * percent, "#0072B2"),
        ("idle, waiting for a launch", waiting, "#E69F00"),
        ("idle between kernels otherwise", idle * percent - waiting, "#56B4E9"),
        ("before the first and after the last kernel", ends * percent, "#D8D8D8"),
    ]
    parts = [part for part in parts if part[1].max() > 0]
    places, bottom = range(len(rows)), pd.Series(0.0, index=rows.index)
    for _, heights, colour in parts:
        axes.bar(places, heights, bottom=bottom, color=colour, edgecolor="white", linewidth=0.4)
        bottom = bottom + heights
    host = figure("forward_ms") * percent
    mark = {"markersize": 3.5, "color": "black", "markeredgecolor": "white", "markeredgewidth": 0.6}
    (clock,) = axes.plot(places, host, "D", label="host clock, without a profiler", **mark)
    top = 1.12 * max(100.0, host.max())
    for place, milliseconds in enumerate(figure("forward_range_ms")):
        axes.text(place, top * 0.985, format_figure(milliseconds), ha="center", va="top", fontsize=5.5)
    axes.set_xticks(places, rows["size"] + " " + rows["seq_len"].astype(str), rotation=90, fontsize=6)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, top)
    axes.set_ylabel("Share of forward's range (%)")
    handles = [*(Patch(color=colour, label=name) for name, _, colour in parts), clock]
    number = {"linestyle": "none", "marker": "$123$", "markersize": 11, "markeredgewidth": 0, "color": "black"}
    handles.append(f.key("length of the range (ms)", **number))
    canvas.legend(handles=handles, fontsize=7, handlelength=1, loc="outside upper center", ncols=3)
