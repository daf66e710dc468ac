"""Generates a set in the layout of SQuAD v1.1, for machines without the data or a network.

Words consist of syllables and follow Zipf's law. Contexts are as long as SQuAD's (median 104 words, middle half 75 to
148, counted over the 678 paragraphs of its first training articles); an answer is a span of one to six words of the
context, and the question quotes the words before it. Identical on every platform: only random.Random.random(), whose
stream Python guarantees, sums and comparisons are used.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import accumulate
from random import Random
from typing import Any

from perfscribe.data.squad import Questions, parse

SYLLABLES = [first + second for first in "bdfgklmnprstvzéß" for second in "aeiouäø"]
# Lengths in words and cumulative share of contexts: SQuAD's quartiles and extremes, linear in between.
CONTEXT_WORDS = (25, 75, 104, 148, 225, 499)
CONTEXT_SHARES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
ANSWER_SHARES = (0.35, 0.6, 0.8, 0.9, 0.95, 1.0)  # cumulative shares of answers with one word, two words, …
ASKING = ("What comes after", "Which words follow", "Who is named after", "What stands behind")
VOCABULARY_WORDS = 8000
SENTENCE_WORDS = 20
QUESTIONS_PER_CONTEXT = 5
PARAGRAPHS_PER_ARTICLE = 20
EVALUATION_ANSWERS = 3


class _Words:
    """Draws words by Zipf's law from a vocabulary that depends only on the seed."""

    def __init__(self, seed: int) -> None:
        random = Random(f"vocabulary {seed}")
        words: dict[str, None] = {"the": None, "a": None, "of": None, "in": None}
        while len(words) < VOCABULARY_WORDS:
            word = "".join(_pick(random, SYLLABLES) for _ in range(1 + int(random.random() * 4)))
            if random.random() < 0.1:
                word = word.capitalize()
            elif random.random() < 0.05:
                word = str(1000 + int(random.random() * 1100))
            words[word] = None
        self._words = list(words)
        self._reached = list(accumulate(1 / (rank + 1) for rank in range(VOCABULARY_WORDS)))

    def draw(self, random: Random) -> str:
        return self._words[min(bisect_right(self._reached, random.random() * self._reached[-1]), VOCABULARY_WORDS - 1)]


def _pick(random: Random, choices: Any) -> Any:
    return choices[int(random.random() * len(choices))]


def _context_length(random: Random) -> int:
    share = random.random()
    part = min(bisect_right(CONTEXT_SHARES, share), len(CONTEXT_SHARES) - 1)
    low, high = CONTEXT_WORDS[part - 1], CONTEXT_WORDS[part]
    begin, end = CONTEXT_SHARES[part - 1], CONTEXT_SHARES[part]
    return low + int((high - low) * (share - begin) / (end - begin))


def _context(words: _Words, random: Random) -> list[str]:
    """Return the words of a context, with capitals and full stops of sentences."""
    result = [words.draw(random) for _ in range(_context_length(random))]
    for start in range(0, len(result), SENTENCE_WORDS):
        end = min(start + SENTENCE_WORDS, len(result)) - 1
        result[start] = result[start].capitalize()
        result[end] += "."
    return result


def _question(words: list[str], identity: str, answers: int, random: Random) -> dict[str, Any]:
    """Return a question whose answer is a span of the context; further references are the span or one word longer."""
    length = 1 + bisect_right(ANSWER_SHARES, random.random())
    first = 3 + int(random.random() * (len(words) - length - 4))
    quoted = " ".join(words[first - 3 : first]).replace(".", "")
    given: list[dict[str, Any]] = []
    for _ in range(answers):
        last = first + length + (bool(given) and random.random() < 0.4)
        text = " ".join(words[first:last]).rstrip(".")
        given.append({"answer_start": len(" ".join(words[:first])) + 1, "text": text})
    return {"id": identity, "question": f"{_pick(random, ASKING)} {quoted}?", "answers": given}


def document(questions: int, seed: int, part: str, answers: int) -> dict[str, Any]:
    """Return SQuAD v1.1 JSON, `answers` references a question; `part` seeds it, too, and is in titles and ids."""
    words, random = _Words(seed), Random(f"{part} {seed}")
    articles: list[dict[str, Any]] = []
    paragraphs: list[dict[str, Any]] = []
    for start in range(0, questions, QUESTIONS_PER_CONTEXT):
        if start % (QUESTIONS_PER_CONTEXT * PARAGRAPHS_PER_ARTICLE) == 0:
            paragraphs = []
            articles.append({"title": f"Generated_{part}_{len(articles)}", "paragraphs": paragraphs})
        context = _context(words, random)
        numbers = range(start, min(start + QUESTIONS_PER_CONTEXT, questions))
        asked = [_question(context, f"{part}-{seed}-{number}", answers, random) for number in numbers]
        paragraphs.append({"context": " ".join(context), "qas": asked})
    return {"data": articles, "version": "1.1"}


def generated(questions: int, seed: int, part: str, answers: int) -> Questions:
    """Return the questions of document(), checked like a file's; at least one question."""
    content = document(max(1, questions), seed, part, answers)
    text = json.dumps(content, ensure_ascii=False, sort_keys=True).encode()
    return parse(text, f"generated ({part}, {len(content['data'])} articles, seed {seed})", "generated")


def pair(train_size: int, eval_size: int, seed: int) -> tuple[Questions, Questions]:
    """Return training questions (one answer each) and evaluation questions (three, as SQuAD) on other contexts."""
    return generated(train_size, seed, "train", 1), generated(eval_size, seed, "dev", EVALUATION_ANSWERS)
