"""Published times beside ours, and the file in the shape of a write-up's own."""

from __future__ import annotations

import csv
import io
from functools import cache
from typing import Any

import pandas as pd

from perfscribe import references
from perfscribe import tables as t
from perfscribe.experiments.torch_compile import ratios
from perfscribe.records import Record

SOURCES = {"cs336-writeup-002": "002", "brandon-snider": "brandon-snider", "yyin-dev": "yyin-dev"}
# The phases that write-ups give, by problem.
PHASES = {"attention": ("forward", "backward"), "model": ("forward", "backward", "full_step")}
FILE = "compiled_attention_benchmark.csv"
FILE_COLUMNS = (
    "seq_len",
    "d_model",
    "eager_forward_ms",
    "eager_backward_ms",
    "compiled_forward_ms",
    "compiled_backward_ms",
)
VARIANTS = ("eager", "compiled")


@cache
def _known() -> tuple[references.Reference, ...]:
    return tuple(references.load("torch_compile"))


def published(record: Record, source: str, variant: str, metric: str) -> references.Reference | None:
    """What a source gives for the cell's levels, as far as it states them."""
    levels = {**record.factors, "implementation": variant}
    return references.of_source(_known(), source, metric, levels)


def columns(problem: str) -> list[t.Column]:
    """Our median of each phase, eager and compiled, and behind each what the sources print."""
    found: list[t.Column] = []
    for phase in PHASES[problem]:
        for variant in VARIANTS:
            title = f"{ratios.TITLES[phase]}, {variant}"
            found.append(t.median(f"{variant}_{phase}_ms", f"{title} (ms)"))
            found += [
                _column(source, name, variant, f"{phase}_ms", title)
                for source, name in SOURCES.items()
                if _gives(source, problem, f"{phase}_ms")
            ]
    return found


def _gives(source: str, problem: str, metric: str) -> bool:
    """Whether the source gives this metric for the problem at all; a model has a size, attention has none."""
    return any(
        one.source == source and one.metric == metric and ("size" in one.factors) == (problem == "model")
        for one in _known()
    )


def _column(source: str, name: str, variant: str, metric: str, title: str) -> t.Column:
    def get(record: Record) -> Any:
        found = published(record, source, variant, metric)
        if found is None:
            return "none"
        return found.shown

    return t.Column(f"{variant}_{metric}_{source}", f"{title}, {name} (ms)", get, kind="published", exact=True)


def benchmark_file(frame: pd.DataFrame) -> str:
    """The attention grid as CSV with a write-up's own columns: medians in ms, one row a shape, or how its cell ended.

    Rows are those of inductor without CUDA graphs, or, where there is none, of the other backend; cells that were not
    due or could not run on this machine have none.
    """
    tried = frame[
        ~frame["status"].isin(["skipped", "not_run", "unsupported"]) & (frame["implementation"] == "compiled")
    ]
    best = tried[tried["backend"] == "inductor"]
    rows = tried if best.empty else best
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FILE_COLUMNS)
    for _, row in rows.iterrows():
        figures = [row["status"] if pd.isna(row[name]) else row[name] for name in FILE_COLUMNS[2:]]
        writer.writerow([row["seq_len"], row["head_dim"], *figures])
    return text.getvalue()
