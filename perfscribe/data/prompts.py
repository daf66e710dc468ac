"""Questions as token arrays of one length, `Question: … Context: … Answer:` and the answer, to train and to generate.

Three ways to label (LABELS):
- answer: prompt, answer and end in one sequence; the labels are the ids, with the prompt and the padding masked. A
  sequence that is too long loses the beginning of its context, so that question and answer stay.
- source: the FSDP workshop's BLOOM scripts. Prompt and first answer are two sequences, each padded on the left and cut
  on the right to the length; the first is the input, the second the labels. So the answer is never read, the position
  after `Answer:` has no label of its own, and a long prompt loses `Answer:`.
- source_prompt: its custom model, whose collator drops those labels: the input of `source`, its ids the labels.
Labels stand at their token's own place: a causal model shifts them by one (the workshop's single-node script does not).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from perfscribe.data.squad import Question

Labels = Literal["answer", "source", "source_prompt"]
LABELS: tuple[Labels, ...] = ("answer", "source", "source_prompt")
IGNORED = -100  # what cross-entropy leaves out by default
ASKED, GIVEN, ANSWER = "Question:", " Context:", " Answer:"


class Encoder(Protocol):
    """Any tokenizer: encode() gives ids, or an object that has them as `ids`."""

    def encode(self, text: str) -> Any:
        """The ids of a text."""
        ...


@dataclass(frozen=True)
class TokenIds:
    """A tokenizer and the two ids that it does not tell by a common name; end_id None writes no end after answers."""

    tokenizer: Encoder
    pad_id: int
    end_id: int | None

    def of(self, text: str) -> list[int]:
        """Ids of a text; special tokens are left out where the tokenizer can leave them out."""
        try:
            encoded = self.tokenizer.encode(text, add_special_tokens=False)  # type: ignore[call-arg]
        except TypeError:  # a tokenizer that knows no such argument
            encoded = self.tokenizer.encode(text)
        return [int(number) for number in getattr(encoded, "ids", encoded)]


@dataclass(frozen=True)
class Batch:
    """Rows of one length, each array int32 of shape (rows, length).

    input_ids: in [0, vocabulary). attention_mask: 1 for a token, 0 for padding. labels: an id or -100; None for
    prompts to generate from. cut: rows that lost tokens, by what they lost (context, question, answer, prompt).
    """

    input_ids: np.ndarray
    attention_mask: np.ndarray
    labels: np.ndarray | None
    cut: dict[str, int]


@dataclass
class _Pieces:
    """The ids of a row's parts; fit() shortens them, and `cut` names those that lost tokens."""

    question: list[int]
    context: list[int]
    answer: list[int]
    asked: list[int]
    given: list[int]
    marker: list[int]
    cut: list[str] = field(default_factory=list)

    def prompt(self) -> list[int]:
        return [*self.asked, *self.question, *self.given, *self.context, *self.marker]

    def _excess(self, length: int) -> int:
        return max(0, len(self.prompt()) + len(self.answer) - length)

    def fit(self, length: int) -> None:
        """Cut the context on its left, then, with none left, the question on its left and the answer on its right."""
        for name, from_left, least in (("context", True, 0), ("question", True, 1), ("answer", False, 1)):
            ids: list[int] = getattr(self, name)
            drop = min(self._excess(length), max(0, len(ids) - least))
            if drop:
                setattr(self, name, ids[drop:] if from_left else ids[:-drop])
                self.cut.append(name)
        if self._excess(length):
            raise ValueError(f"length: {length}: expected at least {length + self._excess(length)} for these markers")


def prompt_text(row: Question) -> str:
    """The whole prompt, ending in `Answer:`."""
    return f"{ASKED} {row.question}{GIVEN} {row.context}{ANSWER}"


def _pieces(row: Question, ids: TokenIds, answer: str | None) -> _Pieces:
    """Every part encoded for itself with the space before it, as byte-level tokenizers split a text anyway."""
    answer_ids: list[int] = []
    if answer is not None:
        answer_ids = ids.of(f" {answer}") + ([] if ids.end_id is None else [ids.end_id])
    question, context = ids.of(f" {row.question}"), ids.of(f" {row.context}")
    return _Pieces(question, context, answer_ids, ids.of(ASKED), ids.of(GIVEN), ids.of(ANSWER))


def _filled(rows: Sequence[Sequence[int]], length: int, fill: int, left: bool) -> np.ndarray:
    """int32 (rows, length): each row with `fill` on its left or right."""
    result = np.full((len(rows), length), fill, dtype=np.int32)
    for line, row in zip(result, rows, strict=True):
        if row:
            line[length - len(row) if left else 0 : length if left else len(row)] = row
    return result


def _counted(names: Iterable[str], kinds: Sequence[str]) -> dict[str, int]:
    held = list(names)
    return {kind: held.count(kind) for kind in kinds}


def _mask(rows: Sequence[Sequence[int]], length: int, left: bool) -> np.ndarray:
    return _filled([[1] * len(row) for row in rows], length, 0, left)


def _one_sequence(rows: Sequence[Question], ids: TokenIds, length: int) -> Batch:
    """labels: answer. Padded on the right."""
    inputs, labels, cut = [], [], []
    for row in rows:
        pieces = _pieces(row, ids, row.answers[0])
        pieces.fit(length)
        inputs.append(pieces.prompt() + pieces.answer)
        labels.append([IGNORED] * len(pieces.prompt()) + pieces.answer)
        cut += pieces.cut
    return Batch(
        _filled(inputs, length, ids.pad_id, left=False),
        _mask(inputs, length, left=False),
        _filled(labels, length, IGNORED, left=False),
        _counted(cut, ("context", "question", "answer")),
    )


def _two_sequences(rows: Sequence[Question], ids: TokenIds, length: int, own_labels: bool) -> Batch:
    """labels: source, or source_prompt without labels of their own. Padded on the left, cut on the right."""
    prompts = [ids.of(prompt_text(row)) for row in rows]
    answers = prompts if not own_labels else [ids.of(row.answers[0]) for row in rows]
    cut = ["prompt"] * sum(len(prompt) > length for prompt in prompts)
    kept, targets = [prompt[:length] for prompt in prompts], [answer[:length] for answer in answers]
    labels = _filled(targets, length, ids.pad_id, left=True)
    labels[labels == ids.pad_id] = IGNORED  # every pad id, as the source does, also one within a text
    return Batch(
        _filled(kept, length, ids.pad_id, left=True), _mask(kept, length, left=True), labels, _counted(cut, ("prompt",))
    )


def training_batch(rows: Sequence[Question], ids: TokenIds, length: int, labels: Labels) -> Batch:
    """Rows to train on or to take the evaluation loss of; the answer is the first reference.

    ValueError for labels that are none of LABELS, or a length below that of the three markers and a token each of
    question and answer.
    """
    if labels == "answer":
        return _one_sequence(rows, ids, length)
    if labels in LABELS:
        return _two_sequences(rows, ids, length, own_labels=labels == "source")
    raise ValueError(f"labels: {labels!r}: expected one of {', '.join(LABELS)}")


def generation_batch(rows: Sequence[Question], ids: TokenIds, length: int, labels: Labels = "answer") -> Batch:
    """Prompts to generate from, padded on the left, so that the last column is the last token of the prompt.

    With labels "answer" that is the end of `Answer:` in every row, contexts cut as in training; give it the length
    without the tokens to be generated. Otherwise the prompts are cut on the right, as the source does.
    """
    if labels != "answer":
        source = training_batch(rows, ids, length, labels)
        return Batch(source.input_ids, source.attention_mask, None, source.cut)
    prompts, cut = [], []
    for row in rows:
        pieces = _pieces(row, ids, None)
        pieces.fit(length)
        prompts.append(pieces.prompt())
        cut += pieces.cut
    counts = _counted(cut, ("context", "question"))
    return Batch(_filled(prompts, length, ids.pad_id, left=True), _mask(prompts, length, left=True), None, counts)
