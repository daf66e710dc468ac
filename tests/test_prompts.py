"""Prompts as arrays: what is masked, what is cut, and what the workshop's own labels train."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from perfscribe.data import prompts, squad
from perfscribe.data.prompts import IGNORED, TokenIds, generation_batch, training_batch

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT.parent / "shared" / "data" / "squad"
PAD, END = 0, 1


class Words:
    """A token a word; ids from 2 on in the order of their first use."""

    def __init__(self) -> None:
        self.words = ["<pad>", "<end>"]

    def encode(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def text(self, ids: np.ndarray) -> str:
        return " ".join(self.words[number] if number != IGNORED else "-" for number in ids)


def row(question: str = "who ?", context: str = "c1 c2 c3 c4", *answers: str) -> squad.Question:
    return squad.Question("q", "t", context, question, answers or ("a1 a2", "other"))


@pytest.fixture
def words() -> Words:
    return Words()


@pytest.fixture
def ids(words: Words) -> TokenIds:
    return TokenIds(words, PAD, END)


def test_prompt_and_answer_are_one_sequence_and_the_prompt_is_masked(words: Words, ids: TokenIds) -> None:
    batch = training_batch([row(), row("x", "y", "z")], ids, 14, "answer")
    assert batch.labels is not None
    assert words.text(batch.input_ids[0]) == "Question: who ? Context: c1 c2 c3 c4 Answer: a1 a2 <end> <pad> <pad>"
    assert words.text(batch.labels[0]) == "- - - - - - - - - a1 a2 <end> - -"
    assert words.text(batch.input_ids[1]).startswith("Question: x Context: y Answer: z <end> <pad>")
    assert batch.attention_mask.tolist() == [[1] * 12 + [0] * 2, [1] * 7 + [0] * 7]
    for array in (batch.input_ids, batch.attention_mask, batch.labels):
        assert array.dtype == np.int32 and array.shape == (2, 14)
    assert batch.cut == {"context": 0, "question": 0, "answer": 0}


def test_the_prompt_text_is_the_workshops() -> None:
    assert prompts.prompt_text(row()) == "Question: who ? Context: c1 c2 c3 c4 Answer:"


@pytest.mark.parametrize(
    ("length", "expected", "cut"),
    [
        (12, "Question: who ? Context: c1 c2 c3 c4 Answer: a1 a2 <end>", []),
        (11, "Question: who ? Context: c2 c3 c4 Answer: a1 a2 <end>", ["context"]),
        (9, "Question: who ? Context: c4 Answer: a1 a2 <end>", ["context"]),
        (8, "Question: who ? Context: Answer: a1 a2 <end>", ["context"]),
        (7, "Question: ? Context: Answer: a1 a2 <end>", ["context", "question"]),
        (6, "Question: ? Context: Answer: a1 a2", ["context", "question", "answer"]),
        (5, "Question: ? Context: Answer: a1", ["context", "question", "answer"]),
    ],
)
def test_the_context_is_cut_first_and_on_its_left(
    words: Words, ids: TokenIds, length: int, expected: str, cut: list[str]
) -> None:
    batch = training_batch([row()], ids, length, "answer")
    assert words.text(batch.input_ids[0]) == expected
    assert [name for name, count in batch.cut.items() if count] == cut
    assert (
        batch.labels is not None and (batch.labels[0] != IGNORED).sum() == expected.split("Answer: ")[1].count(" ") + 1
    )


def test_a_length_below_the_markers_is_named(ids: TokenIds) -> None:
    with pytest.raises(ValueError, match=r"^length: 4: expected at least 5 "):
        training_batch([row()], ids, 4, "answer")
    with pytest.raises(ValueError, match=r"^labels: 'all': expected one of answer, source, source_prompt$"):
        training_batch([row()], ids, 12, "all")  # type: ignore[arg-type]


def test_prompts_to_generate_from_end_with_the_marker(words: Words, ids: TokenIds) -> None:
    batch = generation_batch([row(), row("x", "y")], ids, 8)
    assert words.text(batch.input_ids[0]) == "Question: who ? Context: c2 c3 c4 Answer:"
    assert words.text(batch.input_ids[1]) == "<pad> <pad> <pad> Question: x Context: y Answer:"
    assert batch.attention_mask.tolist() == [[1] * 8, [0] * 3 + [1] * 5]
    assert batch.labels is None and batch.cut == {"context": 1, "question": 0}


def test_source_labels_never_show_the_answer_to_the_model(words: Words, ids: TokenIds) -> None:
    batch = training_batch([row()], ids, 11, "source")
    assert batch.labels is not None
    assert words.text(batch.input_ids[0]) == "<pad> <pad> Question: who ? Context: c1 c2 c3 c4 Answer:"
    assert words.text(batch.labels[0]) == "- - - - - - - - - a1 a2"
    # As a causal model shifts labels, a1 is the target at c3 and a2 the one at c4; `Answer:` itself has none.
    targets = dict(zip(words.text(batch.input_ids[0]).split(), words.text(batch.labels[0]).split()[1:], strict=False))
    assert (targets["c3"], targets["c4"]) == ("a1", "a2") and "Answer:" not in targets
    assert batch.attention_mask.tolist() == [[0] * 2 + [1] * 9] and batch.cut == {"prompt": 0}


@pytest.mark.parametrize("labels", ["source", "source_prompt"])
def test_source_cuts_the_marker_off_long_prompts(words: Words, ids: TokenIds, labels: prompts.Labels) -> None:
    for batch in (training_batch([row()], ids, 7, labels), generation_batch([row()], ids, 7, labels)):
        assert words.text(batch.input_ids[0]) == "Question: who ? Context: c1 c2 c3"
        assert batch.cut == {"prompt": 1}


def test_source_prompt_labels_are_the_prompt(words: Words, ids: TokenIds) -> None:
    batch = training_batch([row()], ids, 11, "source_prompt")
    assert batch.labels is not None
    assert words.text(batch.labels[0]) == "- - Question: who ? Context: c1 c2 c3 c4 Answer:"
    assert "a1" not in words.text(batch.input_ids[0])


def test_any_encoder_will_do() -> None:
    """Ids or an object with ids; special tokens are switched off where the encoder knows how."""
    asked = []

    def encode(text: str, add_special_tokens: bool = True) -> SimpleNamespace:
        asked.append(add_special_tokens)
        return SimpleNamespace(ids=np.array([7] * len(text.split())))

    batch = training_batch([row()], TokenIds(SimpleNamespace(encode=encode), PAD, None), 12, "answer")
    assert set(asked) == {False}
    assert batch.input_ids.tolist() == [[7] * 11 + [PAD]] and batch.labels is not None
    assert (batch.labels != IGNORED).sum() == 2  # no end without an id for it


@pytest.fixture(scope="module")
def drawn() -> squad.Drawn:
    return squad.obtain(REAL if REAL.is_dir() else None, 300, 100, 42)


def test_parts_encoded_apart_are_what_the_whole_text_gives(drawn: squad.Drawn) -> None:
    """With our own tokenizer, on real questions where they are there; and question and answer always stay."""
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    from perfscribe.data import tokenizer

    own = tokenizer.train(squad.texts(drawn.training), 50_000)
    ids = TokenIds(own, own.pad_id, own.end_id)
    long = training_batch(drawn.evaluation, ids, 2048, "answer")
    short = training_batch(drawn.evaluation, ids, 160, "answer")
    assert long.labels is not None and short.labels is not None
    assert not any(long.cut.values()) and short.cut["context"] > 20 and not short.cut["question"] + short.cut["answer"]
    for number, question in enumerate(drawn.evaluation):
        whole = own.encode(f"{prompts.prompt_text(question)} {question.answers[0]}")
        assert long.input_ids[number, : long.attention_mask[number].sum()].tolist() == [*whole, own.end_id]
        text = own.decode(short.input_ids[number])
        assert text.startswith(f"Question: {question.question} Context:")
        assert text.endswith(f" Answer: {question.answers[0]}")
        assert own.decode(short.labels[number][short.labels[number] != IGNORED]) == f" {question.answers[0]}"
    asked = generation_batch(drawn.evaluation, ids, 110)
    assert all(own.decode(line).endswith(" Answer:") for line in asked.input_ids)
    source = training_batch(drawn.evaluation, ids, 160, "source")
    lost = [not own.decode(line).endswith(" Answer:") for line in source.input_ids]
    assert sum(lost) == source.cut["prompt"] > 20
