"""Tables and figure of memory_profiling."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from perfscribe.analytic import memory
from perfscribe.analytic.ledger import Items
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.workload import Workload
from perfscribe.experiments.cs336.memory_profiling.levels import SHOWN
from perfscribe.instruments.profiling import memory_timeline as kinds
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
FACTORS = t.factors(size="Size", seq_len="Context", mode="Mode", dtype="Dtype", batch="Batch", device="Device")
PHASES = ("forward", "backward", "optimizer")
SHOWN_GROUPS = 3
GROUP_FIELDS = ("size_bytes", "count", "phase", "kind", "frame", "below")
NO_PHASE = "no such phase"
# Metrics of published peaks by mode, in GiB and in a GB that the source does not define.
METRICS = {
    "inference": ("peak_forward_no_grad_gib", "peak_forward_no_grad_gb"),
    "forward": ("peak_forward_graph_gib", "peak_forward_gb"),
    "full_step": ("peak_full_step_gib", "peak_full_step_gb", "peak_full_step_forward_gb"),
}
SOURCES = {"brandon-snider": "GiB", "damek": "GiB", "kbjiang": "GB", references.OF_002: "GB", references.OF_004: "GB"}
PEAK_NOTE = (
    "Peak of the bytes handed out by torch's allocator, its counters reset at each phase; on a CPU replayed from the "
    "recorded history. Inference ends with the logits and keeps no graph, forward ends with the loss; neither has "
    "optimizer state. kbjiang, 002 and 004 do not state what a GB is, and 004's batch is larger."
)
RESIDUAL_NOTE = "Recorded: the blocks that the layers' additions to the residual stream asked for."
LARGEST_NOTE = (
    "The groups with the largest blocks, at the longest context and the longest whose full step fits: blocks of one "
    "size and kind that one line asked for in one phase. On CUDA backward runs on autograd's own thread, which has no "
    "Python frame."
)
CAPTION = (
    "Bytes allocated during one pass, stacked by kind, over allocations and frees in their order: forward alone and a "
    "full training step at the longest context that ran of the largest size. Dashed lines end the phases."
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return peaks by phase, the residual stream, the largest blocks, and timelines."""
    cells = records["memory_profiling"]
    forward, largest = t.having(cells, mode="forward"), t.expanded(_longest(cells), ["rank"], _largest)
    return [
        t.make(TABLES[0], "Peak memory by phase", cells, PEAKS, [PEAK_NOTE]),
        t.make(TABLES[1], "A tensor of the residual stream", forward, RESIDUAL, [RESIDUAL_NOTE]),
        t.make(TABLES[2], "Largest allocations", largest, LARGEST, [LARGEST_NOTE]),
        t.make(TABLES[3], "Recorded histories", cells, TIMELINE),
    ]


# --- peaks and their predictions ------------------------------------------------------------------------------------


def predicted(record: Record) -> dict[str, Items]:
    """Return predicted bytes by item at each phase's peak; cuBLAS handles: two in a step, one without backward."""
    mode, level = record.factors["mode"], {key: record.factors[key] for key in ("batch", "seq_len", "dtype", "device")}
    load = Workload(SIZES[record.factors["size"]], **level, cublas_handles=2 if mode == "full_step" else 1)
    if mode == "inference":
        return {"forward": memory.inference_peak(load)}
    if mode == "forward":
        return {"forward": memory.forward_peak(load)}
    # torch.optim.AdamW uses foreach on CUDA and a loop over tensors on a CPU.
    return memory.step_phase_peaks(load, "foreach" if load.device == "cuda" else "for-loop")


def _predicted_gib(record: Record) -> float:
    """Return the predicted peak of the whole pass."""
    return max(memory.total_bytes(phase) for phase in predicted(record).values()) / t.GIB


def _published(source: str, record: Record) -> Any:
    metrics = METRICS[record.factors["mode"]]
    values = (references.shown("memory_profiling", source, metric, record.factors) for metric in metrics)
    return next((value for value in values if value != "none"), "none")


def _finished(column: t.Column, ends_with: str = "") -> t.Column:
    """Leave out a pass or phase that ran out of memory: what it reached is not what it needs.

    ends_with: value that a phase on CUDA has from its end on.
    """
    return replace(column, get=lambda record: column.get(record) if record.ok or ends_with in record.values else None)


def _peak(phase: str) -> t.Column:
    column = t.gib(f"{phase}_peak", phase.capitalize(), phase, NO_PHASE)
    return _finished(column, f"{phase}_reserved_bytes")


# Peaks by phase; the whole pass with its prediction and published peaks.
PEAKS = [
    *FACTORS,
    *map(_peak, PHASES),
    _finished(t.gib("peak", "Peak")),
    t.gib("reserved", "Reserved", without="no caching allocator"),
    t.derived("predicted_gib", "Predicted (GiB)", _predicted_gib),
    *(
        t.quoted(f"peak_{source}", f"{references.short(source)} ({unit})", partial(_published, source))
        for source, unit in SOURCES.items()
    ),
]


# --- blocks ---------------------------------------------------------------------------------------------------------


def _derivation(record: Record) -> str:
    factors = record.factors
    return f"{factors['batch']} · {factors['seq_len']} · {SIZES[factors['size']].d_model} · 4 B"


def _residual_mib(record: Record) -> float:
    factors = record.factors
    return memory.residual_stream_bytes(SIZES[factors["size"]], factors["batch"], factors["seq_len"]) / t.MIB


RESIDUAL = [
    *(one for one in FACTORS if one.name != "mode"),
    t.derived("derivation", "Derivation", _derivation),
    t.derived("expected_mib", "Derived (MiB)", _residual_mib),
    t.value("residual_bytes", "Recorded (MiB)", 1 / t.MIB, "recorded_mib", without="no such allocation"),
    t.published("memory_profiling", "cs336-writeup-002", "residual_stream_mib", "Published (MiB)"),
]


def _longest(cells: Sequence[Record]) -> list[Record]:
    """Return the cells at the longest context of their size, and at the longest whose full step fits."""
    fitting = [record for record in cells if record.ok and record.has(mode="full_step")]
    longest = {
        (*key, max(record.factors["seq_len"] for record in group))
        for some in (cells, fitting)
        for key, group in t.grouped(some, lambda record: record.levels("device", "size")).items()
    }
    return [record for record in cells if record.levels("device", "size", "seq_len") in longest]


def _largest(record: Record) -> Iterator[tuple[int, dict[str, Any]]]:
    columns = [record.series[f"group_{name}"][:SHOWN_GROUPS] for name in GROUP_FIELDS]
    for rank, group in enumerate(zip(*columns, strict=True), start=1):
        yield rank, dict(zip(GROUP_FIELDS, group, strict=True))


LARGEST = [
    *FACTORS,
    t.factor("rank", "Rank"),
    t.value("size_bytes", "Size (MiB)", 1 / t.MIB, "size_mib"),
    t.value("count", "Blocks", exact=True),
    *t.values(phase="Phase", kind="Kind", frame="Frame", below="Below it"),
]


# --- timelines ------------------------------------------------------------------------------------------------------


def _course(record: Record) -> str:
    moments = record.series["change"]
    courses = {kind: record.series[f"course_{number}"] for number, kind in enumerate(kinds.KINDS)}
    content = {
        "unit_bytes": record.values["unit_bytes"],
        "change": moments,
        "phase_end": record.series["phase_end"],
        "kinds": {
            kind: amounts * len(moments) if len(amounts) == 1 else amounts
            for kind, amounts in courses.items()
            if any(amounts)
        },
    }
    return json.dumps(content, separators=(",", ":"))


TIMELINE = [
    *FACTORS,
    t.value("changes", "Allocations and frees", exact=True),
    t.Column("timeline", "Course, as JSON", _course, kind="unshown", exact=True),
]

# From the bottom: long-lived kinds first.
COLOURS = {
    kinds.REST: "#555555",
    kinds.OTHER: "#999999",
    kinds.TABLES: "#CCCCCC",
    kinds.PARAMETERS: "#0072B2",
    kinds.STATE: "#56B4E9",
    kinds.GRADIENTS: "#E69F00",
    kinds.COPIES: "#CC79A7",
    kinds.SAVED: "#009E73",
    kinds.TEMPORARY: "#D55E00",
}
LEAST_NAMED = 0.003  # thinner layers, as shares of a panel's height, are left out of the legend
DRAWN = {"inference": "Forward under no_grad", "full_step": "Full step"}


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the timelines that the handout requires."""
    frame = tables[TABLES[3]].frame
    return [f.Figure(FIGURES[0], CAPTION, lambda canvas: _draw(canvas, frame), (7.5, 3.6))]


def _draw(canvas: Any, frame: pd.DataFrame) -> None:
    """Draw forward under no_grad next to a full step, on one scale."""
    cells = _chosen(frame)
    courses = {mode: json.loads(cell["timeline"]) for mode, cell in cells.items()}
    sums = (
        max(map(sum, zip(*course["kinds"].values(), strict=True))) * course["unit_bytes"] for course in courses.values()
    )
    highest = max(sums, default=0)
    unit, name = f.memory_unit(highest)
    panels = canvas.subplots(1, 2, sharey=True, width_ratios=(1, 2))
    for axes, (mode, title) in zip(panels, DRAWN.items(), strict=True):
        axes.set_title(title, fontsize=8)
        if mode not in cells:
            f.no_data(axes, "no such cell was measured")
            continue
        cell, course = cells[mode], courses[mode]
        if mode == "full_step":
            axes.set_title(f"{title}: {cell['size']}, context {cell['seq_len']}, {cell['dtype']}", fontsize=8)
        _stack(axes, course, unit)
        axes.set_xlim(course["change"][0], course["change"][-1])
        axes.set_ylim(0, 1.1 * highest / unit)
        # Not time: the host allocates long before a GPU runs, so that whole phases would be too narrow to see.
        axes.set_xlabel("Allocations and frees, in order")
        axes.grid(False)
        _mark_phases(axes, course, str(cell["status"]))
    panels[0].set_ylabel(f"Allocated ({name})")
    patches = [
        Patch(color=colour, label=kind)
        for kind, colour in reversed(COLOURS.items())
        if any(
            max(course["kinds"].get(kind, [0])) * course["unit_bytes"] >= LEAST_NAMED * highest
            for course in courses.values()
        )
    ]
    if patches:
        canvas.legend(handles=patches, loc="outside right upper", fontsize=7)


def _chosen(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the rows to draw by mode: the size with most parameters, its first dtype.

    They are at the longest context that ran in every mode; if there is none, at the longest that has a course, which a
    pass that was cut short has, too.
    """
    has_course = frame["timeline"].map(lambda text: isinstance(text, str) and text.startswith("{"))
    rows = frame[has_course & frame["mode"].isin(DRAWN)]
    if rows.empty:
        return {}
    rows = rows[rows["size"] == max(rows["size"], key=lambda name: transformer_parameters(SIZES[name]))]
    modes = rows[rows["status"] == "ok"].groupby("seq_len")["mode"].nunique()
    whole = modes[modes == len(DRAWN)]
    rows = rows[rows["seq_len"] == max(rows["seq_len"] if whole.empty else whole.index)]
    return {mode: group.iloc[0] for mode, group in rows.groupby("mode")}


def _stack(axes: Any, course: Mapping[str, Any], unit: float) -> None:
    """Stack the kinds, drawing each sum down to zero, highest first, which keeps files small."""
    moments = course["change"]
    stacked = [kind for kind in COLOURS if kind in course["kinds"]]
    sums = np.cumsum([course["kinds"][kind] for kind in stacked], axis=0).tolist()
    for kind, heights in reversed(list(zip(stacked, sums, strict=True))):
        # Outline of a step function, down to zero at both ends.
        xs, ys = [moments[0]], [0]
        for moment, height in zip(moments, heights, strict=True):
            if height != ys[-1]:
                xs += [moment, moment]
                ys += [ys[-1], height]
        xs, ys = [*xs, moments[-1], moments[-1]], [*ys, ys[-1], 0]
        # an edge of the same colour keeps a one-moment peak visible
        axes.fill(xs, [y * course["unit_bytes"] / unit for y in ys], color=COLOURS[kind], linewidth=0.6)


def _mark_phases(axes: Any, course: Mapping[str, Any], status: str) -> None:
    """Draw a line and a name at the end of each phase, and the pass's status if not ok."""
    limits = [0, *course["phase_end"]]
    for phase, first, last in zip(PHASES, limits[:-1], limits[1:], strict=False):
        axes.axvline(last, color="#000000", linewidth=0.8, linestyle="--", zorder=0)  # behind peaks at a phase's end
        style = {"ha": "center", "va": "top", "fontsize": 7, "bbox": {"color": "#FFFFFF", "pad": 0.5}}
        axes.annotate(phase, ((first + last) / 2, 0.99), xycoords=("data", "axes fraction"), **style)
    if status != "ok":
        style = {"ha": "right", "va": "top", "fontsize": 7, "color": "#B00020"}
        axes.annotate(status.upper(), (0.99, 0.9), xycoords="axes fraction", **style)
