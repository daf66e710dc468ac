"""How much of a pass that another experiment timed the device works, by what nsys_profile traced of the same pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfscribe import tables as t
from perfscribe.records import Record

# What two cells have in common whose passes are the same work.
SAME = ("size", "seq_len", "batch", "dtype", "device")
# From this share of device work on, launches by the host hide behind it.
DEVICE_BOUND_PERCENT = 80.0
NOT_TRACED = "not traced"
NO_LAUNCHES = "no launches"
DEVICE, LAUNCHES, SHORTER_LAUNCHES, UNKNOWN = "device", "launches", "launches of the shorter", "unknown"

Place = tuple[Any, ...]


def place(factors: Mapping[str, Any]) -> Place:
    """The levels that passes of the same work share."""
    return tuple(factors.get(name) for name in SAME)


def device_ms(cells: Iterable[Record], phases: Sequence[str]) -> dict[Place, float]:
    """Median times in which the device was busy in these phases, together, of every cell that was traced in all."""
    samples = [f"{phase}_busy_ms" for phase in phases]
    return {
        place(cell.factors): sum(t.summary(cell, sample).median for sample in samples)
        for cell in cells
        if all(sample in cell.samples for sample in samples)
    }


def busy_percent(factors: Mapping[str, Any], time_ms: float, traced: Mapping[Place, float]) -> float | str:
    """Share of a time in which the device works; a text where nothing launches or nothing was traced."""
    if factors["device"] == "cpu":  # operators run where they are called, and a profiler slows them
        return NO_LAUNCHES
    found = traced.get(place(factors))
    return NOT_TRACED if found is None else 100 * found / time_ms


def what_bounds(longer: object, shorter: object) -> str:
    """What decides that one of two passes takes longer, by how busy the device is in each.

    The longer one's own trace tells DEVICE or LAUNCHES. Where it has none, SHORTER_LAUNCHES: launches bound the shorter
    one, whose trace holds no kernel of the longer, so that there is no verdict; UNKNOWN: not even that is known.
    """
    if NO_LAUNCHES in (longer, shorter):
        return DEVICE
    if isinstance(longer, float):
        return DEVICE if longer >= DEVICE_BOUND_PERCENT else LAUNCHES
    return SHORTER_LAUNCHES if isinstance(shorter, float) and shorter < DEVICE_BOUND_PERCENT else UNKNOWN
