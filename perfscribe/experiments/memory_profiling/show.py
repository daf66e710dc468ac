"""Tables and figure of memory_profiling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from perfscribe.analytic import memory
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.memory_profiling import drawings, rows
from perfscribe.experiments.memory_profiling.levels import SHOWN
from perfscribe.experiments.memory_profiling.rows import MODES, PHASES
from perfscribe.instruments.profiling.memory_timeline import KINDS
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.tables import GIB, MIB, Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NO_PHASE = "no such phase"
NO_CACHE = "no caching allocator"
# Published peaks by mode: metrics in GiB, and in a GB that the source does not define.
METRICS = {
    "inference": ("peak_forward_no_grad_gib", "peak_forward_no_grad_gb"),
    "forward": ("peak_forward_graph_gib", "peak_forward_gb"),
    "full_step": ("peak_full_step_gib", "peak_full_step_gb", "peak_full_step_forward_gb"),
}
SOURCES = {
    "brandon-snider": "brandon-snider (GiB)",
    "damek": "damek (GiB)",
    "kbjiang": "kbjiang (GB)",
    "cs336-writeup-002": "002 (GB)",
    "cs336-writeup-004": "004 (GB)",
}
MODE_NOTE = (
    "Forward under no_grad ends with the logits, forward with graph with the loss; a full step is forward, backward "
    "and AdamW. A forward pass alone has no optimizer state in memory."
)
PEAK_NOTE = (
    "Peak of the bytes handed out by torch's allocator, its counters reset at each phase; on a CPU replayed from the "
    "recorded history. kbjiang, 002 and 004 do not state what a GB is, and 004's batch is larger."
)
RESIDUAL_NOTE = "Recorded: the blocks that the layers' additions to the residual stream asked for."
LARGEST_NOTE = (
    "The groups with the largest blocks at the longest context: blocks of one size and kind that one line asked for in "
    "one phase. On CUDA backward runs on autograd's own thread, which has no Python frame."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Peaks by phase and by context, the residual stream, the largest blocks, timelines."""
    cells = records["memory_profiling"]
    return [
        t.make(TABLES[0], "Peak memory by phase", cells, _peaks(), [PEAK_NOTE]),
        t.make(TABLES[1], "Peak memory by context", rows.by_context(cells), _by_context(), [MODE_NOTE]),
        t.make(
            TABLES[2], "A tensor of the residual stream", rows.of_mode(cells, "forward"), _residual(), [RESIDUAL_NOTE]
        ),
        t.make(TABLES[3], "Largest allocations", rows.largest(cells), _largest(), [LARGEST_NOTE]),
        t.make(TABLES[4], "Recorded histories", cells, _timelines()),
    ]


def _factors(*names: str) -> list[t.Column]:
    """The factors, without those named."""
    titles = {
        "size": "Size",
        "seq_len": "Context",
        "mode": "Mode",
        "dtype": "Dtype",
        "batch": "Batch",
        "device": "Device",
    }
    return [t.factor(name, title) for name, title in titles.items() if name not in names]


def _gib(name: str, title: str, get: Callable[[Record], Any]) -> t.Column:
    def scaled(record: Record) -> Any:
        found = get(record)
        return found if isinstance(found, str) else found / GIB

    return t.derived(name, title, scaled)


def _optional(name: str, otherwise: str) -> Callable[[Record], Any]:
    """A value of a cell; a text in its place where the cell is well and has none."""
    return lambda record: record.values.get(name, otherwise) if record.ok else record.values[name]


def _begun(get: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """The getter of what is computed from factors, which says nothing of a cell that never began."""

    def found(record: Record) -> Any:
        if "parameters" not in record.values:
            raise KeyError("parameters")
        return get(record)

    return found


def _peaks() -> list[t.Column]:
    """Peak by phase; of the whole beside its prediction."""
    by_phase = [
        _gib(f"{phase}_gib", f"{phase.capitalize()} (GiB)", _optional(f"{phase}_peak_bytes", NO_PHASE))
        for phase in PHASES
    ]
    return [
        *_factors(),
        *by_phase,
        _gib("peak_gib", "Peak (GiB)", lambda r: r.values["peak_bytes"]),
        _gib("unrecorded_gib", "Without recording (GiB)", lambda r: r.values["peak_unrecorded_bytes"]),
        _gib("reserved_gib", "Reserved (GiB)", _optional("reserved_bytes", NO_CACHE)),
        _gib("predicted_gib", "Predicted (GiB)", _begun(rows.peak_bytes)),
        t.derived("error_percent", "Error (%)", _error_percent),
        *_published(),
    ]


def _error_percent(record: Record) -> float:
    """How far the prediction lies above (positive) or below what was measured."""
    error = 100 * (rows.peak_bytes(record) / float(record.values["peak_bytes"]) - 1)
    return round(error, 3) + 0.0  # never -0.0


def _published() -> list[t.Column]:
    """What sources print for the peak of the cell's mode."""
    known = references.load("memory_profiling")

    def of_source(source: str) -> Callable[[Record], Any]:
        def get(record: Record) -> Any:
            for metric in METRICS[record.factors["mode"]]:
                if found := references.of_source(known, source, metric, record.factors):
                    return found.shown
            return "none"

        return get

    return [
        t.Column(f"peak_{source}", title, of_source(source), kind="published", exact=True)
        for source, title in SOURCES.items()
    ]


def _by_context() -> list[t.Column]:
    """The three modes side by side, and each as a multiple of fp32."""
    columns = _factors("mode")
    columns += [_gib(f"{mode}_gib", f"{title} (GiB)", _optional(mode, "not planned")) for mode, title in MODES.items()]
    return columns + [
        t.derived(f"{mode}_of_fp32", f"{title}, of fp32's", _ratio(mode)) for mode, title in MODES.items()
    ]


def _ratio(mode: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        ours, fp32 = record.values[mode], record.values[f"{mode}_fp32"]
        known = isinstance(ours, int) and isinstance(fp32, int)
        return ours / fp32 if known else "not both measured"

    return get


def _residual() -> list[t.Column]:
    """The size of one tensor of the residual stream, derived and recorded."""

    def derivation(record: Record) -> str:
        f = record.factors
        return f"{f['batch']} · {f['seq_len']} · {SIZES[f['size']].d_model} · 4 B"

    def expected(record: Record) -> float:
        f = record.factors
        return memory.residual_stream_bytes(SIZES[f["size"]], f["batch"], f["seq_len"]) / MIB

    def recorded(record: Record) -> Any:
        found = record.values.get("residual_bytes")
        return "no such allocation" if found is None else found / MIB

    known = ("size", "seq_len", "dtype")
    return [
        *_factors("mode"),
        t.derived("derivation", "Derivation", _begun(derivation)),
        t.derived("expected_mib", "Derived (MiB)", _begun(expected)),
        t.derived("recorded_mib", "Recorded (MiB)", _begun(recorded)),
        t.published("memory_profiling", "residual_stream_mib", "cs336-writeup-002", "Published (MiB)", known),
    ]


def _largest() -> list[t.Column]:
    """The groups of the largest blocks."""
    return [
        *_factors(),
        t.factor("rank", "Rank"),
        t.value("size_bytes", "Size (MiB)", 1 / MIB, "size_mib"),
        t.value("count", "Blocks", exact=True),
        t.value("phase", "Phase"),
        t.value("kind", "Kind"),
        t.value("frame", "Frame"),
        t.value("below", "Below it"),
    ]


def _timelines() -> list[t.Column]:
    """How much was recorded, where the phases begin and end, and, unshown, the course itself."""
    moments = {
        "start": "Start",
        "forward_end": "End of forward",
        "backward_end": "End of backward",
        "optimizer_peak": "Peak in optimizer",
        "optimizer_end": "End of optimizer",
    }
    return [
        *_factors(),
        t.value("changes", "Allocations and frees", exact=True),
        t.derived("kept", "Kept", lambda r: len(r.series["change"]), exact=True),
        *(
            _gib(f"{name}_gib", f"{title} (GiB)", _optional(f"{name}_bytes", NO_PHASE))
            for name, title in moments.items()
        ),
        _gib("replayed_gib", "Highest in the history (GiB)", _replayed),
        _gib("peak_gib", "Peak counted (GiB)", lambda r: r.values["peak_bytes"]),
        _gib("unrecorded_gib", "Without recording (GiB)", lambda r: r.values["peak_unrecorded_bytes"]),
        t.Column("timeline", "Course, as JSON", _course, kind="unshown", exact=True),
    ]


def _replayed(record: Record) -> Any:
    """The highest moment over the phases that were recorded; KeyError where none was."""
    names = [name for phase in PHASES if (name := f"{phase}_replayed_bytes") in record.values]
    if not names:
        raise KeyError("replayed_bytes")
    return max(record.values[name] for name in names)


def _course(record: Record) -> str:
    moments = record.series["change"]
    courses = [record.series[f"course_{number}"] for number in range(len(KINDS))]
    content = {
        "unit_bytes": record.values["unit_bytes"],
        "change": moments,
        "phase_end": record.series["phase_end"],
        "kinds": {
            kind: c * len(moments) if len(c) == 1 else c for kind, c in zip(KINDS, courses, strict=True) if any(c)
        },
    }
    return json.dumps(content, separators=(",", ":"))


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """The timelines that the handout asks for."""
    draw = partial(drawings.draw, table=tables[TABLES[4]])
    return [f.Figure(FIGURES[0], drawings.CAPTION, draw, (7.5, 3.6))]
