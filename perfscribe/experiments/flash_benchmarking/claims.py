"""Published figures against ours: does the comparison of PyTorch and FlashAttention come out the same way here?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfscribe.experiments.flash_benchmarking.joining import FASTER, SLOWER
from perfscribe.findings import CannotTell

BOTH = "forward_backward_ms"
TOLD = 3  # problems that are named where the sources and we differ
# How a problem comes out: as the source has it or the other way round, or why it is not compared.
SAME, RAN_HERE, UNDECIDED, NOTHING = "same", "ran here", "cannot be told here", "nothing to compare"
OTHER_WAY = {SLOWER: "Triton slower there and faster here", FASTER: "Triton faster there and slower here"}

Outcome = tuple[str, str]  # how, and in which problem


def directions(rows: pd.DataFrame, known: Mapping[tuple[Any, ...], Any], sources: Mapping[str, str]) -> tuple[str, str]:
    """Of each source: in how many problems Triton beats PyTorch there and here, or loses there and here.

    With launches, as the sources time it. rows: the homework's table. known: columns.published_figures(). A problem
    without both figures there does not count; one without a verdict here, and out of memory there, are told apart.
    """
    on_gpu = rows[rows["device"] == "cuda"] if not rows.empty else rows
    if on_gpu.empty:
        raise CannotTell("published figures are of GPUs, and no problem ran on a CUDA device here")
    problems = [row for _, row in on_gpu.iterrows()]
    outcomes = {name: [_compared(row, known, source) for row in problems] for source, name in sources.items()}
    compared = {name: outcome for name, outcome in outcomes.items() if _differ(outcome) or _count(outcome, SAME)}
    if not compared:
        raise CannotTell("no problem has a verdict here and figures in a source")
    verdict = "contradicted" if any(_differ(outcome) for outcome in compared.values()) else "confirmed"
    parts = [_told(name, outcome) for name, outcome in compared.items()]
    faster = int((on_gpu["verdict"] == FASTER).sum())
    alone = f"By device time alone ours is faster in {faster} of {len(on_gpu)} problems."
    claim = "Claimed by each source's times, problem by problem: which of Triton and PyTorch is faster, with launches"
    return f"{claim}. Here it is {'; '.join(parts)}. {alone}", verdict


def _told(name: str, outcome: list[Outcome]) -> str:
    same, untold, freed = (_count(outcome, how) for how in (SAME, UNDECIDED, RAN_HERE))
    parts = [_listed(text, [where for how, where in outcome if how == text]) for text in OTHER_WAY.values()]
    differs = f" ({'; '.join(filter(None, parts))})" if any(parts) else ""
    undecided = f", {untold} more cannot be told here" if untold else ""
    ran = f", and {freed} for which it prints OOM ran here" if freed else ""
    return f"as in {name} in {same} of {same + _differ(outcome)} problems{differs}{undecided}{ran}"


def _listed(how: str, where: list[str]) -> str:
    """In how many problems it came out so, and the first of them."""
    more = ", …" if len(where) > TOLD else ""
    return f"{how} in {len(where)}: {', '.join(where[:TOLD])}{more}" if where else ""


def _count(outcome: list[Outcome], wanted: str) -> int:
    return sum(how == wanted for how, _ in outcome)


def _differ(outcome: list[Outcome]) -> int:
    return sum(_count(outcome, how) for how in OTHER_WAY.values())


def _compared(row: pd.Series, known: Mapping[tuple[Any, ...], Any], source: str) -> Outcome:
    """How the problem comes out here, by what the source prints for it."""
    problem = (row["seq_len"], row["head_dim"], row["dtype"], row["batch"])
    where = f"N = {row['seq_len']} with d {row['head_dim']} in {row['dtype']}"
    base, other = (known.get((BOTH, source, *problem, name)) for name in ("eager", "triton"))
    if base == "OOM" and isinstance(row["eager_both_ms"], (int, float)):
        return RAN_HERE, where
    if not isinstance(base, float) or not isinstance(other, float):
        return NOTHING, where
    verdict, published = row["verdict_launched"], FASTER if other < base else SLOWER
    if verdict not in (FASTER, SLOWER):
        return UNDECIDED, where
    return SAME if verdict == published else OTHER_WAY[published], where
