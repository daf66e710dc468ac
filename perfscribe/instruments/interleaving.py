"""Variants of one piece of work timed interleaved, so that what slows the machine for a while hits all of them."""

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
    """Time the phases of each variant `turns` times; by variant and phase, as timing.time_phases gives them.

    The order is reversed from turn to turn (A B C, C B A, ...), so that a drift of the machine favours none. Samples of
    all turns stand in one list, `timed` of each turn after those of the turn before; split() parts them again.
    ValueError: turns below 1, and what time_phases refuses.
    """
    if turns < 1:
        raise ValueError(f"expected at least one turn, not {turns}")
    found: dict[str, list[dict[str, Timing]]] = {name: [] for name in variants}
    for turn in range(turns):
        for name in list(variants) if turn % 2 == 0 else reversed(list(variants)):
            phases = time_phases(variants[name], warmup=warmup, timed=timed, device=device, prepare=prepare)
            found[name].append(phases)
    return {
        name: {phase: _joined([phases[phase] for phases in parts]) for phase in parts[0]}
        for name, parts in found.items()
    }


def as_one(*calls: Callable[[], object]) -> Callable[[Mark], None]:
    """A variant of these calls one after the other, with no wait between them."""

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
    """The samples of each turn; ValueError where the turns cannot have had equally many, and any at all."""
    if turns < 1 or not samples or len(samples) % turns:
        raise ValueError(f"{len(samples)} samples are not those of {turns} turns")
    timed = len(samples) // turns
    return [samples[start : start + timed] for start in range(0, len(samples), timed)]
