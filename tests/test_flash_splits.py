"""The rule that splits walks of the Triton kernels: it schedules the programs and takes the number that ends first."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

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


def walks(length: int, sequences: int = 1, causal: bool = True, upwards: bool = True, own: int = 64) -> Walks:
    return Walks(length, length, own, max(own, 128), sequences, causal, upwards)


@pytest.mark.parametrize(("length", "sequences", "causal"), [(1, 1, True), (4097, 1, True), (4096, 16, False)])
def test_a_split_is_whole_tiles_and_all_splits_hold_all_rows(length, sequences, causal):
    asked = walks(length, sequences, causal)
    rows = split_length(asked, 132, 4)
    splits = -(-length // rows)
    assert rows % 128 == 0 and rows * splits >= length > rows * (splits - 1)
    assert splits == 1 or rows >= SHORTEST_SPLIT
    assert -(-length // split_length(asked, 132, 4, 4)) <= 4


@pytest.mark.parametrize("length", [1, 1000, 4096])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("upwards", [True, False])
def test_no_number_of_splits_is_out_of_bounds_or_worse_than_none(length, upwards, causal):
    """On other GPUs and lengths than the rule was fitted to; more programs do not always want fewer splits there."""
    for sequences, slots in ((1, 66), (3, 132), (1, 528)):
        asked = walks(length, sequences, causal, upwards)
        splits = best_splits(asked, slots)
        assert 1 <= splits <= min(MOST_SPLITS, max(1, length // SHORTEST_SPLIT))
        work = sum(last - first for first, last in asked.spans()) * sequences
        assert work / slots < end_of(asked, splits, slots) <= end_of(asked, 1, slots)


def test_enough_programs_are_not_split():
    assert best_splits(walks(16384, 16), 264) == 1
    assert best_splits(walks(4096), 264) > 1


@pytest.mark.parametrize("upwards", [True, False])
def test_spans_hold_each_pair_that_a_causal_mask_leaves_once_and_the_longest_come_first(upwards):
    asked = Walks(300, 300, 64, 128, 1, True, upwards)
    spans = asked.spans()
    lengths = [end - first for first, end in spans]
    assert lengths == sorted(lengths, reverse=True) and len(spans) == 5
    tiles = sorted(range(0, 300, 64), reverse=upwards)
    for tile, (first, end) in zip(tiles, spans, strict=True):
        for row in range(300):
            seen = row < tile + 64 if upwards else row >= tile
            assert (first <= row < end) == (seen and row < 300)


def test_the_end_is_that_of_a_schedule_done_by_hand():
    whole = Walks(256, 256, 128, 128, 1, False, True)  # two programs of 256 rows each
    assert end_of(whole, 1, 1) == 2 * (256 + START_ROWS)
    assert end_of(whole, 1, 2) == 256 + START_ROWS
    assert end_of(whole, 2, 4) == 128 + START_ROWS + START_OF_MERGE_ROWS + 2 * MERGE_ROWS
    masked = Walks(256, 256, 128, 128, 1, True, True)  # of 256 and of 128 rows; split: 128, 128 and 128
    assert end_of(masked, 1, 2) == 256 + START_ROWS
    assert end_of(masked, 2, 2) == 2 * (128 + START_ROWS) + START_OF_MERGE_ROWS + 2 * MERGE_ROWS


@pytest.mark.parametrize(
    ("n", "own", "unit", "warps", "splits"),
    [(16384, 128, 128, 8, 2), (4096, 64, 128, 4, 6), (65536, 64, 64, 4, 1)],
)
def test_the_rule_gives_back_the_timings_that_it_was_fitted_to(n, own, unit, warps, splits):
    """Fastest on an H200 of all numbers of splits tried. START_ROWS and MERGE_ROWS were chosen by these timings among
    others: this tells when the rule or its constants change, not how good the rule is where nothing was tried.
    """
    rows = split_length(Walks(n, n, own, unit, 1, True, True), 132, warps)
    assert -(-n // rows) in (splits, splits + 1)
