"""Exact match and F1 of SQuAD v1.1 by the official definition, and the FSDP workshop's own way beside it.

Official (Rajpurkar et al., EMNLP 2016): answers are compared in normal form (lower case, ASCII punctuation deleted, the
words a, an, the replaced by a space, white space collapsed). Exact match is 1 for equal forms. F1 is over bags of
words, so that a word counts as often as it stands there, and 0 without a common word, hence also for two empty forms. A
question takes the best of its reference answers, each score for itself; a question without a prediction counts 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

Pair = Callable[[str, str], float]


@dataclass(frozen=True)
class Scores:
    """Means over all questions in percent; unanswered: questions without a prediction, counted as 0."""

    exact_match_percent: float
    f1_percent: float
    questions: int
    unanswered: int


def normal_form(text: str) -> str:
    """The official normal form: punctuation goes first, so that `U.S.A.` is one word and no article is found in it."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    """1 where both have the same normal form, otherwise 0."""
    return float(normal_form(prediction) == normal_form(reference))


def _harmonic_mean(common: int, predicted: int, expected: int) -> float:
    """F1 = 2 P R / (P + R) with P = common / predicted words, R = common / expected words; 0 without a common word."""
    return 2 * common / (predicted + expected) if common else 0.0


def f1(prediction: str, reference: str) -> float:
    """F1 of the two bags of words, 0 to 1."""
    predicted, expected = normal_form(prediction).split(), normal_form(reference).split()
    common = Counter(predicted) & Counter(expected)
    return _harmonic_mean(common.total(), len(predicted), len(expected))


def best(score: Pair, prediction: str, references: Sequence[str]) -> float:
    """The score against the reference that suits it best; ValueError where there is no reference."""
    if not references:
        raise ValueError("a question without a reference answer cannot be scored")
    return max(score(prediction, reference) for reference in references)


def score(predictions: Mapping[str, str | None], references: Mapping[str, Sequence[str]]) -> Scores:
    """Official scores of predictions by question id over all questions of `references` (id → reference answers).

    A missing prediction or None counts 0; "" is a prediction. ValueError without questions, and for predictions whose
    id is no question's, since a mix-up of sets would otherwise read as a poor model.
    """
    return _score(predictions, references, exact_match, f1, best)


def workshop_form(text: str) -> str:
    """The workshop's normal form: articles go before punctuation, so that `U.S.A.` loses its last letter."""
    return " ".join(ARTICLES.sub(" ", text.lower()).translate(NO_PUNCTUATION).split())


def workshop_exact_match(prediction: str, reference: str) -> float:
    """1 where both have the same workshop_form, otherwise 0."""
    return float(workshop_form(prediction) == workshop_form(reference))


def workshop_f1(prediction: str, reference: str) -> float:
    """F1 as the workshop computes it: distinct common words over all words, so that a repeated word lowers it."""
    predicted, expected = workshop_form(prediction).split(), workshop_form(reference).split()
    return _harmonic_mean(len(set(predicted) & set(expected)), len(predicted), len(expected))


def workshop_score(predictions: Mapping[str, str | None], references: Mapping[str, Sequence[str]]) -> Scores:
    """The workshop's scores of the same predictions: its normal form and set overlap, the first reference alone.

    Missing predictions count 0 here too (the workshop has none). Not the official figures: to stand beside them.
    """
    return _score(predictions, references, workshop_exact_match, workshop_f1, _first)


def _first(score: Pair, prediction: str, references: Sequence[str]) -> float:
    """The score against the first reference."""
    return score(prediction, references[0])


def _score(
    predictions: Mapping[str, str | None],
    references: Mapping[str, Sequence[str]],
    exact: Pair,
    overlap: Pair,
    choose: Callable[[Pair, str, Sequence[str]], float],
) -> Scores:
    """Means in percent of two scores of a pair, with `choose` saying which reference counts."""
    if not references:
        raise ValueError("no questions to score")
    foreign = sorted(predictions.keys() - references.keys())
    if foreign:
        raise ValueError(f"{len(foreign)} predictions are for no question of this set, such as {foreign[0]!r}")
    answered = [(text, references[key]) for key, text in predictions.items() if text is not None]
    sums = [sum(choose(pair, text, answers) for text, answers in answered) for pair in (exact, overlap)]
    return Scores(
        exact_match_percent=100 * sums[0] / len(references),
        f1_percent=100 * sums[1] / len(references),
        questions=len(references),
        unanswered=len(references) - len(answered),
    )
