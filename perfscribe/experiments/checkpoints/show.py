"""Table of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from perfscribe.experiments.checkpoints.levels import SHOWN
from perfscribe.experiments.checkpoints.measure import predicted_bytes
from perfscribe.records.records import Record
from perfscribe.show import tables as t

NOTES = (
    "Losses: of the steps after the checkpoint, relative difference between the training that went on at once and the "
    "resumed one.",
    "By arithmetic: fp32 weights and two moments, by Trainer a tied matrix once more; saving and loading were timed "
    "once.",
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """What was saved and how it went on."""
    return [t.make(SHOWN.tables[0], "Saved by some ranks, resumed by others", records["checkpoints"], COLUMNS, NOTES)]


def _predicted(record: Record) -> float:
    """With the elements that lie there under another name too; the bare loop has none."""
    return predicted_bytes(record.values["parameters"], int(record.values.get("again_parameters", 0))) / t.GIB


COLUMNS = [
    *t.factors(model_name="Model", loop="Loop", device="Device", dtype="Dtype", saved_by="Saved by (ranks)"),
    *t.factors(resumed_by="Resumed by (ranks)"),
    *t.exact(steps_behind="Steps before it", steps_compared="Steps after it, compared"),
    *t.values(largest_difference="Largest difference of losses (relative)", eval_loss="Evaluation loss"),
    *t.values(resumed_eval_loss="Evaluation loss, resumed", save_s="Saving (s)", load_s="Loading (s)"),
    t.gib("checkpoint", "On disk"),
    t.derived("predicted_gib", "by arithmetic (GiB)", _predicted),
    t.value("wrapped_by", "Wrapped by", exact=True),
]
