"""How good prediction and recording are, and what separates our peaks from published ones."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from perfscribe.experiments.memory_profiling.answers import MODE_NAMES, in_one_unit, memory, numbers
from perfscribe.experiments.memory_profiling.columns import SOURCES
from perfscribe.experiments.memory_profiling.predictions import ALLOWED_ERROR
from perfscribe.findings import CannotTell, counted, from_to, need
from perfscribe.tables import MIB

LARGE_GIB = 1.0
SAME_IN_GIB = ("brandon-snider", "damek")


def prediction(rows: pd.DataFrame) -> tuple[str, str]:
    """Largest error over all peaks of a GiB and more, and the term that is off where it exceeds the bound."""
    need(rows, 1, "cells")
    errors = rows["error_percent"].astype(float).abs() / 100
    large = rows[rows["measured_gib"].astype(float) >= LARGE_GIB]
    if large.empty:
        worst = rows.loc[errors.idxmax()]
        return (
            f"None of {len(rows)} peaks reaches 1 GiB, from where on the prediction has to be within "
            f"{ALLOWED_ERROR:.0%}. Its largest error is {_off(worst)}."
        ), "answered"
    worst = large.loc[errors[large.index].idxmax()]
    text = f"Of {len(large)} peaks of 1 GiB and more, the prediction is off by at most {_off(worst)}."
    beyond = large[errors[large.index] > ALLOWED_ERROR]
    if beyond.empty:
        terms = large["missing_term"].value_counts()
        return f"{text} The term that differs most is '{terms.index[0]}' in {terms.iloc[0]} of them.", "confirmed"
    named = "; ".join(_off(row) for _, row in beyond.iterrows())
    return f"{text} Beyond {ALLOWED_ERROR:.0%} lie {len(beyond)}: {named}.", "contradicted"


def _off(row: pd.Series) -> str:
    where = f"{row['size']}, context {row['seq_len']}, {row['mode']}, {row['dtype']}, {row['phase']}"
    apart = float(row["missing_mib"])
    missing = memory(abs(apart) * MIB / 2**30)
    side = "more" if apart > 0 else "less"
    return (
        f"{float(row['error_percent']):+.2g} % ({where}; largest term: {row['missing_term']}, {missing} {side} "
        "measured than predicted)"
    )


def published(rows: pd.DataFrame) -> tuple[str, str]:
    """Our peaks over those of sources that print the same setting in GiB, and what AdamW's temporaries explain."""
    parts, ratios = [], []
    for source in SAME_IN_GIB:
        claims = numbers(rows, source)
        for mode, name in MODE_NAMES.items():
            alike = claims[rows.loc[claims.index, "mode"] == mode]
            if alike.empty:
                continue
            ratio = rows.loc[alike.index, "peak_gib"].astype(float) / alike
            ratios += list(ratio)
            parts.append(f"{name} {from_to(ratio, '{:.3g}'.format)} times {source}'s")
    if not ratios:
        raise CannotTell("no published peak has the size, context, batch and dtype of a measured cell")
    close = sum(abs(ratio - 1) <= ALLOWED_ERROR for ratio in ratios)
    counts = ", ".join(f"{n} of {source}" for source in SAME_IN_GIB if (n := len(numbers(rows, source))))
    text = (
        f"Of {len(ratios)} peaks published in GiB and at the batch of ours ({counts}) ours is within "
        f"{ALLOWED_ERROR:.0%} in {close}: {'; '.join(parts)}.{_left_out(rows)}{_explained(rows)}"
    )
    return text, "confirmed" if close == len(ratios) else "answered" if close else "contradicted"


def _left_out(rows: pd.DataFrame) -> str:
    """How many figures of the table are not among the compared ones, and why."""
    others = sum(len(numbers(rows, source)) for source in SOURCES if source not in SAME_IN_GIB)
    return (
        f" Not counted: the table's {counted(others, 'other')}, whose batch is another or not stated." if others else ""
    )


def _explained(rows: pd.DataFrame) -> str:
    """What our full step holds beyond the published ones, against the copy that foreach AdamW makes."""
    steps = rows[rows["mode"] == "full_step"]
    claims = pd.concat([numbers(steps, source) for source in SAME_IN_GIB])
    if claims.empty:
        return ""
    beyond = steps.loc[claims.index, "peak_gib"].astype(float).to_numpy() - claims.to_numpy()
    copy = steps.loc[claims.index, "adamw_gib"].astype(float)
    return (
        f" In a full step ours holds {_more_or_less(beyond)}; torch's foreach AdamW "
        f"alone makes temporaries of {memory(copy.max())} that an AdamW going tensor by tensor does not. Forward with "
        "a graph depends on how many N×N matrices attention keeps."
    )


def _more_or_less(beyond: Sequence[float]) -> str:
    """From the least to the greatest of these differences in GiB, each with its side."""
    low, high = float(min(beyond)), float(max(beyond))
    show = in_one_unit(low, high)
    if low < 0 < high:
        return f"{show(-low)} less to {show(high)} more"
    return f"{from_to(map(abs, beyond), show)} {'less' if low < 0 else 'more'}"


def recording(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether a recorded pass peaks where an unrecorded one does, and whether its history adds up."""
    need(rows, 1, "cells")
    plain, recorded = rows["unrecorded_gib"].astype(float), rows["peak_gib"].astype(float)
    apart = (recorded / plain - 1).abs()
    replayed = (rows["replayed_gib"].astype(float) / recorded - 1).abs()
    text = (
        f"Over {len(rows)} cells the peak with recording differs from that without by at most {apart.max():.2%}, and "
        f"the highest moment of the recorded history from the counted peak by at most {replayed.max():.2%}."
    )
    return text, "answered"
