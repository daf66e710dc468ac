"""The sentences that answer the questions of memory_profiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from perfscribe.counters.parameters import transformer_parameters
from perfscribe.findings import CannotTell, need
from perfscribe.models.shapes import SIZES
from perfscribe.statistics import format_figure
from perfscribe.tables import GIB, MIB

FP32_BYTES = 4
SMALLEST_GIB = 0.1  # what is smaller is told in MiB
MODE_NAMES = {"inference": "forward under no_grad", "forward": "forward with graph", "full_step": "a full step"}


def memory(gib: Any) -> str:
    """A figure in GiB, or in MiB where it is small."""
    return in_one_unit(gib)(gib)


def in_one_unit(*gib: Any) -> Callable[[Any], str]:
    """How sizes that are compared are told: all in the unit of the largest, GiB, or MiB where that is small."""
    scale, unit = (1.0, "GiB") if max(abs(float(one)) for one in gib) >= SMALLEST_GIB else (GIB / MIB, "MiB")
    return lambda size: f"{format_figure(float(size) * scale)} {unit}"


def largest_size(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the size with most parameters, on the device that has most rows of it."""
    need(rows, 1, "cells")
    size = max(rows["size"].unique(), key=lambda name: transformer_parameters(SIZES[name]))
    found = rows[rows["size"] == size]
    return found[found["device"] == found["device"].mode().iloc[0]]


def numbers(rows: pd.DataFrame, column: str) -> pd.Series:
    """The column's figures; texts, which say why there is none, are left out."""
    return pd.to_numeric(rows[column], errors="coerce").dropna()


def longest(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at the longest context."""
    return rows[rows["seq_len"] == need(rows, 1, "cells")["seq_len"].max()]


def timeline(rows: pd.DataFrame) -> str:
    """How memory runs through the passes of the largest size, at the longest context in its first dtype."""
    chosen = longest(largest_size(rows))
    chosen = chosen[chosen["dtype"] == chosen["dtype"].iloc[0]].set_index("mode")
    missing = [name for name in MODE_NAMES if name not in chosen.index]
    if missing:
        raise CannotTell(f"{', '.join(MODE_NAMES[name] for name in missing)}: not measured at the longest context")
    forward, graph, step = (chosen.loc[name] for name in MODE_NAMES)
    above = float(forward["peak_gib"]) - float(forward["start_gib"])
    added = float(step["optimizer_peak_gib"]) - float(step["backward_end_gib"])
    show = in_one_unit(graph["peak_gib"], step["peak_gib"])
    return (
        f"Size {step['size']}, context {step['seq_len']}, {step['dtype']} on {step['device']}: under no_grad memory "
        f"never rises by more than {show(above)} above the {show(forward['start_gib'])} held before. With a graph "
        f"it climbs to {show(graph['forward_end_gib'])} at the end of forward. A full step climbs likewise from "
        f"{show(step['start_gib'])} to {show(step['forward_end_gib'])}; backward then {_course(step)} to "
        f"{show(step['backward_end_gib'])}, as activations go and gradients come; the optimizer adds up to "
        f"{show(added)} and ends at {show(step['optimizer_end_gib'])}. So the turn after the climb marks backward, "
        "and once the last activation is gone what follows is the optimizer. The whole step peaks at "
        f"{show(step['peak_gib'])}."
    )


def _course(step: pd.Series) -> str:
    return "falls" if float(step["backward_end_gib"]) < float(step["forward_end_gib"]) else "climbs further"


def by_context(rows: pd.DataFrame, kinds: pd.DataFrame) -> str:
    """Peaks of the largest size by context, in its first dtype, how they grow, and why a full step's may not."""
    chosen = largest_size(rows)
    chosen = chosen[chosen["dtype"] == chosen["dtype"].iloc[0]].sort_values("seq_len", kind="stable")
    need(chosen, 2, "contexts")
    of_modes = {mode: numbers(chosen, f"{mode}_gib") for mode in MODE_NAMES}
    for mode, name in MODE_NAMES.items():
        need(of_modes[mode].to_frame(), 2, f"contexts, {name}")
    show = in_one_unit(*pd.concat(of_modes.values()))
    parts = []
    for mode, name in MODE_NAMES.items():
        peaks = of_modes[mode]
        listed = ", ".join(show(peak) for peak in peaks)
        contexts = ", ".join(str(chosen["seq_len"][index]) for index in peaks.index)
        growth = peaks.iloc[-1] / peaks.iloc[0]
        parts.append(f"{name} {listed} at context {contexts} ({growth:.3g} times from first to last)")
    setting = f"size {chosen['size'].iloc[0]}, {chosen['dtype'].iloc[0]}, batch {chosen['batch'].iloc[0]}"
    return f"Peaks ({setting}): {'; '.join(parts)}.{_where_steps_peak(kinds, show)}"


def _where_steps_peak(kinds: pd.DataFrame, show: Callable[[Any], str]) -> str:
    """That full steps peak in the optimizer, where they all do. show: as the peaks are told."""
    rows = largest_size(kinds)
    steps = rows[(rows["mode"] == "full_step") & (rows["dtype"] == rows["dtype"].iloc[0])]
    if steps.empty or set(steps["phase"]) != {"optimizer"}:
        return ""
    last = longest(steps).iloc[0]
    return (
        " At each of these contexts a full step peaks in the optimizer, when no activation is left and AdamW holds "
        f"{show(last['temporaries_gib'])} of temporaries: context does not raise that peak."
    )


def mixed_precision(contexts: pd.DataFrame, kinds: pd.DataFrame) -> str:
    """What bf16 autocast does to the peaks of the largest size, and which kinds change."""
    chosen = largest_size(contexts)
    low = need(chosen[chosen["dtype"] == "bf16"].sort_values("seq_len", kind="stable"), 1, "bf16 cells")
    parts = []
    for mode, name in MODE_NAMES.items():
        shares = numbers(low, f"{mode}_of_fp32")
        if not shares.empty:
            parts.append(f"{name} {', '.join(f'{share:.3g}' for share in shares)}")
    if not parts:
        raise CannotTell("no setting was measured in both fp32 and bf16")
    lengths = ", ".join(str(length) for length in low["seq_len"])
    setting = f"size {low['size'].iloc[0]}, context {lengths}"
    return f"Peak in bf16 as a multiple of fp32's ({setting}): {'; '.join(parts)}. {_changes(kinds)}"


def _changes(kinds: pd.DataFrame) -> str:
    """What changes between fp32 and bf16 at the peak of each mode, at the longest context."""
    rows = longest(largest_size(kinds))
    sentences = []
    for mode, name in MODE_NAMES.items():
        alike = rows[rows["mode"] == mode].set_index("dtype")
        if not {"fp32", "bf16"} <= set(alike.index):
            continue
        held = alike[[column for column in alike.columns if column.endswith("_gib")]].astype(float)
        held.columns = [column.removesuffix("_gib").replace("_", " ") for column in held.columns]
        change = held.loc["bf16"] - held.loc["fp32"]
        large = change[change != 0].abs().nlargest(3).index
        listed = ", ".join(f"{kind} {'+' if change[kind] > 0 else '-'}{memory(abs(change[kind]))}" for kind in large)
        phases = alike.at["fp32", "phase"], alike.at["bf16", "phase"]
        moved = "" if phases[0] == phases[1] else f" (peak in {phases[1]} in place of {phases[0]})"
        sentences.append(f"{name}{moved}: {listed or 'nothing'}")
    if not sentences:
        return "Which kinds change cannot be told."
    return (
        f"At context {rows['seq_len'].iloc[0]} bf16 changes what is held at the peak so: {'; '.join(sentences)}. "
        "Autocast keeps fp32 parameters and adds copies of the weights in two bytes, so it saves only where "
        "activations outweigh the copies."
    )


def residual(rows: pd.DataFrame) -> tuple[str, str]:
    """The size of a tensor of the residual stream, derived and recorded."""
    row = longest(largest_size(rows)).iloc[0]
    recorded = numbers(rows, "recorded_mib")
    same = recorded == rows.loc[recorded.index, "expected_mib"].astype(float)
    text = (
        f"{row['derivation']} / 1024² = {format_figure(float(row['expected_mib']))} MiB (size {row['size']}, context "
        f"{row['seq_len']}). In {int(same.sum())} of {len(rows)} cells the recorded additions to the residual stream "
        "ask for exactly the derived size."
    )
    claims = numbers(rows, "residual_stream_mib_cs336-writeup-002")
    if claims.empty:
        return text, "answered"
    agree = (claims == rows.loc[claims.index, "expected_mib"].astype(float)).all() and same.all()
    return text, "confirmed" if agree else "contradicted"


def largest(rows: pd.DataFrame) -> str:
    """The largest blocks of each pass of the largest size at its longest context, and the line that asked for them."""
    chosen = largest_size(rows)
    chosen = chosen[(chosen["rank"] == 1) & (chosen["dtype"] == chosen["dtype"].iloc[0])]
    parts = []
    for _, row in need(chosen, 1, "cells").iterrows():
        size = f"{format_figure(float(row['size_mib']))} MiB"
        blocks = f"{row['count']} blocks" if row["count"] != 1 else "one block"
        below = f" (in it {row['below']})" if "/" in row["below"] else ""
        asked = f"made by {row['frame']}{below}" if "/" in row["frame"] else f"with {row['frame']}"
        parts.append(f"in {MODE_NAMES[row['mode']]} {blocks} of {size} in {row['phase']} ({row['kind']}), {asked}")
    first = chosen.iloc[0]
    shape = SIZES[first["size"]]
    scores_mib = int(first["batch"]) * shape.heads * int(first["seq_len"]) ** 2 * FP32_BYTES / MIB
    return (
        f"Largest, {first['dtype']}, size {first['size']}, context {first['seq_len']}: {'; '.join(parts)}. One matrix "
        f"of attention scores, batch · heads · context² · {FP32_BYTES} B, has {format_figure(scores_mib)} MiB."
    )
