"""Tokenised SQuAD as a data set: content by rule, digest, what each way to label trains, what is refused."""

import json
from pathlib import Path

import pytest
from measured_cells import generated

from perfscribe.data import squad

pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
from perfscribe.data import squad_sets, squad_tokenised, tokenizer

NOWHERE = {"squad": None, "weights": None, "tokenizer": None}
CONFIG = {"train_size": 12, "eval_size": 6, "max_length": 96, "new_tokens": 8, "vocab_size": 400, "seed": 0}
CONFIG["workshop"] = NOWHERE


def _make(config: dict, folder: Path) -> tuple[str, dict]:
    name = squad_sets.dataset_name(config)
    generated(squad_sets.datasets(config), folder)
    return name, json.loads((folder / f"{name}.digest").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict]:
    folder = tmp_path_factory.mktemp("data")
    return folder, *_make(CONFIG, folder)


def test_what_the_source_trains_is_counted(made) -> None:
    held = squad_sets.read(*made[:2], "source")
    source, prompt = (held.facts["trains"][way] for way in ("source", "source_prompt"))
    assert source["rows_asked"] == prompt["rows_asked"] == 0
    assert source["targets_read"] < source["targets"] / 4
    assert prompt["targets_read"] == prompt["targets"]
    assert (source["longest"], source["tokens"]) == (96, held.training["attention_mask"].sum())
    # Prompts longer than the sequence lose their end, and with it the marker.
    assert source["cut"]["prompt"] == 12 - source["rows_with_marker"] > 0
    # Those that fit are not asked for their answer either.
    fitting = squad_tokenised.tokenised(squad_sets.parameters({**CONFIG, "max_length": 4096}))[1]["trains"]
    asked = {way: (counts["rows_with_marker"], counts["rows_asked"]) for way, counts in fitting.items()}
    assert asked == {"answer": (12, 12), "source": (12, 0), "source_prompt": (12, 0)}


def test_the_same_again_and_another_for_each_that_decides_it(made, tmp_path) -> None:
    assert _make(CONFIG, tmp_path) == made[1:]
    seeded = {**CONFIG, "seed": 1}
    assert squad_sets.dataset_name(seeded) == made[1]  # another seed takes its place, as in every data set
    assert squad_sets.parameters(seeded) != squad_sets.parameters(CONFIG)
    for change in ({"vocab_size": 300}, {"max_length": 64}, {"new_tokens": 4}, {"eval_size": 5}):
        assert squad_sets.dataset_name({**CONFIG, **change}) != made[1]


def test_a_models_own_tokenizer_is_taken_where_its_weights_bring_one(tmp_path) -> None:
    folder, names = tmp_path / "model", {"pad_token": "<pad>", "eos_token": {"content": "</s>", "lstrip": False}}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer.train(["the river rises and the rivers fall"] * 3, 300).text)
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    name, digest = _make({**CONFIG, "workshop": {**NOWHERE, "weights": str(folder)}}, tmp_path / "data")
    told = squad_sets.read(tmp_path / "data", name, "answer").facts["tokenizer"]
    assert (told["kind"], told["pad_id"], told["end_id"]) == ("own", 0, 1)
    assert digest["parameters"]["tokenizer"] == {"sha256": tokenizer.sha256_of(folder)}, "where it lies is private"
    moved = folder.rename(tmp_path / "elsewhere")
    assert squad_sets.dataset_name({**CONFIG, "workshop": {**NOWHERE, "tokenizer": str(moved)}}) == name


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        (b"[]", "tokenizer_config.json: expected an object, found list"),
        (b"\xff", "tokenizer_config.json: no UTF-8 text"),
        (b"{}", "tokenizer_config.json names no pad_token, and the usual '<pad>' is not in its vocabulary"),
        (b'{"pad_token": "[PAD]"}', "its pad_token '\\[PAD\\]' is not in its vocabulary"),
        (b'\xef\xbb\xbf{"pad_token": "river"}', "tokenizer_config.json names no eos_token, .*"),  # a byte order mark
    ],
)
def test_a_tokenizer_in_another_form_is_one_line_with_its_file(tmp_path, held, complaint) -> None:
    text = tokenizer.train(["river river river"], 300).text.replace("<pad>", "<p>").replace("</s>", "<s>")
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_bytes(held)
    with pytest.raises(ValueError, match=rf"^tokenizer: {tmp_path}(/|: ){complaint}$"):
        tokenizer.load(tmp_path)


@pytest.fixture(scope="module")
def trained() -> tokenizer.Tokenizer:
    return tokenizer.train(squad.texts(squad.obtain(None, 60, 10, 3).training), 600)


def test_the_size_reached_may_be_smaller_than_the_one_asked(trained: tokenizer.Tokenizer) -> None:
    assert trained.inner.get_vocab_size() == 600
    texts = ["the river the river the rising river", "rivers rise, the river rises"]
    small = tokenizer.train(texts, 50_000)
    assert tokenizer.LEAST_VOCABULARY < small.inner.get_vocab_size() < 300
    assert len(small.encode(" river")) == 1 < len(small.encode(" rising"))  # which is once in the texts
    with pytest.raises(ValueError, match=r"^vocab_size: 257: expected at least 258"):
        tokenizer.train(texts, 257)


@pytest.mark.parametrize("text", ["", "unseen: Ωμέγα 😀 \x00\t\n", "</s> and <pad> as text", "  two  spaces "])
def test_every_text_comes_back(trained: tokenizer.Tokenizer, text: str) -> None:
    ids = trained.encode(text)
    assert all(0 <= number < 600 for number in ids)
    assert trained.pad_id not in ids and trained.end_id not in ids
    assert trained.inner.decode([*ids, trained.end_id, trained.pad_id], skip_special_tokens=True) == text
