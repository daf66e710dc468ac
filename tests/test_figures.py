"""Figures: the same bytes each time, who measured it in the foot, statuses where they happened, never empty."""

from __future__ import annotations

import html
import itertools
import math
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import unmeasured
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from workspace import ROOT

from perfscribe.base import registry
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
PROGRAM = """import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import test_figures
test_figures.write(Path(sys.argv[3]))
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
        command = [sys.executable, "-c", PROGRAM, str(ROOT), str(ROOT / "tests"), str(tmp_path / number)]
        env = {**os.environ, "PYTHONHASHSEED": number, "TZ": f"UTC{number}", "SOURCE_DATE_EPOCH": number}
        subprocess.run(command, cwd=tmp_path, env=env, check=True)
    for name in ("cs336.time.svg", "cs336.time.png"):
        first, second = ((tmp_path / number / name).read_bytes() for number in ("1", "2"))
        assert first == second and len(first) > 5000


def test_nothing_of_the_machine_is_in_the_files(tmp_path: Path) -> None:
    svg, png = write(tmp_path)
    assert "<dc:date>" not in svg and "Matplotlib" not in svg
    kinds, position = [], 8
    while position < len(png):
        length, kind = struct.unpack(">I4s", png[position : position + 8])
        kinds.append(kind)
        position += 12 + length
    assert set(kinds) <= {b"IHDR", b"PLTE", b"pHYs", b"IDAT", b"IEND"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cs336.time.png", "cs336.time.svg"]


def test_the_foot_says_who_measured(tmp_path: Path) -> None:
    written = texts(write(tmp_path)[0])
    assert FOOTER in " ".join(written)


def test_a_long_foot_is_broken_into_lines(tmp_path: Path) -> None:
    long = " · ".join([FOOTER] * 4)
    lines = texts(write(tmp_path, footer=long)[0])[-3:]
    assert " ".join(lines) == long
    assert max(map(len, lines)) <= 7 * f.FOOTER_CHARACTERS_PER_INCH


def test_all_is_drawn_once_a_kind_of_file(tmp_path: Path) -> None:
    """Finding the places draws nothing, and each kind has the places that an SVG would be given alone."""
    drawn = []

    class Counted(Line2D):
        def draw(self, renderer: Any) -> None:
            drawn.append(type(renderer).__name__)
            super().draw(renderer)

    def with_line(canvas: Any) -> None:
        draw(canvas)
        canvas.axes[0].add_line(Counted([256, 512], [1.0, 4.0]))

    write(tmp_path, with_line)
    assert drawn == ["MixedModeRenderer", "RendererAgg"] and not plt.get_fignums()

    def by_savefig(canvas: Any) -> None:
        draw(canvas)
        canvas.supxlabel("foot", fontsize=6, color="#555555", x=0.01, ha="left")
        canvas.savefig(tmp_path / "whole.svg")
        places.extend(axes.get_position().bounds for axes in canvas.axes)

    places: list[Any] = []
    with plt.rc_context(f.STYLE):
        by_savefig(plt.figure(figsize=f.Figure("", "", draw).size_in, layout="constrained"))
        plt.close()

    def remembered(canvas: Any) -> None:
        draw(canvas)
        kept.append(canvas)

    kept: list[Any] = []
    write(tmp_path, remembered, "foot")
    assert [axes.get_position().bounds for axes in kept[0].axes] == places


def test_a_figure_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(canvas: Any) -> None:
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        write(tmp_path / "new", fail)
    assert not (tmp_path / "new").exists() and not plt.get_fignums()


# --- what is drawn ----------------------------------------------------------------------------------------------


def test_labels_ticks_marks_and_reasons_are_written(tmp_path: Path) -> None:
    written = texts(write(tmp_path)[0])
    for text in ("d 16", "d 64", "256", "512", "Sequence length", "Time (ms)", "no cell was measured"):
        assert text in written
    assert "OOM, TIMEOUT at 1024" in written
    assert not any("SKIPPED" in text or "OK" in text for text in written)


def test_marks_lie_within_the_axes(axes: Any) -> None:
    f.lines(axes, ROWS, "seq_len", "time_ms", "head_dim", spread="time_ms_iqr")
    before = axes.get_ylim()
    f.mark_statuses(axes, ENDED, "seq_len")
    low, high = axes.get_xlim()
    assert low < 256 and high > 1024 and axes.get_ylim() == before
    assert [text.get_text() for text in axes.texts if "OOM" in text.get_text()] == ["OOM, TIMEOUT"]


def test_bars_are_as_long_as_the_spread(axes: Any) -> None:
    f.lines(axes, ROWS, "seq_len", "time_ms", "head_dim", spread="time_ms_iqr")
    bars = [container[2][0].get_segments() for container in axes.containers]
    lengths = [[round(float(bar[1][1] - bar[0][1]), 6) for bar in line if len(bar)] for line in bars]
    assert lengths == [[0.1, 0.2], [0.5]]


def test_drawings_are_stacked_each_as_high_as_asked(tmp_path: Path) -> None:
    upper, lower = (draw, lambda canvas: canvas.subplots().set_xlabel("Ranks"))
    written = texts(write(tmp_path, f.stacked(upper, lower, heights=(2, 1)))[0])
    assert {"d 16", "Sequence length", "Ranks"} <= set(written) and FOOTER in " ".join(written)
    canvas = plt.figure(figsize=(7.0, 6.0))
    heights = []
    f.stacked(*[lambda part: heights.append(part.bbox.height / part.dpi)] * 2, heights=(2, 1))(canvas)
    assert heights == pytest.approx([4.0, 2.0])
    plt.close(canvas)


def test_labels_in_a_part_of_a_figure_stay_apart(axes: Any) -> None:
    """They are set apart by the height of the part: by the figure's, a label would lie on the one below it."""
    close = ROWS.assign(time_ms=[1.0, 4.0, 1.0, 4.3])
    part = axes.get_figure().subfigures(3, 1)[0].subplots()
    f.lines(part, close, "seq_len", "time_ms", "head_dim")
    axes.get_figure().canvas.draw()
    low, high = sorted(text.get_window_extent().y0 for text in part.texts)
    assert high - low >= 0.9 * f.LABEL_POINTS * axes.get_figure().dpi / 72


def test_lines_are_sorted_and_told_apart(axes: Any) -> None:
    f.lines(axes, ROWS.iloc[::-1], "seq_len", "time_ms", "head_dim", lambda width: f"d {width}")
    drawn = [container[0] for container in axes.containers]
    assert [list(line.get_xdata()) for line in drawn] == [[256.0, 512.0]] * 2
    assert len({line.get_color() for line in drawn}) == len({line.get_marker() for line in drawn}) == 2
    assert sorted(text.get_text() for text in axes.texts) == ["d 16", "d 64"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_labels_of_lines_that_end_together_stay_apart(axes: Any) -> None:
    rows = pd.DataFrame({"x": [1, 2] * 4, "y": [1.0, 3.0] * 4, "by": [n for n in "abcd" for _ in range(2)]})
    f.lines(axes, rows, "x", "y", "by")
    axes.get_figure().draw_without_rendering()
    heights = sorted(text.get_window_extent().y0 for text in axes.texts)
    assert all(above - below >= 7 for below, above in itertools.pairwise(heights)) and len(heights) == 4


def test_a_line_that_ends_early_is_labelled_at_its_left(axes: Any) -> None:
    rows = pd.DataFrame({"n": [1, 2, 1, 2, 4], "ms": [5.0, 9.0, 1.0, 2.0, 3.0], "by": ["a", "a", "b", "b", "b"]})
    f.lines(axes, rows, "n", "ms", "by")
    assert {label.get_text(): label.get_ha() for label in axes.texts} == {"a": "right", "b": "left"}


@pytest.mark.parametrize(("times", "least"), [([12.9, 64.1], 3), ([3e-7, 3e5], 3), ([4.0, 4.1], 2), ([0.02, 60.0], 9)])
def test_y_axes_have_labelled_ticks(axes: Any, times: list[float], least: int) -> None:
    f.lines(axes, pd.DataFrame({"n": [1, 2], "ms": times, "by": "a"}), "n", "ms", "by")
    low, high = axes.get_ylim()
    assert low <= times[0] and times[1] <= high
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= least


@pytest.mark.parametrize(("base", "labels"), [(10, ["10⁻³", "10⁰", "10²"]), (2, ["2⁻¹⁰", "2⁰", "2⁸"])])
def test_powers_are_plain_text(tmp_path: Path, base: int, labels: list[str]) -> None:
    def draw(canvas: Any) -> None:
        axes = canvas.add_subplot()
        axes.plot([0.0009, 500], [1, 2])
        axes.set_xscale("log", base=base)
        axes.xaxis.set_major_locator(f.ticker.FixedLocator([float(base) ** n for n in (-10, -3, 0, 2, 8)]))

    f.write(f.Figure("t.powers", "Powers", draw), tmp_path, FOOTER)
    shown = html.unescape((tmp_path / "t.powers.svg").read_text())
    assert all(f">{label}<" in shown for label in labels)


def test_powers_keep_factors_and_all_else_its_formula() -> None:
    formatter = f.PlainPowers(10, minor_thresholds=(math.inf, math.inf))
    formatter.create_dummy_axis()
    formatter.set_locs()
    assert [formatter(x) for x in (0.001, 1, 20, -1000)] == ["10⁻³", "10⁰", "2 · 10¹", "-10³"]


def test_empty_axes_say_why(axes: Any) -> None:
    f.no_data(axes, "no cell was measured")
    assert [text.get_text() for text in axes.texts] == ["no cell was measured"]
    assert not len(axes.get_xticks()) and not len(axes.get_yticks())


# --- the experiments' own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", [name for name in unmeasured.EXPERIMENTS if registry.shown(name, ROOT).figures])
@pytest.mark.parametrize("status", ["skipped", "oom"])
def test_every_experiment_draws_without_figures(tmp_path: Path, experiment: str, status: str) -> None:
    """Nothing measured: each figure is drawn all the same and says in words that there is nothing."""
    drawn = unmeasured.present(experiment).figures(unmeasured.tables(experiment, status))
    assert tuple(figure.id for figure in drawn) == registry.shown(experiment, ROOT).figures
    for figure in drawn:
        assert figure.caption.strip()
        f.write(figure, tmp_path, FOOTER)
        written = texts((tmp_path / f"{figure.id}.svg").read_text())
        assert FOOTER in " ".join(written)
        assert any(re.match(r"[Nn]o(t|thing)?\b", text) for text in written), written
