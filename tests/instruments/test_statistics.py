"""Summaries, ratios and printed figures: known values, properties, simulated coverage."""

import math

import numpy as np
import pytest

from perfscribe.instruments.statistics import Summary, format_figure, ratio, summarise


def one_each(values):
    return [[value] for value in values]


def test_summary_of_known_samples():
    std = math.sqrt(sum((x - 22) ** 2 for x in (1, 2, 3, 4, 100)) / 4)
    assert summarise([[1.0, 2.0, 3.0], [4.0, 100.0]]) == Summary(5, 22.0, pytest.approx(std), 3.0, 2.0, 1.0, 100.0)


# From the binomial distribution: 1 - 2 P(B(n, 1/2) < rank) is 0.969, 0.961 and 0.962.
@pytest.mark.parametrize("n, rank", [(6, 1), (9, 2), (40, 14)])
def test_the_interval_of_a_ratio_is_of_order_statistics(n, rank):
    result = ratio(one_each([1.0] * n), one_each(range(1, n + 1)))
    assert (result.low, result.high) == (rank, n + 1 - rank)


def pairs(seed, effect, rounds=10, noise=0.01, drift=0.05):
    """Interleaved times of A and B = effect * A, which share a drift from round to round."""
    rng = np.random.default_rng(seed)
    shared = 10 * np.exp(rng.normal(0, drift, rounds))
    a = shared * np.exp(rng.normal(0, noise, rounds))
    b = shared * effect * np.exp(rng.normal(0, noise, rounds))
    return one_each(a), one_each(b)


@pytest.mark.parametrize("effect, verdict", [(0.8, "faster"), (1.25, "slower"), (1.0, "cannot tell")])
def test_verdict_on_b(effect, verdict):
    result = ratio(*pairs(3, effect))
    assert result.verdict == verdict
    assert result.low <= result.ratio <= result.high
    assert result.ratio == pytest.approx(effect, rel=0.02)


def test_below_six_rounds_nothing_can_be_told_and_unlike_rounds_or_none_have_no_ratio():
    for a, b in (([[1.0]], [[1.0], [2.0]]), ([[0.0]] * 6, [[1.0]] * 6), ([], [])):
        with pytest.raises(ValueError, match=r"^.+$"):
            ratio(a, b)
    result = ratio(*pairs(3, 0.1, rounds=5))
    assert (result.verdict, result.low, result.high) == ("cannot tell", None, None)
    assert ratio(*pairs(3, 0.1, rounds=6)).verdict == "faster"


def test_an_effect_within_the_spread_of_a_against_itself_does_not_count():
    a, b = one_each([10.0] * 8), one_each([10.2] * 8)
    again = one_each([10.5] * 8)
    assert ratio(a, b).verdict == "slower"
    assert ratio(a, b, again).verdict == "cannot tell"
    assert ratio(a, one_each([10.8] * 8), again).verdict == "slower"
    assert ratio(a, one_each([10.8] * 8), one_each([9.0] * 8)).verdict == "cannot tell"


def test_the_interval_covers():
    held = 0
    for seed in range(400):
        result = ratio(*pairs(seed, 1.1, rounds=6, noise=0.02))
        held += result.low <= 1.1 <= result.high
    assert 0.94 <= held / 400 <= 0.999


@pytest.mark.parametrize(
    "value, text",
    [(123.456, "123"), (1234.5, "1230"), (9.996, "10.0"), (123456789.0, "123000000"), (2e-7, "2.00e-7"), (0.0, "0.00")],
)
def test_printed_figures(value, text):
    assert format_figure(value) == text
