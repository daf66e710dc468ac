"""Tables of the subjects, with the columns of our own tables and our times from the same cells."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from perfscribe.base import error_kinds
from perfscribe.experiments.cs336.ddp import drawings
from perfscribe.experiments.cs336.ddp import show as ddp
from perfscribe.experiments.cs336.ddp import subject as ddp_subject
from perfscribe.experiments.cs336.ddp import variants as v
from perfscribe.experiments.cs336.flash_benchmarking import show as flash
from perfscribe.experiments.cs336.flash_benchmarking.subject import NOT_CAUSAL
from perfscribe.experiments.cs336.fsdp_accounting import show as fsdp
from perfscribe.experiments.cs336.optimizer_state_sharding import measure as sharding_names
from perfscribe.experiments.cs336.optimizer_state_sharding import show as sharding
from perfscribe.experiments.cs336.optimizer_state_sharding.subject import THEIRS
from perfscribe.experiments.cs336.subjects.levels import SHOWN
from perfscribe.instruments.statistics import summarise
from perfscribe.records import form
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.subjects import INDIVIDUAL, YOURS

NOTE = (
    "Correct: every check passed that the handout asks for. Over ours: median over cells of the time over that of our "
    "implementation, timed in turns with it in the same process; ± half the interquartile range that both samples "
    "give it, the median over cells."
)
BESIDE_NOTE = "Ours: our implementation, timed in turns with the subject's in the same process."
LATE = "all-reduces start after backward ends"
NO_REMARK = "none"
MOST_GATHERED = 0.5  # of a model whose layers are so many that two or three ahead are a tenth
SUBJECT = t.factor("subject", "Subject")


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return correctness and speed by subject, then every cell of attention, DDP, the sharded optimizer and FSDP."""
    attention, wrappers, optimizers, modules = (
        [row for row in records.get(name, []) if "subject" in row.factors] for name in SHOWN.reads
    )
    grid, board = (
        [_with_ratio(_as_timed(row), row, "ours_", "both_ms") for row in t.having(attention, workload=workload)]
        for workload in ("grid", "leaderboard")
    )
    board = [replace(row, factors={**row.factors, "entry": f"here: {row.factors['subject']}"}) for row in board]
    steps = [row for cell in wrappers for row in _wrapped(cell)]
    sharded = [row for cell in optimizers for row in _optimizers(cell)]
    gathering = [row for cell in modules for row in _fsdp(cell)]
    kinds = [
        replace(row, factors={**row.factors, "moment": moment}) for row in sharded for moment in sharding.MOMENT_NAMES
    ]
    sections = (
        ("Subjects", _summary([*grid, *board, *steps, *filter(_is_theirs, [*sharded, *gathering])]), SUMMARY, NOTE),
        ("Attention of the subjects", grid, _attention(flash.CELLS), BESIDE_NOTE),
        ("The leaderboard's problem by the subjects", board, _attention(flash.BOARD), BESIDE_NOTE),
        ("DDP of the subjects", steps, DDP, BESIDE_NOTE),
        ("Spans of your traced step and of naive's", _spans(wrappers), TRACED, ddp.TIMELINE_NOTE),
        ("Sharded optimizers of the subjects", sharded, SHARDING, BESIDE_NOTE),
        ("Memory of sharded optimizers by kind", kinds, _swapped(sharding.KINDS, OPTIMIZER, STATE), BESIDE_NOTE),
        ("FSDP of the subjects", gathering, FSDP, BESIDE_NOTE),
    )
    return [
        t.make(table, title, rows, columns, [note])
        for table, (title, rows, columns, note) in zip(SHOWN.tables, sections, strict=True)
    ]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the timeline of a traced step of the user's overlapped DDP, next to that of our naive DDP."""
    spans = tables["cs336.subject_ddp_spans"].ok
    draw = f.of(spans, drawings.timelines, traced=spans)
    return [f.Figure(SHOWN.figures[0], ddp.TIMELINE_CAPTION, draw, (7.0, 3.2))]


# --- rows -------------------------------------------------------------------------------------------------------


def _as_timed(row: Record) -> Record:
    """Return the row with the requested and the timed causality: a PyTorch kernel may ignore is_causal."""
    timed = row.factors["causal"] and NOT_CAUSAL not in row.values
    return replace(row, factors={**row.factors, "asked": row.factors["causal"], "causal": timed})


def _with_ratio(row: Record, ours: Record, prefix: str, sample: str) -> Record:
    """Return the row with our time, the ratio to it, and remarks."""
    their_rounds, our_rounds = (
        record.samples.get(name, []) for record, name in ((row, sample), (ours, f"{prefix}{sample}"))
    )
    if not their_rounds or not our_rounds:
        return row
    times = [median(value for samples in rounds for value in samples) for rounds in (their_rounds, our_rounds)]
    values = {"ours_ms": times[1], "over_ours": times[0] / times[1]}
    apart = [summarise(rounds).iqr / middle for rounds, middle in zip((their_rounds, our_rounds), times, strict=True)]
    values["over_ours_iqr"] = values["over_ours"] * math.hypot(*apart)
    remarks = [str(row.values[NOT_CAUSAL])] if NOT_CAUSAL in row.values else []
    if kept_bytes := row.values.get("kept_bytes"):
        remarks.append(f"each call keeps {kept_bytes / t.MIB:.3g} MiB")
    if (share := row.values.get("gathered_share", 0)) > MOST_GATHERED:
        remarks.append(f"gathered weights are not freed: a forward pass holds {share:.0%} of all of them")
    bucketed = row.values.get("all_reduces", 0) > 1  # a single bucket fills only when backward ends
    if bucketed and row.values.get("early_all_reduces") == 0:
        remarks.append(LATE)
    return replace(row, values={**row.values, **values, "remark": "; ".join(remarks) or NO_REMARK})


def _wrapped(cell: Record) -> list[Record]:
    """Return a row per DDP variant of the subject, with its time over ours; named like ours, the subject appended."""
    rows = []
    for variant in v.from_level(str(cell.factors["variants"])):
        if counterpart := ddp_subject.parsed(variant):
            theirs, ours = ddp._row(cell, variant), ddp._row(cell, counterpart)
            bucket = ours.factors["bucket_mb"]
            name = f"{counterpart.implementation} ({cell.factors['subject']})"
            row = replace(theirs, factors={**theirs.factors, "implementation": name, "bucket_mb": bucket})
            rows.append(_with_ratio(row, ours, "", "step_ms"))
    return rows


def _spans(cells: Iterable[Record]) -> list[Record]:
    """Return one record per span of the traced steps of the overlapped DDP handed in and of our naive one."""
    handed_in = [cell for cell in cells if cell.levels("subject", "kernel") == (YOURS, INDIVIDUAL)]
    steps = [step for cell in handed_in for step in (ddp._row(cell, v.Variant(v.NAIVE)), *_wrapped(cell))]
    return [replace(span, values=step.values | span.values) for step in steps for span in ddp.spans(step)]


def _optimizers(cell: Record) -> list[Record]:
    """Return the subject's optimizer and the unsharded one, whose steps were interleaved."""
    names = (sharding_names.UNSHARDED, sharding_names.SHARDED, THEIRS)
    plain, ours, theirs = sharding.by_implementation(cell, names)
    return [plain, _with_ratio(theirs, ours, "", "step_ms")]


def _fsdp(cell: Record) -> list[Record]:
    """Return unsharded DDP and the subject's FSDP, whose steps were interleaved."""
    plain, ours, theirs = fsdp.by_implementation(cell)
    theirs = replace(theirs, factors={**theirs.factors, "implementation": THEIRS})
    return [plain, _with_ratio(theirs, ours, "", "step_ms")]


def _is_theirs(row: Record) -> bool:
    return bool(row.factors["implementation"] == THEIRS)


def _summary(rows: Iterable[Record]) -> list[Record]:
    """Return one row per subject and kernel; within a kernel correct ones first, by speed."""
    grouped = t.grouped(rows, lambda row: row.levels("kernel", "subject"))
    summaries = [_of_kernel(kernel, subject, group) for (kernel, subject), group in grouped.items()]
    summaries.sort(key=_place)
    return summaries


def _place(row: Record) -> tuple[str, bool, float, str, str]:
    """Return the sort key: correct subjects by speed, others by their messages, so that equal ones are adjacent."""
    kernel, correct, remark = (str(row.factors[name]) for name in ("kernel", "correct", "said"))
    return kernel, correct != "yes", row.values.get("over_ours", 0) if correct == "yes" else 0, correct, remark


def _of_kernel(kernel: str, subject: str, rows: Sequence[Record]) -> Record:
    worst = max(rows, key=lambda row: form.STATUSES.index(row.status))
    best = min(rows, key=lambda row: form.STATUSES.index(row.status))
    wrong = next((row for row in rows if row.error.get("kind") == error_kinds.WRONG_RESULT), None)
    ran = any(row.status in form.RAN for row in rows)
    correct = "no" if wrong else "yes" if worst.ok else "not told" if ran else "not checked"
    ratios = [row.values["over_ours"] for row in rows if "over_ours" in row.values]
    remarks = dict.fromkeys(row.values["remark"] for row in rows if row.values.get("remark", NO_REMARK) != NO_REMARK)
    remark = "; ".join(remarks) or NO_REMARK
    spreads = [row.values["over_ours_iqr"] for row in rows if "over_ours" in row.values]
    values = {"over_ours": median(ratios), "over_ours_iqr": median(spreads)} if ratios else {}
    cells = f"{sum(row.ok for row in rows)} of {len(rows)}"
    factors = {"subject": subject, "kernel": kernel, "correct": correct, "cells": cells}
    factors["said"] = (wrong or worst).reason or remark
    return replace(best, factors=factors, values={**values, "remark": remark}, samples={}, series={})


# --- columns ----------------------------------------------------------------------------------------------------


def _over_ours(title: str) -> t.Column:
    """Return the column of the subject's time over ours, with a spread from both samples' interquartile ranges."""
    spread = "over_ours_iqr"
    return replace(t.value("over_ours", title), spread=spread, spread_get=lambda row: row.values[spread])


SUMMARY = [
    *t.factors(kernel="Kernel", subject="Subject", correct="Correct", cells="Rows ok"),
    _over_ours("Time over ours (×)"),
    t.factor("said", "Remark"),
]


def _compared(sample: str) -> list[t.Column]:
    return [
        t.value("ours_ms", "Ours, the same (ms)", column=f"ours_{sample}"),
        _over_ours("Over ours (×)"),
        *t.exact(remark="Remark"),
    ]


def _swapped(columns: Iterable[t.Column], *others: t.Column) -> list[t.Column]:
    """Return the subject column and the columns, with `others` replacing those of the same name."""
    by_name = {column.name: column for column in columns} | {column.name: column for column in others}
    return [SUBJECT, *by_name.values()]


def _measured(columns: Iterable[t.Column], *prefixes: str) -> list[t.Column]:
    """Return the columns except published ones and those whose names start with one of `prefixes`."""
    return [column for column in columns if column.kind != "published" and not column.name.startswith(prefixes)]


def _attention(columns: Iterable[t.Column]) -> list[t.Column]:
    """Return the columns of attention without those that only libraries have."""
    causal = t.factor("causal", "Asked causal", lambda row: row.factors["asked"])
    return _swapped(_measured(columns, "sdpa_backend"), causal, *_compared("both_ms"))


DDP = _swapped(_measured([*ddp.BENCHMARK, *ddp.CHECKED, *ddp.TIMELINE]), *_compared("step_ms"))
TRACED = _swapped([*ddp.TIMELINE, *ddp.SPANS])
OPTIMIZER = t.factor(
    "implementation",
    "Optimizer",
    lambda row: f"sharded ({row.factors['subject']})" if _is_theirs(row) else sharding.NAMES[sharding_names.UNSHARDED],
)


def _state_gib(row: Record) -> float | str:
    """Return AdamW's state in GiB, or a text if none was found: AdamW always has some."""
    state_bytes = row.series[f"{row.factors['moment']}_bytes"][sharding_names.KINDS.index(sharding_names.STATE)]
    return state_bytes / t.GIB or "not found: in no attribute of the optimizer, nor of what it holds"


STATE = t.derived(sharding.kind_column(sharding_names.STATE), "Optimizer state (GiB)", _state_gib)
SHARDING = _swapped(
    _measured([*sharding.MEMORY, *sharding.TIMES], "update_ms", "exchange_ms"),
    *(OPTIMIZER, *t.only(_is_theirs, "not compared", sharding.OFF_BY, *_compared("step_ms"))),
)
IMPLEMENTATION = t.factor(
    "implementation",
    "Implementation",
    lambda row: f"FSDP ({row.factors['subject']})" if _is_theirs(row) else fsdp.NAMES[row.factors["implementation"]],
)
FSDP = _swapped(
    _measured([*fsdp.ACCOUNTING, *fsdp.CHECKED, *fsdp.TIMELINE], "wait_ms"),
    *(IMPLEMENTATION, *t.only(_is_theirs, "not compared", *_compared("step_ms"))),
)
