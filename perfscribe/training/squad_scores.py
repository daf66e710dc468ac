"""Exact match and F1 of SQuAD v1.1 by the official definition, and the FSDP workshop's variant.

Official (Rajpurkar et al., EMNLP 2016): answers are compared in normal form (lower case, ASCII punctuation deleted, the
words a, an, the replaced by a space, white space collapsed). Exact match is 1 for equal forms. F1 is over bags of
words, so repeated words count repeatedly, and is 0 without a common word, hence also for two empty forms. A question
takes the best of its reference answers, separately for each score.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Scores:
    """Means over all questions in percent."""

    exact_match_percent: float
    f1_percent: float


def score(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
    """Official scores of predictions by question id; references: id → reference answers, at least one per question."""
    pairs = [
        [(_normal_form(text), _normal_form(answer)) for answer in references[key]] for key, text in predictions.items()
    ]
    exact = fmean(max(text == answer for text, answer in of) for of in pairs)
    return Scores(100 * exact, 100 * fmean(max(_f1(text, answer) for text, answer in of) for of in pairs))


def _normal_form(text: str) -> str:
    """Delete punctuation first, so that `U.S.A.` is one word without an article."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def _f1(prediction: str, reference: str) -> float:
    """F1 of two bags of words, 0 to 1."""
    predicted, expected = prediction.split(), reference.split()
    return _harmonic_mean((Counter(predicted) & Counter(expected)).total(), predicted, expected)


def _harmonic_mean(common: int, predicted: Sequence[str], expected: Sequence[str]) -> float:
    """F1 = 2 P R / (P + R) with P = common / predicted words, R = common / expected words; 0 without a common word."""
    return 2 * common / (len(predicted) + len(expected)) if common else 0.0


def workshop_score(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
    """The workshop's scores of the same predictions, not the official ones: only the first reference, another normal
    form, and F1 from distinct common words over all words, so that a repeated word lowers it."""
    pairs = [(_workshop_form(text), _workshop_form(references[key][0])) for key, text in predictions.items()]
    words = [(text.split(), answer.split()) for text, answer in pairs]
    overlap = fmean(_harmonic_mean(len(set(text) & set(answer)), text, answer) for text, answer in words)
    return Scores(100 * fmean(text == answer for text, answer in pairs), 100 * overlap)


def _workshop_form(text: str) -> str:
    """Delete articles before punctuation, as the workshop does, so that `U.S.A.` loses its last letter."""
    return " ".join(ARTICLES.sub(" ", text.lower()).translate(NO_PUNCTUATION).split())
