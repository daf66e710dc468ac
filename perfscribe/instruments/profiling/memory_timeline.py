"""Analyses a memory history: bytes by kind at every moment, the peak of each phase, origins of large blocks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from perfscribe.instruments.profiling.memory_recorder import History, Origin

PARAMETERS = "parameters"
STATE = "optimizer state"
GRADIENTS = "gradients"
COPIES = "weight copies"
SAVED = "saved for backward"
TEMPORARY = "temporaries"
TABLES = "inputs and tables"
OTHER = "workspaces"
REST = "unsplit block rests"
KINDS = (PARAMETERS, STATE, GRADIENTS, COPIES, SAVED, TEMPORARY, TABLES, OTHER, REST)

AFTER = "after"
PROJECT_PREFIX = "perfscribe/"
LINEAR_FILE = "torch/nn/modules/linear.py"
NO_FRAME = "no Python frame (autograd's thread)"
DIRECT = "called there directly"


@dataclass(frozen=True)
class Lifetime:
    """A block from its change `begins` (-1: allocated before) to its change `ends` (number of changes: never freed).

    size_bytes: rounded up as by the allocator. asked_bytes: as requested. phase: in which it was allocated.
    """

    begins: int
    ends: int
    size_bytes: int
    asked_bytes: int
    kind: str
    phase: str


@dataclass(frozen=True)
class Group:
    """Blocks of one size and kind that one place in the source allocated in one phase.

    frame: the project's innermost frame. below: the library's frame or operator under it.
    """

    size_bytes: int
    count: int
    phase: str
    kind: str
    frame: str
    below: str


class Timeline:
    """A history replayed.

    phases: names of the phases that the history's marks end, in order; one that an error cut short has no mark.
    copy_bytes: sizes of the low-precision copies that autocast makes of linear layers' weights. A block of such a size
    from a linear layer counts as a copy: choose tokens so that no cast input has the size of a cast weight.

    Kinds: blocks allocated before, and blocks with a label at the end, have their label as kind; held blocks without
    one are workspaces. A block of the first phase, the forward pass, is saved for backward if it is alive when that
    phase ends. All others are temporary.

    totals, by_kind[kind]: bytes before the first change and after each.
    """

    def __init__(self, history: History, phases: Sequence[str], copy_bytes: Collection[int] = ()) -> None:
        self.history, self.phases, self.copy_bytes = history, phases, copy_bytes
        times = [change.time_us for change in history.changes]
        self.ends = [bisect_right(times, mark.time_us) for mark in history.marks]
        self.lifetimes = self._lifetimes()
        steps = np.zeros((len(KINDS), len(history.changes) + 2), dtype=np.int64)
        steps[KINDS.index(REST), 0] = sum(held.rest_bytes for held in history.held)
        for life in self.lifetimes:
            steps[KINDS.index(life.kind), life.begins + 1] += life.size_bytes
            steps[KINDS.index(life.kind), life.ends + 1] -= life.size_bytes
        bytes_by_kind = steps[:, :-1].cumsum(axis=1)
        self.by_kind: dict[str, list[int]] = dict(zip(KINDS, bytes_by_kind.tolist(), strict=True))
        self.totals: list[int] = bytes_by_kind.sum(axis=0).tolist()

    def phase_of(self, index: int) -> str:
        """Return the phase of a change."""
        number = bisect_right(self.ends, index)
        return self.phases[number] if number < len(self.phases) else AFTER

    def phase_ranges(self) -> dict[str, tuple[int, int]]:
        """Return first and last index into totals of each phase that began; adjacent phases share an index."""
        limits = [0, *self.ends]
        if len(self.ends) < len(self.phases):
            limits.append(len(self.history.changes))
        return {
            phase: (first, last)
            for phase, first, last in zip(self.phases, limits[:-1], limits[1:], strict=False)
            if last > first
        }

    def peak_index(self, phase: str) -> int:
        """Return the index into totals of the phase's peak; raises KeyError if the phase did not begin."""
        first, last = self.phase_ranges()[phase]
        return max(range(first, last + 1), key=self.totals.__getitem__)

    def points(self, at_most: int) -> list[int]:
        """Return indices into totals that outline the curve: ends, limits and peaks of phases, extremes of stretches.

        The changes are cut into stretches of equal length; the highest and the lowest moment of each are kept.
        """
        last = len(self.totals) - 1
        kept = {0, last, *self.ends, *(self.peak_index(phase) for phase in self.phase_ranges())}
        length = math.ceil((last + 1) / max(1, (at_most - len(kept)) // 2))
        for first in range(0, last + 1, length):
            stretch = range(first, min(first + length, last + 1))
            kept |= {max(stretch, key=self.totals.__getitem__), min(stretch, key=self.totals.__getitem__)}
        return sorted(kept)

    def groups(self) -> list[Group]:
        """Return the allocations, largest blocks first; blocks that differ only in time form one group."""
        counts: Counter[tuple[int, str, str, str, str]] = Counter()
        for life in self.lifetimes:
            if life.begins >= 0:
                counts[life.asked_bytes, life.phase, life.kind, *where(self._origin(life.begins))] += 1
        groups = [Group(size, count, *names) for (size, *names), count in counts.items()]
        return sorted(groups, key=lambda group: (-group.size_bytes, -group.count, group.frame, group.below))

    def _origin(self, begins: int) -> Origin:
        return self.history.origins[self.history.changes[begins].origin]

    def _lifetimes(self) -> list[Lifetime]:
        history, unit = self.history, self.history.granularity_bytes
        # By address of each live block: its first change, its requested size and, if known, its kind.
        alive = {held.address: (-1, held.size_bytes, held.label or OTHER) for held in history.held}
        lifetimes = []

        def end(address: int, ends: int, label: str = "") -> None:
            begins, asked, kind = alive.pop(address)
            size = -(-asked // unit) * unit
            phase = self.phase_of(begins) if begins >= 0 else ""
            kind = kind or label or self._kind(begins, ends, asked)
            lifetimes.append(Lifetime(begins, ends, size, asked, kind, phase))

        for index, change in enumerate(history.changes):
            if change.address in alive:  # its free may have gone unseen, e.g. on another thread
                end(change.address, index)
            if change.size_bytes > 0:
                alive[change.address] = (index, change.size_bytes, "")
        for address in list(alive):
            end(address, len(history.changes), history.labels.get(address, ""))
        return lifetimes

    def _kind(self, begins: int, ends: int, asked_bytes: int) -> str:
        frame, *_ = (*self._origin(begins).frames, "")
        if asked_bytes in self.copy_bytes and LINEAR_FILE in frame:
            return COPIES
        first_end = self.ends[0] if self.ends else len(self.history.changes)
        return SAVED if self.phase_of(begins) == self.phases[0] and ends >= first_end else TEMPORARY


def where(origin: Origin) -> tuple[str, str]:
    """Return the project's innermost frame of a stack, and the frame or operator below it."""
    if not origin.frames:
        return NO_FRAME, origin.operator or DIRECT
    position = next((n for n, frame in enumerate(origin.frames) if frame.startswith(PROJECT_PREFIX)), 0)
    below = origin.frames[0] if position > 0 else ""
    return origin.frames[position], " ".join(filter(None, [below, origin.operator])) or DIRECT
