"""Summaries, ratios and printed figures: known values, properties, simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfscribe.instruments.statistics import format_figure, ratio, summarise


def one_each(values):
    return [[value] for value in values]


def test_summary_of_known_samples():
    summary = summarise([[1.0, 2.0, 3.0], [4.0, 100.0]])
    assert (summary.n, summary.rounds, summary.mean, summary.median) == (5, 2, 22.0, 3.0)
    assert (summary.q1, summary.q3, summary.iqr) == (2.0, 4.0, 2.0)
    assert (summary.minimum, summary.maximum) == (1.0, 100.0)
    assert summary.std == pytest.approx(math.sqrt(sum((x - 22) ** 2 for x in (1, 2, 3, 4, 100)) / 4))
    assert summarise([[1.0, 1.0, 1000.0]] * 6).interval == (1.0, 1.0)  # over medians of rounds, not samples


@pytest.mark.parametrize("rounds, kind", [(1, "neither"), (2, "range"), (5, "range"), (6, "interval")])
def test_what_rounds_allow_is_labelled_as_what_it_is(rounds, kind):
    summary = summarise([[float(i), float(i)] for i in range(1, rounds + 1)])
    assert (summary.range is not None) == (kind == "range")
    assert (summary.interval is not None) == (summary.coverage is not None) == (kind == "interval")
    assert kind in summary.spread_label
    if kind == "range":
        assert summary.range == (1.0, float(rounds))


# --- A against B ----------------------------------------------------------------------------------


def pairs(seed, effect, rounds=10, noise=0.01, drift=0.05):
    """Interleaved times of A and B = effect * A, which share a drift from round to round."""
    rng = np.random.default_rng(seed)
    shared = 10 * np.exp(rng.normal(0, drift, rounds))
    a = shared * np.exp(rng.normal(0, noise, rounds))
    b = shared * effect * np.exp(rng.normal(0, noise, rounds))
    return one_each(a), one_each(b)


def test_below_six_rounds_nothing_can_be_told_and_unlike_rounds_or_none_have_no_ratio():
    for a, b in (([[1.0]], [[1.0], [2.0]]), ([[0.0]] * 6, [[1.0]] * 6), ([], [])):
        with pytest.raises(ValueError, match=r"^.+$"):
            ratio(a, b)
    result = ratio(*pairs(3, 0.1, rounds=5))
    assert (result.verdict, result.low, result.high) == ("cannot tell", None, None)
    assert "6" in result.reason
    assert ratio(*pairs(3, 0.1, rounds=6)).verdict == "faster"


def test_an_effect_within_the_spread_of_a_against_itself_does_not_count():
    a, b = one_each([10.0] * 8), one_each([10.2] * 8)
    again = one_each([10.5] * 8)
    assert ratio(a, b).verdict == "slower"
    result = ratio(a, b, again)
    assert (result.verdict, result.aa_spread) == ("cannot tell", pytest.approx(0.05))
    assert ratio(a, one_each([10.8] * 8), again).verdict == "slower"
    assert ratio(a, one_each([10.8] * 8), one_each([9.0] * 8)).aa_spread == pytest.approx(1 / 9)


def test_the_interval_covers():
    held = 0
    for seed in range(400):
        result = ratio(*pairs(seed, 1.1, rounds=6, noise=0.02))
        held += result.low <= 1.1 <= result.high
    assert 0.94 <= held / 400 <= 0.999


# --- printing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, spread, text",
    [
        (123.456, None, "123"),
        (1234.5, None, "1230"),
        (9.996, None, "10.0"),
        (5.678, 0.4, "5.7"),
        (123.456, 36.0, "120"),
        (54.84, 12.5, "55"),
        (0.3, 5.0, "0.3"),
        (5.678, 0.0, "5.68"),
        (-0.0, None, "0.00"),
        (123456789.0, None, "123000000"),
        (2e-7, None, "2.00e-7"),
        (None, None, "n/a"),
        (math.inf, 1.0, "inf"),
    ],
)
def test_printed_figures(value, spread, text):
    assert format_figure(value, spread) == text
