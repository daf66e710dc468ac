"""Exact match and F1 against cases computed by hand, and what the workshop's way makes of the same answers."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from perfscribe.training import squad_scores

FIXTURE = Path(__file__).parent / "fixtures" / "squad_scores.json"
CASES = json.loads(FIXTURE.read_text(encoding="utf-8"))["cases"]
WAYS = {"official": squad_scores.score, "workshop": squad_scores.workshop_score}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case_computed_by_hand(case: dict, way: str) -> None:
    given = WAYS[way]({"q": case["prediction"]}, {"q": case["references"]})
    expected = [100 * float(Fraction(text)) for text in case[way]]
    assert [given.exact_match_percent, given.f1_percent] == pytest.approx(expected, abs=1e-12), case["work"]
    assert given.questions == 1 and given.unanswered == (case["prediction"] is None)


@pytest.mark.parametrize("way", WAYS)
def test_a_set_takes_the_mean_over_all_questions(way: str) -> None:
    references = {case["name"]: case["references"] for case in CASES}
    predictions = {case["name"]: case["prediction"] for case in CASES if case["prediction"] is not None}
    given = WAYS[way](predictions, references)
    expected = [float(100 * sum(Fraction(case[way][which]) for case in CASES) / len(CASES)) for which in (0, 1)]
    assert [given.exact_match_percent, given.f1_percent] == pytest.approx(expected, rel=1e-12)
    assert (given.questions, given.unanswered) == (len(CASES), 1)
    with_none = WAYS[way](predictions | {"missing prediction": None}, references)
    assert with_none == given


def test_predictions_for_no_question_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^1 predictions are for no question of this set, such as 'other'$"):
        squad_scores.score({"q": "x", "other": "x"}, {"q": ["x"]})
    with pytest.raises(ValueError, match=r"^no questions to score$"):
        squad_scores.score({}, {})
    with pytest.raises(ValueError, match="without a reference answer"):
        squad_scores.score({"q": "x"}, {"q": []})
