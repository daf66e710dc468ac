"""The sentences that answer nsys_profile's questions."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from perfscribe import references
from perfscribe.findings import CannotTell, from_to, need
from perfscribe.profiling.families import OTHER
from perfscribe.statistics import format_figure

LARGEST_OTHER_PERCENT = 5.0
# More idle time than this, of a range, and launches decide how long it takes.
IDLING_PERCENT = 20.0
# A range shorter than the host clock's pass by more than this share is no rounding.
NOISE = 0.02
ANONYMOUS = "cs336-writeup-002"
H200_WRITEUP = "cs336-writeup-004"
NAMED = "brandon-snider"


def floats(rows: pd.DataFrame, column: str) -> pd.Series:
    """The column's figures; NaN where a text says why there is none."""
    return pd.to_numeric(rows[column], errors="coerce").astype(float)


def _cell(row: pd.Series) -> str:
    return f"{row['size']}, context {row['seq_len']}, {row['dtype']}, {row['device']}"


def _largest(rows: pd.DataFrame) -> pd.Series:
    """The last cell, hence of the largest size and context, in the dtype of most cells."""
    return rows[rows["dtype"] == rows["dtype"].mode().iloc[0]].iloc[-1]


def _published(metric: str, source: str, **factors: references.Level) -> references.Reference:
    """The source's figure with exactly these factors; CannotTell where there is none."""
    for found in references.find(references.load("nsys_profile"), metric, **factors):
        if found.source == source and dict(found.factors) == factors:
            return found
    raise CannotTell(f"{metric} of {source} is not among the references")


def _judged(rows: pd.DataFrame, holds: Callable[[pd.DataFrame], pd.Series]) -> tuple[str, str]:
    """In how many cells on GPUs a published claim holds, and the verdict; a claim about GPUs is not judged on a CPU."""
    on_gpu = rows[rows["device"] == "cuda"]
    if on_gpu.empty:
        return "not compared, as nothing was measured on a GPU", "answered"
    count = int(holds(on_gpu).sum())
    verdict = "confirmed" if count == len(on_gpu) else "contradicted" if count == 0 else "answered"
    return f"so in {count} of {len(on_gpu)} cells here", verdict


def tools(rows: pd.DataFrame) -> str:
    """Who traced, and why torch's profiler took part where it did."""
    need(rows, 1, "cells")
    parts = []
    for (kernels, ranges), group in rows.groupby(["kernel_tool", "range_tool"], sort=False):
        by = kernels if kernels == ranges else f"{kernels}, ranges by {ranges}"
        remarks = [text for text in dict.fromkeys(group["tool_remark"]) if text != "none"]
        device = " and ".join(dict.fromkeys(group["device"]))
        parts.append(
            f"{len(group)} {'cell' if len(group) == 1 else 'cells'} on {device} by {by}"
            + (f" ({'; '.join(remarks)})" if remarks else "")
        )
    what = " On a CPU, operators stand in for kernels." if "cpu" in set(rows["device"]) else ""
    return f"Traced: {'; '.join(parts)}.{what}"


def forward(rows: pd.DataFrame) -> str:
    """(a) Forward by its range against the host clock, and what the trace says of the difference."""
    need(rows, 3, "cells")
    ratio = floats(rows, "range_over_host")
    far = rows.loc[(ratio - 1).abs().idxmax()]
    parts = [floats(rows, f"forward_{name}_ms").fillna(0) for name in ("busy", "idle", "edges")]
    busy, idle = (100 * part / sum(parts) for part in parts[:2])
    most, least = rows.loc[idle.idxmax()], rows.loc[idle.idxmin()]
    waiting = most["launch_bound_percent"]
    bound = f", {waiting:.0f} % of it waiting for a launch" if isinstance(waiting, (int, float)) else ""
    return (
        f"By its range, forward takes {ratio.median():.3g} times what the host clock says without a profiler (median "
        f"of {len(rows)} cells; {from_to(ratio, '{:.3g}'.format)}, farthest for {_cell(far)}: "
        f"{format_figure(float(far['forward_range_ms']))} ms against {format_figure(float(far['forward_ms']))} ms). "
        f"The device is busy for {from_to(busy, '{:.0f}'.format)} % of the range. Idle time between kernels is "
        f"largest for {_cell(most)}, {format_figure(float(most['forward_idle_ms']))} ms or {idle.max():.0f} % of the "
        f"range{bound}, and smallest for {_cell(least)}, {idle.min():.1f} %.{_by_idleness(rows, ratio, idle)}"
        f"{_unsteady(rows, ratio)}"
    )


def _unsteady(rows: pd.DataFrame, ratio: pd.Series) -> str:
    """The cells on GPUs in which the profiler seems to save time: there the host's own pace decides."""
    shorter = rows[(rows["device"] == "cuda") & (ratio < 1 - NOISE)]
    if shorter.empty:
        return ""
    spread = 100 * (floats(rows, "forward_ms_iqr") / floats(rows, "forward_ms")).loc[shorter.index].max()
    return (
        f" In {len(shorter)} (such as {_cell(shorter.iloc[0])}) the traced pass is the shorter one: launches take the "
        f"host now more, now less time, also without a profiler (interquartile range up to {spread:.0f} % of the "
        "median there), so that a ratio of one cell is no measure of the profiler's cost."
    )


def _by_idleness(rows: pd.DataFrame, ratio: pd.Series, idle_percent: pd.Series) -> str:
    """On GPUs, range over host clock where the device idles much and where it does not."""
    on_gpu = rows["device"] == "cuda"
    idling, busy = ratio[on_gpu & (idle_percent > IDLING_PERCENT)], ratio[on_gpu & (idle_percent <= IDLING_PERCENT)]
    if idling.empty or busy.empty:
        return ""
    text = (
        f" Where the device idles for more than {IDLING_PERCENT:g} % of the range ({len(idling)} cells), that takes "
        f"{idling.median():.3g} times as long as the host clock says (median), elsewhere {busy.median():.3g} times"
    )
    if idling.median() <= busy.median():
        return f"{text}."
    return f"{text}: what the profiler does at each launch is seen where the device waits for launches."


def top_kernel(rows: pd.DataFrame) -> tuple[str, str]:
    """(b) The kernel with most time in forward and in backward, and whether they agree."""
    need(rows, 3, "cells")
    largest = _largest(rows)
    share = floats(rows, "forward_percent")
    same = rows["same_kernel"] == "yes"
    claim = _published("top_kernel_count", H200_WRITEUP, seq_len=128, **{"pass": "forward"})
    held, verdict = _judged(rows, lambda r: r["same_kernel"] == "yes")
    text = (
        f"For {_cell(largest)} it is {largest['forward_kernel']}, with {float(largest['forward_percent']):.0f} % of "
        f"forward's kernel time and {float(largest['forward_launches']):g} launches a forward pass; in backward "
        f"{_backward(largest)}, and over both {largest['both_kernel']} ({float(largest['both_percent']):.0f} %). Over "
        f"{len(rows)} cells the top kernel of forward has {from_to(share, '{:.0f}'.format)} % of its time and is "
        f"that of backward too in {int(same.sum())}. That one kernel leads in both ({H200_WRITEUP}, where it is "
        f"launched {claim.text} times a forward pass): {held}."
    )
    return text, verdict


def _backward(row: pd.Series) -> str:
    if row["same_kernel"] == "yes":
        return f"it is the same ({float(row['backward_percent']):.0f} %, {float(row['backward_launches']):g} launches)"
    return (
        f"it is {row['backward_kernel']} ({float(row['backward_percent']):.0f} %, "
        f"{float(row['backward_launches']):g} launches)"
    )


def families(rows: pd.DataFrame, names: tuple[str, ...]) -> tuple[str, str]:
    """(b, c) Share by family in forward and backward, and whether the rules leave too much unclassified."""
    need(rows, 3, "cells")
    parts = []
    for name in ("forward", "backward", "full step"):
        of_pass = rows[rows["pass"] == name]
        medians = {family: floats(of_pass, f"{family}_percent").median() for family in names}
        leading = sorted((share, family) for family, share in medians.items() if share >= 1)[::-1]
        parts.append(f"{name}: " + ", ".join(f"{family} {share:.0f} %" for share, family in leading))
    other = floats(rows, f"{OTHER}_percent")
    worst = rows.loc[other.idxmax()]
    text = (
        f"Median shares of kernel time over the cells. {'; '.join(parts)}. At most {other.max():.2g} % belong to no "
        f"family or to kernels too rare to be kept ({worst['pass']}, {_cell(worst)}; "
        f"{LARGEST_OTHER_PERCENT:g} % are allowed)."
    )
    return text, "confirmed" if other.max() <= LARGEST_OTHER_PERCENT else "contradicted"


def other_kernels(rows: pd.DataFrame) -> str:
    """(c) What besides matrix products takes time in forward."""
    need(rows, 3, "cells")
    besides = floats(rows, "besides_matmul_percent")
    low, high = rows.loc[besides.idxmin()], rows.loc[besides.idxmax()]
    shown = _largest(rows)
    named = [
        f"{shown[f'kernel_{place}']} ({float(shown[f'percent_{place}']):.1f} %)"
        for place in (1, 2, 3)
        if isinstance(shown[f"percent_{place}"], (int, float))
    ]
    elementwise = _published("elementwise_share_percent", ANONYMOUS, **{"pass": "forward"})
    reduce = _published("reduce_share_percent", ANONYMOUS, **{"pass": "forward"})
    return (
        f"Kernels besides matrix products take {besides.min():.0f} % ({_cell(low)}) to {besides.max():.0f} % "
        f"({_cell(high)}) of forward's kernel time. For {_cell(shown)} the largest are {', '.join(named)}. "
        f"{ANONYMOUS} has over {elementwise.text} % in elementwise kernels and {reduce.text} % in reductions, size and "
        "context not stated."
    )


def matmul_share(rows: pd.DataFrame) -> tuple[str, str]:
    """(d) Share of matrix products, inference against a full step."""
    need(rows, 3, "cells")
    inference, step = floats(rows, "inference_percent"), floats(rows, "full_step_percent")
    falls = int((step < inference).sum())
    held, verdict = _judged(rows, lambda r: floats(r, "full_step_percent") < floats(r, "inference_percent"))
    claims = [
        " to ".join(
            f"{_published('matmul_share_percent', source, **{'pass': name}).text} %"
            for name in ("forward", "full_step")
        )
        for source in (ANONYMOUS, NAMED)
    ]
    largest = _largest(rows)
    text = (
        f"From inference to a full training step the share of matrix products falls in {falls} of {len(rows)} cells; "
        f"its median goes from {inference.median():.1f} % to {step.median():.1f} %, and for {_cell(largest)} from "
        f"{float(largest['inference_percent']):.1f} % to {float(largest['full_step_percent']):.1f} %. Of the "
        f"optimizer's kernel time {floats(rows, 'optimizer_percent').median():.1f} % are matrix products, of "
        f"backward's {floats(rows, 'backward_percent').median():.1f} %. That the share falls "
        f"({claims[0]} in {ANONYMOUS}, about {claims[1]} in {NAMED}): {held}."
    )
    return text, verdict


def softmax(rows: pd.DataFrame) -> tuple[str, str]:
    """(e) Softmax against the attention products, in time and in FLOP."""
    rows = need(rows[floats(rows, "time_ratio").notna()], 3, "cells")
    ratio = floats(rows, "time_ratio")
    low, high = rows.loc[ratio.idxmin()], rows.loc[ratio.idxmax()]
    softmax_us, product_us = (_published(name, ANONYMOUS) for name in ("softmax_us", "scores_matmul_us"))
    limits = [_published(f"softmax_to_matmul_{end}_ratio", NAMED).text for end in ("min", "max")]
    held, verdict = _judged(rows, lambda r: floats(r, "softmax_us") > floats(r, "scores_matmul_us"))
    flop = floats(rows, "flop_ratio")
    text = (
        f"In one layer of forward, softmax takes {ratio.min():.2g} times ({_cell(low)}) to {ratio.max():.2g} times "
        f"({_cell(high)}) as long as the two attention products together, for {from_to(flop, '{:.2g}'.format)} "
        f"times their FLOP: {_times(high)}. "
        f"{NAMED} has {limits[0]} to {limits[1]} times. That softmax takes longer than the product of the scores "
        f"({softmax_us.text} against {product_us.text} µs in {ANONYMOUS}): {held}."
    )
    return text, verdict


def _times(row: pd.Series) -> str:
    return (
        f"for the latter {format_figure(float(row['softmax_us']))} µs against "
        f"{format_figure(float(row['scores_matmul_us']))} and {format_figure(float(row['final_matmul_us']))} µs, at "
        f"{format_figure(float(row['softmax_tflop_per_s']))} against {format_figure(float(row['scores_tflop_per_s']))} "
        "TFLOP/s"
    )
