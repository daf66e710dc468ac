"""Interleaved timing of variants, so that a temporary slowdown of the machine affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from perfscribe.instruments.timing import Mark, Timing, time_phases

if TYPE_CHECKING:
    import torch


def time_interleaved(
    variants: Mapping[str, Callable[[Mark], object]],
    *,
    turns: int,
    warmup: int,
    timed: int,
    device: str | torch.device,
    prepare: Callable[[], object] | None = None,
) -> dict[str, dict[str, Timing]]:
    """Time the phases of each variant `turns` times; returns timing.time_phases' results by variant and phase.

    The order alternates (A B C, C B A, ...), so that a drift of the machine favours none. Samples of all turns are in
    one list, `timed` per turn, in order; split() separates them again. Raises ValueError for turns below 1 and for what
    time_phases rejects.
    """
    if turns < 1:
        raise ValueError(f"expected at least one turn, not {turns}")
    by_variant: dict[str, list[dict[str, Timing]]] = {name: [] for name in variants}
    for turn in range(turns):
        for name in list(variants) if turn % 2 == 0 else reversed(list(variants)):
            phases = time_phases(variants[name], warmup=warmup, timed=timed, device=device, prepare=prepare)
            by_variant[name].append(phases)
    return {
        name: {phase: _joined([phases[phase] for phases in parts]) for phase in parts[0]}
        for name, parts in by_variant.items()
    }


def as_one(*calls: Callable[[], object]) -> Callable[[Mark], None]:
    """Return a variant that runs these calls in sequence, without waiting between them."""

    def step(mark: Mark) -> None:
        for call in calls:
            call()
        mark("end")

    return step


def _joined(parts: list[Timing]) -> Timing:
    return Timing(
        samples_ms=[sample for part in parts for sample in part.samples_ms],
        warmup_ms=[sample for part in parts for sample in part.warmup_ms],
        timer=parts[0].timer,
        warmup_s=sum(part.warmup_s for part in parts),
        timed_s=sum(part.timed_s for part in parts),
    )


def split(samples: list[float], turns: int) -> list[list[float]]:
    """Return the samples by turn; raises ValueError if they do not divide into equal, non-empty turns."""
    if turns < 1 or not samples or len(samples) % turns:
        raise ValueError(f"{len(samples)} samples are not those of {turns} turns")
    timed = len(samples) // turns
    return [samples[start : start + timed] for start in range(0, len(samples), timed)]
