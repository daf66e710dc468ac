"""Table, figure and answer of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.findings import Finding, counted, find, need
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import GIB, Table
from perfscribe.training.checkpoint_size import needed_bytes, predicted_bytes

TABLES = ("fsdp.checkpoints", "fsdp.checkpoint_losses")
FIGURES = ("fsdp.checkpoints",)
LOOPS = {"bare loop": "the bare loop", "trainer": "Trainer"}
SAME = 1e-3  # relative: sums over ranks are made in another order
NOTE = (
    "Each rank writes its part by torch.distributed.checkpoint: the bare loop under a temporary name until all are "
    "done, a tied matrix once; Trainer (save_strategy=steps, state_dict_type=SHARDED_STATE_DICT) a tied matrix under "
    "each of its names, and its own state as the last file. Trainer's evaluation loss weighs the rows that all ranks "
    "take at once by their tokens, and so depends on the number of ranks. The same rows make a step whatever the "
    "number of ranks. Steps before it: those that the checkpoint holds. Losses: of the steps after the checkpoint, "
    "largest relative difference between the training that went on at once and the one that was resumed. On disk by "
    "arithmetic: fp32 weights and two moments, by Trainer the tied matrix once more; the rest describes the pieces, "
    "which is most of a small model's. Free before training: for those that are kept and the one that is being "
    "written, 64 MiB each for what describes the pieces. Saving and loading were timed once. Writing may end in "
    "the page cache."
)
LEGEND_POINTS = 2.0
CAPTION = (
    "Loss of each optimizer step: the training that was saved (line) and the one that went on from there (points)."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """What was saved and how it went on; the losses behind it."""
    cells = records["checkpoints"]
    return [
        t.make(TABLES[0], "Saved by some ranks, resumed by others", cells, columns(), [NOTE]),
        t.make(TABLES[1], "Losses of both trainings", by_step(cells), loss_columns()),
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("model_name", "Model"),
        t.factor("loop", "Loop"),
        t.factor("device", "Device"),
        t.factor("dtype", "Dtype"),
        t.factor("saved_by", "Saved by (ranks)"),
        t.factor("resumed_by", "Resumed by (ranks)"),
    ]


def columns() -> list[t.Column]:
    """Sizes, seconds, differences."""
    return [
        *_factors(),
        t.value("steps_behind", "Steps before it", exact=True),
        t.value("steps_compared", "Steps after it, compared", exact=True),
        t.value("largest_difference", "Largest difference of losses (relative)"),
        t.value("eval_loss", "Evaluation loss"),
        t.value("resumed_eval_loss", "Evaluation loss, resumed"),
        t.value("save_s", "Saving (s)"),
        t.value("load_s", "Loading (s)"),
        t.value("checkpoint_bytes", "On disk (GiB)", 1 / GIB, "checkpoint_gib"),
        t.derived("predicted_gib", "by arithmetic (GiB)", _predicted),
        t.derived("needed_gib", "Free before training (GiB)", _needed),
        t.value("wrapped_by", "Divided by", exact=True),
    ]


def _predicted(record: Record) -> float:
    return predicted_bytes(record.values["parameters"], _again(record)) / GIB


def _needed(record: Record) -> float:
    keep = record.factors["keep_checkpoints"]
    return needed_bytes(record.values["parameters"], keep, _again(record)) / GIB


def _again(record: Record) -> int:
    """Elements that lie there under another name too; what was recorded before they were counted has none."""
    return int(record.values.get("again_parameters", 0))


def by_step(records: Sequence[Record]) -> list[Record]:
    """A row a step of each cell; one of a cell without figures."""
    found = []
    for record in records:
        whole, rest = record.series.get("train_loss", []), record.series.get("resumed_train_loss", [])
        for step, loss in enumerate(whole or [None], start=1):
            values = {"loss": loss, "resumed_loss": "before the checkpoint"}
            if loss is not None and step > len(whole) - len(rest):
                values["resumed_loss"] = rest[step - 1 - (len(whole) - len(rest))]
            found.append(_with(record, {"step": step}, values))
    return found


def _with(record: Record, factors: dict[str, Any], values: dict[str, Any]) -> Record:
    own = vars(record) | {"factors": {**record.factors, **factors}, "values": values if record.ok else {}}
    return Record(**own)


def loss_columns() -> list[t.Column]:
    """Both losses of a step."""
    losses = [t.value("loss", "Loss"), t.value("resumed_loss", "Loss, resumed")]
    return [*_factors(), t.factor("step", "Step"), *losses]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Both curves."""
    return [f.Figure(FIGURES[0], CAPTION, partial(_draw, rows=tables[TABLES[1]].ok))]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    axes = canvas.subplots()
    axes.set_xlabel("Optimizer step")
    axes.set_ylabel("Loss")
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    by = rows.groupby(["loop", "saved_by", "resumed_by"], sort=False)
    # The curves are one where all is well: each leaves the rim of those before it to be seen.
    rims = range(len(by), 0, -1)
    for colour, rim, ((loop, saved_by, resumed_by), group) in zip(f.COLOURS, rims, by, strict=False):
        group = group.drop_duplicates("step")
        label = f"{loop}: {counted(saved_by, 'rank')}, resumed by {resumed_by}"
        axes.plot(group["step"], group["loss"].astype(float), color=colour, linewidth=1.5 * rim, label=label)
        rest = group.assign(resumed_loss=pd.to_numeric(group["resumed_loss"], errors="coerce")).dropna()
        axes.scatter(rest["step"], rest["resumed_loss"], s=40 * rim, color=colour, zorder=3)
    for handle in axes.legend(fontsize="small").get_lines():
        handle.set_linewidth(LEGEND_POINTS)  # as wide as the curves they would hide each other's names


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """Whether the curve is the same, and what it takes."""
    return [find("fsdp.checkpoints", TABLES[:1], lambda: _resumed(tables[TABLES[0]].ok))]


def _resumed(rows: pd.DataFrame) -> str:
    other = need(_by_others(rows), 1, "checkpoints that another number of ranks went on from")
    worst: Any = other.loc[other["largest_difference"].astype(float).idxmax()]
    same = float(worst["largest_difference"]) <= SAME
    text = (
        f"{'Yes' if same else 'No'}: of {counted(len(other), 'training')} that another number of ranks went on with, "
        f"the losses after the checkpoint differ most where {counted(worst['saved_by'], 'rank')} saved and "
        f"{worst['resumed_by']} went on ({worst['loop']}), by {float(worst['largest_difference']):.1g} of the loss."
    )
    return " ".join(part for part in (text, _by_as_many(rows), _sizes(rows)) if part)


def _by_others(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["saved_by"] != rows["resumed_by"]]


def _by_as_many(rows: pd.DataFrame) -> str:
    """The loops that were measured with the same number of ranks alone; "" where there is none."""
    known = set(_by_others(rows)["loop"])
    said = []
    for loop, own in rows[~rows["loop"].isin(known)].groupby("loop", sort=False):
        worst: Any = own.loc[own["largest_difference"].astype(float).idxmax()]
        said.append(
            f"By {LOOPS[str(loop)]} only the same number of ranks went on ({worst['saved_by']}): losses differ by "
            f"{float(worst['largest_difference']):.1g}; with another number it was not measured."
        )
    return " ".join(said)


def _sizes(rows: pd.DataFrame) -> str:
    """What a checkpoint takes, by each loop: of its last row."""
    said = []
    for _, row in rows.drop_duplicates("loop", keep="last").iterrows():
        size, predicted, save_s, load_s = (
            format_figure(row[name]) for name in ("checkpoint_gib", "predicted_gib", "save_s", "load_s")
        )
        saved = counted(row["saved_by"], "rank")
        said.append(
            f"by {LOOPS[row['loop']]} a checkpoint of {row['model_name']} takes {size} GiB ({predicted} by "
            f"arithmetic), {save_s} s to write by {saved} and {load_s} s to read by {row['resumed_by']}"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."
