"""Memory that a training run of the Polaris homework should take, and the columns and sentence that judge it.

It follows from the factors alone, so that cells without figures have it too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd

from perfscribe import epoch_columns
from perfscribe import tables as t
from perfscribe.counters import seq2seq_memory as memory
from perfscribe.counters.backward_replay import GRADIENTS
from perfscribe.counters.memory import PARAMETERS, WORKSPACE, total_bytes
from perfscribe.counters.parameters import seq2seq_parameters
from perfscribe.findings import need
from perfscribe.models.shapes import Seq2SeqShape
from perfscribe.records import Record
from perfscribe.statistics import format_figure as figure
from perfscribe.tables import GIB

SAMPLES = "samples"
REFUSED = "the model refuses it"
ALLOWED_ERROR_PERCENT = 5.0
LARGE_GIB = 1.0
# Columns of the table: name, title, and the items of the model that each sums.
GROUPS = {
    "parameters_gib": ("Parameters (GiB)", (PARAMETERS,)),
    "state_gib": ("Adam state (GiB)", (memory.STATE,)),
    "gradients_gib": ("Gradients (GiB)", (GRADIENTS,)),
    "temporaries_gib": ("Adam's temporaries (GiB)", (memory.ADAM_TEMPORARIES,)),
    "activations_gib": ("Activations, copies (GiB)", ()),  # what no other group names
    "rest_gib": ("Batch, workspaces, samples (GiB)", (memory.BATCH, WORKSPACE, SAMPLES)),
}
BEFORE = (PARAMETERS, memory.STATE, WORKSPACE, SAMPLES)


def shape(record: Record) -> Seq2SeqShape:
    """The model's."""
    f = record.factors
    return Seq2SeqShape(d_model=f["d_model"], encoder_layers=f["layers"], decoder_layers=f["layers"], d_ff=f["d_ff"])


def width(record: Record) -> int:
    """d_model."""
    return int(record.factors["d_model"])


def _weights(record: Record) -> str:
    return str(record.factors.get("weights", "fp32"))


_step_peak = cache(memory.step_peak)  # several columns ask for the same replay


def items(record: Record) -> dict[str, int]:
    """Predicted bytes by item at the peak of a step."""
    f = record.factors
    load = memory.Seq2SeqWorkload(
        shape(record), f["batch"], f["source_length"], f["target_length"], f["dtype"], _weights(record), f["device"]
    )
    found = dict(_step_peak(load))
    if f["device"] == "cpu":
        # All samples lie in the memory that is counted, and an fp32 batch is a view of them.
        positions = f["source_length"] + f["target_length"]
        found = {**found, SAMPLES: 4 * f["samples"] * positions * f["d_model"]}
        found.pop(memory.BATCH if _weights(record) == "fp32" else "", 0)
    return found


def _unless_refused(get: Callable[[Record], float]) -> Callable[[Record], Any]:
    return lambda record: get(record) if record.factors.get("features", width(record)) == width(record) else REFUSED


def peak(unit: int) -> Callable[[Record], Any]:
    """Predicted peak in this many bytes."""
    return _unless_refused(lambda record: total_bytes(items(record)) / unit)


def group_gib(name: str) -> Callable[[Record], Any]:
    """What one of GROUPS holds at the peak."""
    named = {item for _, others in GROUPS.values() for item in others}
    wanted = GROUPS[name][1]

    def get(record: Record) -> float:
        found = items(record)
        return sum(n for item, n in found.items() if (item in wanted if wanted else item not in named)) / GIB

    return _unless_refused(get)


def with_ddp_gib(record: Record) -> Any:
    """Predicted peak where DDP holds one more copy of the gradients, in its buckets."""
    copy = (2 if _weights(record) == "bf16" else 4) * seq2seq_parameters(shape(record))
    return _unless_refused(lambda r: (total_bytes(items(r)) + copy) / GIB)(record)


def missing_term(record: Record) -> str:
    """Whether what is held before the step, or what the step adds to it, is further from its prediction."""
    found = items(record)
    before = sum(found.get(item, 0) for item in BEFORE)
    added = total_bytes(found) - before
    measured_before = record.values["allocated_before_bytes"]
    measured_added = record.values["peak_allocated_bytes"] - measured_before
    if abs(measured_before - before) > abs(measured_added - added):
        return "held before the step"
    return "added by the step"


def always(name: str, title: str, get: Callable[[Record], Any]) -> t.Column:
    """A figure that needs no measurement, shown for every row."""
    return t.Column(name, title, get, kind="published")


def compared() -> list[t.Column]:
    """Measured peak, predicted peak, and what lies between them."""

    def error(record: Record) -> Any:
        return 100 * (peak(1)(record) / float(record.values["peak_allocated_bytes"]) - 1)

    return [
        epoch_columns.peak_gib(),
        always("predicted_gib", "Predicted (GiB)", peak(GIB)),
        t.derived("error_percent", "Error (%)", error),
        t.derived("missing_term", "Larger difference", missing_term, exact=True),
    ]


def prediction(rows: pd.DataFrame, named: Callable[[Any], str]) -> tuple[str, str]:
    """The largest error of the memory model over peaks of a GiB and more, and the term that is off.

    named: what a row is called beside its width and dtype.
    """
    rows = need(rows, 1, "cells")
    large = rows[rows["peak_gib"].astype(float) >= LARGE_GIB]
    judged = rows if large.empty else large
    worst = judged.loc[judged["error_percent"].astype(float).abs().idxmax()]
    off = f"{float(worst['error_percent']):+.2g} % (d_model {worst['d_model']}, {worst['dtype']}, {named(worst)})"
    if large.empty:
        return f"None of {len(rows)} peaks reaches 1 GiB; the prediction's largest error is {off}.", "answered"
    text = f"Of {len(large)} peaks of 1 GiB and more the prediction is off by at most {off}."
    if abs(float(worst["error_percent"])) <= ALLOWED_ERROR_PERCENT:
        return text, "confirmed"
    apart = float(worst["peak_gib"]) - float(worst["predicted_gib"])
    side = "more" if apart > 0 else "less"
    return (
        f"{text} There {figure(abs(apart))} GiB {side} were measured than predicted, the "
        f"larger difference in what is {worst['missing_term']}."
    ), "contradicted"
