"""Assigns each parameter's optimizer state to a rank. No torch: memory predictions use it too."""

from collections.abc import Sequence

# Size of the pieces in which a rank updates its parameters, sending one while it updates the next. Large enough that an
# update takes longer than its launch; small next to a model's parameters, because the last piece is sent after all
# updates, and one piece of each rank is held in addition.
PIECE_BYTES = 256 * 2**20


def partition(numels: Sequence[int], loads: list[int]) -> list[int]:
    """Return the rank of each parameter, in the order given; adds the elements to loads (one entry per rank).

    Greedy: the largest parameter first, each to the rank with the fewest elements so far (Graham 1969, longest
    processing time first: no rank holds more than 4/3 of the best possible maximum). Equal sizes keep their order and
    equal loads go to the lowest rank, so that all ranks compute the same result without communication.
    """
    owners = [0] * len(numels)
    for index in sorted(range(len(numels)), key=lambda i: -numels[i]):
        owner = min(range(len(loads)), key=lambda rank: loads[rank])
        owners[index] = owner
        loads[owner] += numels[index]
    return owners
