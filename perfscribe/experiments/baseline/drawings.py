"""The figure of losses and samples a second over epochs, which the chapter's two experiments share."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.multi_gpu.drawings import main_device, numbers
from perfscribe.show import figures as f

CAPTION = (
    "Above: training loss (mean since the evaluation before, dropout on) and evaluation loss, with labels that train "
    "the answer and with the workshop's. Below: samples a second of the same steps and evaluations."
)
TRAINING, EVALUATION = ("training", "--"), ("evaluation", "-")
PANELS = {
    "Loss": {"train_loss": TRAINING, "eval_loss": EVALUATION},
    "Samples/s": {"trained_per_s": TRAINING, "evaluated_per_s": EVALUATION},
}
NAMES = {"answer": "answer", "source": "the workshop's labels"}


def losses(canvas: Any, rows: pd.DataFrame) -> None:
    """A panel for losses and one for rates: one colour a way to label, dashed for training."""
    above, below = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    below.set_xlabel("Epoch")
    if rows.empty:
        f.no_data(above, "not measured")
        f.no_data(below, "not measured")
        return
    rows = main_device(rows)
    for axes, (name, lines) in zip((above, below), PANELS.items(), strict=True):
        axes.set_ylabel(name)
        for number, (labels, group) in enumerate(rows.groupby("labels", sort=False)):
            for column, (kind, style) in lines.items():
                _line(axes, numbers(group, column), column, style, number, f"{kind}, {NAMES[str(labels)]}")
    below.set_ylim(bottom=0)
    below.set_xticks(sorted(set(rows["epoch"].astype(float))))
    above.legend(fontsize=f.LABEL_POINTS)


def _line(axes: Any, points: pd.DataFrame, column: str, style: str, number: int, label: str) -> None:
    axes.plot(
        points["epoch"].astype(float),
        points[column],
        style,
        marker=f.MARKERS[number],
        color=f.COLOURS[number],
        markersize=4,
        linewidth=1.2,
        label=label,
    )
