"""Figures: their bars, and what they say where nothing was measured. All else: the committed sites' (test_publish)."""

import html
import re
from pathlib import Path

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from perfscribe.base import registry
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show import figures as f

FOOTER = "site demo: 8 × NVIDIA H200 · n = 5 a cell · environment 0123456789ab · commit 0123456789"
ROWS = pd.DataFrame(
    {
        "seq_len": [256, 512, 256, 512],
        "time_ms": [1.0, 4.0, 2.0, 8.0],
        "time_ms_iqr": [0.1, 0.2, "one sample", 0.5],
        "head_dim": [16, 16, 64, 64],
    },
    dtype=object,
)


def test_bars_are_as_long_as_the_spread() -> None:
    canvas, axes = plt.subplots()
    f.lines(axes, ROWS, "seq_len", "time_ms", "head_dim", spread="time_ms_iqr")
    plt.close(canvas)
    bars = [container[2][0].get_segments() for container in axes.containers]
    lengths = [[round(float(bar[1][1] - bar[0][1]), 6) for bar in line if len(bar)] for line in bars]
    assert lengths == [[0.1, 0.2], [0.5]]


def test_panels_that_share_an_axis_cut_nothing_off() -> None:
    canvas, panels = plt.subplots(1, 2, sharey=True)
    low, high = ({"seq_len": [1, 2], "time_ms": times, "head_dim": 16} for times in ([5.5, 18.0], [9.0, 64.0]))
    for axes, rows in zip(panels, (low, high), strict=True):
        f.lines(axes, pd.DataFrame(rows), "seq_len", "time_ms", "head_dim")
    least, most = panels[0].get_ylim()
    plt.close(canvas)
    assert least < 5.5 and most > 64.0


@pytest.mark.parametrize("experiment", [name for name in registry.known() if registry.shown(name).figures])
def test_every_experiment_draws_without_figures(tmp_path: Path, experiment: str) -> None:
    """Nothing measured: each figure is drawn all the same and says in words that there is nothing."""
    shown, show = registry.shown(experiment), registry.module(experiment, "show")
    cells = {
        name: plan.planned_cells({}, name, "tiny") for name in registry.measured() if name in (experiment, *shown.reads)
    }
    none = {
        name: [Record(name, dict(cell.factors), "skipped", "why", "measured") for cell in of]
        for name, of in cells.items()
    }
    drawn = show.figures({table.id: table for table in show.tables(none)})
    assert tuple(figure.id for figure in drawn) == shown.figures
    for figure in drawn:
        assert figure.caption.strip()
        assert not f.write(figure, tmp_path, FOOTER)  # which keeps it out of the report
        svg = (tmp_path / f"{figure.id}.svg").read_text()
        found = re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.DOTALL)
        written = [html.unescape(text).strip() for text in found]
        assert FOOTER in " ".join(written)
        assert any(re.match(r"[Nn]o(t|thing)?\b", text) for text in written), written
