"""Figures: the same bytes each time, who measured it in the foot, statuses where they happened, never empty."""

from __future__ import annotations

import html
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import unmeasured
from matplotlib import pyplot as plt
from workspace import ROOT

from perfscribe.base import registry
from perfscribe.experiments.multi_gpu.drawings import ways
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
ENDED = pd.DataFrame({"seq_len": [256, 1024, 1024, 2048], "status": ["ok", "oom", "timeout", "skipped"]}, dtype=object)

# Draws the figure of draw() below in a process of its own.
PLACES = [str(ROOT / place) for place in (".", "tests", "tests/show")]
PROGRAM = """import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import test_figures
test_figures.write(Path(sys.argv[1]))
"""


def draw(canvas: Any) -> None:
    """Two panels: lines with bars and a mark; empty axes."""
    left, right = canvas.subplots(1, 2)
    f.lines(left, ROWS, "seq_len", "time_ms", "head_dim", lambda width: f"d {width}", "time_ms_iqr")
    f.power_of_two_ticks(left, [256, 512])
    f.mark_statuses(left, ENDED, "seq_len")
    left.set_xlabel("Sequence length")
    left.set_ylabel("Time (ms)")
    f.no_data(right, "no cell was measured")


def write(folder: Path, draw: Callable[[Any], None] = draw, footer: str = FOOTER) -> tuple[str, bytes]:
    """The figure's SVG and PNG."""
    f.write(f.Figure("cs336.time", "Time over length.", draw), folder, footer)
    return (folder / "cs336.time.svg").read_text(), (folder / "cs336.time.png").read_bytes()


def texts(svg: str) -> list[str]:
    """Everything written in an SVG."""
    return [html.unescape(text).strip() for text in re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.DOTALL)]


@pytest.fixture
def axes() -> Any:
    canvas, axes = plt.subplots()
    yield axes
    plt.close(canvas)


# --- files ------------------------------------------------------------------------------------------------------


def test_two_processes_draw_the_same_bytes(tmp_path: Path) -> None:
    for number in ("1", "2"):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / number), *PLACES]
        env = {**os.environ, "PYTHONHASHSEED": number, "TZ": f"UTC{number}", "SOURCE_DATE_EPOCH": number}
        subprocess.run(command, cwd=tmp_path, env=env, check=True)
    for name in ("cs336.time.svg", "cs336.time.png"):
        first, second = ((tmp_path / number / name).read_bytes() for number in ("1", "2"))
        assert first == second and len(first) > 5000


# --- what is drawn ----------------------------------------------------------------------------------------------


def test_bars_are_as_long_as_the_spread(axes: Any) -> None:
    f.lines(axes, ROWS, "seq_len", "time_ms", "head_dim", spread="time_ms_iqr")
    bars = [container[2][0].get_segments() for container in axes.containers]
    lengths = [[round(float(bar[1][1] - bar[0][1]), 6) for bar in line if len(bar)] for line in bars]
    assert lengths == [[0.1, 0.2], [0.5]]


def test_bars_end_where_two_columns_say(axes: Any) -> None:
    rows = ROWS.assign(low=[0.5, 3.0, math.nan, 7.0], high=[2.0, 4.5, math.nan, 8.0])
    f.lines(axes, rows, "seq_len", "time_ms", "head_dim", limits=("low", "high"))
    bars = [container[2][0].get_segments() for container in axes.containers]
    ends = [[tuple(float(end) for end in bar[:, 1]) for bar in line if len(bar)] for line in bars]
    assert ends == [[(0.5, 2.0), (3.0, 4.5)], [(7.0, 8.0)]]


# --- the experiments' own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", [name for name in unmeasured.EXPERIMENTS if registry.shown(name, ROOT).figures])
def test_every_experiment_draws_without_figures(tmp_path: Path, experiment: str) -> None:
    """Nothing measured: each figure is drawn all the same and says in words that there is nothing."""
    drawn = unmeasured.present(experiment).figures(unmeasured.tables(experiment, "skipped"))
    assert tuple(figure.id for figure in drawn) == registry.shown(experiment, ROOT).figures
    for figure in drawn:
        assert figure.caption.strip()
        assert not f.write(figure, tmp_path, FOOTER)  # which keeps it out of the report
        written = texts((tmp_path / f"{figure.id}.svg").read_text())
        assert FOOTER in " ".join(written)
        assert any(re.match(r"[Nn]o(t|thing)?\b", text) for text in written), written


def test_each_wrapping_has_its_own_line_from_the_row_that_nothing_wraps() -> None:
    rows = pd.DataFrame(
        [("none", 1), ("FSDP1", 2), ("FSDP1", 4), ("FSDP2", 2)], columns=["wrapped_by", "world_size"]
    ).assign(device="cuda", loop="trainer")
    found = {name: list(of["world_size"]) for name, of in ways(rows).items()}
    assert found == {"trainer, FSDP1, cuda": [1, 2, 4], "trainer, FSDP2, cuda": [1, 2]}
