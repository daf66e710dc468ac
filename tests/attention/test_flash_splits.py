"""The rule that splits walks of the Triton kernels: it takes the number that ends first."""

from __future__ import annotations

import pytest

from perfscribe.attention.triton_splits import (
    MOST_SPLITS,
    SHORTEST_SPLIT,
    Walks,
    best_splits,
    end_of,
    split_length,
)


@pytest.mark.parametrize(("length", "sequences"), [(1, 1), (1000, 3), (4097, 1), (4096, 16)])
@pytest.mark.parametrize(("causal", "upwards"), [(True, True), (True, False), (False, True)])
def test_splits_are_whole_tiles_and_never_worse_than_none(length, sequences, causal, upwards):
    """Also on other GPUs than the rule was fitted to."""
    asked = Walks(length, length, 64, 128, sequences, causal, upwards)
    rows = split_length(asked, 132, 4)
    splits = -(-length // rows)
    assert rows % 128 == 0 and rows * splits >= length > rows * (splits - 1)
    assert splits == 1 or rows >= SHORTEST_SPLIT
    assert -(-length // split_length(asked, 132, 4, 4)) <= 4, "as many as chosen"
    work = sum(last - first for first, last in asked.spans()) * sequences
    for slots in (66, 528):
        best = best_splits(asked, slots)
        assert 1 <= best <= min(MOST_SPLITS, max(1, length // SHORTEST_SPLIT))
        assert work / slots < end_of(asked, best, slots) <= end_of(asked, 1, slots)


@pytest.mark.parametrize(("n", "own", "unit", "warps", "splits"), [(16384, 128, 128, 8, 2), (4096, 64, 128, 4, 6)])
def test_the_rule_gives_back_the_timings_that_it_was_fitted_to(n, own, unit, warps, splits):
    """Fastest on an H200 of all numbers of splits tried."""
    rows = split_length(Walks(n, n, own, unit, 1, True, True), 132, warps)
    assert -(-n // rows) in (splits, splits + 1)
