"""What else all_reduce measured, in sentences."""

from __future__ import annotations

import pandas as pd

from perfscribe.experiments.all_reduce.columns import OPERATIONS, SOURCES
from perfscribe.experiments.all_reduce.fits import DESCRIBES
from perfscribe.findings import CannotTell, need, ratio_of, shown, shown_from_to
from perfscribe.parallel.transport import TRANSPORTS
from perfscribe.statistics import format_figure

PUBLISHED = "busbw_"
OWN = "busbw_gb_per_s"
FORCED = {words for words, *_ in TRANSPORTS.values()}


def numbers(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """The rows in which all of these columns are figures."""
    if rows.empty:
        return rows
    kept = rows[[all(isinstance(row[name], (int, float)) for name in names) for _, row in rows.iterrows()]]
    return kept.astype(dict.fromkeys(names, float))


def lines(rows: pd.DataFrame) -> str:
    """Latency, bandwidth, half-bandwidth size and the largest residual of each line of an all-reduce."""
    every = numbers(rows[rows["operation"] == "all_reduce"], "bandwidth_gb_per_s")
    fitted = need(every, 1, "all-reduces with three sizes")
    chosen = fitted[[not _is_forced(row) for _, row in fitted.iterrows()]]
    parts = [_of_line(row) for _, row in (fitted if chosen.empty else chosen).iterrows()]
    most = 100 * DESCRIBES
    far = int((fitted["worst_residual_percent"].astype(float).abs() > most).sum())
    model = f"Residuals above {most:.0f} % mean that one latency and one bandwidth do not describe all sizes: "
    model += f"so it is for {far} of the {len(fitted)} lines of all-reduces in the table."
    return f"Latency and bandwidth of an all-reduce: {'; '.join(parts)}. {model}"


def _of_line(row: pd.Series) -> str:
    half = row["half_reached_mib"]
    reached = "" if isinstance(half, str) else f", half of the best measured from {format_figure(half)} MiB on"
    return (
        f"{row['backend']} with {row['world_size']} processes {format_figure(row['latency_us'])} µs and "
        f"{format_figure(row['bus_gb_per_s'])} GB/s bus{reached} (residuals up to "
        f"{abs(row['worst_residual_percent']):.0f} %, {row['points']} sizes)"
    )


def _is_forced(row: pd.Series) -> bool:
    """Whether NCCL was told which transport to take."""
    return bool(row["backend"] == "nccl" and row["transport"] in FORCED)


def operations(rows: pd.DataFrame) -> str:
    """The best bus bandwidth of each operation, over the messages that all operations of the same ranks sent."""
    known = need(numbers(rows, OWN), 1, "collectives")
    parts = []
    for (backend, world_size), group in known.groupby(["backend", "world_size"], sort=False):
        shared = set.intersection(*(set(own["size_bytes"]) for _, own in group.groupby("operation")))
        if not shared:
            parts.append(f"{backend} with {world_size} processes: no message that all operations sent")
            continue
        common = group[group["size_bytes"].isin(shared)]
        best = common.loc[common.groupby("operation", sort=False)[OWN].idxmax()]
        said = [f"{OPERATIONS[row['operation']]} {shown(row, OWN)} ({row['message']})" for _, row in best.iterrows()]
        largest = common.loc[common["size_bytes"].idxmax(), "message"]
        parts.append(f"{backend} with {world_size} processes, up to {largest}: {', '.join(said)}")
    return (
        "Highest bus bandwidth in GB/s of messages that all operations among the same processes sent, and the message "
        f"that reached it: {'; '.join(parts)}."
    )


def transports(rows: pd.DataFrame) -> str:
    """Each transport at the largest size and the fewest processes that all have, against the fastest."""
    known = need(numbers(rows, OWN, "time_ms"), 1, "all-reduces")
    world_size = known["world_size"].min()
    few = known[known["world_size"] == world_size]
    shared = set.intersection(*(set(group["size_bytes"]) for _, group in few.groupby(["backend", "transport"])))
    if not shared:
        raise CannotTell("no size was sent over every transport")
    largest = few[few["size_bytes"] == max(shared)].sort_values(OWN, ascending=False, kind="stable")
    fastest = largest.iloc[0]
    parts = [
        f"{row['backend']} over {row['transport']} {shown(row, OWN)} GB/s bus"
        + ("" if name == fastest.name else f" ({ratio_of(row, fastest, 'time_ms')} times as long)")
        for name, row in largest.iterrows()
    ]
    alone = " Only one transport was measured here." if len(largest) == 1 else ""
    return f"{fastest['message']} between {world_size} processes: {'; '.join(parts)}.{alone}"


def published(rows: pd.DataFrame) -> str:
    """Our bus bandwidth over the published ones, by backend and source."""
    parts = []
    for name in (name for name in rows.columns if name.removeprefix(PUBLISHED) in SOURCES):
        for backend, group in numbers(rows, OWN, name).groupby("backend", sort=False):
            spreads = pd.to_numeric(group[f"{OWN}_spread"], errors="coerce").fillna(0.0)
            ratios = pd.DataFrame({"ratio": group[OWN] / group[name], "ratio_spread": spreads / group[name]})
            parts.append(
                f"{shown_from_to(ratios, 'ratio')} times that of {SOURCES[name.removeprefix(PUBLISHED)]} ({backend}, "
                f"{len(ratios)} cells)"
            )
    if not parts:
        raise CannotTell("nothing is published for what was measured")
    why = "gloo depends on the host's processors; with NCCL the link decides; means are raised by single slow calls"
    return f"Bus bandwidth here is {'; '.join(parts)}. Why published figures disagree: {why}."
