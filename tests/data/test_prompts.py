"""Prompts as arrays: what is masked, what is cut, and what the workshop's own labels train."""

import numpy as np
import pytest

from perfscribe.data import squad
from perfscribe.data.prompts import IGNORED, generation_batch, prompt_text, training_batch


class Words:
    """A token a word; ids from 2 on in the order of their first use."""

    pad_id, end_id = 0, 1

    def __init__(self) -> None:
        self.words = ["<pad>", "<end>"]

    def encode(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def text(self, ids: np.ndarray) -> str:
        return " ".join(self.words[number] if number != IGNORED else "-" for number in ids)


ROW = squad.Question("q", "c1 c2 c3 c4", "who ?", ("a1 a2", "other"))


def test_prompt_and_answer_are_one_sequence_and_the_prompt_is_masked() -> None:
    words = Words()
    batch = training_batch([ROW, squad.Question("r", "y", "x", ("z",))], words, 14, "answer")
    assert words.text(batch.input_ids[0]) == "Question: who ? Context: c1 c2 c3 c4 Answer: a1 a2 <end> <pad> <pad>"
    assert words.text(batch.labels[0]) == "- - - - - - - - - a1 a2 <end> - -"
    assert words.text(batch.input_ids[1]).startswith("Question: x Context: y Answer: z <end> <pad>")
    assert batch.attention_mask.tolist() == [[1] * 12 + [0] * 2, [1] * 7 + [0] * 7]
    assert batch.cut == {"context": 0, "question": 0, "answer": 0}


@pytest.mark.parametrize(
    ("length", "expected", "cut"),
    [
        (12, "Question: who ? Context: c1 c2 c3 c4 Answer: a1 a2 <end>", []),
        (11, "Question: who ? Context: c2 c3 c4 Answer: a1 a2 <end>", ["context"]),
        (8, "Question: who ? Context: Answer: a1 a2 <end>", ["context"]),
        (7, "Question: ? Context: Answer: a1 a2 <end>", ["context", "question"]),
        (5, "Question: ? Context: Answer: a1", ["context", "question", "answer"]),
    ],
)
def test_the_context_is_cut_first_and_on_its_left(length: int, expected: str, cut: list[str]) -> None:
    words = Words()
    batch = training_batch([ROW], words, length, "answer")
    assert words.text(batch.input_ids[0]) == expected
    assert [name for name, count in batch.cut.items() if count] == cut
    with pytest.raises(ValueError, match=r"^length: 4: expected at least 5 "):
        training_batch([ROW], words, 4, "answer")
    assert (batch.labels[0] != IGNORED).sum() == expected.split("Answer: ")[1].count(" ") + 1


def test_source_labels_never_show_the_answer_to_the_model() -> None:
    words = Words()
    batch = training_batch([ROW], words, 11, "source")
    assert words.text(batch.input_ids[0]) == "<pad> <pad> Question: who ? Context: c1 c2 c3 c4 Answer:"
    assert words.text(batch.labels[0]) == "- - - - - - - - - a1 a2"
    # As a causal model shifts labels, a1 is the target at c3 and a2 the one at c4; `Answer:` itself has none.
    assert batch.attention_mask.tolist() == [[0] * 2 + [1] * 9] and batch.cut == {"prompt": 0}
    prompt = training_batch([ROW], words, 11, "source_prompt")
    assert words.text(prompt.labels[0]) == "- - Question: who ? Context: c1 c2 c3 c4 Answer:"


def test_parts_encoded_apart_are_what_the_whole_text_gives() -> None:
    """With our own tokenizer."""
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    from perfscribe.data import tokenizer

    drawn = squad.obtain(None, 300, 100, 42)
    ids = tokenizer.train(squad.texts(drawn.training), 50_000)
    long = training_batch(drawn.evaluation, ids, 2048, "answer")
    for number, question in enumerate(drawn.evaluation):
        whole = ids.encode(f"{prompt_text(question)} {question.answers[0]}")
        assert long.input_ids[number, : long.attention_mask[number].sum()].tolist() == [*whole, ids.end_id]
    asked = generation_batch(drawn.evaluation, ids, 110, "answer").input_ids.tolist()
    assert all(text.endswith(" Answer:") for text in ids.inner.decode_batch(asked, skip_special_tokens=True))
