"""The rule that splits walks of the Triton kernels: it schedules the programs and takes the number that ends first."""

from __future__ import annotations

import pytest

from perfscribe.attention.triton_splits import (
    MERGE_ROWS,
    MOST_SPLITS,
    SHORTEST_SPLIT,
    START_OF_MERGE_ROWS,
    START_ROWS,
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


@pytest.mark.parametrize("upwards", [True, False])
def test_spans_hold_each_pair_that_a_causal_mask_leaves_once_and_the_longest_come_first(upwards):
    spans = Walks(300, 300, 64, 128, 1, True, upwards).spans()
    lengths = [end - first for first, end in spans]
    assert lengths == sorted(lengths, reverse=True) and len(spans) == 5
    for tile, (first, end) in zip(sorted(range(0, 300, 64), reverse=upwards), spans, strict=True):
        for row in range(300):
            assert (first <= row < end) == (row < tile + 64 if upwards else row >= tile)


def test_the_end_is_that_of_a_schedule_done_by_hand():
    whole = Walks(256, 256, 128, 128, 1, False, True)  # two programs of 256 rows each
    assert end_of(whole, 1, 1) == 2 * (256 + START_ROWS)
    assert end_of(whole, 1, 2) == 256 + START_ROWS
    assert end_of(whole, 2, 4) == 128 + START_ROWS + START_OF_MERGE_ROWS + 2 * MERGE_ROWS
    masked = Walks(256, 256, 128, 128, 1, True, True)  # of 256 and of 128 rows; split: 128, 128 and 128
    assert end_of(masked, 2, 2) == 2 * (128 + START_ROWS) + START_OF_MERGE_ROWS + 2 * MERGE_ROWS


@pytest.mark.parametrize(("n", "own", "unit", "warps", "splits"), [(16384, 128, 128, 8, 2), (4096, 64, 128, 4, 6)])
def test_the_rule_gives_back_the_timings_that_it_was_fitted_to(n, own, unit, warps, splits):
    """Fastest on an H200 of all numbers of splits tried."""
    rows = split_length(Walks(n, n, own, unit, 1, True, True), 132, warps)
    assert -(-n // rows) in (splits, splits + 1)
