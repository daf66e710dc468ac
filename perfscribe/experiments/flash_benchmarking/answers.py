"""The sentences that compare times: ours with PyTorch, with SDPA, with launches, with TF32, compiled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking.joining import CANNOT_TELL, FASTER, SLOWER, counted
from perfscribe.findings import CannotTell, from_to, need, shown
from perfscribe.statistics import format_figure

SETTING = ("dtype", "device")


def numbers(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows in which all of these columns are figures, as floats; none where a column is not there."""
    if rows.empty or not set(columns) <= set(rows.columns):
        return rows.iloc[:0]
    kept = rows[[all(isinstance(row[name], (int, float)) for name in columns) for _, row in rows.iterrows()]]
    return kept.astype(dict.fromkeys(columns, float))


def _at(row: pd.Series) -> str:
    return f"N = {row['seq_len']}, d {row['head_dim']}, {row['dtype']}"


def listed(parts: Iterable[str]) -> str:
    """Clauses of one sentence."""
    return "; ".join(parts)


def _verdicts(found: Iterable[str]) -> str:
    counts = counted(found)
    return f"faster in {counts[FASTER]}, slower in {counts[SLOWER]}, cannot tell in {counts[CANNOT_TELL]}"


def against_pytorch(rows: pd.DataFrame) -> str:
    """Ours against eager attention, end to end, by dtype, and the problem with the largest advantage."""
    both = need(numbers(rows, "eager_both_ms", "ours_both_ms"), 1, "problems that PyTorch and ours both ran")
    parts = [
        f"{dtype} on {device}, {len(group)} problems: {_verdicts(group['verdict'])}"
        for (dtype, device), group in both.groupby(list(SETTING), sort=False)
    ]
    best = both.loc[(both["eager_both_ms"] / both["ours_both_ms"]).idxmax()]
    factor = best["eager_both_ms"] / best["ours_both_ms"]
    names = ", ".join(dict.fromkeys(both["ours"]))
    return (
        f"Against PyTorch's eager attention, end to end{_by_device(both)}, ours ({names}) is: {listed(parts)}. The "
        f"largest ratio is "
        f"{factor:.3g} at {_at(best)}: {shown(best, 'eager_both_ms')} against "
        f"{shown(best, 'ours_both_ms')} ms."
    )


def _by_device(rows: pd.DataFrame) -> str:
    return ", by device time (without launches)" if "cuda" in set(rows["device"]) else ""


def crossover(rows: pd.DataFrame) -> str:
    """The length from which on ours is faster than eager attention at all longer ones, by dtype and head dimension.

    On a CUDA device by device time and with launches: the two lengths may be far apart.
    """
    both = need(numbers(rows, "eager_both_ms", "ours_both_ms"), 3, "problems that PyTorch and ours both ran")
    text = (
        f"Sequence length from which on ours is faster than eager at every longer one{_by_device(both)}: "
        f"{_from_lengths(both, 'verdict')}."
    )
    launched = both[both["device"] == "cuda"]
    return text if launched.empty else f"{text} With launches: {_from_lengths(launched, 'verdict_launched')}."


def _from_lengths(rows: pd.DataFrame, verdict: str) -> str:
    parts = []
    for (dtype, device), group in rows.groupby(list(SETTING), sort=False):
        starts: dict[str, list[str]] = {}
        for d, curve in group.groupby("head_dim", sort=True):
            starts.setdefault(_from_length(curve, verdict), []).append(str(d))
        found = [f"{start} (d {', '.join(widths)})" for start, widths in starts.items()]
        parts.append(f"{dtype} on {device} {', '.join(found)}")
    return listed(parts)


def _from_length(curve: pd.DataFrame, verdict: str) -> str:
    """The first length of the last unbroken run of `faster`."""
    start = None
    for _, row in curve.sort_values("seq_len", ascending=False, kind="stable").iterrows():
        if row[verdict] != FASTER:
            break
        start = row["seq_len"]
    return "at none" if start is None else f"from {start}"


def against_flash(rows: pd.DataFrame, ours: Sequence[str]) -> str:
    """Ours against the flash backend of SDPA, forward and backward, with the extremes of the ratios."""
    parts = []
    for one in ("forward", "backward"):
        for name in ours:
            both = numbers(rows, f"{name}_{one}_ms", f"sdpa_flash_{one}_ms")
            for (dtype, device), group in both.groupby(list(SETTING), sort=False):
                parts.append(_against_flash(group, name, one, f"{dtype} on {device}"))
    if not parts:
        raise CannotTell("no problem ran both with ours and with SDPA's flash backend")
    return f"Ours against SDPA's flash backend: {listed(parts)}."


def _against_flash(rows: pd.DataFrame, ours: str, one: str, setting: str) -> str:
    ratios = rows[f"sdpa_flash_{one}_ms"] / rows[f"{ours}_{one}_ms"]
    best, worst = rows.loc[ratios.idxmax()], rows.loc[ratios.idxmin()]
    return (
        f"{one}, {setting}, {len(rows)} problems: {_verdicts(rows[f'verdict_{one}'])}; flash / ours from "
        f"{ratios.min():.3g} (N = {worst['seq_len']}, d {worst['head_dim']}) to {ratios.max():.3g} "
        f"(N = {best['seq_len']}, d {best['head_dim']})"
    )


def launches(rows: pd.DataFrame) -> str:
    """Who is faster once launches count, and what they add at the shortest and at the longest length."""
    names = ("ours_both_ms", "ours_both_launched_ms", "eager_both_ms", "eager_both_launched_ms")
    timed = need(numbers(rows, *names), 2, "problems timed with and without launches on a CUDA device")
    slower = timed[timed["verdict_launched"] == SLOWER]["seq_len"]
    where = f"; slower {_lengths(slower)}" if len(slower) else ""
    text = (
        f"With launches by the host, end to end, ours against PyTorch, {len(timed)} problems: "
        f"{_verdicts(timed['verdict_launched'])}{where}."
    )
    ends = dict.fromkeys((timed["seq_len"].min(), timed["seq_len"].max()))
    return f"{text} {' '.join(_launches_at(timed[timed['seq_len'] == length]) for length in ends)}"


def _lengths(found: pd.Series) -> str:
    return f"from N = {found.min()} to {found.max()}" if found.nunique() > 1 else f"at N = {found.min()}"


def _launches_at(rows: pd.DataFrame) -> str:
    """Medians over the problems of one length: time with launches, and how many times the device time it is."""
    parts = []
    for name, title in (("eager", "PyTorch"), ("ours", "ours")):
        launched = rows[f"{name}_both_launched_ms"]
        times = (launched / rows[f"{name}_both_ms"]).median()
        parts.append(f"{title} takes {format_figure(launched.median())} ms, {times:.3g} times its device time")
    return f"At N = {rows['seq_len'].iloc[0]} (medians of {len(rows)} problems) {', '.join(parts)}."


def precision(rows: pd.DataFrame, cells: pd.DataFrame) -> str:
    """fp32 with TF32 products against fp32, ours and eager; ours with IEEE products against both in fp32."""
    parts = []
    for name, title in (("ours", "ours"), ("eager", "PyTorch")):
        known = numbers(rows, f"{name}_both_ms")
        if known.empty:
            continue
        place = ["device", "seq_len", "head_dim"]
        wide = known.pivot_table(index=place, columns="dtype", values=f"{name}_both_ms", sort=False)
        if {"fp32", "tf32"} <= set(wide.columns):
            ratios = (wide["fp32"] / wide["tf32"]).dropna()
            if not ratios.empty:
                parts.append(f"{title} {from_to(ratios, '{:.3g}'.format)} times ({len(ratios)} problems)")
    if not parts:
        raise CannotTell("no problem ran both in fp32 and with TF32 products")
    told = f"fp32 takes, end to end, against fp32 with TF32 products: {listed(parts)}."
    ieee = _compared(cells[cells["dtype"] == "fp32"], ("triton_ieee",), ("triton", "eager"))
    return f"{told} In fp32, {listed(ieee)}." if ieee else told


def sub_grid(cells: pd.DataFrame) -> str:
    """Compiled eager attention and FlexAttention against eager and ours, where they were timed."""
    parts = _compared(cells, ("compiled", "flex"), ("eager", "triton", "tiled"))
    if not parts:
        raise CannotTell("neither compiled attention nor FlexAttention was measured")
    return f"End to end: {listed(parts)}."


def _compared(cells: pd.DataFrame, names: tuple[str, ...], bases: tuple[str, ...]) -> list[str]:
    """End-to-end time of each implementation against each base, where both were timed on a problem."""
    place = ["device", "dtype", "seq_len", "head_dim"]
    known = numbers(cells[cells["status"] == "ok"], "both_ms")
    wide = known.pivot_table(index=place, columns="implementation", values="both_ms", sort=False)
    parts = []
    for name in names:
        for base in bases:
            if {name, base} <= set(wide.columns):
                ratios = (wide[name] / wide[base]).dropna()
                if not ratios.empty:
                    spread = from_to(ratios, "{:.3g}".format)
                    parts.append(f"{title_of(name)} takes {spread} times {title_of(base)} ({len(ratios)} problems)")
    return parts


def title_of(name: str) -> str:
    """The title of an implementation."""
    return backends.named(name).title
