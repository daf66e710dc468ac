"""Cells of end_to_end that differ in nothing but the dtype, side by side, and published ones for the same levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from perfscribe.instruments.precision import DTYPES
from perfscribe.records.records import Record
from perfscribe.show import references
from perfscribe.show import tables as t

REFERENCE = "fp32"
OTHERS = tuple(dtype for dtype in DTYPES if dtype != REFERENCE)
# The passes by the names that write-ups give them, and where their samples and published times stand.
PASSES = {"forward": "forward_ms", "backward": "backward_ms", "forward+backward": "forward_backward_ms"}
ONE_PASS = "pass_ms"
NOT_PLANNED = "not planned"
# What two cells have in common whose passes are the same work.
SAME_WORK = ("size", "seq_len", "batch", "device")

Setting = tuple[tuple[str, Any], ...]


def _setting(record: Record) -> Setting:
    """All factors but the dtype."""
    return tuple(sorted((name, level) for name, level in record.factors.items() if name != "dtype"))


def _by_setting(cells: Iterable[Record]) -> dict[Setting, dict[str, Record]]:
    """The cells by dtype, for each combination of their other factors, in their order."""
    found: dict[Setting, dict[str, Record]] = {}
    for record in cells:
        found.setdefault(_setting(record), {})[str(record.factors["dtype"])] = record
    return found


def fullest_context(cells: Sequence[Record]) -> int | None:
    """The context at which most dtypes, then most cells, were measured; of several the longest; None without cells."""
    chosen = [record for record in cells if record.ok] or list(cells)
    dtypes: dict[int, Counter[str]] = {}
    for record in chosen:
        dtypes.setdefault(record.factors["seq_len"], Counter())[record.factors["dtype"]] += 1
    return max(dtypes, key=lambda n: (len(dtypes[n]), dtypes[n].total(), n), default=None)


def _median_or_reason(record: Record | None, sample: str) -> float | str:
    """Median of a sample in ms, or in one word why there is none."""
    if record is None:
        return NOT_PLANNED
    if sample in record.samples:  # also where the cell failed later
        return t.summary(record, sample).median
    return record.status


def _speedup(reference: Record | None, record: Record, sample: str) -> float | str:
    """Median time of the fp32 cell over that of the record; a text where the fp32 cell has none, or is the record."""
    if record.factors["dtype"] == REFERENCE:
        return "fp32 itself"
    before, after = _median_or_reason(reference, sample), _median_or_reason(record, sample)
    if isinstance(before, str):
        return f"fp32: {before}"
    return after if isinstance(after, str) else before / after


def _speedup_spread(reference: Record | None, record: Record, sample: str) -> float | str:
    """How far the speed-up may be off: relatively as far as the two medians are together, by their IQR."""
    ratio = _speedup(reference, record, sample)
    if reference is None or isinstance(ratio, str):
        return ratio
    return t.ratio_spread(ratio, *(t.summary(one, sample) for one in (reference, record)))


def single_passes(cells: Iterable[Record], context: int | None) -> list[Record]:
    """One record a cell of the context and pass, its samples under ONE_PASS."""
    return [
        replace(
            record,
            factors={**record.factors, "pass_type": name},
            samples={ONE_PASS: record.samples[sample]} if sample in record.samples else {},
        )
        for record in cells
        if record.factors["seq_len"] == context
        for name, sample in PASSES.items()
    ]


def side_by_side(cells: Iterable[Record], context: int | None) -> list[Record]:
    """One record a size and pass of the context; its values are those of each dtype (_values)."""
    at_context = [record for record in cells if record.factors["seq_len"] == context]
    rows = []
    for dtypes in _by_setting(at_context).values():
        for name, sample in PASSES.items():
            measured = [record for record in dtypes.values() if sample in record.samples]
            first = (measured or list(dtypes.values()))[0]
            factors = {**{k: v for k, v in first.factors.items() if k != "dtype"}, "pass_type": name}
            rows.append(_row(first, dtypes, factors, _values(dtypes, sample) if measured else {}))
    return rows


def _values(dtypes: Mapping[str, Record], sample: str) -> dict[str, Any]:
    """Median (<dtype>_ms) and speed-up over fp32 (<dtype>_speedup) of each dtype with their spreads; fewest samples."""
    counts = [t.summary(record, sample).n for record in dtypes.values() if sample in record.samples]
    values: dict[str, Any] = {"n": min(counts)}
    for dtype in DTYPES:
        record = dtypes.get(dtype)
        values[f"{dtype}_ms"] = _median_or_reason(record, sample)
        values[f"{dtype}_speedup"] = NOT_PLANNED
        if record is not None:
            reference = dtypes.get(REFERENCE)
            values[f"{dtype}_speedup"] = _speedup(reference, record, sample)
            values[f"{dtype}_speedup_spread"] = _speedup_spread(reference, record, sample)
            values[f"{dtype}_ms_spread"] = t.summary(record, sample).iqr if sample in record.samples else t.ONE_SAMPLE
    return values


def _row(first: Record, dtypes: Mapping[str, Record], factors: dict[str, Any], values: dict[str, Any]) -> Record:
    """A record that stands for several cells; each flag by the dtype whose cell it is of."""
    status, reason = ("ok", "") if values else (first.status, first.reason)
    environments = sorted({name for record in dtypes.values() for name in record.environments})
    flags = [f"{dtype}: {'; '.join(record.flags)}" for dtype, record in dtypes.items() if record.ok and record.flags]
    return replace(
        first,
        factors=factors,
        status=status,
        reason=reason,
        samples={},
        values=values,
        environments=environments,
        flags=flags,
    )


def busy_percent(traced: Iterable[Record], record: Record, dtype: str) -> float | str:
    """Share of a pass in a dtype in which the device works, by nsys_profile's trace of the same pass."""
    time_ms = record.values[f"{dtype}_ms"]
    if isinstance(time_ms, str):
        return time_ms
    if record.factors["device"] == "cpu":  # operators run where they are called, and a profiler slows them
        return "no launches"
    same = {name: record.factors.get(name) for name in SAME_WORK} | {"dtype": dtype}
    samples = [f"{phase}_busy_ms" for phase in record.factors["pass_type"].split("+")]
    for cell in traced:
        if cell.has(**same) and all(sample in cell.samples for sample in samples):
            return 100 * sum(t.summary(cell, sample).median for sample in samples) / float(time_ms)
    return "not traced"


@cache
def _published() -> tuple[references.Reference, ...]:
    return tuple(references.load("mixed_precision"))


def published_ms(source: str, levels: Mapping[str, Any], sample: str) -> references.Reference | None:
    """What a source gives for a pass, all of whose stated levels are among these."""
    return references.of_source(_published(), source, sample, levels)


def published_speedup(source: str, levels: Mapping[str, Any], dtype: str, sample: str) -> float | None:
    """A source's time in fp32 over its time in the dtype; None where it lacks one of them."""
    before, after = (published_ms(source, {**levels, "dtype": d}, sample) for d in (REFERENCE, dtype))
    if before is None or after is None or before.value is None or after.value is None:
        return None
    return before.value / after.value
