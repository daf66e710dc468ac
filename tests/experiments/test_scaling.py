"""Scaling models: what was put into made-up measurements comes out again; what cannot be told is not told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfscribe.experiments.scaling_model.formulas import (
    RING,
    TREE,
    Call,
    Computing,
    Terms,
    best_fit,
    fit,
    fit_computing,
    hops,
)

HOP_MS, GB_PER_S = 0.004, 300.0
SIZES = (2**10, 2**16, 2**20, 2**26, 2**30)


def calls(algorithm: str, counts: tuple[int, ...], operation: str = "all_reduce") -> list[Call]:
    """Written out once more: bytes of a rank over GB/s are in ns, hence 1e-6 for ms."""
    phases, found = 2 if operation == "all_reduce" else 1, []
    for n in counts:
        steps = phases * (n - 1 if algorithm == RING else math.ceil(math.log2(n)))
        times = [steps * HOP_MS + phases * (n - 1) / n * size / GB_PER_S * 1e-6 for size in SIZES]
        found += [Call(n, size, time_ms) for size, time_ms in zip(SIZES, times, strict=True)]
    return found


def test_hops_of_both_algorithms() -> None:
    assert [hops("all_reduce", RING, n) for n in (1, 2, 4, 1024)] == [0, 2, 6, 2046]
    assert [hops("all_reduce", TREE, n) for n in (1, 2, 3, 4, 1024)] == [0, 2, 4, 4, 20]
    assert [hops("all_gather", RING, n) for n in (2, 8)] == [1, 7]


@pytest.mark.parametrize(("operation", "algorithm"), [("all_reduce", RING), ("all_reduce", TREE), ("all_gather", TREE)])
def test_terms_are_recovered_and_the_algorithm_is_told(operation: str, algorithm: str) -> None:
    found = best_fit(operation, calls(algorithm, (2, 4, 8), operation))
    assert found is not None and found.algorithm == algorithm and found.rms < 1e-9
    assert found.hop_ms == pytest.approx(HOP_MS) and found.bus_gb_per_s == pytest.approx(GB_PER_S)
    assert found.counts == (2, 4, 8) and found.latency_ms(1) == 0


def test_two_counts_judge_nothing_as_a_launch_makes_a_ring_look_like_a_tree() -> None:
    launched = [replace(call, time_ms=call.time_ms + 2 * HOP_MS) for call in calls(RING, (2, 4))]
    (by_ring, by_tree) = (fit("all_reduce", name, launched) for name in (RING, TREE))
    assert by_ring is not None and by_tree is not None and by_tree.rms < by_ring.rms
    for logged, first in (("", RING), ("RING", RING), ("TREE", TREE), ("RING, TREE", RING)):
        assert best_fit("all_reduce", launched, logged) == (by_ring if first == RING else by_tree)


def test_no_more_is_hidden_than_the_shorter_term() -> None:
    assert Terms(10.0, 500.0).step_ms(1.0) == 500.0 and Terms(500.0, 10.0).step_ms(1.0) == 500.0
    assert Terms(10.0, 500.0).step_ms(0.0) == 510.0 and Terms(10.0, 500.0).exposed_ms(1.0) == 490.0


def test_computing_is_told_into_fixed_and_divided() -> None:
    found = fit_computing({n: 50.0 + 800.0 / n for n in (2, 4, 8)})
    assert (found.fixed_ms, found.divided_ms) == (pytest.approx(50.0), pytest.approx(800.0))
    assert found.time_ms(16) == pytest.approx(100.0)
    assert fit_computing({4: 30.0}) == Computing(0.0, 120.0), "one count: all is divided"
    grown = fit_computing({2: 100.0, 4: 110.0})
    assert grown.divided_ms == 0 and 100 < grown.fixed_ms < 110, "nothing is divided rather than less than nothing"
    super_linear = fit_computing({2: 100.0, 4: 40.0})
    assert super_linear.fixed_ms == 0 and super_linear.divided_ms > 0
