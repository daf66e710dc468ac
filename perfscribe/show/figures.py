"""Figures in one style: colour-blind safe, medians ± half the interquartile range, statuses at their position.

Written as SVG, byte-identical for the same tables and library versions.
"""

import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.lines import Line2D

from perfscribe.base import files

matplotlib.rcdefaults()  # ignore the user's matplotlibrc

POINTS_PER_INCH = 72
LABEL_POINTS = 8
LEAST_TICKS = 3
MOST_DECADES = 5  # up to which ticks at 2 and 5 are labelled, too
LEAST_RANGE = 1.2  # ratio of the y limits; a smaller range would make noise look like a trend
# Okabe and Ito's palette, darkest first; the markers distinguish lines in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# Width of the footer's 6-point letters: matplotlib does not wrap lines.
FOOTER_CHARACTERS_PER_INCH = 20
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "perfscribe",
    "svg.fonttype": "none",  # text as text: glyph outlines would be most of each file
    "figure.dpi": 100,
    "savefig.dpi": 150,  # for embedded pictures
}


@dataclass(frozen=True)
class Figure:
    """A picture made from tables.

    id: `<chapter>.<name>`. caption: its content, with timer, statistic and units.
    draw: fills an empty matplotlib figure.
    size_in: width and height in inches. sample: key of Record.samples whose values the footer counts.
    """

    id: str
    caption: str
    draw: Callable[[Any], None]
    size_in: tuple[float, float] = (7.0, 3.6)
    sample: str = ""


def write(figure: Figure, folder: Path, footer: str) -> bool:
    """Write <id>.svg with a provenance footer; return whether it has points (else the report omits it)."""
    with plt.rc_context(STYLE):
        canvas = plt.figure(figsize=figure.size_in, layout="constrained")
        try:
            figure.draw(canvas)
            has_points = any(axes.has_data() for axes in canvas.get_axes())
            shown = textwrap.fill(footer, int(figure.size_in[0] * FOOTER_CHARACTERS_PER_INCH))
            canvas.supxlabel(shown, fontsize=6, color="#555555", x=0.01, ha="left")
            _lay_out(canvas)
            drawn = io.BytesIO()
            canvas.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
            files.write_bytes(folder / f"{figure.id}.svg", _rounded(drawn.getvalue()))
        finally:
            plt.close(canvas)
    return has_points


def _lay_out(canvas: Any) -> None:
    """Run the layout engine at an SVG's resolution, so that savefig need not draw everything twice."""
    FigureCanvasSVG(canvas)
    canvas.set_dpi(POINTS_PER_INCH)
    canvas.get_layout_engine().execute(canvas)
    canvas.set_layout_engine(None)  # with "none" savefig would still draw twice


# Attributes with positions and sizes, numbers in them with more than two decimals, and names of parts, which matplotlib
# derives from digests of their positions.
_PLACES = re.compile(rb' (?:d|x|y|width|height|transform)="[^"]*"')
_FINE = re.compile(rb"-?\d*\.\d{3,}")
_NO_TURN = re.compile(rb' transform="rotate\(-0 [^"]*"')
_DIGEST = re.compile(rb'(?<=[#"])[mp][0-9a-f]{10}(?=[")])')


def _rounded(svg: bytes) -> bytes:
    """Round an SVG's positions to a hundredth of a point and number its named parts in order.

    The result is smaller and does not depend on the processor, which affects the last digits of positions.
    """
    svg = _PLACES.sub(lambda places: _FINE.sub(_hundredths, places[0]).replace(b" \n", b" "), _NO_TURN.sub(b"", svg))
    names: dict[bytes, bytes] = {}
    return _DIGEST.sub(lambda match: names.setdefault(match[0], b"%b%d" % (match[0][:1], len(names) + 1)), svg)


def _hundredths(number: re.Match[bytes]) -> bytes:
    """Round to two decimals, without trailing zeros (as matplotlib writes numbers) and without -0."""
    return f"{round(float(number[0]), 2) + 0.0:.2f}".rstrip("0").rstrip(".").encode()


def of(rows: pd.DataFrame, draw: Callable[..., None], **more: Any) -> Callable[[Any], None]:
    """Return a function that calls draw(canvas, rows, **more) or, if no row is ok, draws empty axes that say so."""

    def drawn(canvas: Any) -> None:
        if (rows["status"] == "ok").any():
            draw(canvas, rows, **more)
        else:
            no_data(canvas.subplots(), "no cell was measured")

    return drawn


def main_device(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one device, the accelerator if there is any: times of two devices do not mix."""
    return rows[rows["device"] == ("cuda" if "cuda" in set(rows["device"]) else "cpu")]


def no_data(axes: Any, why: str) -> None:
    """Write on empty axes why they are empty."""
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, wrap=True, color="#555555")
    axes.set_xticks([])
    axes.set_yticks([])


def lines(
    axes: Any,
    rows: pd.DataFrame,
    x: str,
    y: str,
    by: str | list[str],
    label: Callable[[Any], str] = str,
    spread: str = "",
) -> None:
    """Draw a line per level of `by` on log axes (x: base 2), labelled at its end, with bars of y ± half the spread.

    label: text for a level. spread: column of interquartile ranges; "", or a text in a row (one sample): no bar.
    """
    ends: list[tuple[str, float, float, str]] = []
    for number, (level, group) in enumerate(rows.groupby(by, sort=False)):
        group = group.sort_values(x, kind="stable")
        xs, ys = group[x].astype(float), group[y].astype(float)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        bars = pd.to_numeric(group[spread], errors="coerce") / 2 if spread else None
        axes.errorbar(xs, ys, yerr=bars, color=colour, marker=marker, markersize=4, linewidth=1.2, capsize=2)
        ends.append((label(level), float(xs.iloc[-1]), float(ys.iloc[-1]), colour))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.autoscale(axis="y")  # a panel that shares this axis may have fixed the limits below
    low, high = axes.get_ylim()
    if high / low < LEAST_RANGE:
        low, high = axes.set_ylim(low / LEAST_RANGE, high * LEAST_RANGE)
    # Over many decades matplotlib drops all intermediate ticks, and the decades' with them.
    subs = (1, 2, 5) if math.log10(high / low) <= MOST_DECADES else (1,)
    plain_ticks(axes, subs)
    axes.margins(x=0.15)
    _widen_to_ticks(axes)
    _label_ends(axes, ends)


def plain_ticks(axes: Any, subs: Sequence[float]) -> None:
    """Label a logarithmic y axis with plain numbers at these multiples of each decade."""
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def _widen_to_ticks(axes: Any) -> None:
    """Extend the y axis to the next ticks if fewer than three would be labelled, too few to read a scale."""
    low, high = axes.get_ylim()
    ticks = axes.yaxis.get_major_locator().tick_values(low, high)
    if sum(low <= tick <= high for tick in ticks) >= LEAST_TICKS:
        return
    below, above = [tick for tick in ticks if tick <= low], [tick for tick in ticks if tick >= high]
    axes.set_ylim(max(below, default=low), min(above, default=high))


def varying(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the factors that tell lines apart: the first name, and the others that have several levels in rows."""
    return [names[0], *(name for name in names[1:] if name in rows.columns and rows[name].nunique() > 1)]


def _label_ends(axes: Any, ends: list[tuple[str, float, float, str]]) -> None:
    """Label lines at their right ends, moving labels up so that they do not overlap.

    A line that ends before the others is labelled above and left of its end, since the others would cross its label.
    """
    canvas = axes.get_figure()  # a figure or a subfigure
    height = canvas.bbox.height / canvas.dpi * POINTS_PER_INCH * 0.7  # approximate height of the axes in points
    low, high = (math.log10(limit) for limit in axes.get_ylim())
    taken = -math.inf
    last = max((x for _, x, _, _ in ends), default=0.0)
    for text, x, y, colour in sorted(ends, key=lambda end: end[2]):
        place: dict[str, Any] = {"xytext": (-4, 5), "ha": "right", "va": "bottom"}
        if x >= last:
            at = (math.log10(y) - low) / (high - low) * height
            taken = max(at, taken + LABEL_POINTS)
            place = {"xytext": (6, taken - at), "va": "center"}
        axes.annotate(text, (x, y), textcoords="offset points", color=colour, fontsize=LABEL_POINTS, **place)


def mark_statuses(axes: Any, rows: pd.DataFrame, x: str) -> None:
    """Write OOM, TIMEOUT or FAILED at the upper edge above each x with such a cell; call it after lines().

    Extends the x axis to them, and writes x too if it has no tick.
    """
    ended = rows[rows["status"].isin(["oom", "timeout", "failed"])]
    for position, group in ended.groupby(x):
        at = float(position)
        axes.update_datalim([(at, 1.0)], updatey=False)
        axes.autoscale_view(scaley=False)
        level = "" if at in axes.get_xticks() else f" at {at:g}"
        axes.annotate(
            ", ".join(sorted(status.upper() for status in set(group["status"]))) + level,
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=7,
            color="#B00020",
        )


def memory_unit(most_bytes: float) -> tuple[float, str]:
    """Unit in bytes, and its name, of a figure whose greatest memory this is: GB, or MB below 100 MB."""
    return (1e9, "GB") if most_bytes >= 1e8 else (1e6, "MB")


def key(label: str, **style: Any) -> Line2D:
    """Legend entry for marks drawn in several colours; thin dashes by default."""
    dashes: dict[str, Any] = {"color": "#555555", "linestyle": "--", "linewidth": 0.8}
    return Line2D([], [], label=label, **(dashes | style))


def power_of_two_ticks(axes: Any, levels: Sequence[float]) -> None:
    """Label the x axis with these levels; multiples of 1024 in k, so that labels do not overlap."""
    named = [f"{level / 1024:g}k" if level >= 1024 and level % 1024 == 0 else f"{level:g}" for level in levels]
    axes.set_xticks(list(levels), named)
    axes.minorticks_off()
