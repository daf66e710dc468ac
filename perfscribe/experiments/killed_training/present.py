"""Tables and answers of killed_training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.checkpoints.present import by_step
from perfscribe.findings import Finding, counted, find, from_to, need
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import GIB, Table
from perfscribe.training.checkpoint_size import PIECES_BYTES, needed_bytes, predicted_bytes

TABLES = ("fsdp.killed", "fsdp.killed_losses", "fsdp.final_model")
FIGURES = ()
SAME = 1e-3  # relative; a GPU may add in another order
NOTE = (
    "Trained three times with the same weights and rows: left alone; killed by SIGKILL after the step that is named; "
    "and from the last whole checkpoint of that one to the end. Steps made again: those that the kill has cost. "
    "Losses: of the steps after the checkpoint, largest relative difference from the training left alone. Trainer "
    "writes its state last, so that a checkpoint without it is not whole; the bare loop renames one when all ranks "
    "are done. By arithmetic: fp32 weights, a tied matrix once, and two moments. Free before training: for the "
    "checkpoints that are kept (keep_checkpoints) and the one being written, 64 MiB each for what is beside the "
    "tensors; with less a cell is refused before its first step."
)
FINAL_NOTE = (
    "Written where the training ends, read back into a model of other weights: largest difference of any weight. "
    "model.safetensors holds a tied matrix once. output_dir keeps it; without, it is deleted with the checkpoints."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Where it went on and what it took; the losses of both; what is kept."""
    cells = records["killed_training"]
    return [
        t.make(TABLES[0], "Killed, and gone on from the last checkpoint", cells, columns(), [NOTE]),
        t.make(TABLES[1], "Losses left alone and gone on", by_step(cells), loss_columns()),
        t.make(TABLES[2], "Final model and tokenizer", cells, final_columns(), [FINAL_NOTE]),
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("model_name", "Model"),
        t.factor("loop", "Loop"),
        t.factor("world_size", "Ranks"),
        t.factor("device", "Device"),
        t.factor("dtype", "Dtype"),
    ]


def columns() -> list[t.Column]:
    """Steps, differences, sizes."""
    return [
        *_factors(),
        t.factor("killed_after", "Killed after step"),
        t.value("ended", "How it ended", exact=True),
        t.value("steps_behind", "Goes on after step", exact=True),
        t.derived("made_again", "Steps made again", _made_again, exact=True),
        t.value("steps_compared", "Steps compared", exact=True),
        t.value("largest_difference", "Largest difference of losses (relative)"),
        t.value("eval_loss", "Evaluation loss"),
        t.value("resumed_eval_loss", "Evaluation loss, gone on"),
        t.value("checkpoint_bytes", "On disk (GiB)", 1 / GIB, "checkpoint_gib"),
        t.derived("predicted_gib", "by arithmetic (GiB)", lambda r: predicted_bytes(r.values["parameters"]) / GIB),
        t.factor("keep_checkpoints", "Checkpoints kept"),
        t.derived("needed_gib", "Free before training (GiB)", _needed_gib),
        t.value("free_bytes", "was free (GiB)", 1 / GIB, "free_gib"),
        t.value("wrapped_by", "Divided by", exact=True),
    ]


def _made_again(record: Record) -> int:
    return int(record.factors["killed_after"] - record.values["steps_behind"])


def _needed_gib(record: Record) -> float:
    return needed_bytes(record.values["parameters"], record.factors["keep_checkpoints"]) / GIB


def loss_columns() -> list[t.Column]:
    """Both losses of a step."""
    losses = [t.value("loss", "Loss"), t.value("resumed_loss", "Loss, gone on")]
    return [*_factors(), t.factor("step", "Step"), *losses]


def final_columns() -> list[t.Column]:
    """What lies on disk, and whether it is what was trained."""
    return [
        *_factors(),
        t.value("final_bytes", "On disk (GiB)", 1 / GIB, "final_gib"),
        t.value("final_files", "Files", exact=True),
        t.value("read_back_difference", "Largest difference of weights, read back"),
        t.value("tokenizer_reads_back", "Tokenizer, read back", exact=True),
        t.factor("output_dir", "Kept in"),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """None: the curves lie on each other, as those of the checkpoints do."""
    return []


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Whether it goes on as if nothing had happened; what is kept."""
    return [
        find("fsdp.killed", TABLES[:1], lambda: _gone_on(tables[TABLES[0]].ok)),
        find("fsdp.final_model", TABLES[2:], lambda: _kept(tables[TABLES[2]].ok)),
    ]


def _gone_on(rows: pd.DataFrame) -> str:
    rows = need(rows, 1, "killed trainings")
    worst: Any = rows.loc[rows["largest_difference"].astype(float).idxmax()]
    difference = float(worst["largest_difference"])
    again = sorted({int(steps) for steps in rows["made_again"]})
    where = f"{worst['loop']}, {worst['model_name']}"
    apart = f"differ from those of the training left alone by at most {difference:.1g} of the loss ({where})"
    return (
        f"{'Yes' if difference <= SAME else 'No'}: of {counted(len(rows), 'training')} that SIGKILL ended, each went "
        f"on from its last whole checkpoint and made {' or '.join(map(str, again))} steps again; their losses "
        f"{apart if difference else 'are those of the training left alone, to the last digit'}. "
        f"Checkpoints took {from_to(rows['checkpoint_gib'])} GiB, {from_to(rows['predicted_gib'])} by arithmetic; "
        f"{from_to(rows['needed_gib'])} GiB had to be free.{_beyond(rows)}"
    )


def _beyond(rows: pd.DataFrame) -> str:
    """The checkpoints whose size arithmetic misses; "" where it misses none."""
    off = rows["checkpoint_gib"].astype(float) - rows["predicted_gib"].astype(float)
    far = rows[off.abs() * GIB > PIECES_BYTES]
    said = [
        f"{row['model_name']} by the {row['loop']} on {counted(int(row['world_size']), 'rank')} takes "
        f"{format_figure(float(row['checkpoint_gib']))} GiB for {format_figure(float(row['predicted_gib']))}"
        for _, row in far.iterrows()
    ]
    return f" Arithmetic misses {counted(len(far), 'size')}: {'; '.join(said)}." if said else ""


def _kept(rows: pd.DataFrame) -> str:
    rows = need(rows, 1, "final models")
    differ = rows[(rows["read_back_difference"].astype(float) > 0) | (rows["tokenizer_reads_back"] != "same ids")]
    tied = ", the tied custom model among them" if (rows["model_name"] == "simple_gpt").any() else ""
    said = f"{len(differ)} of them read back as something else" if len(differ) else "all read back as they were"
    return (
        f"Model and tokenizer of {counted(len(rows), 'training')} were written at their end, in "
        f"{from_to(rows['final_gib'])} GiB{tied}; {said}."
    )
