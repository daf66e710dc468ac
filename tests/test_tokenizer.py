"""The byte-level BPE trained on the training text alone: its size, its file, and texts it has never seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscribe.data import squad, tokenizer

pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT.parent / "shared" / "data" / "squad"
TEXTS = ["the river the river the rising river", "rivers rise, the river rises"]


@pytest.fixture(scope="module")
def trained() -> tokenizer.BytePairTokenizer:
    return tokenizer.train(squad.texts(squad.obtain(None, 60, 10, 3).training), 600)


def test_the_size_reached_may_be_smaller_than_the_one_asked(trained: tokenizer.BytePairTokenizer) -> None:
    assert trained.vocab_size == 600
    small = tokenizer.train(TEXTS, 50_000)
    assert tokenizer.LEAST_VOCABULARY < small.vocab_size < 300
    assert len(small.encode(" river")) == 1
    with pytest.raises(ValueError, match=r"^vocab_size: 257: expected at least 258"):
        tokenizer.train(TEXTS, 257)


def test_only_the_given_texts_count() -> None:
    """A pair that the texts do not have twice is no token, however common it is elsewhere."""
    small = tokenizer.train(TEXTS, 50_000)
    assert len(small.encode("the")) < 3 and len(small.encode("quiz")) == 4
    assert len(small.encode(" rising")) > 1  # seen once


@pytest.mark.parametrize("text", ["", "unseen: Ωμέγα 😀 \x00\t\n", "</s> and <pad> as text", "  two  spaces "])
def test_every_text_comes_back(trained: tokenizer.BytePairTokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert all(0 <= number < trained.vocab_size for number in ids)
    assert trained.pad_id not in ids and trained.end_id not in ids
    assert trained.decode([*ids, trained.end_id, trained.pad_id]) == text


def test_the_same_texts_give_the_same_file(trained: tokenizer.BytePairTokenizer, tmp_path: Path) -> None:
    again = tokenizer.train(squad.texts(squad.obtain(None, 60, 10, 3).training), 600)
    for number, one in enumerate((trained, again)):
        tokenizer.save(one, tmp_path / f"{number}.json")
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    loaded = tokenizer.load(tmp_path / "0.json")
    assert (loaded.vocab_size, loaded.pad_id, loaded.end_id) == (600, trained.pad_id, trained.end_id)
    for text in ("What comes after the bife?", "</s> is text"):
        assert loaded.encode(text) == trained.encode(text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "no JSON: Expecting property name"),
        ("[]", "no byte-level BPE tokenizer"),
        ('{"model": {"type": "WordPiece"}}', "no byte-level BPE tokenizer"),
        (
            '{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}}',
            "no tokenizer: ",
        ),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "own.json").write_text(content)
    with pytest.raises(ValueError, match=rf"^own\.json: {complaint}") as caught:
        tokenizer.load(tmp_path / "own.json")
    assert "\n" not in str(caught.value)


def test_a_file_without_our_special_tokens_is_refused(trained: tokenizer.BytePairTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    tokenizer.save(trained, path)
    path.write_text(path.read_text().replace("<pad>", "<gap>"))
    with pytest.raises(ValueError, match=r"^own\.json: no tokenizer of this project: <pad> is not in its vocabulary$"):
        tokenizer.load(path)
    with pytest.raises(ValueError, match=r"^none\.json: cannot be read: "):
        tokenizer.load(tmp_path / "none.json")


def test_the_file_is_plain_json(trained: tokenizer.BytePairTokenizer, tmp_path: Path) -> None:
    tokenizer.save(trained, tmp_path / "own.json")
    content = json.loads((tmp_path / "own.json").read_text(encoding="utf-8"))
    assert len(content["model"]["vocab"]) == 600 and content["model"]["type"] == "BPE"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data is not beside this checkout")
def test_500_real_questions_give_fewer_than_the_vocabulary_asked() -> None:
    drawn = squad.obtain(REAL, 500, 100, 42)
    real = tokenizer.train(squad.texts(drawn.training), 50_000)
    assert 8_000 < real.vocab_size < 15_000
    row = drawn.evaluation[0]
    assert real.decode(real.encode(row.context)) == row.context
    assert len(real.encode(row.context)) < len(row.context) / 3
