"""How the roofline is drawn: a panel a dtype, ceilings as lines, each point labelled beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe.experiments.roofline.rows import STEP

WIDTH_IN, PANEL_IN = 8.0, 4.0
MOST_PANELS = 2
PREFERRED = ("bf16", "fp32", "tf32", "fp16")
STYLES = {"measured": "-", "sheet": "--"}
SHOWN = {"measured": "measured", "sheet": "data sheet"}
GREY = "#555555"
GB_PER_TB = 1000
MARGIN = 3.0  # between the points and the limits of an axis, as a factor
LABEL_POINTS = 7
LETTER_POINTS = 3.9  # width of a letter, about
WIDTH_POINTS, HEIGHT_POINTS = 0.91 * WIDTH_IN * 72, 0.8 * PANEL_IN * 72  # of a panel's axes, about
PASS_MARKERS = {"backward": "^"}  # of other passes and steps a disc
PARTS = 60  # of a line, that labels keep off
POINT_WEIGHT = 8  # of a point, in pieces of lines
Box = tuple[float, float, float, float]  # left, bottom, right, top
# Where a label may stand beside its point, in points: the first place where it covers nothing.
PLACES = tuple((dx, dy) for dy in (-3, 6, -12, 15, -21, 24, -30, 33) for dx in (6, -6))


def _device(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one device, CUDA before others."""
    return rows[rows["device"] == ("cuda" if "cuda" in set(rows["device"]) else rows["device"].iloc[0])]


def dtypes(rows: pd.DataFrame) -> list[str]:
    """The dtypes that are drawn."""
    if rows.empty:
        return []
    known = _device(rows)["dtype"]
    return [one for one in PREFERRED if one in set(known)][:MOST_PANELS]


def draw(canvas: Any, rows: pd.DataFrame) -> None:
    """Panels one above the other on the same axes."""
    shown = dtypes(rows)
    if not shown:
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    every = _device(rows)
    every = _named(every[every["dtype"].isin(shown)].astype({"intensity": float, "tflop_per_s": float}))
    names = dict.fromkeys(name for (_, name, _), _ in _series(every))
    colours = dict(zip(names, cycle(f.COLOURS), strict=False))
    for axes, dtype in zip(canvas.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        _panel(axes, every[every["dtype"] == dtype], every, colours)
        axes.set_title(f"{dtype} on {every['device'].iloc[0]}")
        axes.set_xlabel("FLOP/byte")
        axes.set_ylabel("TFLOP/s")


def _panel(axes: Any, rows: pd.DataFrame, every: pd.DataFrame, colours: Mapping[str, str]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    left, right = (
        every["intensity"].min() / MARGIN,
        every["intensity"].max() * 5 * MARGIN,
    )  # room for labels on the right
    peaks = {title: _known(rows, f"{title}_peak_tflop_per_s") for title in STYLES}
    slopes = {title: _known(rows, f"{title}_memory_gb_per_s") for title in STYLES}
    top = max([rows["tflop_per_s"].max(), *(peak for peak in peaks.values() if peak is not None)])
    axes.set_xlim(left, right)
    axes.set_ylim(rows["tflop_per_s"].min() / MARGIN, top * MARGIN)
    taken = _Taken(axes)
    for title, style in STYLES.items():
        _ceiling(axes, taken, title, style, peaks, slopes)
    for (work, name, one), group in _series(rows):
        # Two passes of an implementation share its colour.
        colour, marker = colours[name], PASS_MARKERS.get(one, f.MARKERS[0])
        group = group.sort_values("intensity", kind="stable")
        xs, ys = list(group["intensity"]), list(group["tflop_per_s"])
        style = "None" if work == STEP else "-"
        axes.plot(xs, ys, linestyle=style, color=colour, marker=marker, markersize=4, linewidth=0.6)
        (taken.points if work == STEP else taken.line)(xs, ys)
        for _, row in group.iterrows() if work == STEP else group.tail(1).iterrows():
            text = f"step, {row['name']}" if work == STEP else f"{name}, {one}"
            taken.later(text, row["intensity"], row["tflop_per_s"], colour)
    taken.write()


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the series that they are drawn in: steps of all models are one, each implementation of attention
    another, each of its head dimensions where it has several."""
    several = rows.groupby("name")["head_dim"].transform("nunique") > 1
    names = rows["name"].where(~several, rows["name"] + ", d = " + rows["head_dim"].astype(str))
    return rows.assign(series=names.where(rows["work"] != STEP, STEP))


def _series(rows: pd.DataFrame) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Each pass of a series by itself."""
    return [(tuple(key), group) for key, group in rows.groupby(["work", "series", "pass"], sort=False)]


def _known(rows: pd.DataFrame, column: str) -> float | None:
    """The figure that all rows of the panel have there; None where it is a text."""
    numbers = pd.to_numeric(rows[column], errors="coerce").dropna()
    return float(numbers.iloc[0]) if len(numbers) else None


def _ceiling(
    axes: Any,
    taken: _Taken,
    title: str,
    style: str,
    peaks: Mapping[str, float | None],
    slopes: Mapping[str, float | None],
) -> None:
    """The peak from the ridge on, and the memory's slope up to it, as far as either is known."""
    (left, right), label = axes.get_xlim(), SHOWN[title]
    peak, slope = peaks[title], slopes[title]
    ridge = None
    if peak is not None:
        any_slope = slope or next((one for one in slopes.values() if one is not None), None)
        ridge = peak * GB_PER_TB / any_slope if any_slope else left
        xs, ys = [max(left, ridge), right], [peak, peak]
        axes.plot(xs, ys, style, color=GREY, linewidth=1)
        taken.line(xs, ys)
        taken.label(f"peak, {label}", right, peak, GREY, ((-2, -9),) if title == "measured" else ((-2, 2),))
    if slope is not None and (ridge is None or ridge > left):
        end = min(right, ridge or right)
        xs, ys = [left, end], [left * slope / GB_PER_TB, end * slope / GB_PER_TB]
        axes.plot(xs, ys, style, color=GREY, linewidth=1)
        taken.line(xs, ys)
        low = axes.get_ylim()[0]
        start = max(left, low * GB_PER_TB / slope)
        taken.label(f"memory, {label}", start, start * slope / GB_PER_TB, GREY, ((2, 30), (2, 40), (2, 50), (8, -12)))


class _Taken:
    """Labels of a panel and where there is room for them."""

    def __init__(self, axes: Any) -> None:
        self._axes = axes
        self._boxes: list[Box] = []  # points, and pieces of lines
        self._labels: list[Box] = []
        self._waiting: list[tuple[str, float, float, str]] = []

    def _at(self, x: float, y: float) -> tuple[float, float]:
        """A place in points from the lower left corner, roughly: the layout is not final yet."""
        places = []
        for value, limits, points in (
            (x, self._axes.get_xlim(), WIDTH_POINTS),
            (y, self._axes.get_ylim(), HEIGHT_POINTS),
        ):
            low, high = map(math.log10, limits)
            places.append((math.log10(value) - low) / (high - low) * points)
        return places[0], places[1]

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Keep labels off these points."""
        for at in map(self._at, xs, ys):
            self._boxes += [(at[0] - 3, at[1] - 3, at[0] + 3, at[1] + 3)] * POINT_WEIGHT

    def line(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Keep labels off a line through these points."""
        ends = list(map(self._at, xs, ys))
        for one, other in pairwise(ends):
            for part in range(PARTS + 1):
                x, y = (a + (b - a) * part / PARTS for a, b in zip(one, other, strict=True))
                self._boxes.append((x - 1, y - 1, x + 1, y + 1))
        self.points(xs, ys)

    def later(self, text: str, x: float, y: float, colour: str) -> None:
        """Label a point once all points are known."""
        self._waiting.append((text, x, y, colour))

    def write(self) -> None:
        """Write the labels that wait."""
        for text, x, y, colour in self._waiting:
            self.label(text, x, y, colour, PLACES)

    def label(self, text: str, x: float, y: float, colour: str, places: Iterable[tuple[float, float]]) -> None:
        """Write a label at the offset where it covers least, near its point, within the panel."""
        at, width = self._at(x, y), LETTER_POINTS * len(text)

        def box_at(place: tuple[float, float]) -> Box:
            low = at[0] + place[0] - (width if place[0] < 0 else 0)
            return low, at[1] + place[1], low + width, at[1] + place[1] + LABEL_POINTS

        def cost(place: tuple[float, float]) -> tuple[bool, float]:
            box = box_at(place)
            outside = min(box[:2]) < 0 or box[2] > WIDTH_POINTS or box[3] > HEIGHT_POINTS
            covered = sum(_meet(box, other) for other in self._boxes)
            return outside, covered + abs(place[1]) / 6 + PARTS * sum(_meet(box, other) for other in self._labels)

        dx, dy = min(places, key=cost)
        left, low, right, top = box_at((dx, dy))
        # Where every place is partly outside, the best is moved in.
        over = max(0.0, -left) - max(0.0, right - WIDTH_POINTS)
        up = max(0.0, -low) - max(0.0, top - HEIGHT_POINTS)
        self._labels.append((left + over, low + up, right + over, top + up))
        side = {"ha": "left" if dx > 0 else "right", "va": "bottom", "fontsize": LABEL_POINTS, "color": colour}
        self._axes.annotate(text, (x, y), xytext=(dx + over, dy + up), textcoords="offset points", **side)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
