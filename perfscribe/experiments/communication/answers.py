"""The sentences that answer the homework's questions on communication."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfscribe.experiments.communication import published, single
from perfscribe.experiments.communication import rows as r
from perfscribe.experiments.communication.rates import ALONE
from perfscribe.findings import CannotTell, is_number, need, ratio_of, shown
from perfscribe.statistics import format_figure

CELL = ["backend", "implementation", "tool"]
LEAST_POINTS = 0.1  # of a share's spread over turns; below it they are alike


def _figure(value: object, unit: str = "") -> str:
    return f"{format_figure(float(str(value)))}{unit}"


def _cells(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    need(rows, 1, "cells of two ranks")
    for (backend, implementation, tool), own in rows.groupby(CELL, sort=False):
        yield f"{backend}, {implementation}, by {r.TOOLS[tool]}", own


def _row(rows: pd.DataFrame, metric: str) -> pd.Series:
    (row,) = (row for _, row in rows.iterrows() if row["metric"] == r.METRICS[metric])
    return row


def cost(metrics: pd.DataFrame, ranks: pd.DataFrame) -> str:
    """Transfer of both placements, then total, share and mean with waiting; which link each of them had."""
    said = [f"With {name} {_transfer(own)}. {_with_waiting(own)}." for name, own in _cells(metrics)]
    return " ".join(said) + _labels(ranks)


def _transfer(own: pd.DataFrame) -> str:
    row = _row(own, r.TRANSFER)
    return (
        f"transfer takes {shown(row, 'inter')} ms across nodes and {shown(row, 'intra')} ms within one, {_impact(row)}"
    )


def _with_waiting(own: pd.DataFrame) -> str:
    """The homework's figures, which hold how long rank 0 waited for the other."""
    total, share, mean = (_row(own, metric) for metric in (r.TOTAL, r.SHARE, r.MEAN))
    return (
        f"With what rank 0 waited for the other the totals are: across nodes {shown(total, 'inter')} ms, "
        f"{shown(share, 'inter')} % of all device time, mean {shown(mean, 'inter')} ms, within a node "
        f"{shown(total, 'intra')} ms, {shown(share, 'intra')} %, mean {shown(mean, 'intra')} ms; "
        f"{_impact(total)}"
    )


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _impact(row: pd.Series) -> str:
    if not is_number(row["impact"]):
        return f"the ratio is {row['impact']}"
    if row["impact_verdict"] == "cannot tell":
        said = "which takes longer cannot be told"
    else:
        said = f"across nodes takes {row['impact_verdict']}" if row["impact_verdict"] in ("more", "less") else ""
    inside = "; ".join(part for part in (f"interval {row['impact_interval']}", said) if part)
    return f"ratio {shown(row, 'impact')} ({inside})"


def _labels(ranks: pd.DataFrame) -> str:
    """What the placements were joined by; that one machine stands for two nodes."""
    said = []
    for backend, own in ranks.groupby("backend", sort=False):
        links = {placement: str(group["link"].iloc[0]) for placement, group in own.groupby("placement", sort=False)}
        if links[r.INTER] == links[r.INTRA]:
            said.append(
                f"With {backend} both placements go over {links[r.INTER]}: the same link twice, so that these "
                "ratios show how far the method strays from 1, and nothing of nodes"
            )
        else:
            said.append(
                f"With {backend} the ranks within a node are joined by {links[r.INTRA]}, and {links[r.INTER]} stands "
                "for "
                "the network between nodes: no figure of a real network"
            )
    return f" {'. '.join(said)}."


def calls(metrics: pd.DataFrame) -> tuple[str, str]:
    """Whether the collectives are equally many in both placements, here and in the published table."""
    parts, alike = [], []
    for name, own in _cells(metrics):
        row = _row(own, r.CALLS)
        alike.append(row["inter"] == row["intra"])
        parts.append(f"{name} {row['inter']} across nodes and {row['intra']} within")
    across, within = (published.calls(placement) for placement in (r.INTER, r.INTRA))
    means = published.figure("mean_communication_ms", r.INTER) / published.figure("mean_communication_ms", r.INTRA)
    here = "yes" if all(alike) else "no" if not any(alike) else "not in every row"
    text = (
        f"Here {here}; launches in a profile: {'; '.join(parts)}. In homework 000 no: total over mean gives "
        f"{format_figure(across)} "
        f"across nodes and {format_figure(within)} within, so that its ratio of "
        f"{published.figure('total_communication_ratio'):g} "
        f"compares unequal numbers of launches (by its means {format_figure(means)}), which is refused here."
    )
    return text, "answered"


def _share(row: pd.Series) -> str:
    """A rank's share of waiting, and how far the turns' own shares lie apart: often by more than one of them is."""
    spread = row["wait_percent_spread"]
    told = is_number(spread) and float(spread) >= LEAST_POINTS
    apart = f" (IQR of the turns {format_figure(float(spread))} points)" if told else ""
    return f"{shown(row, 'wait_percent')} %{apart}"


def waiting(ranks: pd.DataFrame) -> str:
    """How much of the communication was waiting, of the rank that waited most; the slowest call."""
    parts = []
    for name, own in _cells(ranks):
        for placement, group in own.groupby("placement", sort=False):
            shares = [f"rank {row['rank']} {_share(row)}" for _, row in group.iterrows()]
            longest, slowest = (group.loc[group[one].astype(float).idxmax()] for one in ("total_ms", "slowest_ms"))
            parts.append(
                f"{name}, {placement}: {', '.join(shares)} (medians over turns: totals up to "
                f"{shown(longest, 'total_ms')} ms, slowest calls up to {shown(slowest, 'slowest_ms')} ms)"
            )
    upstream = published.figure("slowest_all_reduce_ms", source=published.UPSTREAM)
    return (
        f"Of the collectives' time, over all turns, this was waiting for the other rank: {'; '.join(parts)}. A profile "
        "of one rank cannot tell the two apart: its sum counts how unevenly the ranks run as communication. Homework "
        "000 sums such times; "
        f"the ALCF's own run names {upstream:g} ms for its slowest all-reduce."
    )


def bandwidth(rates: pd.DataFrame) -> tuple[str, str]:
    """Effective rates against rated ones; what the published times imply."""
    trained = need(rates[rates["what"] != ALONE] if len(rates) else rates, 1, "trainings of two ranks")
    parts = []
    for _, row in trained.iterrows():
        rated = row["rated_gb_per_s"]
        beside = f"rated: {rated}"
        if is_number(rated):
            beside = f"{shown(row, 'rated_percent')} % of the rated {_figure(rated, ' GB/s')}"
        parts.append(
            f"{row['backend']}, {row['what']}, {row['placement']} {shown(row, 'gb_per_s')} GB/s each way, "
            f"{shown(row, 'with_waiting_gb_per_s')} with waiting counted ({beside})"
        )
    across, within = (published.rate_gb_per_s(placement) for placement in (r.INTER, r.INTRA))
    nic = published.figure("link_bandwidth_gb_per_s", r.INTER)
    links = published.figure("link_bandwidth_gb_per_s", r.INTRA)
    text = (
        f"Rates: {'; '.join(parts)}. The times of homework 000 imply {format_figure(across)} GB/s across nodes, "
        f"{format_figure(100 * across / nic)} % of the {nic:g} GB/s that it quotes for a network card, and "
        f"{format_figure(within)} GB/s within one, if the model was the homework's own "
        f"({published.gradient_bytes() / 1e6:.1f} MB of gradients a step): so the card is not the limit that its text "
        "takes it for; waiting for the other rank, which its sum holds, or TCP in the card's place would give such a "
        f"figure. Its {links:g} GB/s for NVLink are the sum over all links of a GPU in both directions, while an "
        "all-reduce of two ranks uses the links of one pair, and each direction for itself."
    )
    return text, "contradicted" if across < nic / 2 else "cannot tell"


def links(rates: pd.DataFrame) -> str:
    """The largest plain all-reduce that all links have, by link; how far slower the slowest is."""
    plain = need(rates[rates["what"] == ALONE] if len(rates) else rates, 1, "plain all-reduces of two processes")
    parts, spans = [], []
    for backend, own in plain.groupby("backend", sort=False):
        sizes = [set(group["message_mb"]) for _, group in own.groupby("link", sort=False)]
        shared = set.intersection(*sizes)
        if not shared:
            continue
        best = own[own["message_mb"] == max(shared)].sort_values(
            "gb_per_s", key=lambda column: -column.astype(float), kind="stable"
        )
        best = best.drop_duplicates("link")
        rates_of = [f"{row['link']} {shown(row, 'gb_per_s')} GB/s" for _, row in best.iterrows()]
        parts.append(f"{backend}, {_figure(max(shared))} MB: {', '.join(rates_of)}")
        if len(best) > 1:
            spans.append(f"{ratio_of(best.iloc[0], best.iloc[-1], 'gb_per_s')} times with {backend}")
    if not parts:
        raise CannotTell("no size of a plain all-reduce was sent over every link")
    ratio = published.figure("total_communication_ratio")
    spread = (
        f"The link alone makes a difference of {', '.join(spans)}; homework 000 has {ratio:g} times between its "
        "placements."
        if spans
        else f"There is one link to measure here, so that the {ratio:g} times of homework 000 have nothing beside them."
    )
    return f"Plain all-reduces between two processes, each way: {'; '.join(parts)}. {spread}"


def profiler(trainings: pd.DataFrame, states: pd.DataFrame) -> tuple[str, str]:
    """What a profile costs a run, and what of the published difference that explains."""
    need(states, 1, "steps of a single rank")
    parts = []
    for backend, own in states.groupby("backend", sort=False):
        by_state = {str(row["state"]): row for _, row in own.iterrows()}
        whole, active = by_state[single.WHOLE], by_state[single.STATES["active"]]
        plain = by_state[single.STATES["plain"]]
        parts.append(
            f"with {backend} a plain step takes {shown(plain, 'time_ms')} ms, a recorded one "
            f"{shown(active, 'against')} times as long (interval {active['interval']}), and a whole profile "
            f"{shown(whole, 'longer_ms')} ms more than its steps"
        )
        trained = trainings[trainings["backend"] == backend] if len(trainings) else trainings
        parts += _runs(trained, plain)
    profiled, plain_s = published.training_s(True), published.training_s(False)
    text = (
        f"{_sentence(parts)} Homework 001 has {profiled:g} s for a profiled training of one rank and {plain_s:g} s for "
        f"one on a single GPU, {profiled - plain_s:.3g} s apart, for a profile of four steps; but these are single "
        "runs of different scripts. Its two-node job was rejected by the queue, so that it says nothing of "
        "communication across nodes."
    )
    return text, "answered"


def _runs(trainings: pd.DataFrame, plain_step: pd.Series) -> list[str]:
    """Whole trainings, against the plain one."""
    by_kind = {str(row["profiled"]): row for _, row in trainings.iterrows()}
    if not by_kind:
        return []
    plain, first, again = (by_kind[single.TRAININGS[name]] for name in ("plain", "first_profiled", "profiled"))
    text = (
        f"a training of {plain['training_steps']} steps takes {shown(plain, 'train_s')} s, with the process's first "
        f"profile {shown(first, 'train_s')} s, with a later one {shown(again, 'train_s')} s"
    )
    return [text + _single(plain, again, plain_step)]


def _single(plain: pd.Series, again: pd.Series, step: pd.Series) -> str:
    """That trainings which ran once tell less than a profile costs, where a plain step may drift by more."""
    if not all(int(row["train_s_n"]) == 1 for row in (plain, again)):
        return ""
    if not is_number(step["time_ms_iqr"]):
        return ", single runs"
    drift_s = float(step["time_ms_iqr"]) * int(plain["training_steps"]) / 1e3
    differ_s = abs(float(again["train_s"]) - float(plain["train_s"]))
    text = (
        f", single runs, whose steps may drift by {format_figure(drift_s)} s (IQR of a plain step, times their number)"
    )
    if drift_s < differ_s:
        return text
    return f"{text}: plain and later profiled training differ by less, which tells nothing of a profile"
