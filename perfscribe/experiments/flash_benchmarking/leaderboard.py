"""The course's competition: our cells of its problem, and the entries that were published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfscribe import references
from perfscribe import tables as t
from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking.columns import HOST_CLOCK_HOLDS_IT, if_timed
from perfscribe.experiments.flash_benchmarking.rates import TERA, flop
from perfscribe.records import Record
from perfscribe.tables import Column, Table

METRIC = "forward_backward_ms"
SHAPE = ("batch", "heads", "seq_len", "head_dim", "dtype", "causal")
DO_BENCH = "do_bench, by its source"
HERE = "this site"
NOTE = (
    "Forward and backward together; the entries by triton.testing.do_bench on one H100 with the sum of the outputs as "
    "loss, ours by graph replay with the gradient of the output given, and with launches by events around plain "
    "calls, as do_bench has it. Entries as the list or the pull request states them; where the staff's figure differs "
    "from the claimed one, the staff's."
)


def table(table_id: str, cells: Sequence[Record]) -> Table:
    """Our implementations first, then the entries by time."""
    rows = [_own(cell) for cell in cells] + _entries(cells)
    return t.make(table_id, "The leaderboard's problem", rows, _columns(), [NOTE])


def _own(cell: Record) -> Record:
    title = backends.named(str(cell.factors["implementation"])).title
    return Record(**{**vars(cell), "factors": {**cell.factors, "entry": f"here: {title}"}})


def _entries(cells: Sequence[Record]) -> list[Record]:
    """The published entries, as records of origin `published`."""
    experiment = cells[0].experiment if cells else "flash_benchmarking"
    known = [one for one in references.load(experiment) if one.metric == METRIC and "entry" in one.factors]
    found = []
    for one in sorted(known, key=lambda reference: reference.value or 0.0):
        values = {METRIC: one.value, "hardware": one.hardware, "remark": one.remark, "timer": DO_BENCH}
        entry = str(one.factors["entry"]).replace("_", " ").title()
        factors = {**one.factors, "entry": entry, "device": "cuda"}
        found.append(Record(experiment, factors, "ok", "", "published", values=values))
    return found


def _columns() -> list[Column]:
    return [
        t.factor("entry", "Entry"),
        *(t.factor(name, title) for name, title in zip(SHAPE, _SHAPE_TITLES, strict=True)),
        t.derived("both_ms", "Forward and backward (ms)", _time_ms, spread="both_ms_iqr"),
        t.derived("both_ms_iqr", "IQR (ms)", lambda r: _of_cells(r, lambda: _iqr_ms(r, "both_ms"))),
        t.derived("n", "n", lambda r: _of_cells(r, lambda: t.summary(r, "both_ms").n), exact=True),
        t.derived("both_launched_ms", "With launches (ms)", _launched_ms),
        t.derived("tflop_per_s", "Rate (TFLOP/s)", lambda r: flop(r.factors, "both") / _time_ms(r) * 1e3 / TERA),
        t.derived("hardware", "Hardware", _told("hardware", lambda r: HERE), exact=True),
        t.derived("standing", "Standing", _told("remark", lambda r: "measured here"), exact=True),
        t.derived("timer", "Timer", _told("timer", lambda r: r.timers["both_ms"]), exact=True),
    ]


def _told(name: str, own: Callable[[Record], str]) -> Callable[[Record], Any]:
    """What an entry says under this name; of a cell of ours that was timed what own() says."""
    return lambda record: record.values[name] if METRIC in record.values else if_timed(own)(record)


_SHAPE_TITLES = ("Batch", "Heads", "Sequence length", "d", "Dtype", "Causal")


def _time_ms(record: Record) -> float:
    return float(record.values[METRIC]) if METRIC in record.values else t.summary(record, "both_ms").median


def _of_cells(record: Record, get: Any) -> Any:
    """A figure of our cells; the entries have none."""
    return "none" if METRIC in record.values else get()


def _iqr_ms(record: Record, sample: str) -> float | str:
    found = t.summary(record, sample)
    return t.ONE_SAMPLE if found.n == 1 else found.iqr


def _launched_ms(record: Record) -> Any:
    if METRIC in record.values:
        return float(record.values[METRIC])
    on_gpu = record.factors["device"] == "cuda"
    return if_timed(lambda r: t.summary(r, "both_launched_ms").median if on_gpu else HOST_CLOCK_HOLDS_IT)(record)
