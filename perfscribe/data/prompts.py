"""Batches to train and to generate from: SQuAD questions as `Question: … Context: … Answer:` and answer, in tokens.

Three ways to label (LABELS):
- answer: prompt, answer and end token in one sequence; the labels are the ids, with prompt and padding masked. A
  sequence that is too long loses the beginning of its context, so that question and answer stay.
- source: the FSDP workshop's BLOOM scripts. Prompt and first answer are two sequences, each left-padded and cut on the
  right; the prompt is the input, the answer the labels. So the model never reads the answer, the position after
  `Answer:` has no label, and a long prompt loses `Answer:`.
- source_prompt: the workshop's custom model, whose collator drops those labels: the input of `source` also as labels.
Labels are not shifted: a causal model shifts them by one (the workshop's single-node script does not).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscribe.data.squad import Question
from perfscribe.data.tokenizer import Tokenizer

LABELS = ("answer", "source", "source_prompt")
IGNORED = -100  # label that cross-entropy ignores by default
ASKED, GIVEN, ANSWER = "Question:", " Context:", " Answer:"


@dataclass(frozen=True)
class Batch:
    """Rows of one length, each array int32 of shape (rows, length).

    input_ids: in [0, vocabulary). attention_mask: 1 for a token, 0 for padding. labels: an id or -100; None for
    prompts to generate from. cut: number of rows that lost tokens, by part (context, question, answer, prompt).
    """

    input_ids: np.ndarray
    attention_mask: np.ndarray
    labels: np.ndarray | None
    cut: dict[str, int]


def prompt_text(row: Question) -> str:
    """Return the whole prompt, ending in `Answer:`."""
    return f"{ASKED} {row.question}{GIVEN} {row.context}{ANSWER}"


def _fitted(row: Question, ids: Tokenizer, answer: list[int], length: int) -> tuple[list[int], list[int], list[str]]:
    """Return prompt and answer, cut to the length together, and the names of the parts that lost tokens.

    Each part is encoded separately with the space before it, as byte-level tokenizers split a text anyway. The context
    loses tokens on its left; once it is empty, the question on its left, then the answer on its right.
    """
    parts = {"context": ids.encode(f" {row.context}"), "question": ids.encode(f" {row.question}"), "answer": answer}
    asked, given, marker = map(ids.encode, (ASKED, GIVEN, ANSWER))
    excess = sum(map(len, (asked, given, marker, *parts.values()))) - length
    cut = []
    for name, least in (("context", 0), ("question", 1), ("answer", 1)):
        drop = min(excess, len(parts[name]) - least)
        if drop > 0:
            parts[name] = parts[name][:-drop] if name == "answer" else parts[name][drop:]
            cut.append(name)
            excess -= drop
    if excess > 0:
        raise ValueError(f"length: {length}: expected at least {length + excess} for these markers")
    return [*asked, *parts["question"], *given, *parts["context"], *marker], parts["answer"], cut


def _filled(rows: Sequence[Sequence[int]], length: int, fill: int, left: bool) -> np.ndarray:
    """Return int32 (rows, length): each row padded with `fill` on its left or right."""
    result = np.full((len(rows), length), fill, dtype=np.int32)
    for line, row in zip(result, rows, strict=True):
        line[length - len(row) if left else 0 : length if left else len(row)] = row
    return result


def _batch(
    rows: Sequence[Sequence[int]], ids: Tokenizer, length: int, left: bool, labels: Any, cut: dict[str, int]
) -> Batch:
    mask = _filled([[1] * len(row) for row in rows], length, 0, left)
    return Batch(_filled(rows, length, ids.pad_id, left), mask, labels, cut)


def _counted(cuts: Iterable[Sequence[str]], *kinds: str) -> dict[str, int]:
    held = [name for cut in cuts for name in cut]
    return {kind: held.count(kind) for kind in kinds}


def training_batch(rows: Sequence[Question], ids: Tokenizer, length: int, labels: str) -> Batch:
    """Return rows to train or to evaluate the loss on, labelled by one of LABELS; the answer is the first reference.

    Raises ValueError with labels "answer" if the length is below the three markers and a token each of question and
    answer.
    """
    if labels == "answer":
        answers = [[*ids.encode(f" {row.answers[0]}"), ids.end_id] for row in rows]
        fitted = [_fitted(row, ids, answer, length) for row, answer in zip(rows, answers, strict=True)]
        wanted = _filled(
            [[IGNORED] * len(prompt) + answer for prompt, answer, _ in fitted], length, IGNORED, left=False
        )
        cut = _counted((cut for *_, cut in fitted), "context", "question", "answer")
        return _batch([prompt + answer for prompt, answer, _ in fitted], ids, length, False, wanted, cut)
    prompts = [ids.encode(prompt_text(row)) for row in rows]
    targets = [ids.encode(row.answers[0]) for row in rows] if labels == "source" else prompts
    wanted = _filled([target[:length] for target in targets], length, ids.pad_id, left=True)
    wanted[wanted == ids.pad_id] = IGNORED  # all pad ids, as in the source, including any within a text
    cut = {"prompt": sum(len(prompt) > length for prompt in prompts)}
    return _batch([prompt[:length] for prompt in prompts], ids, length, True, wanted, cut)


def generation_batch(rows: Sequence[Question], ids: Tokenizer, length: int, labels: str) -> Batch:
    """Return prompts to generate from, padded on the left, so that the last column is the last token of the prompt.

    With labels "answer" that is the end of `Answer:` in every row, contexts cut as in training; pass a length without
    the tokens to be generated. With other labels the prompts are cut on the right, as in the source.
    """
    if labels != "answer":
        source = training_batch(rows, ids, length, labels)
        return Batch(source.input_ids, source.attention_mask, None, source.cut)
    fitted = [_fitted(row, ids, [], length) for row in rows]
    cut = _counted((cut for *_, cut in fitted), "context", "question")
    return _batch([prompt for prompt, *_ in fitted], ids, length, True, None, cut)
