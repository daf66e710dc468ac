"""How much of the streamed dimension one program of a Triton kernel takes, where there are few programs for the GPU.

A kernel has a program for each tile of the rows that it owns, which walks over the streamed rows that its tile meets.
For few tiles that leaves multiprocessors idle, and under a causal mask the longest walks end last; so a walk may be
split among several programs whose results are then put together. The number of splits is that for which the programs,
handed out in the order in which a GPU takes them, end first.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat

SHORTEST_SPLIT = 64  # streamed rows
MOST_SPLITS = 16
ENOUGH = 4  # programs a slot from which on the last ones matter little
# Fitted to timings of all kernels of this package on one H200, of the search for tiles (triton_configs.py): what a
# program's start, and what putting one more split together, cost in rows of a walk.
START_ROWS = 48.0
MERGE_ROWS = 8.0
START_OF_MERGE_ROWS = 128.0  # of one more kernel; from one H100
WARPS_AT_ONCE = 8  # of these kernels on a multiprocessor, by the registers that they take


@dataclass(frozen=True)
class Walks:
    """The programs of a kernel before splitting.

    owned, streamed: lengths in rows. own: rows of a tile. unit: a split is a multiple of it. sequences: batch × heads.
    upwards: the tiles own queries, which see the keys before them; otherwise keys, which the queries after them see.
    """

    owned: int
    streamed: int
    own: int
    unit: int
    sequences: int
    causal: bool
    upwards: bool

    @property
    def programs(self) -> int:
        """Tiles of all sequences."""
        return -(-self.owned // self.own) * self.sequences

    def spans(self) -> list[tuple[int, int]]:
        """First row and end of the walk of each tile of one sequence, the longest first, as the kernels order them."""
        starts = range(0, self.owned, self.own)
        if not self.causal:
            return [(0, self.streamed) for _ in starts]
        if self.upwards:
            return [(0, min(self.streamed, start + self.own)) for start in reversed(starts)]
        return [(start, self.streamed) for start in starts if start < self.streamed]


def split_length(walks: Walks, multiprocessors: int, warps: int, chosen: int | None = None) -> int:
    """Rows of a split, a multiple of the unit; chosen: a number of splits in place of the rule's."""
    splits = best_splits(walks, multiprocessors * max(1, WARPS_AT_ONCE // warps)) if chosen is None else chosen
    return _rows(walks, splits)


@lru_cache(maxsize=1024)
def best_splits(walks: Walks, slots: int) -> int:
    """The number of splits that ends first on so many slots, the fewest of equals."""
    if walks.programs >= ENOUGH * slots:
        return 1
    most = max(1, min(MOST_SPLITS, walks.streamed // SHORTEST_SPLIT))
    return min(range(1, most + 1), key=lambda splits: (end_of(walks, splits, slots), splits))


def end_of(walks: Walks, splits: int, slots: int) -> float:
    """When the last program ends, in rows: each slot takes the next program as soon as it is free."""
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
