"""What the scaling tables say, in sentences."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.scaling_model.links import ASSUMED
from perfscribe.experiments.scaling_model.model import COMPUTING, HOLDS
from perfscribe.experiments.scaling_model.trainings import STRONG, WEAK
from perfscribe.findings import CannotTell, counted, from_to, need
from perfscribe.scaling.collectives import JUDGED_FROM, RING, TREE
from perfscribe.scaling.reach import MODEL_ONLY, PREDICTED
from perfscribe.statistics import format_figure
from perfscribe.training_answers import numbers

HALF = 50.0  # percent of efficiency
KINDS = (WEAK, STRONG)


def algorithm(rows: pd.DataFrame) -> str:
    """Which algorithm's residuals are smaller, of all-reduces judged by several counts; what is assumed of others."""
    own = rows[rows["operation"] == "all_reduce"] if len(rows) else rows
    judged = own[own["chosen"].isin([RING, TREE])] if len(own) else own
    others = _not_judged(own.drop(judged.index)) if len(own) else ""
    if judged.empty:
        raise CannotTell(others.strip(" .") or "No all-reduce among several processes was measured")
    parts = [
        f"{row['backend']} among {row['counts']} processes a {row['chosen']} (residuals {row[f'{RING}_percent']:.0f} % "
        f"by a ring, {row[f'{TREE}_percent']:.0f} % by a tree, root mean square; the largest count, left out, is "
        f"missed by {_or_text(row[f'{RING}_left_out_percent'])} and {_or_text(row[f'{TREE}_left_out_percent'])})"
        for _, row in judged.iterrows()
    ]
    return (
        f"The time of an all-reduce grows over processes more like that of: {'; '.join(parts)}. {_loose(judged)}"
        f"{_launches(judged)}{others}"
    )


def _not_judged(others: pd.DataFrame) -> str:
    """The all-reduces among too few numbers of processes, and what is assumed of them."""
    if others.empty:
        return ""
    named = "; ".join(
        f"{row['backend']} among {row['counts']} processes, {row['chosen']}" for _, row in others.iterrows()
    )
    return (
        f" Not judged, as fewer than {JUDGED_FROM} numbers were measured and a part of each call's latency that does "
        f"not grow, such as its launch, makes a ring among few look like a tree; what is assumed: {named}."
    )


def _or_text(found: Any) -> str:
    return f"{found:.0f} %" if isinstance(found, float) else str(found)


def _launches(judged: pd.DataFrame) -> str:
    """What it means that NCCL says ring where a tree fits better."""
    odd = judged[(judged["chosen"] == TREE) & judged["logged"].str.lower().str.startswith(RING)]
    if odd.empty:
        return ""
    return (
        " NCCL's log says ring all the same: a part of each call's latency that does not grow with ranks, such as its "
        "launch, makes a ring among few look like a tree. The table has the times by both."
    )


def _loose(judged: pd.DataFrame) -> str:
    best = judged[[f"{RING}_percent", f"{TREE}_percent"]].astype(float).min(axis=1)
    if float(best.max()) <= 100 * HOLDS:
        return f"Residuals within {100 * HOLDS:.0f} % say that latency and bandwidth describe what was measured."
    return (
        f"Residuals above {100 * HOLDS:.0f} % say that one latency and one bandwidth do not describe all sizes: "
        "predictions of small messages are then right in their order of magnitude at best."
    )


def messages(rows: pd.DataFrame) -> str:
    """The smallest and the largest all-reduce among most ranks."""
    most = need(rows, 1, "all-reduces")["ranks"].max()
    far = rows[rows["ranks"] == most].sort_values("size_mb", kind="stable")
    ends = far.iloc[[0, -1]]
    parts = [
        f"one of {row['size_mb']} MB {format_figure(row[f'{TREE}_ms'])} ms by a tree to "
        f"{format_figure(row[f'{RING}_ms'])} ms by a ring ({_assumed(row)})"
        for _, row in ends.iterrows()
    ]
    beside = "; ".join(_beside_measured(rows[rows["size_mb"] == size]) for size in dict.fromkeys(ends["size_mb"]))
    return f"Among {most} processes the model gives {' and '.join(parts)}; {beside}. {_of_links(far)}"


def _beside_measured(rows: pd.DataFrame) -> str:
    """How far the model is off messages of one size that were measured, among any number of processes."""
    size, known = rows["size_mb"].iloc[0], numbers(rows, "residual_percent")
    if known.empty:
        return f"no message of {size} MB was measured"
    *fewer, most = map(str, sorted(set(known["ranks"])))
    ranks = f"{', '.join(fewer)} and {most}" if fewer else most
    off = from_to(known["residual_percent"].abs(), "{:.0f}".format)
    return f"those of {size} MB that were measured, among {ranks} processes, are {off} % off it"


def _assumed(row: pd.Series) -> str:
    """Which of the two the table goes by."""
    name = RING if row["model_ms"] == row[f"{RING}_ms"] else TREE
    return f"assumed is the {name}, {row['latency_percent']:.0f} % of its time latency"


def _of_links(far: pd.DataFrame) -> str:
    if ASSUMED not in set(far["links"]):
        return "The bandwidth there is that of the measured network, its latency that within a machine."
    return "No network was measured: these are times of one machine's links, which those of a cluster exceed."


def terms(rows: pd.DataFrame) -> str:
    """Whether measured steps are what their terms make of them, and are foretold from fewer ranks."""
    known = numbers(need(rows, 1, "trainings on several numbers of ranks"), "worst_percent")
    known = need(known, 1, "trainings with a step that communicates")
    told = numbers(known, "left_out_percent")
    foretold = told[told["left_out_percent"].abs() <= 100 * HOLDS]
    bound = f"{100 * HOLDS:.0f} %"
    second = (
        f"Of the {len(told)} whose counts allow the second test {len(foretold)} pass{'es' * (len(foretold) == 1)} it."
    )
    if told.empty:
        second = "None has counts that allow the second test."
    worst: Any = known.loc[known["worst_percent"].abs().idxmax()]
    return (
        f"The terms explain the measured steps of {len(_explained(known))} of {counted(len(known), 'training')}, which "
        f"takes two tests: they give each step within {bound}, and the step on most ranks, foretold from those on "
        f"fewer, within {bound}, too. {second} The largest residual is "
        f"{worst['worst_percent']:+.0f} % ({worst['training']}; overlap {worst['overlap_percent']:.0f} %)."
        f"{_missing(known)}{_unconfirmed(known)}"
    )


def _explained(fitted: pd.DataFrame) -> pd.DataFrame:
    """Those whose model holds: small residuals alone say little, as one parameter is fitted to few points."""
    return fitted[fitted["holds"] == "yes"]


def _missing(known: pd.DataFrame) -> str:
    """What is not among the terms, where steps are longer or shorter than these."""
    far = known[known["worst_percent"].abs() > 100 * HOLDS]
    longer = far[far["asked_percent"] < 0]
    text = ""
    if len(longer):
        text = (
            f" Longer than computing and communicating one after the other: {'; '.join(longer['training'])}. What is "
            "missing may be of the host, such as launching, copies around collectives, or cores that ranks share: "
            "nothing here measures it apart. Nothing is predicted for these."
        )
    others = far[far["asked_percent"] >= 0]
    if len(others):
        text += (
            f" Neither longer nor shorter throughout: {'; '.join(others['training'])}. Computing or bandwidth differs "
            "between counts more than the terms say, which allows no conclusion."
        )
    return text


def _unconfirmed(known: pd.DataFrame) -> str:
    """What small residuals are worth where nothing was foretold."""
    near = known[(known["worst_percent"].abs() <= 100 * HOLDS) & (known["holds"] != "yes")]
    if near.empty:
        return ""
    return (
        f" Of {len(near)} more the residuals are as small, but the largest count was not foretold, or its test takes "
        "more counts: what is predicted for more ranks is arithmetic there, which nothing measured confirms."
    )


def limits(steps: pd.DataFrame, fitted: pd.DataFrame) -> str:
    """What takes most of a step, and where half of the efficiency is gone, of trainings whose model holds."""
    need(steps, 1, "trainings with a model")
    explained = set(_explained(fitted)["training"])
    shown = need(steps[steps["training"].isin(explained)], 1, "trainings whose steps the terms explain and foretell")
    parts = []
    for name, rows in shown.groupby("training", sort=False):
        known = numbers(rows, "model_ms").sort_values("ranks", kind="stable")
        if len(known):
            parts.append(f"{name}: {_longest(known)}; {_halves(rows)}")
    left = [name for name in dict.fromkeys(steps["training"]) if name not in explained]
    beside = f" No conclusion on {'; '.join(left)}, whose steps the terms do not explain and foretell." if left else ""
    return f"By the model, for up to {shown['ranks'].max()} ranks: {'. '.join(parts)}.{beside} {_of_links(shown)}"


def _longest(known: pd.DataFrame) -> str:
    """From which count on what is not computing takes longest."""
    bound = known[known["limit"] != COMPUTING]
    last = known.iloc[-1]
    if bound.empty:
        return f"computing takes longest up to {last['ranks']} ranks"
    first = bound.iloc[0]
    return f"from {first['ranks']} ranks on exposed communication takes longer than computing ({last['limit']})"


def _halves(rows: pd.DataFrame) -> str:
    told = []
    for kind in KINDS:
        column = f"{kind}_percent"
        known = numbers(rows, column).sort_values("ranks", kind="stable")
        below = known[known[column] < HALF]
        if known.empty:
            continue
        last: Any = known.iloc[-1]
        if below.empty:
            told.append(f"{kind} efficiency {last[column]:.0f} % on {last['ranks']}{_beyond(last)}")
        else:
            first: Any = below.iloc[0]
            told.append(f"{kind} efficiency below {HALF:.0f} % from {first['ranks']} on{_beyond(first)}")
    return ", ".join(told)


def _beyond(row: Any) -> str:
    """How far from what was measured a row lies; "" where it was."""
    return f" ({row['reach']})" if row["reach"] in (PREDICTED, MODEL_ONLY) else ""


def textbook(steps: pd.DataFrame, fitted: pd.DataFrame) -> str:
    """Serial fractions, and what the laws say of most ranks beside the model."""
    fitted = fitted[fitted["training"].isin(set(steps["training"]))]
    known = need(numbers(fitted, "serial_percent"), 1, "trainings with a serial fraction between 0 and 100 %")
    parts = [_by_law(row, steps[steps["training"] == row["training"]]) for _, row in known.iterrows()]
    without = [f"{row['training']} ({row['serial_percent']})" for _, row in fitted.drop(known.index).iterrows()]
    beside = f" Of no use are the laws for {'; '.join(without)}." if without else ""
    return (
        f"Serial fractions of measured steps: {'; '.join(parts)}.{beside} Both laws hold the fraction fixed, the model "
        "lets communication grow."
    )


def _by_law(row: pd.Series, steps: pd.DataFrame) -> str:
    """A training's serial fraction, what the law makes of it on most ranks, and the model where it holds."""
    law = "Karp and Flatt" if row["scaling"] == STRONG else "Gustafson"
    text = f"{row['training']} {format_figure(row['serial_percent'])} % ({law})"
    rows = numbers(steps, "textbook_percent").sort_values("ranks", kind="stable")
    if row["holds"] != "no":  # strong scaling ends before ranks do: both are of the last count that both know
        rows = numbers(rows, f"{row['scaling']}_percent")
    if rows.empty:
        return text
    last: Any = rows.iloc[-1]
    text += f", hence {last['textbook_percent']:.2g} % efficiency on {last['ranks']} ranks, where the "
    if row["holds"] == "no":
        return f"{text}model's terms miss what was measured"
    return f"{text}model has {last[row['scaling'] + '_percent']:.2g} %"
