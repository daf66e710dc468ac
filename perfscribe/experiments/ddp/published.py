"""What write-ups print for the levels of a row, and what their own figures say of overlap."""

from __future__ import annotations

from functools import cache
from typing import Any

from perfscribe import references
from perfscribe import tables as t
from perfscribe.records import Record

# Those that have figures of a setting that is ours, by id in references/sources.csv.
SOURCES = {"brandon-snider": "brandon-snider", "note-h100-pair": "a note on 2 x H100"}
METRICS = {"step_ms": "Step", "communication_ms": "Communication"}


@cache
def _known() -> tuple[references.Reference, ...]:
    return tuple(references.load("ddp"))


def column(source: str, metric: str, title: str) -> t.Column:
    """The source's figure for all levels that it states; `none` where it has none."""

    def get(record: Record) -> Any:
        found = references.of_source(_known(), source, metric, record.factors)
        return "none" if found is None else found.shown

    return t.Column(f"{metric}_{source}", title, get, kind="published", exact=True)


def columns(metric: str) -> list[t.Column]:
    """What each source prints of a metric, where it prints any."""
    known = {one.source for one in _known() if one.metric == metric}
    return [
        column(source, metric, f"{METRICS[metric]}, {name} (ms)") for source, name in SOURCES.items() if source in known
    ]


def gains() -> dict[str, dict[str, float]]:
    """By source and setting, for each implementation the time saved against naive as a part of naive's communication.

    Percent; for settings of which the source gives step and communication of naive, and the step of another one.
    """
    steps: dict[str, dict[str, float]] = {}
    sent: dict[str, float] = {}
    for one in _known():
        if one.value is None or one.metric not in METRICS or one.factors.get("run", 1) != 1:
            continue
        setting = _setting(one)
        if one.metric == "step_ms":
            name = str(one.factors["implementation"])
            bucket = one.factors.get("bucket_mb")
            steps.setdefault(setting, {})[name if bucket is None else f"{name} {bucket} MB"] = one.value
        elif one.factors["implementation"] == "naive":
            sent[setting] = one.value
    return {
        setting: {
            name: 100 * (times["naive"] - time) / sent[setting] for name, time in times.items() if name != "naive"
        }
        for setting, times in steps.items()
        if setting in sent and "naive" in times and len(times) > 1
    }


def _setting(one: references.Reference) -> str:
    names = [name for name in ("size", "seq_len", "batch") if name in one.factors]
    titles = {"size": "", "seq_len": "context ", "batch": "batch "}
    return ", ".join([one.source, *(f"{titles[name]}{one.factors[name]}" for name in names)])
