"""Figures: their bars, and what they say where nothing was measured. All else: the committed sites' (test_publish)."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import unmeasured
from matplotlib import pyplot as plt

from perfscribe.base import registry
from perfscribe.experiments.cs336.torch_compile import show as torch_compile
from perfscribe.show import figures as f
from perfscribe.show import tables as t

ROOT = Path(__file__).resolve().parents[2]
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


DRAWING = """
import sys
from pathlib import Path
from typing import Any

from perfscribe.show import figures

line = figures.Figure("demo.line", "a line", lambda canvas: canvas.subplots().plot([1, 2]))
figures.write(line, Path(sys.argv[1]), "who measured")
"""


def test_a_users_settings_of_matplotlib_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\ntext.usetex: True\n")
    settings = {"MPLCONFIGDIR": str(tmp_path), "MPLBACKEND": "module://no_such.backend_inline"}
    for name, variables in (("plain", {}), ("set", settings)):
        command = [sys.executable, "-c", DRAWING, str(tmp_path / name)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)
    assert len({(tmp_path / name / "demo.line.svg").read_bytes() for name in ("plain", "set")}) == 1


def test_speed_ups_of_a_few_percent_can_be_read() -> None:
    rows = {
        "size": ["small", "2.7B"],
        "seq_len": ["512"] * 2,
        "full_step_low": [1.13, 1.03],
        "forward_low": [1.15, 1.03],
    }
    rows |= {f"{phase}_{n}": [1.16, 1.04] for phase in ("forward", "full_step") for n in ("speedup", "high")}
    canvas = plt.figure()
    torch_compile._draw(canvas, pd.DataFrame(rows))
    canvas.draw_without_rendering()
    axes = canvas.axes[0]
    low, high = axes.get_ylim()
    plt.close(canvas)
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= f.LEAST_TICKS


@pytest.mark.parametrize("experiment", [name for name in unmeasured.EXPERIMENTS if registry.shown(name).figures])
def test_every_experiment_draws_without_figures(tmp_path: Path, experiment: str) -> None:
    """Nothing measured: each figure is drawn all the same and says in words that there is nothing."""
    drawn = unmeasured.present(experiment).figures(unmeasured.tables(experiment, "skipped"))
    assert tuple(figure.id for figure in drawn) == registry.shown(experiment).figures
    for figure in drawn:
        assert figure.caption.strip()
        assert not f.write(figure, tmp_path, FOOTER)  # which keeps it out of the report
        svg = (tmp_path / f"{figure.id}.svg").read_text()
        found = re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.DOTALL)
        written = [html.unescape(text).strip() for text in found]
        assert FOOTER in " ".join(written)
        assert any(re.match(r"[Nn]o(t|thing)?\b", text) for text in written), written


def drawn(experiment: str) -> Any:
    """The first figure of an experiment from the tables of site h200x4, not yet rendered."""
    show, shown, folder = unmeasured.present(experiment), registry.shown(experiment), ROOT / "results/h200x4/tables"
    read = {name: t.read(folder, name) for name in shown.tables}
    frames = {name: pd.DataFrame(one.rows, columns=[*one.columns, *t.ROW_COLUMNS]) for name, one in read.items()}
    canvas = plt.figure()
    show.figures({name: t.Table(name, "", [], frame) for name, frame in frames.items()})[0].draw(canvas)
    return canvas


def test_strategies_are_drawn_in_the_rows_of_the_hand_in() -> None:
    canvas = drawn("strategies")
    assert [label.get_text() for label in canvas.axes[0].get_yticklabels()] == [
        *("DDP", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "FULL_SHARD, one unit", "FULL_SHARD, off-load"),
        *("FULL_SHARD, checkpointing", "FULL_SHARD, off-load, checkpointing", "SHARD_GRAD_OP, off-load"),
    ]
    plt.close(canvas)


@pytest.mark.parametrize(
    ("experiment", "names"),
    [
        ("custom_multi_gpu", ["as given (FSDP1, one unit)", "tuned (FSDP2)"]),
        ("multi_gpu", ["as given (FSDP1, one unit)", "blocks wrapped (FSDP2)", "tuned (FSDP2)"]),
        ("weak_scaling", ["as printed: layers 3, 6; batch 8, 4; work 100, 62 %"]),
    ],
)
def test_scaling_has_the_words_of_the_tables_and_a_line_of_proportion(experiment: str, names: list[str]) -> None:
    canvas = drawn(experiment)
    texts = [text.get_text() for text in canvas.axes[0].get_legend().get_texts()]
    assert texts[: len(names)] == names and texts[-1].endswith("in proportion to ranks")
    bars = [one for one in canvas.axes[0].containers if one.has_yerr]
    assert bool(bars) == (experiment == "multi_gpu")  # efficiencies have no range over rounds
    plt.close(canvas)


def test_widths_share_an_axis_from_zero() -> None:
    canvas = drawn("dtypes")
    assert len({axes.get_ylim() for axes in canvas.axes}) == 1 and canvas.axes[0].get_ylim()[0] == 0
    plt.close(canvas)
