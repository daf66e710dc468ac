"""Exact match and F1 against cases computed by hand, and what the workshop's way makes of the same answers."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from perfscribe.data import squad
from perfscribe.training import squad_scores

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "squad" / "dev-v1.1.json"
FIXTURE = Path(__file__).parents[1] / "fixtures" / "squad_scores.json"
CASES = json.loads(FIXTURE.read_text(encoding="utf-8"))["cases"]
WAYS = {"official": squad_scores.score, "workshop": squad_scores.workshop_score}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case_computed_by_hand(case: dict, way: str) -> None:
    given = WAYS[way]({"q": case["prediction"]}, {"q": case["references"]})
    expected = [100 * float(Fraction(text)) for text in case[way]]
    assert [given.exact_match_percent, given.f1_percent] == pytest.approx(expected, abs=1e-12), case["work"]


@pytest.mark.skipif(not REAL.is_file(), reason="the real data is not beside this checkout")
def test_people_against_each_other_on_the_development_set() -> None:
    """An answer scores 100 against itself, by the workshop's way less, and much less for other right answers."""
    rows = squad.read(REAL).rows
    references = {row.id: row.answers for row in rows}
    first = {row.id: row.answers[0] for row in rows}
    official, workshop = (way(first, references) for way in WAYS.values())
    assert (official.exact_match_percent, official.f1_percent) == (100, 100)
    assert workshop.exact_match_percent == 100 and 99 < workshop.f1_percent < 99.9
    last = {row.id: row.answers[-1] for row in rows}
    official, workshop = (way(last, references) for way in WAYS.values())
    assert official.exact_match_percent == 100
    assert workshop.exact_match_percent < 80 and workshop.f1_percent < 95
