"""What others publish for fully_shard, beside the tuned loop: the rate of a GPU, and what more GPUs keep of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from perfscribe import references
from perfscribe import tables as t
from perfscribe.experiments.custom_multi_gpu.measure import TUNED
from perfscribe.findings import CannotTell
from perfscribe.records import Record
from perfscribe.references import Reference
from perfscribe.statistics import format_figure
from perfscribe.training_answers import numbers
from perfscribe.training_columns import MB_PER_GB
from perfscribe.training_rows import MEASURED

TABLE = "fsdp.published"
SOURCE = "torchtitan"
RATE, PEAK, KEPT = "per_gpu_tokens_per_s", "peak_memory_gib", "kept_percent"
HERE = "here, tuned"
NOT_PUBLISHED = "not published"
NO_YES = {False: "no", True: "yes"}
SETTING = ("by", "model_name", "compiled", "float8", "hardware")


def rows(measured: Iterable[Record]) -> list[Record]:
    """Published runs, then tuned trainings measured here; each beside the one of its setting with the fewest GPUs."""
    known = [ref for ref in references.load("fsdp") if ref.source == SOURCE and ref.metric == RATE]
    found = [*map(_published, known), *(_own(r) for r in measured if _is_tuned(r))]
    for record in found:
        same = [other for other in found if all(_level(other, name) == _level(record, name) for name in SETTING)]
        base = min(same, key=lambda other: other.factors["world_size"])
        record.values[KEPT] = "the fewest" if base is record else 100 * record.values[RATE] / base.values[RATE]
    return found


def _level(record: Record, name: str) -> Any:
    return record.factors[name]


def _published(ref: Reference) -> Record:
    levels = {name: ref.factors[name] for name in ("world_size", "compiled", "float8")}
    peaks = references.find(references.load("fsdp"), PEAK, model=ref.factors["model"], **levels)
    (peak,) = [one for one in peaks if one.hardware == ref.hardware]
    factors = {"by": SOURCE, "model_name": ref.factors["model"], "hardware": ref.hardware, **levels}
    return Record("custom_multi_gpu", factors, "ok", "", "published", values={RATE: ref.value, PEAK: peak.value})


def _is_tuned(record: Record) -> bool:
    timed = isinstance(record.values.get("stepping_samples_per_second"), float)
    return record.ok and record.origin == MEASURED and record.factors["loop"] == TUNED and timed


def _own(record: Record) -> Record:
    """A tuned training as the published ones are told: tokens a second and GPU."""
    ranks, peak = record.factors["world_size"], record.values.get("peak_mem_alloc_MB")
    rate = record.values["stepping_samples_per_second"] * record.factors["max_length"] / ranks
    factors = {"by": HERE, "model_name": record.factors["model_name"], "world_size": ranks, "float8": False}
    factors |= {"compiled": record.factors.get("compiled", True), "hardware": record.gpu or record.factors["device"]}
    gib = peak / MB_PER_GB if isinstance(peak, float) else peak or t.NOT_RECORDED
    mfu = record.values.get("mfu", t.NOT_RECORDED)
    return replace(record, factors=factors, values={RATE: rate, PEAK: gib, "mfu": mfu}, samples={}, warmup={})


def columns() -> list[t.Column]:
    """Who, what and where; the rate, its part of the fewest GPUs', the memory."""
    return [
        t.factor("by", "By"),
        t.factor("model_name", "Model"),
        t.factor("world_size", "GPUs"),
        _switch("compiled", "Compiled"),
        _switch("float8", "float8"),
        t.value(RATE, "Tokens/s a GPU"),
        t.value(KEPT, "Of its rate with the fewest GPUs (%)"),
        t.value(PEAK, "Peak memory (GiB)"),
        t.derived("mfu", "MFU (%)", lambda record: record.values.get("mfu", NOT_PUBLISHED)),
        t.factor("hardware", "Hardware"),
        t.Column("origin", "Origin", lambda record: record.origin, kind="factor", exact=True),
    ]


def _switch(name: str, title: str) -> t.Column:
    return t.Column(name, title, lambda record: NO_YES[bool(record.factors[name])], kind="factor", exact=True)


def note() -> str:
    """How the figures of the source came about, in its own words, and the range of MFU that it tells."""
    known = references.load("fsdp")
    low, high = (references.find(known, f"mfu_{end}_percent")[0] for end in ("min", "max"))
    remarks = dict.fromkeys(ref.remark for ref in known if ref.source == SOURCE and ref.metric == RATE)
    return (
        f"{SOURCE}, another model on other GPUs: {'; '.join(remarks)}. Of its runs without float8 it tells "
        f"{low.text} to {high.text} % MFU ({low.remark}). Here: rows a second of steps alone times tokens of a row, a "
        "rank. Models differ, so that rates of a GPU are no comparison; MFU and what more GPUs keep are."
    )


def kept(table: pd.DataFrame) -> str:
    """From the fewest GPUs to the most: published settings, and here."""
    known = numbers(table, KEPT)
    if known.empty:
        raise CannotTell("no setting has rows with two numbers of GPUs")
    said = []
    for by, group in known.groupby("by", sort=False):
        own: Sequence[str] = [_told(table, row) for _, row in group.iterrows()]
        said.append(f"{by} {', '.join(own)}")
    text = f"Of the rate of a GPU more GPUs keep: {'; '.join(said)}."
    return text if HERE in set(known["by"]) else f"{text} Here no tuned training was measured on two numbers of GPUs."


def _told(table: pd.DataFrame, row: Any) -> str:
    same = table[[all(one[name] == row[name] for name in SETTING) for _, one in table.iterrows()]]
    how = [name for name in ("compiled", "float8") if row[name] == "yes"]
    return (
        f"{format_figure(row[KEPT])} % from {same['world_size'].min()} to {row['world_size']} "
        f"({', '.join([*how, row['hardware']])})"
    )
