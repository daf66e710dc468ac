"""Sentences and a picture that the FSDP workshop's scaling experiments share."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe.findings import CannotTell, counted, from_to, need
from perfscribe.statistics import format_figure
from perfscribe.training_rows import MEASURED, PREDICTED

GOOD_PERCENT = 5.0  # beyond which a prediction comes with what it lacks


def main_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one device, the GPUs' where there are any."""
    return rows[rows["device"] == ("cuda" if "cuda" in set(rows["device"]) else "cpu")]


def numbers(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows whose column holds a number."""
    found = pd.to_numeric(rows[column], errors="coerce")
    return rows[found.notna()].assign(**{column: found.dropna().astype(float)})


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that were measured."""
    return rows[rows["origin"] == MEASURED]


def within_spread(one: Any, other: Any) -> bool:
    """Whether two rows' steps differ by no more than the larger of their interquartile ranges."""
    spreads = [pd.to_numeric(row["step_ms_iqr"], errors="coerce") for row in (one, other)]
    known = [float(spread) for spread in spreads if pd.notna(spread)]
    return bool(known) and abs(float(one["step_ms"]) - float(other["step_ms"])) <= max(known)


def units(rows: pd.DataFrame) -> str:
    """What the rows count: GPUs or processes."""
    return "GPUs" if set(rows["device"]) == {"cuda"} else "processes of a CPU"


def scaling(rows: pd.DataFrame) -> str:
    """Both scale factors of the largest measured row, and what was predicted beyond."""
    real = need(measured(rows), 2, "numbers of ranks")
    first, last = real.iloc[0], real.iloc[-1]
    text = (
        f"From {first['world_size']} to {last['world_size']} {units(rows)}, samples a second, counted as Trainer does, "
        f"go from {format_figure(first['train_samples_per_second'])} to "
        f"{format_figure(last['train_samples_per_second'])}, a factor of {format_figure(last['samples_scale'])} where "
        f"{last['world_size'] / first['world_size']:g} would be linear; the runtime's factor is "
        f"{format_figure(last['runtime_scale'])}."
    )
    text += by_steps(first, last) + slower(real)
    beyond = rows[(rows["origin"] == PREDICTED) & (rows["world_size"] > last["world_size"])]
    if len(beyond):
        far = beyond.iloc[-1]
        text += (
            f" For {far['world_size']} a factor of {format_figure(far['samples_scale'])} is predicted from the step on "
            f"{last['world_size']}."
        )
    return text


def by_steps(first: Any, last: Any) -> str:
    """The same factor by the clock of steps alone, which evaluation is not in; nothing where it is lacking."""
    rates = [pd.to_numeric(row.get("stepping_samples_per_second"), errors="coerce") for row in (first, last)]
    if any(pd.isna(rate) for rate in rates):
        return ""
    factor = float(rates[1] / rates[0])
    text = (
        f" By the clock of steps alone the factor is {format_figure(factor)} where "
        f"{last['world_size'] / first['world_size']:g} would be linear"
    )
    if abs(factor - 1) <= max(map(_spread_share, (first, last))):
        text += ", which the spread of steps does not tell from 1: no gain is seen"
    elif factor < 1:
        text += ": more ranks train fewer samples"
    if first.get("wrapped_by") == "none" != last.get("wrapped_by"):
        text += (
            f"; {counted(first['world_size'], 'rank')} trained without FSDP and {last['world_size']} with it, so "
            "that what FSDP costs is part of the factor"
        )
    return f"{text}."


def _spread_share(row: Any) -> float:
    """A step's interquartile range as a share of the step; none where it is not known."""
    spread, step = (pd.to_numeric(row.get(name), errors="coerce") for name in ("step_ms_iqr", "step_ms"))
    return float(spread / step) if pd.notna(spread) and pd.notna(step) and step else 0.0


def slower(real: pd.DataFrame) -> str:
    """The rows that train fewer samples a second than the first does."""
    known = numbers(real, "train_samples_per_second")
    rates = known["train_samples_per_second"]
    scaled = known.assign(scale=rates / rates.iloc[0] if len(rates) else rates)
    slow = scaled[scaled["scale"] < 1]
    if slow.empty:
        return ""
    told = ", ".join(
        f"{counted(row['world_size'], 'rank')} train{'s' * (row['world_size'] == 1)} "
        f"{format_figure(row['scale'])} times its samples a second"
        for _, row in slow.iterrows()
    )
    return f" Not every row is quicker than the first: {told}."


def nodes(rows: pd.DataFrame) -> str:
    """Of each number of ranks a node the row of most nodes, measured ones first, against one rank."""
    rows = main_rows(need(rows, 1, "rows"))
    beyond = numbers(need(rows[rows["nodes"] > 1], 1, "rows of several nodes"), "step_ms")
    if beyond.empty:
        raise CannotTell("ranks on several nodes: no job had several, and no network between nodes was measured")
    each = beyond["world_size"] // beyond["nodes"]
    said = [_most_nodes(group, int(ranks)) for ranks, group in beyond.groupby(each)]
    alone = rows[rows["world_size"] == 1]
    if len(alone):
        rate = format_figure(alone.iloc[0]["train_samples_per_second"])
        said.append(f"One rank alone trains {rate} samples a second.")
    return " ".join(said)


def _most_nodes(rows: pd.DataFrame, each: int) -> str:
    """The largest row that was measured; where none was, the largest predicted one."""
    real = measured(rows)
    last: Any = (real if len(real) else rows).iloc[-1]
    how = "measured" if len(real) else "predicted by the network measured between two nodes"
    return (
        f"With {counted(each, 'rank')} on each of {last['nodes']} nodes a step takes {format_figure(last['step_ms'])} "
        f"ms, {how}: {format_figure(last['train_samples_per_second'])} samples a second by Trainer's default figure."
    )


def prediction(rows: pd.DataFrame) -> str:
    """How far measured steps lie from both predictions; what is missing where they lie outside."""
    rows = measured(rows)
    known = need(numbers(numbers(rows, "error_percent"), "overlapped_error_percent"), 1, "steps predicted")
    between = known[(known["overlapped_error_percent"] <= 0) & (known["error_percent"] >= 0)]
    worst: Any = known.loc[known["error_percent"].abs().idxmax()]
    took = format_figure(worst["measured_ms"], worst.get("measured_ms_iqr"))
    text = (
        f"{len(between)} of {len(known)} measured steps lie between complete overlap and none. The prediction without "
        f"overlap is farthest off with {worst['world_size']} ranks ({worst['loop']}): "
        f"{format_figure(worst['apart_ms'])} ms for {took} ms measured, {worst['error_percent']:+.0f} %."
    )
    return f"{text}{_lacking(worst)}{_rule(rows)}"


def _lacking(worst: Any) -> str:
    """What the prediction that is farthest off may lack; "" where it is near."""
    if abs(worst["error_percent"]) <= GOOD_PERCENT:
        return ""
    if worst["overlapped_error_percent"] > GOOD_PERCENT:
        return (
            " Even its computing alone is predicted longer than the whole step: one rank computed more slowly than "
            "several do, whose threads and clocks differ, or other programs were busy then."
        )
    if worst["error_percent"] > 0:
        return " The term that is missing is the overlap of communication with computing."
    return (
        " What is missing may be of the host, such as launching and copying for each unit that is gathered, or cores "
        "that ranks share: nothing in this table measures it apart."
    )


def _rule(rows: pd.DataFrame) -> str:
    """How far the rule of predicted rows is off measured ones; "" where there are no others to make them of."""
    known = numbers(rows, "rule_error_percent")
    if known.empty:
        return ""
    off = from_to(sorted(known["rule_error_percent"]), "{:+.0f}".format)
    return f" The rule of predicted rows, tried on {len(known)} measured ones from the others, is off by {off} %."


def overhead(slow: float, quick: float) -> str:
    """One time over another, in words."""
    if quick <= 0:
        raise CannotTell("a step without duration")
    share = 100 * (slow / quick - 1)
    return f"{abs(share):.0f} % {'longer' if share >= 0 else 'shorter'}"


def draw_scaling(canvas: Any, rows: pd.DataFrame, y: str) -> None:
    """A line for each device and loop over ranks; hollow where predicted; dashed: in proportion to ranks."""
    axes = canvas.subplots()
    axes.set_xlabel("Ranks")
    axes.set_ylabel("Samples/s")
    rows = numbers(rows, y)
    if rows.empty:
        f.no_data(axes, "no cell was measured")
        return
    for colour, ((device, loop), group) in zip(f.COLOURS, rows.groupby(["device", "loop"], sort=False), strict=False):
        group = group.sort_values("world_size", kind="stable")
        axes.plot(group["world_size"], group[y], color=colour, linewidth=1)
        for origin, filled in ((MEASURED, colour), (PREDICTED, "none")):
            own = group[group["origin"] == origin]
            label = f"{loop}, {device}" + (", predicted" if origin == PREDICTED else "")
            if len(own):
                axes.scatter(own["world_size"], own[y], edgecolors=colour, facecolors=filled, label=label, zorder=3)
        first = group.iloc[0]
        linear = [first[y] * ranks / first["world_size"] for ranks in group["world_size"]]
        axes.plot(group["world_size"], linear, color=colour, linestyle="--", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    f.power_of_two_ticks(axes, sorted({float(ranks) for ranks in rows["world_size"]}))
    axes.legend(fontsize="small")
