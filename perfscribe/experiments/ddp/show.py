"""Tables and figures of ddp."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from perfscribe.distributed.transport import DEFAULT
from perfscribe.experiments.all_reduce import fits
from perfscribe.experiments.ddp import drawings, rows
from perfscribe.experiments.ddp import variants as v
from perfscribe.experiments.ddp.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.tables import MIB, Column, Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
TORCH_OWN = "PyTorch's own"
HOST_THREADS = "threads of the host"
NO_LINE = "no line of all-reduces among as many"
PUBLISHED = (
    ("step_ms", "brandon-snider", "Step, brandon-snider (ms)"),
    ("step_ms", "note-h100-pair", "Step, a note on 2 x H100 (ms)"),
    ("communication_ms", "brandon-snider", "Communication, brandon-snider (ms)"),
)
CELL = (
    t.factor("size", "Size"),
    t.factor("seq_len", "Context"),
    t.factor("batch", "Global batch"),
    t.factor("world_size", "Processes"),
    t.factor("backend", "Backend"),
    t.factor("dtype", "Dtype"),
)
IMPLEMENTATION = t.factor("implementation", "Implementation")
EVERY = [*CELL, IMPLEMENTATION, t.factor("bucket_mb", "Bucket (MB)")]

CHECK_NOTE = (
    "Parameters after a few steps of SGD with a small model, against one process that saw the whole batch. "
    "The timed model's gradients are the same to the last bit on all ranks."
)
STEP_NOTE = (
    "Implementations were interleaved around the same parameters; a step is the slowest rank's by the host clock. "
    "Exposed: a step less one without communication, median over turns, which noise may make negative."
)
PHASES_NOTE = (
    "Medians of steps that wait for the device after each phase. By themselves: as many all-reduces of as many bytes, "
    "by the latency and bandwidth that all_reduce measured."
)
TIMELINE_NOTE = (
    "One step of rank 0 under the torch profiler, which slows it. NCCL's kernels also run while they wait for another "
    "rank."
)
OVERHEAD_NOTE = (
    "Exposed = s / (n_b·w) + n_b·o, the handout's model, by least squares over bucket sizes and overlap_individual. "
    "Nothing is fitted where all exposed times are within noise."
)
STEPS_CAPTION = (
    "Time of a step, of which exposed communication is in orange, with its interval over turns. Medians by the host "
    "clock, of the slowest rank."
)
TIMELINE_CAPTION = (
    "One traced step of rank 0 by implementation: compute, communication, and the phases below. Spans closer than a "
    "five-hundredth of the step were recorded as one: the fainter a lane, the less of its spans it is busy."
)
BUCKETS_CAPTION = (
    "Exposed communication over bucket size, with intervals over turns; dashed: the fitted model at these sizes."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Check, benchmark, phases, traced steps, model of the overhead; the timeline's spans."""
    of = rows.by_variant(records["ddp"])
    lines = fits.lines(records.get("all_reduce", []))
    phased = rows.of_implementations(of, *v.PHASED)
    return [
        t.make(TABLES[0], "Ranks against a single process", of, _checked(), [CHECK_NOTE]),
        t.make(TABLES[1], "Step and communication", of, _benchmark(), [STEP_NOTE]),
        t.make(TABLES[2], "Phases of a step", phased, _phases(lines), [PHASES_NOTE]),
        t.make(TABLES[3], "Traced steps", rows.traced(of), _timeline(), [TIMELINE_NOTE]),
        t.make(TABLES[4], "The model of the overhead", rows.overhead(of), _overhead(), [OVERHEAD_NOTE]),
        t.make(TABLES[5], "Spans of the traced steps", rows.spans(of), _spans()),
    ]


def _spread(name: str, title: str, spread: str) -> Column:
    """A value rounded by another one."""
    return Column(name, title, lambda r: r.values[name], spread=f"{name}_spread", spread_get=lambda r: r.values[spread])


def _unshown(name: str) -> Column:
    """A value for the CSV and the figures alone."""
    return Column(name, name, lambda record: record.values[name], kind="unshown")


def _checked() -> list[Column]:
    return [
        *EVERY,
        t.value("error", "Largest relative error"),
        t.derived("allowed", "Allowed", lambda r: v.TOLERANCE[r.factors["dtype"]] if r.ok else None, exact=True),
        t.value("parameter_tensors", "Parameter tensors of the timed model", exact=True),
    ]


def _benchmark() -> list[Column]:
    """A step and its communication, as the homework asks for them."""

    def calls(record: Record) -> Any:
        return record.values.get("all_reduces", TORCH_OWN) if record.ok else None

    return [
        *EVERY,
        t.median("step_ms", "Step (ms)"),
        t.iqr("step_ms", "IQR (ms)"),
        _spread("spent_ms", "Communicating (ms)", "spent_spread"),
        t.value("spent_how", "Communication is", exact=True),
        t.value("spent_of_ms", "Of a step of (ms)"),
        _spread("spent_percent", "Share of that (%)", "spent_percent_spread"),
        _spread("exposed_ms", "Exposed (ms)", "exposed_spread"),
        t.value("exposed_interval", "Interval (ms)", exact=True),
        *(_unshown(f"exposed_{end}_ms") for end in ("low", "high")),
        t.derived("all_reduces", "All-reduces", calls, exact=True),
        t.value("turns", "Turns", exact=True),
        t.count("step_ms"),
        t.timer("step_ms"),
        *_published(),
    ]


def _published() -> list[Column]:
    """What sources print for the levels that they state."""
    known = references.load("ddp")

    def get(record: Record, metric: str, source: str) -> Any:
        found = references.of_source(known, source, metric, record.factors)
        return "none" if found is None else found.shown

    return [
        Column(f"{metric}_{source}", title, partial(get, metric=metric, source=source), kind="published", exact=True)
        for metric, source, title in PUBLISHED
    ]


def _phases(lines: Mapping[tuple[Any, ...], fits.Line]) -> list[Column]:
    """Where a step goes, of implementations whose phases are timed. lines: of all-reduces by themselves."""
    parts = ("forward", "backward", "communication", "optimizer")
    titles = {"communication": "After backward, communication"}
    return [
        *CELL,
        IMPLEMENTATION,
        *(t.median(f"{part}_ms", f"{titles.get(part, part.capitalize())} (ms)") for part in parts),
        t.iqr("communication_ms", "IQR (ms)"),
        t.derived("copies_ms", "Copies of it (ms)", _copies),
        t.derived("alone_ms", "All-reduces by themselves (ms)", lambda record: _alone_ms(record, lines)),
        t.median("marked_step_ms", "Step, waiting for each phase (ms)"),
        t.value("sent_bytes", "Sent (MiB)", 1 / MIB, "sent_mib"),
        t.count("communication_ms"),
    ]


def _copies(record: Record) -> float | str | None:
    if not record.ok:
        return None
    return t.summary(record, "copies_ms").median if "copies_ms" in record.samples else "none"


def _alone_ms(record: Record, lines: Mapping[tuple[Any, ...], fits.Line]) -> float | str | None:
    """A step's calls one after the other, over the links that the backend chose; a text where there is no line."""
    if not record.ok:
        return None
    wanted = ("all_reduce", DEFAULT, record.factors["backend"], record.factors["world_size"])
    found: Iterable[fits.Line] = (
        line
        for (operation, backend, _, way, ranks, _), line in lines.items()
        if (operation, way, backend, ranks) == wanted
    )
    line = next(iter(found), None)
    if line is None:
        return NO_LINE
    calls = int(record.values["all_reduces"])
    return calls * line.time_ms(float(record.values["sent_bytes"]) / calls)


def _timeline() -> list[Column]:
    """A traced step in figures."""

    def hidden(record: Record) -> float:
        return 100 * float(record.values["traced_both_ms"]) / float(record.values["traced_communication_ms"])

    def streams(record: Record) -> str | None:
        if not record.ok:
            return None
        if record.factors["device"] != "cuda":
            return HOST_THREADS
        return "one for each" if record.values["own_stream"] else "shared"

    return [
        *EVERY,
        t.value("traced_step_ms", "Traced step (ms)"),
        t.value("traced_compute_ms", "Computing (ms)"),
        t.value("traced_communication_ms", "Communicating (ms)"),
        t.value("traced_both_ms", "Both at once (ms)"),
        t.derived("hidden_percent", "Communication beside compute (%)", hidden),
        t.derived("streams", "Streams", streams, exact=True),
        t.value("trace_tool", "Traced by", exact=True),
    ]


def _overhead() -> list[Column]:
    """The model's points and what it says; compared with exposed communication, and rounded as that is."""

    def like_exposed(name: str, title: str) -> Column:
        return Column(name, title, lambda record: record.values[name], spread="exposed_ms_spread")

    return [
        *EVERY,
        t.value("bucket_count", "n_b", exact=True),
        _spread("exposed_ms", "Exposed (ms)", "exposed_spread"),
        *(_unshown(f"exposed_{end}_ms") for end in ("low", "high")),
        like_exposed("model_ms", "Model (ms)"),
        like_exposed("residual_ms", "Measured less model (ms)"),
        t.value("gradient_bytes", "s (MB)", 1e-6, "gradient_mb"),
        t.value("bandwidth", "w (GB/s)"),
        t.value("call_us", "o (µs)"),
        t.value("best_bucket_mb", "Best bucket, predicted (MB)"),
    ]


def _spans() -> list[Column]:
    """Every bar of the timeline."""
    return [
        *EVERY,
        t.factor("lane", "Lane"),
        t.factor("span", "Span"),
        t.value("start_ms", "Start (ms)"),
        t.value("duration_ms", "Duration (ms)"),
        t.value("step_ms", "Step (ms)"),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Steps by implementation, timelines, exposed communication by bucket size."""
    steps = partial(drawings.steps, rows=tables["cs336.ddp_benchmark"].ok)
    traced, spans = tables["cs336.ddp_timeline"].ok, tables["cs336.ddp_timeline_spans"].ok
    buckets = partial(drawings.buckets, rows=tables["cs336.ddp_overhead"].ok)
    return [
        f.Figure(FIGURES[0], STEPS_CAPTION, steps, (7.0, 4.2), sample="step_ms"),
        f.Figure(FIGURES[1], TIMELINE_CAPTION, partial(drawings.timelines, rows=spans, traced=traced), (7.0, 5.2)),
        f.Figure(FIGURES[2], BUCKETS_CAPTION, buckets, (7.0, 3.6)),
    ]
