"""Which rank keeps the optimizer state of which parameter. No torch: predictions of memory read it as well."""

from __future__ import annotations

from collections.abc import Sequence

# Parameters of each rank that are updated at once, and then sent while the next ones are: enough for an update to last
# longer than starting it, and little beside a model's parameters, as the last piece is sent after all updates, and one
# piece of each rank is held besides.
PIECE_BYTES = 256 * 2**20


def partition(numels: Sequence[int], loads: list[int]) -> list[int]:
    """The rank that each parameter goes to, in the order given; adds the elements to loads, one entry a rank.

    Greedy: the largest parameter first, each to the rank that holds the fewest elements so far (Graham 1969, longest
    processing time first: no rank holds more than 4/3 of the best possible maximum). Equal sizes keep their order and
    equal loads go to the lowest rank, so that all ranks find the same answer without a message.
    """
    owners = [0] * len(numels)
    for index in sorted(range(len(numels)), key=lambda i: -numels[i]):
        owner = min(range(len(loads)), key=lambda rank: loads[rank])
        owners[index] = owner
        loads[owner] += numels[index]
    return owners
