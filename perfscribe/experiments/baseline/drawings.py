"""The figure of losses over epochs, which the chapter's two experiments share."""

from __future__ import annotations

from typing import Any

from perfscribe import figures as f
from perfscribe.epoch_columns import main_device
from perfscribe.tables import Table

CAPTION = (
    "Training loss (mean since the evaluation before, dropout on) and evaluation loss over epochs, with labels that "
    "train the answer and with the workshop's own."
)
LINES = {"train_loss": ("training", "--"), "eval_loss": ("evaluation", "-")}
NAMES = {"answer": "answer", "source": "the workshop's labels"}


def losses(canvas: Any, table: Table) -> None:
    """One colour a way to label, dashed for training."""
    axes, rows = canvas.subplots(), table.ok
    axes.set_xlabel("Epoch")
    axes.set_ylabel("Loss")
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    rows = main_device(rows)
    for number, (labels, group) in enumerate(rows.groupby("labels", sort=False)):
        for column, (kind, style) in LINES.items():
            points = group[group[column].map(lambda value: isinstance(value, float))]
            axes.plot(
                points["epoch"].astype(float),
                points[column].astype(float),
                style,
                marker=f.MARKERS[number],
                color=f.COLOURS[number],
                markersize=4,
                linewidth=1.2,
                label=f"{kind}, {NAMES[str(labels)]}",
            )
    axes.set_xticks(sorted(set(rows["epoch"].astype(float))))
    axes.legend(fontsize=f.LABEL_POINTS)
