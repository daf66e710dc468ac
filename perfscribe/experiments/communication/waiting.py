"""Waiting told apart from transfer: the same collective as each rank saw it.

A collective's kernel (gloo: its thread's work) begins on a rank when that rank is ready, and ends when the data has
gone through, so that on a rank that came early it holds the wait for the others. The rank that came last waited for
nobody: the least time of any rank is taken for the transfer, and what a rank spent beyond that for its wait.
For each collective i: transfer_i = min over ranks of t_r,i; wait_r,i = t_r,i - transfer_i.
It is an upper bound of the transfer: that of a rank which is late to end, or is disturbed, is in it. No torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One collective as a rank saw it. elements: of its message, 0 where the profiler does not tell."""

    elements: int
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Split:
    """Sums over all collectives. transfer_ns: the same for every rank; wait_ns, total_ns: by rank."""

    calls: int
    transfer_ns: int
    wait_ns: tuple[int, ...]
    total_ns: tuple[int, ...]


def matched(by_rank: Sequence[Sequence[Call]]) -> list[tuple[Call, ...]]:
    """The collectives, each as every rank saw it: those of the same number of elements, in order of start.

    In order of start alone two messages that gloo's threads begin at once could be taken for each other.
    ValueError: no rank, or ranks whose calls are not of the same numbers and sizes.
    """
    if not by_rank:
        raise ValueError("no rank")
    sizes = [_by_elements(calls) for calls in by_rank]
    counts = [{elements: len(calls) for elements, calls in found.items()} for found in sizes]
    for rank, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(
                f"collectives cannot be matched: rank 0 has {len(by_rank[0])}, rank {rank} {len(by_rank[rank])}"
                + ("" if len(by_rank[0]) != len(by_rank[rank]) else " of other sizes")
            )
    return [calls for elements in sizes[0] for calls in zip(*(found[elements] for found in sizes), strict=True)]


def _by_elements(calls: Sequence[Call]) -> dict[int, list[Call]]:
    found: dict[int, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda one: one.start_ns):
        found[call.elements].append(call)
    return found


def split(by_rank: Sequence[Sequence[Call]]) -> Split:
    """Transfer and wait of all collectives of these ranks. ValueError: as matched()."""
    together = matched(by_rank)
    least = [min(call.duration_ns for call in calls) for calls in together]
    totals = tuple(sum(calls[rank].duration_ns for calls in together) for rank in range(len(by_rank)))
    transfer = sum(least)
    return Split(len(together), transfer, tuple(total - transfer for total in totals), totals)
