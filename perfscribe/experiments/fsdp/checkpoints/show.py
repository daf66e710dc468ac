"""Table of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from perfscribe.experiments.fsdp.checkpoints.levels import SHOWN
from perfscribe.experiments.fsdp.checkpoints.measure import predicted_bytes
from perfscribe.records.records import Record
from perfscribe.show import tables as t

NOTES = (
    "Differences: relative, between the training that went on at once and the resumed one; training losses: of the "
    "steps after the checkpoint.",
    "By arithmetic: fp32 weights and two moments, by Trainer a tied matrix once more; saving and loading were timed "
    "once.",
)


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table of saved and resumed trainings."""
    return [t.make(SHOWN.tables[0], "Saved by some ranks, resumed by others", records["checkpoints"], COLUMNS, NOTES)]


def _eval_difference(record: Record) -> float:
    return abs(float(record.values["resumed_eval_loss"] / record.values["eval_loss"] - 1))


def _predicted(record: Record) -> float:
    """Return the predicted GiB, with elements stored under a second name, of which the bare loop has none."""
    return predicted_bytes(record.values["parameters"], int(record.values.get("again_parameters", 0))) / t.GIB


COLUMNS = [
    *t.factors(model_name="Model", loop="Loop", device="Device", dtype="Dtype", saved_by="Saved by (ranks)"),
    *t.factors(resumed_by="Resumed by (ranks)"),
    *t.exact(steps_behind="Steps before it", steps_compared="Steps after it, compared"),
    *t.values(largest_difference="Largest difference of training losses", eval_loss="Evaluation loss"),
    t.value("resumed_eval_loss", "Evaluation loss, resumed"),
    t.derived("eval_difference", "Difference of evaluation losses", _eval_difference),
    *t.values(save_s="Saving (s)", load_s="Loading (s)"),
    t.gib("checkpoint", "On disk"),
    t.derived("predicted_gib", "by arithmetic (GiB)", _predicted),
    t.value("wrapped_by", "Wrapped by", exact=True),
]
