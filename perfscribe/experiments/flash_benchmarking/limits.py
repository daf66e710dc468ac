"""The sentences on limits: memory, the device's rate, what SDPA can run, and the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking.answers import SETTING, listed, numbers, title_of
from perfscribe.experiments.flash_benchmarking.leaderboard import HERE
from perfscribe.findings import CannotTell, need
from perfscribe.statistics import format_figure


def out_of_memory(cells: pd.DataFrame) -> str:
    """Lengths at which eager attention ran out of memory, and the longest that each implementation ran."""
    eager = cells[cells["implementation"] == "eager"]
    tried = need(eager[eager["status"].isin(["ok", "oom"])], 1, "problems tried with eager attention")
    out = tried[tried["status"] == "oom"]
    longest = int(tried["seq_len"].max())
    if out.empty:
        return f"None of the {len(tried)} problems tried with eager attention, up to N = {longest}, ran out of memory."
    parts = [
        f"{dtype} on {device} at N = {', '.join(str(n) for n in sorted(set(group['seq_len'])))}"
        for (dtype, device), group in out.groupby(list(SETTING), sort=False)
    ]
    ours = cells[cells["implementation"].isin(["triton", "tiled"]) & (cells["status"] == "ok")]
    reached = f"; ours ran up to N = {int(ours['seq_len'].max())}" if not ours.empty else ""
    return f"Eager attention ran out of memory in {len(out)} of {len(tried)} problems: {listed(parts)}{reached}."


def share_of_peak(rows: pd.DataFrame, names: Sequence[str]) -> str:
    """The highest rates of forward and backward, ours and of all, against the measured product."""
    known = need(numbers(rows, "matmul_tflop_per_s"), 1, "problems of a dtype whose product was measured")
    third = known[known["dtype"] == "tf32"]["matmul_tflop_per_s"].max() / 3  # NaN without TF32
    known = known[known["dtype"] != "tf32"]  # of a few problems alone
    parts = []
    for one in ("forward", "backward"):
        for (dtype, device), group in known.groupby(list(SETTING), sort=False):
            best = [(name, *found) for name in names if (found := _best_rate(group, f"{name}_{one}_tflop_per_s"))]
            if best:
                parts.append(_rates_told(one, f"{dtype} on {device}", best, third))
    if not parts:
        raise CannotTell("no rate was measured")
    why = " Ours multiplies in fp32 as three TF32 products." if third > 0 and "Triton" in listed(parts) else ""
    return f"Highest rates, causal products counted half and backward 2.5 times forward: {listed(parts)}.{why}"


def _best_rate(rows: pd.DataFrame, column: str) -> tuple[pd.Series, float] | None:
    found = numbers(rows, column)
    if found.empty:
        return None
    top = found.loc[found[column].idxmax()]
    return top, float(top[column])


def _rates_told(one: str, setting: str, best: Sequence[tuple[str, pd.Series, float]], third: float) -> str:
    """Ours first, then the fastest of the others."""
    own = [entry for entry in best if entry[0] in ("triton", "tiled")]
    others = [entry for entry in best if entry not in own]
    shown = own[:1] + sorted(others, key=lambda entry: -entry[2])[:1]
    told = [
        f"{backends.named(name).title} {format_figure(value)} TFLOP/s "
        f"({_share(name, row, value, third)}, N = {row['seq_len']}, d {row['head_dim']})"
        for name, row, value in shown
    ]
    return f"{one}, {setting}: {' and '.join(told)}"


def _share(name: str, row: pd.Series, value: float, third: float) -> str:
    """Of which ceiling which share: Triton's fp32 runs as three TF32 products, so that fp32's own product is none."""
    if name == "triton" and row["dtype"] == "fp32" and third > 0:
        return f"{value / third:.0%} of a third of the TF32 product's"
    return f"{value / row['matmul_tflop_per_s']:.0%} of the product's"


def sdpa(cells: pd.DataFrame) -> str:
    """Whether SDPA took the backends that were forced, and which refused what."""
    asked = cells[cells["implementation"].isin([one.name for one in backends.IMPLEMENTATIONS.values() if one.sdpa])]
    ran = need(asked[asked["status"] == "ok"], 1, "problems run with SDPA")
    forced = ran["implementation"].map(lambda name: backends.named(name).sdpa)
    other = ran[ran["sdpa_backend"] != forced]
    text = (
        f"By the names of the kernels, SDPA took the backend asked for in {len(ran) - len(other)} of {len(ran)} cells"
    )
    if not other.empty:
        seen = other.groupby(["implementation", "sdpa_backend"], sort=False).size()
        text += f" ({listed(f'{title_of(name)}: {backend}, {n} cells' for (name, backend), n in seen.items())})"
    refused = asked[(asked["status"] == "unsupported") & asked["device"].isin(ran["device"])]
    refused = refused.groupby(["implementation", "dtype", "reason"], sort=False).size()
    told = [f"{title_of(name)}, {dtype}, {n} cells: {reason}" for (name, dtype, reason), n in refused.items()]
    return f"{text}. Refused: {listed(told)}." if told else f"{text}."


def leaderboard(rows: pd.DataFrame) -> str:
    """Where ours would stand among the entries, and beside the other implementations here."""
    here = rows[rows["hardware"] == HERE]
    on_gpu = need(here[here["timer"] != "host clock"], 1, "cells of the leaderboard's problem on a CUDA device")
    problem = on_gpu.iloc[0]
    entries = rows[(rows["hardware"] != HERE) & (rows["seq_len"] == problem["seq_len"])]
    ours = need(on_gpu[on_gpu["entry"] == f"here: {title_of('triton')}"], 1, "cells of ours")
    comparable = need(entries[entries["heads"] == problem["heads"]], 1, "entries for the problem that was measured")
    # with launches, as the entries were timed
    own, first = float(ours["both_launched_ms"].iloc[0]), comparable.loc[comparable["both_ms"].astype(float).idxmin()]
    place = 1 + int((comparable["both_ms"].astype(float) < own).sum())
    others = [
        f"{row['entry'].removeprefix('here: ')} {format_figure(float(row['both_ms']))} ms"
        for _, row in on_gpu.iterrows()
        if row["entry"] != f"here: {title_of('triton')}"
    ]
    beside = f" By graph replay here also: {listed(others)}." if others else ""
    alone = format_figure(float(ours["both_ms"].iloc[0]))
    return (
        f"With launches, as the entries were timed, ours takes {format_figure(own)} ms ({alone} ms by graph replay), "
        f"place {place} of {len(comparable) + 1} among the published entries, "
        f"whose fastest takes {format_figure(float(first['both_ms']))} ms on {first['hardware']}.{beside}"
    )
