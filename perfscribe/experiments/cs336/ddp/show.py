"""Tables and figures of ddp: rows by implementation, made from a cell's record and its turns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from perfscribe.analytic.bucket_model import BYTES_PER_MB, OverheadFit, best_bucket_bytes, fit_overhead, overhead_s
from perfscribe.experiments.cs336.ddp import drawings
from perfscribe.experiments.cs336.ddp import variants as v
from perfscribe.experiments.cs336.ddp.levels import SHOWN
from perfscribe.instruments.statistics import TOO_FEW_TURNS, median_interval, summarise
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
NO_BUCKETS = "none"
LIMITS = ("exposed_low_ms", "exposed_high_ms")
TOO_FEW_BUCKETS = f"{drawings.NO_FIT}too few numbers of buckets"
NOT_TOLD = f"{drawings.NO_FIT}exposed time within noise"
NO_MODEL = f"{drawings.NO_FIT}off beyond noise"
SAID = ("bandwidth", "call_us", "best_bucket_mb")  # the model's results, if it fits
NO_OPTIMUM = "no optimum in this range"
NO_TERM = "no such term"
NOT_APART = "not timed apart"
PUBLISHED = (
    ("brandon-snider", "step_ms", "Step, brandon-snider (ms)"),
    ("note-h100-pair", "step_ms", "Step, a note on 2 x H100 (ms)"),
    ("brandon-snider", "communication_ms", "Communication, brandon-snider (ms)"),
)
CELL = (
    *t.factors(size="Size", seq_len="Context", batch="Global batch", world_size="Processes", backend="Backend"),
    *t.factors(dtype="Dtype"),
)
IMPLEMENTATION = t.factor("implementation", "Implementation")
EVERY = [*CELL, IMPLEMENTATION, t.factor("bucket_mb", "Bucket (MB)")]

CHECK_NOTE = (
    "Parameters after a few steps of SGD with a small model, against one process that saw the whole batch. "
    "The timed model's gradients are the same to the last bit on all ranks."
)
STEP_NOTE = (
    "Implementations were interleaved around the same parameters; a step is the slowest rank's by the host clock. "
    "Cost: a step less one without communication, median and IQR over turns, which noise may make negative. A step "
    "without communication keeps flat's copies and leaves out torch_ddp's. Tail and backward: on a GPU by events on "
    "the stream that computes, without a profiler; a step of PyTorch's DDP has communicated when its backward ends."
)
PHASES_NOTE = "Medians of steps that wait for the device after each phase."
TIMELINE_NOTE = (
    "One step of rank 0 under the torch profiler, which slows it. NCCL's kernels also run while they wait for another "
    "rank."
)
OVERHEAD_NOTE = (
    "Cost = s / (n_b·w) + n_b·o, the handout's model, by least squares over bucket sizes and overlap_individual. "
    "It is not fitted where all costs are within noise, and not used where a residual is beyond its time's ±."
)
TIMELINE_CAPTION = (
    "One traced step of rank 0: its phases (on a GPU from their first to their last kernel), and what the device "
    "computes and communicates. NCCL's kernels also run while they wait for another rank. The fainter a bar, the less "
    "of it is busy."
)
BUCKETS_CAPTION = "Cost of communication over bucket size, with intervals over turns; dashed: the model, where it fits."


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return check, benchmark, phases, traced steps, model of the overhead, and the timeline's spans."""
    cells = [[_row(cell, variant) for variant in _variants(cell)] for cell in records["ddp"]]
    rows = [row for cell in cells for row in cell]
    phased = [row for row in rows if row.factors["implementation"] in v.PHASED]
    modelled = [row for cell in cells for row in overhead(cell)]
    traced = [row for row in rows if row.factors["traced"] and _variant(row) in v.traced(_variants(row))]
    return [
        t.make(TABLES[0], "Ranks against a single process", rows, CHECKED, [CHECK_NOTE]),
        t.make(TABLES[1], "Step and communication", rows, BENCHMARK, [STEP_NOTE]),
        t.make(TABLES[2], "Phases of a step", phased, PHASES, [PHASES_NOTE]),
        t.make(TABLES[3], "Traced steps", traced, TIMELINE, [TIMELINE_NOTE]),
        t.make(TABLES[4], "The model of the overhead", modelled, OVERHEAD, [OVERHEAD_NOTE]),
        t.make(TABLES[5], "Spans of the traced steps", [span for row in traced for span in spans(row)], SPANS),
    ]


# --- rows -------------------------------------------------------------------------------------------------------


def _variants(record: Record) -> list[v.Variant]:
    return v.from_level(str(record.factors["variants"]))


def _variant(row: Record) -> v.Variant:
    bucket = row.factors["bucket_mb"]
    return v.Variant(row.factors["implementation"], None if bucket == NO_BUCKETS else bucket)


def _row(cell: Record, variant: v.Variant) -> Record:
    size = variant.bucket_mb
    bucket = NO_BUCKETS if size is None else int(size) if size == int(size) else size
    row = t.of_variant(cell, variant.key, implementation=variant.implementation, bucket_mb=bucket)
    if cell.ok:
        row.values |= _exposed(row) | _spent(row)
    return row


def _exposed(row: Record) -> dict[str, Any]:
    """Return exposed communication, each turn's median with less that without, over turns, and its interval."""
    pairs = zip(*(t.turns(row, sample) for sample in ("step_ms", "off_ms")), strict=True)
    differences = [median(on) - median(off) for on, off in pairs]
    least = min(differences)  # both summaries need values from 0 on, and shift with them
    above = [difference - least for difference in differences]
    turns = len(differences)
    values: dict[str, Any] = {
        "exposed_ms": median(differences),
        "exposed_spread": summarise([above]).iqr if turns > 1 else t.ONE_SAMPLE,
        "turns": turns,
    }
    interval = median_interval(above)
    if interval is None:
        return values | dict.fromkeys(LIMITS, TOO_FEW_TURNS)
    return values | {name: limit + least for name, limit in zip(LIMITS, interval, strict=True)}


def _spent(row: Record) -> dict[str, Any]:
    """Return communication time after backward, if timed, and its share of the same steps."""
    if row.factors["implementation"] not in v.AFTER_BACKWARD:
        return dict.fromkeys(("spent_ms", "spent_spread", "spent_percent", "spent_percent_spread"), NOT_APART)
    times, step = t.summary(row, "communication_ms"), t.summary(row, "marked_step_ms").median
    spread = times.iqr if times.n > 1 else t.ONE_SAMPLE
    return {
        "spent_ms": times.median,
        "spent_spread": spread,
        "spent_percent": 100 * times.median / step,
        "spent_percent_spread": spread if isinstance(spread, str) else 100 * spread / step,
    }


def spans(row: Record) -> list[Record]:
    """Return one record per span of the row's traced step on rank 0; one record if it has no trace."""
    rows = []
    lanes = zip(*(row.series.get(name, []) for name in ("lane", "start_ns", "ns")), strict=True)
    for number, (lane, start, length) in enumerate(lanes):
        times = {"start_ms": start / 1e6, "duration_ms": length / 1e6, "step_ms": row.values["traced_step_ms"]}
        rows.append(t.row_of(row, times, lane=lane, span=number))
    return rows or [t.row_of(row, {}, lane="all", span=0)]


def overhead(cell: Sequence[Record]) -> list[Record]:
    """Return a cell's rows of bucket sizes and of single gradients (a bucket each), with the model of their times."""
    rows = [row for row in cell if row.factors["implementation"] in (v.OVERLAP, v.BUCKETED)]
    if not all(row.ok for row in rows):
        return rows
    fit = _fit(rows)
    modelled = [
        replace(row, values=row.values | {"bucket_count": row.values["all_reduces"]} | _modelled(row, fit))
        for row in rows
    ]
    if not isinstance(fit, str) and any(_is_off(row) for row in modelled):
        return [replace(row, values=row.values | dict.fromkeys(SAID, NO_MODEL)) for row in modelled]
    return modelled


def _is_off(row: Record) -> bool:
    """Return whether the model differs from exposed communication by more than half its interquartile range."""
    spread = row.values["exposed_spread"]
    return abs(float(row.values["residual_ms"])) > (spread / 2 if isinstance(spread, float) else 0.0)


def _fit(rows: Sequence[Record]) -> OverheadFit | str:
    """Return the model fitted to the rows' exposed times, or the reason why there is none."""
    points = [(int(row.values["all_reduces"]), row.values["exposed_ms"] / 1e3) for row in rows]
    if len({count for count, _ in points}) < 2:
        return TOO_FEW_BUCKETS
    if all(_may_be_none(row) for row in rows):
        return NOT_TOLD
    return fit_overhead(float(rows[0].values["gradient_bytes"]), points)


def _may_be_none(row: Record) -> bool:
    """Return whether the interval of exposed communication includes 0."""
    low, high = (row.values[name] for name in LIMITS)
    return isinstance(low, float) and low <= 0 <= high


def _modelled(row: Record, fit: OverheadFit | str) -> dict[str, Any]:
    if isinstance(fit, str):
        return dict.fromkeys(("model_ms", "residual_ms", *SAID), fit)
    total, rates = float(row.values["gradient_bytes"]), (fit.bytes_per_s, fit.call_s)
    model_ms = 1e3 * overhead_s(total, int(row.values["all_reduces"]), *rates)
    return {
        "model_ms": model_ms,
        "residual_ms": row.values["exposed_ms"] - model_ms,
        "bandwidth": fit.bytes_per_s / 1e9 if fit.bytes_per_s < math.inf else NO_TERM,
        "call_us": fit.call_s * 1e6 if fit.call_s > 0 else NO_TERM,
        "best_bucket_mb": best_bucket_bytes(total, *rates) / BYTES_PER_MB if fit.has_optimum else NO_OPTIMUM,
    }


# --- columns ----------------------------------------------------------------------------------------------------


CHECKED = [
    *EVERY,
    t.value("error", "Largest relative error"),
    t.derived("allowed", "Allowed", lambda r: v.TOLERANCE[r.factors["dtype"]], exact=True),
]
MARKED = {
    "tail_ms": "Tail: communication after backward's compute (ms)",
    "step_backward_ms": "Backward in a step (ms)",
    "off_backward_ms": "Backward without communication (ms)",
}


def marked(sample: str, title: str) -> t.Column:
    """Return a column of a sample that PyTorch's DDP, or an older record, may lack."""
    lacks = {v.TORCH: "within backward", v.TORCH_VIEWS: "within backward"} if sample == "tail_ms" else {}

    def read(statistic: str, row: Record) -> Any:
        if sample not in row.samples:
            return lacks.get(row.factors["implementation"], t.NOT_RECORDED)
        return getattr(t.summary(row, sample), statistic)

    get, spread = partial(read, "median"), partial(read, "iqr")
    return t.Column(sample, title, get, spread=f"{sample}_iqr", spread_get=spread)


# A step and its communication, as in the homework.
BENCHMARK = [
    *EVERY,
    *t.timed("step_ms", "Step (ms)"),
    t.rounded("spent_ms", "Communicating after backward (ms)", "spent_spread"),
    t.rounded("spent_percent", "Share of the step that waits (%)", "spent_percent_spread"),
    t.rounded("exposed_ms", "Cost (ms)", "exposed_spread"),
    *t.unshown(*LIMITS),
    *(marked(*one) for one in MARKED.items()),
    t.value("all_reduces", "All-reduces", exact=True, without="PyTorch's own"),
    t.value("turns", "Turns", exact=True),
    t.count("step_ms"),
    t.timer("step_ms"),
    *(t.published("ddp", *one) for one in PUBLISHED),
]


def _copies(row: Record) -> float | str:
    return t.summary(row, "copies_ms").median if "copies_ms" in row.samples else "none"


def _hidden(row: Record) -> float:
    return 100 * float(row.values["traced_both_ms"]) / float(row.values["traced_communication_ms"])


# Phases of a step, for implementations whose phases are timed.
PHASES = [
    *CELL,
    IMPLEMENTATION,
    t.median("forward_ms", "Forward (ms)"),
    t.median("backward_ms", "Backward (ms)"),
    t.median("communication_ms", "After backward, communication (ms)"),
    t.median("optimizer_ms", "Optimizer (ms)"),
    t.derived("copies_ms", "Copies of it (ms)", _copies),
    t.median("marked_step_ms", "Step, waiting for each phase (ms)"),
    t.count("communication_ms"),
]
TIMELINE = [
    *EVERY,
    *t.values(traced_step_ms="Traced step (ms)", traced_compute_ms="Computing (ms)"),
    *t.values(traced_communication_ms="Communicating (ms)", traced_both_ms="Both at once (ms)"),
    t.derived("hidden_percent", "Communication beside compute (%)", _hidden),
    t.value("trace_tool", "Traced by", exact=True),
]
# The model's points and results, compared with exposed communication and rounded like it.
OVERHEAD = [
    *EVERY,
    t.value("bucket_count", "n_b", exact=True),
    t.rounded("exposed_ms", "Cost (ms)", "exposed_spread"),
    *t.unshown(*LIMITS),
    t.value("model_ms", "Model (ms)"),
    replace(t.value("residual_ms", "Measured less model (ms)"), spread="exposed_ms_spread"),
    t.value("gradient_bytes", "s (MB)", 1e-6, "gradient_mb"),
    *t.values(bandwidth="w (GB/s)", call_us="o (µs)", best_bucket_mb="Best bucket, predicted (MB)"),
]
SPANS = [
    *EVERY,
    *t.factors(lane="Lane", span="Span"),
    *t.values(start_ms="Start (ms)", duration_ms="Duration (ms)", step_ms="Step (ms)"),
]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the timelines, and exposed communication by bucket size."""
    spans = tables["cs336.ddp_timeline_spans"].ok
    timelines = f.of(spans, drawings.timelines, traced=tables["cs336.ddp_timeline"].ok)
    buckets = f.of(tables["cs336.ddp_overhead"].ok, drawings.buckets)
    return [
        f.Figure(FIGURES[0], TIMELINE_CAPTION, timelines, (7.0, 3.2 * max(1, len(drawings.models(spans))))),
        f.Figure(FIGURES[1], BUCKETS_CAPTION, buckets, (7.0, 3.6)),
    ]
