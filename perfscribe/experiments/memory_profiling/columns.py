"""Columns and notes of memory_profiling's tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from perfscribe import references
from perfscribe import tables as t
from perfscribe.counters import memory
from perfscribe.experiments.memory_profiling import predictions
from perfscribe.experiments.memory_profiling.rows import MODES
from perfscribe.models.shapes import SIZES
from perfscribe.profiling.memory_timeline import KINDS
from perfscribe.records import Record
from perfscribe.tables import GIB, MIB

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
    "cs336-writeup-002": "cs336-writeup-002 (GB)",
    "cs336-writeup-004": "cs336-writeup-004, batch 32 (GB)",
}

MODE_NOTES = [
    "Forward under no_grad ends with the logits; forward with graph ends with the loss and keeps what backward needs; "
    "a full step is forward, backward and AdamW. A forward pass alone has no optimizer state in memory; the state "
    "exists from before a full step on, the gradients do not.",
]
PEAK_NOTES = [
    *MODE_NOTES,
    "Peak: bytes handed out, by torch's allocator, its own counters reset at each phase (CUDA), or replayed from the "
    "recorded history (CPU). Without recording: the same pass, counted while nothing is recorded. Error: of the "
    "prediction, in percent of what was measured.",
]
PREDICTION_NOTES = [
    "Predicted by counting the tensors that our implementation holds (perfscribe/counters). Largest difference: the "
    "term in which history and prediction differ most at the phase's peak, measured minus predicted.",
]
KIND_NOTES = [
    "Replayed from the recorded history at the highest peak. Weight copies: autocast's low-precision copies of fp32 "
    "weights, kept until autocast is left or, with a graph, until backward has used them. Saved for backward: "
    "allocated in forward and alive at its end. Workspaces: held before the pass by no tensor of ours, such as "
    "cuBLAS's. Unsplit block rests: what the CUDA allocator hands out beyond what was asked for, since it leaves a "
    "rest of up to a MiB in the block.",
]
RESIDUAL_NOTES = [
    "batch × context × d_model × bytes an element, over 1024². Recorded: the blocks that the layers' additions to the "
    "residual stream asked for. Autocast leaves these additions in fp32.",
]
LARGEST_NOTES = [
    "The groups with the largest blocks of each cell at the longest context: blocks of one size and kind that one line "
    "asked for in one phase. Frame: the project's innermost; below it: the library's innermost frame and, on the CPU, "
    "the operator. On CUDA backward runs on autograd's own thread, which has no Python frame.",
]
PUBLISHED_NOTES = [
    "A figure stands beside ours where size, context and dtype are the same; one whose source states no dtype, as "
    "kbjiang's, beside each. brandon-snider and damek: batch as here. "
    "kbjiang and the first write-up: neither batch nor the meaning of GB is stated; for a full step the write-up's is "
    "its peak in forward. The other write-up: a larger batch and a model of its own.",
    "AdamW temporaries: torch's foreach implementation holds a copy of all second moments while it updates; one that "
    "goes through the tensors one by one, as the assignment's own AdamW does, holds one.",
]
TIMELINE_NOTES = [
    "Allocations and frees of one pass after a warm-up pass. Kept: moments that the figures show, the highest and the "
    "lowest of each stretch of equal length among them. The whole history lies in `results/<site>/memory/` where it "
    "was recorded.",
]


def factors(*names: str) -> list[t.Column]:
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


def peaks() -> list[t.Column]:
    """Peak by phase; of the whole beside its prediction."""
    by_phase = [
        _gib(f"{phase}_gib", f"{phase.capitalize()} (GiB)", _optional(f"{phase}_peak_bytes", NO_PHASE))
        for phase in predictions.PHASES
    ]
    return [
        *factors(),
        *by_phase,
        _gib("peak_gib", "Peak (GiB)", lambda r: r.values["peak_bytes"]),
        _gib("unrecorded_gib", "Without recording (GiB)", lambda r: r.values["peak_unrecorded_bytes"]),
        _gib("reserved_gib", "Reserved (GiB)", _optional("reserved_bytes", NO_CACHE)),
        _gib("predicted_gib", "Predicted (GiB)", _begun(predictions.peak_bytes)),
        t.derived(
            "error_percent",
            "Error (%)",
            lambda r: predictions.error_percent(r.values["peak_bytes"], predictions.peak_bytes(r)),
        ),
    ]


def by_context() -> list[t.Column]:
    """The three modes side by side, and each as a multiple of fp32."""
    columns = factors("mode")
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


def prediction() -> list[t.Column]:
    """A row a phase: measured, predicted, and the term that differs most."""

    def measured(record: Record) -> int:
        return int(record.values[f"{record.factors['phase']}_peak_bytes"])

    def predicted(record: Record) -> int:
        return memory.total_bytes(predictions.items(record)[record.factors["phase"]])

    def term(record: Record) -> tuple[str, int]:
        return next(iter(predictions.missing(record, record.factors["phase"]).items()))

    return [
        *factors(),
        t.factor("phase", "Phase"),
        _gib("measured_gib", "Measured (GiB)", measured),
        _gib("predicted_gib", "Predicted (GiB)", predicted),
        t.derived("error_percent", "Error (%)", lambda r: predictions.error_percent(measured(r), predicted(r))),
        t.derived("missing_term", "Largest difference", lambda r: term(r)[0]),
        t.derived("missing_mib", "Largest difference (MiB)", lambda r: term(r)[1] / MIB),
    ]


def kinds() -> list[t.Column]:
    """Bytes of each kind at the peak."""

    def held(kind: str) -> Callable[[Record], Any]:
        return lambda record: predictions.measured_kinds(record, predictions.highest_phase(record))[kind]

    columns = [*factors(), t.derived("phase", "Peak in", predictions.highest_phase)]
    return columns + [_gib(f"{kind.replace(' ', '_')}_gib", f"{kind.capitalize()} (GiB)", held(kind)) for kind in KINDS]


def residual() -> list[t.Column]:
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
        *factors("mode"),
        t.derived("derivation", "Derivation", _begun(derivation)),
        t.derived("expected_mib", "Derived (MiB)", _begun(expected)),
        t.derived("recorded_mib", "Recorded (MiB)", _begun(recorded)),
        t.published("memory_profiling", "residual_stream_mib", "cs336-writeup-002", "Published (MiB)", known),
    ]


def largest() -> list[t.Column]:
    """The groups of the largest blocks."""
    return [
        *factors(),
        t.factor("rank", "Rank"),
        t.value("size_bytes", "Size (MiB)", 1 / MIB, "size_mib"),
        t.value("count", "Blocks", exact=True),
        t.value("phase", "Phase"),
        t.value("kind", "Kind"),
        t.value("frame", "Frame"),
        t.value("below", "Below it"),
    ]


def published() -> list[t.Column]:
    """Our peak of the cell's mode, and what sources print for it."""
    known = references.load("memory_profiling")

    def of_source(source: str) -> Callable[[Record], Any]:
        def get(record: Record) -> Any:
            for metric in METRICS[record.factors["mode"]]:
                if found := references.of_source(known, source, metric, record.factors):
                    return found.shown
            return "none"

        return get

    columns = [*factors(), _gib("peak_gib", "Peak (GiB)", lambda r: r.values["peak_bytes"])]
    columns += [
        t.Column(source, title, of_source(source), kind="published", exact=True) for source, title in SOURCES.items()
    ]
    return [*columns, _gib("adamw_gib", "AdamW temporaries, predicted (GiB)", _begun(_adamw_bytes))]


def _adamw_bytes(record: Record) -> Any:
    if record.factors["mode"] != "full_step":
        return NO_PHASE
    return predictions.items(record)["optimizer"].get(memory.OPTIMIZER_TEMPORARIES, 0)


def timelines() -> list[t.Column]:
    """How much was recorded, where the phases begin and end, and, unshown, the course itself."""
    moments = {
        "start": "Start",
        "forward_end": "End of forward",
        "backward_end": "End of backward",
        "optimizer_peak": "Peak in optimizer",
        "optimizer_end": "End of optimizer",
    }
    return [
        *factors(),
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
    names = [name for phase in predictions.PHASES if (name := f"{phase}_replayed_bytes") in record.values]
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
