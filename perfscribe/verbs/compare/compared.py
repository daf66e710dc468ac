"""Compares two sites or commits: pairs cells; each number of both gets a verdict, or a reason for having none."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from perfscribe.instruments.statistics import ROUNDS_FOR_INTERVAL, Rounds, median_interval, summarise
from perfscribe.records.disturbances import DISTURBED
from perfscribe.verbs.compare.sides import MeasuredCell, Side

# Kind of a figure by patterns of its name; the first match counts. Kind "" is not compared.
KINDS = (
    # Measured under a profiler, from a data sheet, by the homework's incomplete clock, before any step, or a check.
    (
        "",
        "*traced* *profiled_* profile_ms *_range_ms *_span_ms *_launch_bound_ms wait_step_ms warmup_step_ms "
        "active_step_ms over_step_ms *rated_gb_per_s homework_clock_s compiler_start_s *first_loss resumed_* "
        "*replayed_bytes gpu_used_bytes",
    ),
    ("rate", "*steps/s *_per_s *samples_per_second* *tokens_per_second*"),
    ("time", "*_ms *_s"),
    ("score", "after_*_percent"),
    ("loss", "*loss"),
    # Memory that a training holds, not what it sends or stores.
    (
        "memory",
        "memory_before_backward_bytes *peak*_bytes allocated_*_bytes at_rest_bytes *_outside_bytes start_bytes "
        "*_end_bytes *reserved_bytes *gathered_*_bytes *parameters_bytes *gradients_bytes *state_bytes *_mem_*_MB",
    ),
)
SPEED, HIGHER_IS_BETTER = ("time", "rate"), ("rate", "score")
# Statuses of cells that ran. Other cells count as not measured.
MEASURED = ("ok", "oom", "timeout", "failed")
# Values that determine the amount of work.
DECISIVE = ("parameters", "message_bytes", "gradient_bytes", "steps_per_epoch", "batch_found")
# Factor by which two runs of the same code on one machine may differ: ratios of single runs below it are inconclusive.
# For the host clock: the same passes in two processes differed by up to 1.77 (docs/compare.md).
HOST_RUNS_DIFFER, DEVICE_RUNS_DIFFER, DEVICE_TIMER = 2.2, 1.1, "CUDA graph replay"
# Counts and losses this close count as the same; our choice.
SAME = 0.01
DECIDED = ("faster", "slower", "better", "worse")
LOST, GAINED, ONE_SIDED, REFUSED, SAME_RECORD = "lost", "gained", "on one side", "refused", "same record"


@dataclass(frozen=True)
class Comparison:
    """One figure of a pair of cells, or a pair without figures to compare (name and kind are then empty).

    verdict: on B: faster, slower (times, rates), better, worse (all else), same, cannot tell; refused; same record
    (measured once); lost or gained (ok on only one side); on one side. reason: for this verdict. a, b: medians; ratio:
    b over a, None if a is 0; low, high: its interval. iqr_a, iqr_b: interquartile ranges of all samples.
    """

    experiment: str
    factors: dict[str, Any]
    status_a: str
    status_b: str
    verdict: str = ""
    reason: str = ""
    name: str = ""
    kind: str = ""
    timer: str = ""
    a: float | None = None
    b: float | None = None
    iqr_a: float | None = None
    iqr_b: float | None = None
    n_a: int = 0
    n_b: int = 0
    rounds_a: int = 0
    rounds_b: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    marks: tuple[str, ...] = ()


def kind_of(name: str) -> str:
    """Kind of a figure by its name (KINDS): time, rate, memory, loss or score; "" if it is not compared."""
    return next((kind for kind, globs in KINDS if any(fnmatchcase(name, glob) for glob in globs.split())), "")


def compare(a: Side, b: Side, only: Collection[str] = ()) -> list[Comparison]:
    """Compare every experiment of either side, or only those named."""
    comparisons = []
    for name in sorted(set(a.cells) | set(b.cells)):
        if not only or name in only:
            for cell_a, cell_b in _pairs(a.cells.get(name, {}), b.cells.get(name, {})):
                comparisons += _figures(a, b, cell_a, cell_b)
    return comparisons


def _pairs(
    a: dict[str, MeasuredCell], b: dict[str, MeasuredCell]
) -> Iterator[tuple[MeasuredCell | None, MeasuredCell | None]]:
    """Pair measured cells by factors; None for a cell that the other side lacks."""
    left, right = ({key: cell for key, cell in side.items() if cell.record.status in MEASURED} for side in (a, b))
    for key in dict.fromkeys((*left, *right)):
        yield left.get(key), right.get(key)


def _figures(a: Side, b: Side, cell_a: MeasuredCell | None, cell_b: MeasuredCell | None) -> list[Comparison]:
    """Compare the figures of one pair; a pair without comparable figures has one Comparison, or none."""
    if cell_a is None or cell_b is None:
        cell, side = (cell_a, "A") if cell_a is not None else (cell_b, "B")
        if cell is None or not cell.record.ok:
            return []
        statuses = ("ok", "not measured") if side == "A" else ("not measured", "ok")
        return [Comparison(cell.experiment, cell.factors, *statuses, ONE_SIDED, f"measured in {side} alone")]
    row = Comparison(cell_a.experiment, cell_a.factors, cell_a.record.status, cell_b.record.status)
    if not (cell_a.record.ok and cell_b.record.ok):
        if cell_a.record.ok:
            return [replace(row, verdict=LOST, reason=cell_b.record.reason)]
        return [replace(row, verdict=GAINED, reason=cell_a.record.reason)] if cell_b.record.ok else []
    if cell_a.field("id") & cell_b.field("id"):
        return [replace(row, verdict=SAME_RECORD, reason="measured once and held by both")]
    if reason := _refused(cell_a, cell_b):
        return [replace(row, verdict=REFUSED, reason=reason)]
    row = replace(row, marks=tuple(_marks(a, b, cell_a, cell_b)))
    return [_figure(row, name, cell_a, cell_b) for name in cell_a.names if name in cell_b.names and kind_of(name)]


def _figure(row: Comparison, name: str, cell_a: MeasuredCell, cell_b: MeasuredCell) -> Comparison:
    kind, a, b = kind_of(name), cell_a.samples(name), cell_b.samples(name)
    timers = [_timers(cell, name) for cell in (cell_a, cell_b)]
    row = replace(
        row,
        name=name,
        kind=kind,
        timer=" + ".join(sorted(timers[0])),
        iqr_a=_iqr(a),
        iqr_b=_iqr(b),
        n_a=sum(map(len, a)),
        n_b=sum(map(len, b)),
        rounds_a=len(a),
        rounds_b=len(b),
    )
    if timers[0] != timers[1]:
        return replace(row, verdict=REFUSED, reason=f"another timer: {_against(*timers)}")
    if kind in ("loss", "score") and (cell_a.seed is None or cell_a.seed != cell_b.seed):
        return replace(row, verdict=REFUSED, reason=f"another seed: {_against({cell_a.seed}, {cell_b.seed})}")
    row = judge(row, a, b)
    disturbed = [mark for mark in row.marks if mark.startswith(tuple(f"{s}: {d}" for s in "AB" for d in DISTURBED))]
    if kind in SPEED and disturbed and row.verdict in DECIDED:
        row = replace(row, verdict="cannot tell", reason=f"disturbed: {'; '.join(disturbed)}")
    return row


def judge(row: Comparison, a: Rounds, b: Rounds) -> Comparison:
    """Compare samples, or single values, of two cells; a and b have one list per round.

    The sides were not interleaved. From 6 rounds per side on, the intervals are those of the rounds' medians, which
    include variation between runs. With fewer they are those of samples within runs, and a verdict needs a difference
    beyond that between runs of the same code. The ratio's interval goes from B's low end over A's high end to the
    reverse, so that it excludes 1 if the sides' 95 % intervals do not overlap.
    """
    medians = [[float(np.median(samples)) for samples in side] for side in (a, b)]
    over_rounds = min(map(len, medians)) >= ROUNDS_FOR_INTERVAL
    pooled = medians if over_rounds else [[value for samples in side for value in samples] for side in (a, b)]
    median_a, median_b = (float(np.median(side)) for side in pooled)
    row = replace(row, a=median_a, b=median_b, ratio=median_b / median_a if median_a > 0 else None)
    if row.kind not in SPEED and (median_a == median_b or abs((row.ratio or 0) - 1) <= SAME):
        return replace(row, verdict="same", reason=f"within {SAME:.0%}")
    if row.kind == "memory" and (min(pooled[0]) > max(pooled[1]) or min(pooled[1]) > max(pooled[0])):
        return replace(row, verdict="better" if median_b < median_a else "worse", reason="counts, no interval")
    if row.kind not in SPEED and not over_rounds:
        return replace(row, verdict="cannot tell", reason=f"{ROUNDS_FOR_INTERVAL} rounds a side are needed")
    intervals = [median_interval(side) for side in pooled]
    if intervals[0] is None or intervals[1] is None:
        sizes = " against ".join(str(len(side)) for side in pooled)
        return replace(row, verdict="cannot tell", reason=f"{sizes} samples, {ROUNDS_FOR_INTERVAL} a side are needed")
    if min(*pooled[0], *pooled[1]) <= 0:
        return replace(row, verdict="cannot tell", reason="a figure is not above 0")
    low, high = intervals[1][0] / intervals[0][1], intervals[1][1] / intervals[0][0]
    row = replace(row, low=low, high=high)
    if low <= 1 <= high:
        return replace(row, verdict="cannot tell", reason="the interval holds 1")
    allowed = 1.0 if over_rounds else DEVICE_RUNS_DIFFER if row.timer.startswith(DEVICE_TIMER) else HOST_RUNS_DIFFER
    if max(low, 1 / high) <= allowed:
        return replace(
            row, verdict="cannot tell", reason=f"single runs of the same code may differ by a factor of {allowed:g}"
        )
    good, bad = ("faster", "slower") if row.kind in SPEED else ("better", "worse")
    gained = (low > 1) == (row.kind in HIGHER_IS_BETTER)
    return replace(row, verdict=good if gained else bad, reason="the interval excludes 1")


def _refused(cell_a: MeasuredCell, cell_b: MeasuredCell) -> str:
    """Reason for not comparing these cells; "" if they are comparable."""
    if cell_a.field("data_digest") != cell_b.field("data_digest"):
        return "another data set: the digests differ"
    for name in DECISIVE:
        if cell_a.values(name) and cell_b.values(name) and cell_a.values(name) != cell_b.values(name):
            return f"other work: {name} {_against(cell_a.values(name), cell_b.values(name))}"
    return ""


def _marks(a: Side, b: Side, cell_a: MeasuredCell, cell_b: MeasuredCell) -> list[str]:
    """Caveats for all figures of these cells."""
    marks = ["code differs"] if cell_a.field("fingerprint") != cell_b.field("fingerprint") else []
    left, right = a.identity(cell_a), b.identity(cell_b)
    changed = [key for key in dict.fromkeys((*left, *right)) if left.get(key) != right.get(key)]
    if a.site == b.site and changed:
        marks.append(f"another machine or software ({', '.join(changed)})")
    if cell_a.seed is None or cell_a.seed != cell_b.seed:
        marks.append("another seed" if None not in (cell_a.seed, cell_b.seed) else "seed not known")
    if len(cell_a.good) != len(cell_b.good):
        marks.append(f"rounds {len(cell_a.good)} against {len(cell_b.good)}")
    return [*marks, *(f"{side}: {flag}" for side, cell in (("A", cell_a), ("B", cell_b)) for flag in cell.record.flags)]


def _timers(cell: MeasuredCell, name: str) -> set[str]:
    """Timers of a sample in all rounds, without versions."""
    timers = {str(row["timers"][name]) for row in cell.good if name in row["timers"]}
    return {" ".join(word for word in timer.split() if not word[0].isdigit()) for timer in timers}


def _against(left: set[Any], right: set[Any]) -> str:
    """Text with A's values, then B's."""
    return " against ".join(" or ".join(sorted(map(str, side))) or "none" for side in (left, right))


def _iqr(rounds: Rounds) -> float | None:
    summary = summarise(rounds)
    return summary.iqr if summary.n > 1 else None
