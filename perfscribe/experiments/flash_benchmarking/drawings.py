"""How the figures of flash_benchmarking are drawn."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe.attention.backends import IMPLEMENTATIONS
from perfscribe.experiments.flash_benchmarking.answers import numbers, title_of
from perfscribe.experiments.flash_benchmarking.joining import ELSEWHERE

DTYPES = ("bf16", "fp32")
WIDEST = 2  # head dimensions shown: the two largest, as the homework's 64 and 128
MOST_TICKS = 6
MARGIN = 1.6  # between the values and the limits of an axis, as a factor


def _measured(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are ok of one device, CUDA before others."""
    ok = rows[rows["status"] == "ok"]
    return ok[ok["device"] == ("cuda" if "cuda" in set(ok["device"]) else ok["device"].iloc[0])] if len(ok) else ok


def dtypes(rows: pd.DataFrame) -> list[str]:
    """The dtypes that are drawn: the homework's two, as far as they were measured, else the first that was."""
    measured = list(dict.fromkeys(_measured(rows)["dtype"]))
    return [dtype for dtype in DTYPES if dtype in measured] or measured[:1] or [DTYPES[0]]


def _drawn(rows: pd.DataFrame, dtype: str) -> tuple[pd.DataFrame, list[int], str]:
    """Rows of one device and dtype; their two largest head dimensions; a name for them."""
    device = _measured(rows)["device"].iloc[0]
    kept = rows[(rows["device"] == device) & (rows["dtype"] == dtype)]
    widths = sorted(set(kept[kept["status"] == "ok"]["head_dim"]))[-WIDEST:]
    return kept, widths, f"{dtype} on {device}"


def times(canvas: Any, cells: pd.DataFrame, dtype: str) -> None:
    """Forward and backward together over length, a line an implementation, a panel a head dimension."""
    if not (cells["status"] == "ok").any():
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    rows, widths, setting = _drawn(cells[~cells["implementation"].isin(ELSEWHERE)], dtype)
    ok = numbers(rows[(rows["status"] == "ok") & rows["head_dim"].isin(widths)], "both_ms")
    for axes, width in zip(_panels(canvas, len(widths)), widths, strict=True):
        panel = ok[ok["head_dim"] == width]
        _same_scale(axes, ok["both_ms"])
        f.lines(axes, panel, "seq_len", "both_ms", "implementation", title_of, "both_ms_iqr")
        f.power_of_two_ticks(axes, _ticks(panel))
        f.mark_statuses(axes, rows[rows["head_dim"] == width], "seq_len")
        _name(axes, f"d = {width}, {setting}", "Forward and backward (ms)")


def rates(canvas: Any, table: pd.DataFrame, one: str) -> None:
    """Rates of a pass over length, a panel a head dimension; the measured product dashed."""
    if not (table["status"] == "ok").any():
        f.no_data(canvas.subplots(), "no cell was measured")
        return
    rows, widths, setting = _drawn(table, dtypes(table)[0])
    rows = rows[(rows["status"] == "ok") & rows["head_dim"].isin(widths)]
    every = pd.concat([_melted(rows, one)["rate"], numbers(rows, "matmul_tflop_per_s")["matmul_tflop_per_s"]])
    for axes, width in zip(_panels(canvas, len(widths)), widths, strict=True):
        panel = rows[rows["head_dim"] == width]
        long = _melted(panel, one)
        _same_scale(axes, every.astype(float))
        f.lines(axes, long, "seq_len", "rate", "implementation", title_of)
        f.power_of_two_ticks(axes, _ticks(long))
        _ceiling(axes, panel)
        _name(axes, f"{one.capitalize()}, d = {width}, {setting}", "TFLOP/s")


def _panels(canvas: Any, columns: int) -> Any:
    return canvas.subplots(1, columns, squeeze=False)[0]


def _same_scale(axes: Any, values: pd.Series) -> None:
    """Limits that hold these values; before the lines, whose labels are placed by them."""
    axes.set_yscale("log")
    axes.set_ylim(float(values.min()) / MARGIN, float(values.max()) * MARGIN**3)  # statuses stand at the top


def _name(axes: Any, title: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("Sequence length")
    axes.set_ylabel(y)


def _melted(rows: pd.DataFrame, one: str) -> pd.DataFrame:
    """One row an implementation and length from the columns of its rates."""
    parts, ending = [], f"_{one}_tflop_per_s"
    for column in rows.columns:
        if column.endswith(ending) and column.removesuffix(ending) in IMPLEMENTATIONS:
            found = numbers(rows, column)
            name = column.removesuffix(ending)
            parts.append(pd.DataFrame({"seq_len": found["seq_len"], "rate": found[column], "implementation": name}))
    return pd.concat(parts, ignore_index=True)


def _ceiling(axes: Any, rows: pd.DataFrame) -> None:
    """A dashed line at the rate of the measured product, as far as the lines go: their labels stand beside it."""
    known = numbers(rows, "matmul_tflop_per_s")
    if known.empty:
        return
    rate = float(known["matmul_tflop_per_s"].max())
    first, last = (float(end) for end in (rows["seq_len"].min(), rows["seq_len"].max()))
    axes.hlines(rate, first, last, color="#555555", linestyle="--", linewidth=1)
    axes.annotate("product", (first, rate), va="bottom", fontsize=7, color="#555555")


def _ticks(rows: pd.DataFrame) -> list[float]:
    """The lengths; of many every second one, the longest among them, so that labels stay apart."""
    levels = sorted({float(n) for n in rows["seq_len"]})
    return levels if len(levels) <= MOST_TICKS else levels[::-2][::-1]
