"""The byte-level BPE trained on the training text alone: its size, its file, and texts it has never seen."""

import pytest

from perfscribe.data import squad, tokenizer

pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")

TEXTS = ["the river the river the rising river", "rivers rise, the river rises"]


@pytest.fixture(scope="module")
def trained() -> tokenizer.Tokenizer:
    return tokenizer.train(squad.texts(squad.obtain(None, 60, 10, 3).training), 600)


def test_the_size_reached_may_be_smaller_than_the_one_asked(trained: tokenizer.Tokenizer) -> None:
    assert trained.inner.get_vocab_size() == 600
    small = tokenizer.train(TEXTS, 50_000)
    assert tokenizer.LEAST_VOCABULARY < small.inner.get_vocab_size() < 300
    assert len(small.of(" river")) == 1
    assert len(small.of("quiz")) == 4 and len(small.of(" rising")) > 1  # never and once in the texts
    with pytest.raises(ValueError, match=r"^vocab_size: 257: expected at least 258"):
        tokenizer.train(TEXTS, 257)


@pytest.mark.parametrize("text", ["", "unseen: Ωμέγα 😀 \x00\t\n", "</s> and <pad> as text", "  two  spaces "])
def test_every_text_comes_back(trained: tokenizer.Tokenizer, text: str) -> None:
    ids = trained.of(text)
    assert all(0 <= number < 600 for number in ids)
    assert trained.pad_id not in ids and trained.end_id not in ids
    assert trained.inner.decode([*ids, trained.end_id, trained.pad_id], skip_special_tokens=True) == text
