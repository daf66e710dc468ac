"""Splits the streamed dimension among several programs of a Triton kernel if there are few programs for the GPU.

A kernel has one program per tile of the rows that it owns, which iterates over the streamed rows that its tile sees.
Few tiles leave multiprocessors idle, and under a causal mask the longest walks end last. So a walk may be split among
several programs whose results are then combined. The number of splits is the one for which the programs, scheduled in
the GPU's order, end first.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat

SHORTEST_SPLIT = 64  # streamed rows
MOST_SPLITS = 16
ENOUGH = 4  # programs per slot from which on the last ones matter little
# Fitted to timings of all kernels of this package on one H200 (the tile search in triton_configs.py): the costs of a
# program's start, and of combining one more split, in rows of a walk.
START_ROWS = 48.0
MERGE_ROWS = 8.0
START_OF_MERGE_ROWS = 128.0  # start of one more kernel; from one H100
WARPS_AT_ONCE = 8  # warps of these kernels on a multiprocessor, limited by registers


@dataclass(frozen=True)
class Walks:
    """The programs of a kernel before splitting.

    owned, streamed: lengths in rows. tile_rows: rows of a tile. unit: divides the length of a split. sequences: batch ×
    heads. upwards: tiles own queries, which see the keys before them; else keys, which the queries after them see.
    """

    owned: int
    streamed: int
    tile_rows: int
    unit: int
    sequences: int
    causal: bool
    upwards: bool

    @property
    def programs(self) -> int:
        """Tiles of all sequences."""
        return -(-self.owned // self.tile_rows) * self.sequences

    def spans(self) -> list[tuple[int, int]]:
        """Return first row and end of each tile's walk in one sequence, longest first, as the kernels order them."""
        starts = range(0, self.owned, self.tile_rows)
        if not self.causal:
            return [(0, self.streamed) for _ in starts]
        if self.upwards:
            return [(0, min(self.streamed, start + self.tile_rows)) for start in reversed(starts)]
        return [(start, self.streamed) for start in starts if start < self.streamed]


def split_length(walks: Walks, multiprocessors: int, warps: int, chosen: int | None = None) -> int:
    """Return the rows of a split, a multiple of the unit; chosen: a number of splits that overrides the rule."""
    splits = best_splits(walks, multiprocessors * max(1, WARPS_AT_ONCE // warps)) if chosen is None else chosen
    return _rows(walks, splits)


@lru_cache(maxsize=1024)
def best_splits(walks: Walks, slots: int) -> int:
    """Return the fastest number of splits, the fewest of equals, if the GPU runs `slots` programs at once."""
    if walks.programs >= ENOUGH * slots:
        return 1
    most = max(1, min(MOST_SPLITS, walks.streamed // SHORTEST_SPLIT))
    return min(range(1, most + 1), key=lambda splits: (end_of(walks, splits, slots), splits))


def end_of(walks: Walks, splits: int, slots: int) -> float:
    """Return when the last program ends, in rows: each slot takes the next program as soon as it is free."""
    rows = _rows(walks, splits)
    n_splits = -(-walks.streamed // rows)
    free = [0.0] * slots
    for low in accumulate(repeat(rows, n_splits - 1), initial=0):
        for first, end in walks.spans():
            walk = min(low + rows, end) - max(low, first)
            for _ in range(walks.sequences if walk > 0 else 0):
                heapq.heapreplace(free, free[0] + START_ROWS + walk)
    return max(free) + (START_OF_MERGE_ROWS + MERGE_ROWS * n_splits if n_splits > 1 else 0.0)


def _rows(walks: Walks, splits: int) -> int:
    return -(-walks.streamed // (splits * walks.unit)) * walks.unit
