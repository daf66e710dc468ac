"""Exact match and F1 against cases computed by hand, and what the workshop's way makes of the same answers."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from perfscribe.training import squad_scores

FIXTURE = Path(__file__).parents[1] / "fixtures" / "squad_scores.json"
CASES = json.loads(FIXTURE.read_text(encoding="utf-8"))["cases"]
WAYS = {"official": squad_scores.score, "workshop": squad_scores.workshop_score}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case_computed_by_hand(case: dict, way: str) -> None:
    given = WAYS[way]({"q": case["prediction"]}, {"q": case["references"]})
    expected = [100 * float(Fraction(text)) for text in case[way]]
    assert [given.exact_match_percent, given.f1_percent] == pytest.approx(expected, abs=1e-12), case["work"]
