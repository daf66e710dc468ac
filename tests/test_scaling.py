"""Scaling models: what was put into made-up measurements comes out again; what cannot be told is not told."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from perfscribe.experiments.scaling_model import formulas as of
from perfscribe.experiments.scaling_model.formulas import (
    PHASES,
    RING,
    TREE,
    Call,
    Computing,
    OverlapFit,
    Point,
    Terms,
    best_fit,
    fit,
    fit_computing,
    fit_overlap,
    hops,
    student_t,
)

HOP_MS, GB_PER_S = 0.004, 300.0
SIZES = (2**10, 2**16, 2**20, 2**26, 2**30)


def calls(algorithm: str, counts: tuple[int, ...], noise: float = 0.0, operation: str = "all_reduce") -> list[Call]:
    """Written out once more: bytes of a rank over GB/s are in ns, hence 1e-6 for ms."""
    draw = random.Random(1)
    phases = 2 if operation == "all_reduce" else 1
    found = []
    for n in counts:
        steps = phases * (n - 1 if algorithm == RING else math.ceil(math.log2(n)))
        for size in SIZES:
            time_ms = steps * HOP_MS + phases * (n - 1) / n * size / GB_PER_S * 1e-6
            found.append(Call(n, size, time_ms * (1 + noise * draw.uniform(-1, 1))))
    return found


# --- collectives ------------------------------------------------------------------------------------------------


def test_hops_of_both_algorithms() -> None:
    assert [hops("all_reduce", RING, n) for n in (1, 2, 4, 1024)] == [0, 2, 6, 2046]
    assert [hops("all_reduce", TREE, n) for n in (1, 2, 3, 4, 1024)] == [0, 2, 4, 4, 20]
    assert [hops("all_gather", RING, n) for n in (2, 8)] == [1, 7]
    assert [hops("reduce_scatter", TREE, n) for n in (2, 8)] == [1, 3]


@pytest.mark.parametrize("operation", PHASES)
@pytest.mark.parametrize("algorithm", [RING, TREE])
def test_terms_are_recovered_and_the_algorithm_is_told(algorithm: str, operation: str) -> None:
    found = best_fit(operation, calls(algorithm, (2, 4, 8), operation=operation))
    assert found is not None and found.algorithm == algorithm and found.rms < 1e-9
    assert found.hop_ms == pytest.approx(HOP_MS) and found.bus_gb_per_s == pytest.approx(GB_PER_S)
    assert found.counts == (2, 4, 8)


@pytest.mark.parametrize("algorithm", [RING, TREE])
def test_noise_moves_terms_a_little(algorithm: str) -> None:
    found = best_fit("all_reduce", calls(algorithm, (2, 4, 8), noise=0.05))
    assert found is not None and found.algorithm == algorithm and 0.005 < found.rms < 0.05
    assert found.hop_ms == pytest.approx(HOP_MS, rel=0.05) and found.bus_gb_per_s == pytest.approx(GB_PER_S, rel=0.05)


def test_one_count_judges_nothing_and_the_ring_stands_for_both() -> None:
    ring, tree = (fit("all_reduce", name, calls(TREE, (2,))) for name in (RING, TREE))
    assert ring is not None and tree is not None and ring.rms == pytest.approx(tree.rms)
    assert best_fit("all_reduce", calls(TREE, (2,))) == ring


def test_two_counts_judge_nothing_as_a_launch_makes_a_ring_look_like_a_tree() -> None:
    launched = [replace(call, time_ms=call.time_ms + 2 * HOP_MS) for call in calls(RING, (2, 4))]
    (by_ring, by_tree) = (fit("all_reduce", name, launched) for name in (RING, TREE))
    assert by_ring is not None and by_tree is not None and by_tree.rms < by_ring.rms
    for logged, first in (("", RING), ("RING", RING), ("TREE", TREE), ("RING, TREE", RING)):
        assert best_fit("all_reduce", launched, logged) == (by_ring if first == RING else by_tree)


def test_two_points_are_too_few() -> None:
    assert fit("all_reduce", RING, calls(RING, (2,))[:2]) is None and best_fit("all_reduce", []) is None
    assert fit("all_reduce", RING, [Call(1, 2**20, 0.1)] * 5) is None, "one rank sends nothing"


def test_units_are_milliseconds_and_bytes() -> None:
    """1 GB all-reduced by two ranks at 300 GB/s: each sends 1 GB, which takes 3.33 ms."""
    found = fit("all_reduce", RING, calls(RING, (2, 4)))
    assert found is not None and found.latency_ms(2) == pytest.approx(2 * HOP_MS) and found.latency_ms(1) == 0
    assert found.ms_per_message_byte(2) * 1e9 == pytest.approx(1000 / 300)


# --- steps ------------------------------------------------------------------------------------------------------


def points(overlap: float, counts: tuple[int, ...], noise: float = 0.0) -> list[Point]:
    draw, found = random.Random(2), []
    for n in counts:
        compute, communicate = 100.0, 12.0 * math.sqrt(n)
        step = compute + communicate - overlap * min(compute, communicate)
        found.append(Point(n, step * (1 + noise * draw.uniform(-1, 1)), Terms(compute, communicate)))
    return found


@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_overlap_is_recovered(overlap: float) -> None:
    found = fit_overlap(points(overlap, (2, 4, 8, 16)))
    assert found is not None and found.overlap == pytest.approx(overlap)
    assert max(abs(one) for one in found.residuals.values()) < 1e-9 and list(found.residuals) == [2, 4, 8, 16]


def test_noise_moves_overlap_a_little_and_widens_the_band() -> None:
    exact, noisy = (fit_overlap(points(0.4, (2, 4, 8, 16, 32), noise)) for noise in (0.0, 0.01))
    assert exact is not None and noisy is not None
    assert noisy.overlap == pytest.approx(0.4, abs=0.08) and 0 < max(map(abs, noisy.residuals.values())) < 0.02
    terms = Terms(100.0, 60.0)
    low, high = noisy.band_ms(terms) or (0.0, 0.0)
    assert 0 < low < terms.step_ms(noisy.overlap) < high and low < terms.step_ms(0.4) < high
    narrow = exact.band_ms(terms)
    assert narrow is not None and narrow[1] - narrow[0] < 1e-6


def test_a_band_is_students() -> None:
    four = OverlapFit(0.0, dict.fromkeys((2, 4, 8, 16), 0.0), deviation=0.01, information=1.0)
    assert four.band_ms(Terms(100.0, 0.0)) == pytest.approx((100 - 3.182, 100 + 3.182))  # t of 3 degrees of freedom


def test_fewer_than_four_points_have_no_band() -> None:
    terms = Terms(100.0, 60.0)
    for counts in ((2,), (2, 4), (2, 4, 8)):
        found = fit_overlap(points(0.4, counts, 0.01))
        assert found is not None and found.band_ms(terms) is None
    four = fit_overlap(points(0.4, (2, 4, 8, 16), 0.01))
    assert four is not None and four.band_ms(terms) is not None
    assert fit_overlap([Point(1, 100.0, Terms(100.0, 0.0))]) is None


@pytest.mark.parametrize(("factor", "overlap"), [(2.0, 0.0), (0.5, 1.0)])
def test_overlap_stays_within_its_limits(factor: float, overlap: float) -> None:
    wrong = [Point(p.ranks, factor * p.step_ms, p.terms) for p in points(0.5, (2, 4, 8))]
    found = fit_overlap(wrong)
    assert found is not None and found.overlap == overlap
    assert all(one > 0.5 if factor > 1 else one < -0.3 for one in found.residuals.values())


def test_no_more_is_hidden_than_the_shorter_term() -> None:
    assert Terms(10.0, 500.0).step_ms(1.0) == 500.0 and Terms(500.0, 10.0).step_ms(1.0) == 500.0
    assert Terms(10.0, 500.0).step_ms(0.0) == 510.0 and Terms(10.0, 500.0).exposed_ms(1.0) == 490.0


def test_computing_is_told_into_fixed_and_divided() -> None:
    found = fit_computing({n: 50.0 + 800.0 / n for n in (2, 4, 8)})
    assert (found.fixed_ms, found.divided_ms, found.points) == (pytest.approx(50.0), pytest.approx(800.0), 3)
    assert found.time_ms(16) == pytest.approx(100.0)
    assert fit_computing({4: 30.0}) == Computing(0.0, 120.0, 1), "one count: all is divided"
    grown = fit_computing({2: 100.0, 4: 110.0})
    assert grown.divided_ms == 0 and 100 < grown.fixed_ms < 110, "nothing is divided rather than less than nothing"
    super_linear = fit_computing({2: 100.0, 4: 40.0})
    assert super_linear.fixed_ms == 0 and super_linear.divided_ms > 0


def test_student_t_is_that_of_tables() -> None:
    assert student_t(3) == 3.182 and student_t(200) == student_t(10)


# --- textbook laws ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "ranks"), [(1, 4), (2, 8), (4, 16)])
def test_serial_fractions_are_recovered_from_any_base(base: int, ranks: int) -> None:
    def strong(n: int) -> float:
        return 1000 * (0.1 + 0.9 / n)

    def weak(n: int) -> float:
        return 100 / (1 - 0.2 * (n - 1) / n)

    assert of.serial_fraction_strong(base, strong(base), ranks, strong(ranks)) == pytest.approx(0.1)
    assert of.serial_fraction_weak(base, weak(base), ranks, weak(ranks)) == pytest.approx(0.2)


def test_laws() -> None:
    assert of.amdahl_efficiency(0.1, 4) == pytest.approx(1 / (4 * (0.1 + 0.9 / 4)))
    assert of.gustafson_efficiency(0.2, 4) == pytest.approx(1 - 0.2 * 3 / 4)
    assert of.amdahl_efficiency(0.0, 1024) == of.gustafson_efficiency(0.0, 1024) == 1.0
    slower = of.serial_fraction_strong(1, 100.0, 4, 200.0)
    assert slower is not None and slower > 1
    faster = of.serial_fraction_strong(1, 100.0, 4, 20.0)
    assert faster is not None and faster < 0
    assert of.serial_fraction_strong(2, 100.0, 4, 200.0) is None, "no fraction doubles a step from 2 to 4 ranks"


# --- how far a prediction reaches -------------------------------------------------------------------------------


def test_counts_and_reach() -> None:
    assert of.counts() == [2**k for k in range(11)] and of.counts([3])[:4] == [1, 2, 3, 4]
    told = {n: of.reach(n, [1, 2, 4]) for n in of.counts()}
    assert [n for n, name in told.items() if name == "measured"] == [1, 2, 4]
    assert [n for n, name in told.items() if name == "predicted"] == [8, 16, 32]
    assert [n for n, name in told.items() if name == "model only"] == [64, 128, 256, 512, 1024]
    assert of.reach(2, []) == "model only"
