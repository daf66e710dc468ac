"""Tables and figure: time and memory of DDP, sharded optimizer and FSDP."""

from collections.abc import Mapping
from functools import partial

from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.cs336.ddp import drawings
from perfscribe.experiments.cs336.ddp import show as ddp
from perfscribe.experiments.cs336.ddp.variants import CHECKED_STEPS, TOLERANCE
from perfscribe.experiments.cs336.fsdp_accounting import measure as m
from perfscribe.experiments.cs336.fsdp_accounting.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

SOURCE = "csdiywithme"
NAMES = {m.DDP: "unsharded DDP", m.SHARDED: "sharded optimizer", m.FSDP: "FSDP (ours)", m.PEER: "torch's fully_shard"}
MOMENT_TITLES = {
    "init": "Before the first step (GiB)",
    "forward": "Peak of forward (GiB)",
    "backward": "Peak of backward (GiB)",
    "before_step": "Before the optimizer step (GiB)",
    "step": "Peak of the optimizer step (GiB)",
    "after_step": "After the optimizer step (GiB)",
}
# Bytes of each parameter that are divided, in fp32: AdamW's two moments; with FSDP also weight and gradient.
MOMENTS_BYTES, ALL_BYTES = 8, 16
SHARDED_BYTES = {m.DDP: 0, m.SHARDED: MOMENTS_BYTES}
LANES = {"compute": f.COLOURS[0], "communication": f.COLOURS[1], "gathers": f.COLOURS[2]}

CHECK_NOTE = (
    f"Parameters of a small model after {CHECKED_STEPS} steps of SGD, against one process with the whole batch."
)
NOTE = (
    "Implementations were interleaved, each turn on a new model; a step is the slowest rank's by the host clock. Tail: "
    "from where backward has gone through all blocks to where gradients are averages, by events on the stream that "
    "computes, as is forward's wait. Memory: of torch's allocator, on the rank that holds most, in a step after the "
    "first ones. Expected: what the parameters, gradients and AdamW's moments that are sharded take less."
)
TIMELINE_NOTE = f"{ddp.TIMELINE_NOTE} Compute waits where nothing computes until an all-gather has ended."


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return check, times and memory, traced steps, and their spans."""
    rows = [row for cell in records["fsdp_accounting"] for row in by_implementation(cell)]
    spans = [span for row in rows for span in ddp.spans(row)]
    check, accounting, timeline, timeline_spans = SHOWN.tables
    return [
        t.make(check, "Sharded training against a single process", rows, CHECKED, [CHECK_NOTE]),
        t.make(accounting, "Steps and memory with and without sharding", rows, ACCOUNTING, [NOTE]),
        t.make(timeline, "Traced steps with and without sharding", rows, TIMELINE, [TIMELINE_NOTE]),
        t.make(timeline_spans, "Spans of the traced steps with and without sharding", spans, SPANS),
    ]


def by_implementation(cell: Record) -> list[Record]:
    """Return a row per variant of a cell, with the difference of its memory from unsharded training's."""
    rows = [t.of_variant(cell, name, implementation=name) for name in str(cell.factors["variants"]).split()]
    for row in rows if cell.ok else ():
        row.values["peak_bytes"] = max(row.values[f"{moment}_bytes"] for moment in ("forward", "backward", "step"))
        row.values["saved_bytes"] = rows[0].values["before_step_bytes"] - row.values["before_step_bytes"]
        row.values["saved_peak_bytes"] = rows[0].values["peak_bytes"] - row.values["peak_bytes"]
    return rows


def expected_gib(row: Record) -> float:
    """Return the GiB that sharding should save per rank; norms, whole in our FSDP, are negligible."""
    parameters = transformer_parameters(SIZES[row.factors["size"]])
    divided_bytes = SHARDED_BYTES.get(row.factors["implementation"], ALL_BYTES) * parameters
    return divided_bytes * (1 - 1 / int(row.factors["world_size"])) / t.GIB


IMPLEMENTATION = t.named("implementation", "Implementation", NAMES)
ROW = [*ddp.CELL, IMPLEMENTATION]
CHECKED = [
    *ROW,
    t.value("error", "Largest relative error"),
    t.derived("allowed", "Allowed", lambda row: TOLERANCE[row.factors["dtype"]], exact=True),
]
_published = partial(t.published, "fsdp_accounting", SOURCE)
ACCOUNTING = [
    *ROW,
    *t.timed("step_ms", "Step (ms)", "n"),
    t.median("tail_ms", "Tail (ms)"),
    *t.only(lambda row: "wait_ms" in row.samples, "not ours", t.median("wait_ms", "Forward waits for gathers (ms)")),
    t.gib("peak", "Peak"),
    *(t.gib(moment, title.removesuffix(" (GiB)")) for moment, title in MOMENT_TITLES.items()),
    t.gib("saved", "Saved before the optimizer step"),
    t.derived("expected_gib", "Expected (GiB)", expected_gib),
    t.gib("saved_peak", "Saved from the peak"),
    t.timer("step_ms"),
    _published("step_ms", f"Step, {SOURCE} (ms)"),
    _published("tail_ms", f"Communication left after backward, {SOURCE} (ms)"),
    _published("peak_gib", f"Peak, {SOURCE} (GiB)"),
]
TRACED = {
    "traced_gathers_forward_ms": "All-gathers in forward (ms)",
    "traced_waits_forward_ms": "Compute waits for them (ms)",
    "traced_gathers_ms": "All-gathers in the step (ms)",
    "traced_waits_ms": "Compute waits for these (ms)",
}
TIMELINE = [*ROW, *t.values(**TRACED), *(column for column in ddp.TIMELINE if column not in ddp.EVERY)]
SPANS = [*ROW, *(column for column in ddp.SPANS if column not in ddp.EVERY)]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the timelines of both implementations that gather weights."""
    _, _, timeline, spans = (tables[name].ok for name in SHOWN.tables)
    gathering = spans[spans["implementation"].isin([NAMES[m.FSDP], NAMES[m.PEER]])]
    draw = f.of(gathering, drawings.timelines, traced=timeline, lanes=LANES)
    return [f.Figure(SHOWN.figures[0], f"{ddp.TIMELINE_CAPTION} Gathers: all-gathers of weights.", draw, (7.0, 3.6))]
