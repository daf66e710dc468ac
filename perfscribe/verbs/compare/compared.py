"""Two sides compared: cells paired, every figure that they share judged, refused or left without a verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perfscribe.instruments.statistics import Rounds, summarise
from perfscribe.verbs.compare import rules
from perfscribe.verbs.compare.cells import Cell, Side, key_of
from perfscribe.verbs.compare.metrics import NOT_COMPARED, headline, metric
from perfscribe.verbs.compare.ratios import Judged, judge

# Ended on a machine that could run them. Other cells count as not measured there.
MEASURED = ("ok", "oom", "timeout", "failed")
# Levels that name the hardware. Cells that differ in them alone are compared where neither side has the other's level.
HARDWARE_LEVELS: dict[str, Collection[str]] = {"device": {"cpu", "cuda"}, "backend": {"gloo", "nccl"}}
# Factors that say how often a thing was measured, not what was.
REPETITIONS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("samples", "limit_s"),
    "attention": ("warmup_passes", "passes"),
    "calibration": ("samples",),
    "ddp": ("turns",),
    "end_to_end": ("timed_steps",),
    "flash_benchmarking": ("samples",),
    "nsys_profile": ("timed_steps", "traced_steps"),
    "optimizer_state_sharding": ("turns",),
    "strategies": ("turns", "timed_steps"),
    "torch_compile": ("turns", "warmup_passes", "passes"),
    "warmup": ("timed_steps",),
}
DECIDED = ("faster", "slower", "better", "worse")
NOT_MEASURED = "not measured"
LOST, GAINED, ONE_SIDED, REFUSED, SAME_RECORD = "lost", "gained", "on one side", "refused", "same record"


@dataclass(frozen=True)
class Row:
    """One figure of a pair of cells, or a pair without figures to compare (name and kind are then empty).

    verdict: faster, slower, better, worse, same, cannot tell; refused; same record (measured once); lost or gained (ok
    on one side, out of memory, time or failed on the other); on one side. reason: why. headline: whether the figure
    speaks for its cell. factors: of A where they are not the same. iqr_a, iqr_b: interquartile ranges of all samples,
    None of one.
    """

    experiment: str
    factors: dict[str, Any]
    status_a: str
    status_b: str
    verdict: str
    reason: str
    name: str = ""
    kind: str = ""
    timer: str = ""
    found: Judged | None = None
    iqr_a: float | None = None
    iqr_b: float | None = None
    n_a: int = 0
    n_b: int = 0
    rounds_a: int = 0
    rounds_b: int = 0
    marks: tuple[str, ...] = ()
    headline: bool = False


@dataclass
class Comparison:
    """B against A. left_out: experiments that both hold and that are not compared, with the reason.

    names: figures that the cells share and that are not compared, by the reason.
    """

    a: Side
    b: Side
    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)

    @property
    def experiments(self) -> list[str]:
        """Those with rows, in the order of their names."""
        return sorted({row.experiment for row in self.rows})

    def of(self, experiment: str) -> list[Row]:
        """The rows of an experiment."""
        return [row for row in self.rows if row.experiment == experiment]


def compare(a: Side, b: Side, only: Collection[str] = ()) -> Comparison:
    """Compare every experiment of either side, or those named."""
    made = Comparison(a, b)
    for name in sorted(set(a.cells) | set(b.cells)):
        if only and name not in only:
            continue
        if name in NOT_COMPARED:
            if name in a.cells and name in b.cells:
                made.left_out[name] = NOT_COMPARED[name]
            continue
        for one, other in _pairs(name, a.cells.get(name, {}), b.cells.get(name, {})):
            made.rows += _rows(made, one, other)
    return made


def _pairs(experiment: str, a: dict[str, Cell], b: dict[str, Cell]) -> Iterator[tuple[Cell | None, Cell | None]]:
    """Measured cells of the same factors; then of the same but for repetitions; then but for these and hardware."""
    left = {key: cell for key, cell in a.items() if cell.record.status in MEASURED}
    right = {key: cell for key, cell in b.items() if cell.record.status in MEASURED}
    both = [key for key in left if key in right]
    yield from ((left.pop(key), right.pop(key)) for key in both)
    repetitions = REPETITIONS.get(experiment, ())
    for hardware in ({}, HARDWARE_LEVELS):
        ones, others = (_loosely(side, repetitions, hardware) for side in (left, right))
        for key in [key for key in ones if key in others]:
            if len(ones[key]) == len(others[key]) == 1:
                yield left.pop(key_of(ones[key][0].factors)), right.pop(key_of(others[key][0].factors))
    yield from ((cell, None) for cell in left.values())
    yield from ((None, cell) for cell in right.values())


def _loosely(
    cells: Mapping[str, Cell], repetitions: Collection[str], hardware: Mapping[str, Collection[str]]
) -> dict[str, list[Cell]]:
    """Cells by what they measure, without the numbers of repetitions and these levels of hardware."""
    found: dict[str, list[Cell]] = {}
    for cell in cells.values():
        kept = {
            name: level
            for name, level in cell.factors.items()
            if name not in repetitions and level not in hardware.get(name, ())
        }
        found.setdefault(key_of(kept), []).append(cell)
    return found


def _rows(made: Comparison, one: Cell | None, other: Cell | None) -> list[Row]:
    """The rows of one pair."""
    if one is None or other is None:
        return _alone(one or other, "A" if other is None else "B")
    row = _begun(one, other)
    if not (one.record.ok and other.record.ok):
        if not (one.record.ok or other.record.ok):
            return []
        return [row(LOST, other.record.reason) if one.record.ok else row(GAINED, one.record.reason)]
    if one.ids & other.ids:
        return [row(SAME_RECORD, "measured once and held by both")]
    reason = rules.refused(made.a, made.b, one, other)
    return [row(REFUSED, reason)] if reason else _figures(made, one, other)


def _alone(cell: Cell | None, side: str) -> list[Row]:
    """Of a cell that only one side measured: a row where it is ok."""
    if cell is None or not cell.record.ok:
        return []
    statuses = ("ok", NOT_MEASURED) if side == "A" else (NOT_MEASURED, "ok")
    return [Row(cell.experiment, cell.factors, *statuses, ONE_SIDED, f"measured in {side} alone")]


def _begun(one: Cell, other: Cell) -> partial[Row]:
    """A row of this pair, but for what was found."""
    return partial(Row, one.experiment, one.factors, one.record.status, other.record.status)


def _figures(made: Comparison, one: Cell, other: Cell) -> list[Row]:
    """A row for each figure that both cells have and that says how well they did."""
    shared = [name for name in one.names if name in other.names]
    for name in shared:
        if metric(name).kind is None:
            made.names.setdefault(metric(name).why, set()).add(name)
    speaks = headline(one.experiment, shared)
    common = rules.marks(made.a, made.b, one, other)
    return [_row(name, one, other, common, name == speaks) for name in shared if metric(name).kind is not None]


def _row(name: str, one: Cell, other: Cell, common: list[str], speaks: bool) -> Row:
    """The row of one figure."""
    known, timer = metric(name), rules.timer(name, one)
    assert known.kind is not None
    a_rounds, b_rounds = one.samples(name), other.samples(name)
    row = partial(
        _begun(one, other),
        name=name,
        kind=known.kind,
        timer=timer,
        headline=speaks,
        iqr_a=_iqr(a_rounds),
        iqr_b=_iqr(b_rounds),
        n_a=sum(map(len, a_rounds)),
        n_b=sum(map(len, b_rounds)),
        rounds_a=len(a_rounds),
        rounds_b=len(b_rounds),
        marks=tuple(common),
    )
    reason = rules.refused_figure(name, known, one, other)
    if reason:
        return row(REFUSED, reason)
    row = partial(row, marks=(*common, *rules.timer_marks(name, one, other)))
    found = judge(a_rounds, b_rounds, known.kind, timer.startswith(rules.DEVICE_TIMERS))
    reason = rules.withheld(known, one, other)
    if reason and found.verdict in DECIDED:
        return row("cannot tell", reason, found=found)
    return row(found.verdict, found.reason, found=found)


def _iqr(rounds: Rounds) -> float | None:
    found = summarise(rounds)
    return found.iqr if found.n > 1 else None
