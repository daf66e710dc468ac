"""Published figures against ours: does the comparison of PyTorch and FlashAttention come out the same way here?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfscribe.experiments.flash_benchmarking.joining import FASTER, SLOWER
from perfscribe.findings import CannotTell

BOTH = "forward_backward_ms"
TOLD = 3  # problems that are named where the sources and we differ
SAME, RAN_HERE, NOTHING = "same", "ran here", "nothing to compare"


def directions(rows: pd.DataFrame, known: Mapping[tuple[Any, ...], Any], sources: Mapping[str, str]) -> tuple[str, str]:
    """Of each source: in how many problems Triton beats PyTorch there and here, or loses there and here.

    With launches, as the sources time it. rows: the homework's table. known: columns.published_figures(). A problem
    without both figures there or without a verdict here does not count; out of memory there is told apart.
    """
    on_gpu = rows[rows["device"] == "cuda"] if not rows.empty else rows
    if on_gpu.empty:
        raise CannotTell("published figures are of GPUs, and no problem ran on a CUDA device here")
    problems = [row for _, row in on_gpu.iterrows()]
    outcomes = {name: [_compared(row, known, source) for row in problems] for source, name in sources.items()}
    parts = [_told(name, outcome) for name, outcome in outcomes.items() if _differing(outcome) or SAME in outcome]
    if not parts:
        raise CannotTell("no problem has a verdict here and figures in a source")
    verdict = "contradicted" if any(_differing(outcome) for outcome in outcomes.values()) else "confirmed"
    faster = int((on_gpu["verdict"] == FASTER).sum())
    alone = f"By device time alone ours is faster in {faster} of {len(on_gpu)} problems."
    return f"Which of Triton and PyTorch is faster, end to end with launches: {'; '.join(parts)}. {alone}", verdict


def _told(name: str, outcome: list[str]) -> str:
    same, other, freed = outcome.count(SAME), _differing(outcome), outcome.count(RAN_HERE)
    more = " and others" if len(other) > TOLD else ""
    differs = f" (not at {', '.join(other[:TOLD])}{more})" if other else ""
    ran = f", and {freed} for which it prints OOM ran here" if freed else ""
    return f"as in {name} in {same} of {same + len(other)} problems{differs}{ran}"


def _differing(outcome: list[str]) -> list[str]:
    return [text for text in outcome if text not in (SAME, RAN_HERE, NOTHING)]


def _compared(row: pd.Series, known: Mapping[tuple[Any, ...], Any], source: str) -> str:
    """SAME, RAN_HERE where the source has OOM for PyTorch, NOTHING, or the problem in which the direction differs."""
    problem = (row["seq_len"], row["head_dim"], row["dtype"], row["batch"])
    base, other = (known.get((BOTH, source, *problem, name)) for name in ("eager", "triton"))
    if base == "OOM" and isinstance(row["eager_both_ms"], (int, float)):
        return RAN_HERE
    verdict = row["verdict_launched"]
    if not isinstance(base, float) or not isinstance(other, float) or verdict not in (FASTER, SLOWER):
        return NOTHING
    published = FASTER if other < base else SLOWER
    return SAME if verdict == published else f"N = {row['seq_len']} with d {row['head_dim']} in {row['dtype']}"
