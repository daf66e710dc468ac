"""The rule that splits walks of the Triton kernels: it takes the number that ends first."""

from __future__ import annotations

import pytest

from perfscribe.attention.triton_splits import Walks, split_length


@pytest.mark.parametrize(("n", "own", "unit", "warps", "splits"), [(16384, 128, 128, 8, 2), (4096, 64, 128, 4, 6)])
def test_the_rule_gives_back_the_timings_that_it_was_fitted_to(n, own, unit, warps, splits):
    """Fastest on an H200 of all numbers of splits tried."""
    rows = split_length(Walks(n, n, own, unit, 1, True, True), 132, warps)
    assert -(-n // rows) in (splits, splits + 1)
