"""Tokenised SQuAD as a data set: content by rule, digest, what each way to label trains, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
from perfscribe.data import own_tokenizer, squad_sets, tokenizer
from perfscribe.data.generate import generate
from perfscribe.data.prompts import IGNORED

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT.parent / "shared" / "data" / "squad"
NOWHERE = {"squad": None, "weights": None, "tokenizer": None}
CONFIG = {
    "train_size": 12,
    "eval_size": 6,
    "max_length": 96,
    "new_tokens": 8,
    "vocab_size": 400,
    "seed": 0,
    "workshop": NOWHERE,
}


def _make(config: dict, folder: Path) -> tuple[str, Path]:
    [(name, dataset)] = squad_sets.datasets(config).items()
    plan = json.loads(json.dumps({"dataset": name, "formats": [], **dataset}))  # as the planner's file gives it
    return name, generate(plan, folder / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict]:
    folder = tmp_path_factory.mktemp("data")
    name, digest = _make(CONFIG, folder)
    return folder, name, json.loads(digest.read_text())


def _read(made: tuple[Path, str, dict], labels: str) -> squad_sets.TokenisedSet:
    return squad_sets.read(made[0], made[1], labels)


def test_shapes_and_facts(made) -> None:
    held = _read(made, "answer")
    assert {name: array.shape for name, array in held.training.items()} == {
        "input_ids": (12, 96),
        "attention_mask": (12, 96),
        "labels": (12, 96),
    }
    assert held.evaluation["labels"].shape == (6, 96)
    assert held.prompts["input_ids"].shape == (6, 88)
    assert "labels" not in held.prompts
    assert held.training["input_ids"].dtype == np.int64
    assert len(held.references) == 6
    assert all(held.references.values())
    told = held.facts["tokenizer"]
    assert (told["kind"], told["vocabulary_asked"], told["vocabulary_reached"]) == ("trained", 400, 400)
    assert held.training["input_ids"].max() < 400
    assert held.facts["origin"] == "generated"


def test_the_prompt_is_masked_and_the_answer_is_both_read_and_asked(made) -> None:
    held = _read(made, "answer")
    first = held.training
    for ids, labels, mask in zip(first["input_ids"], first["labels"], first["attention_mask"], strict=True):
        trained = labels != IGNORED
        assert trained.any()
        assert (ids[trained] == labels[trained]).all()
        assert not trained[: int(np.argmax(trained))].any()
        assert int(trained.nonzero()[0][-1]) == mask.sum() - 1  # up to the end, and nothing of the padding
    trains = held.facts["trains"]["answer"]
    assert trains["targets_read"] == trains["targets"]
    assert trains["rows_asked"] == trains["rows_with_marker"] == 12


def test_what_the_source_trains_is_counted(made) -> None:
    trains = _read(made, "source").facts["trains"]
    assert trains["source"]["rows_asked"] == 0
    assert trains["source"]["targets_read"] < trains["source"]["targets"] / 4
    assert trains["source_prompt"]["targets_read"] == trains["source_prompt"]["targets"]
    assert trains["source_prompt"]["rows_asked"] == 0
    assert trains["source"]["longest"] == 96
    assert trains["source"]["tokens"] == _read(made, "source").training["attention_mask"].sum()
    # Prompts longer than the sequence lose their end, and with it the marker.
    assert trains["source"]["cut"]["prompt"] == 12 - trains["source"]["rows_with_marker"] > 0


def test_prompts_that_fit_are_not_asked_for_their_answer_either() -> None:
    from perfscribe.data.squad_tokenised import tokenised

    trains = tokenised(squad_sets.parameters({**CONFIG, "max_length": 4096}))[1]["trains"]
    for way, asked in (("answer", 12), ("source", 0), ("source_prompt", 0)):
        assert (trains[way]["rows_with_marker"], trains[way]["rows_asked"]) == (12, asked)


def test_the_same_again_and_another_for_each_that_decides_it(made, tmp_path) -> None:
    name, digest = _make(CONFIG, tmp_path)
    assert (name, json.loads(digest.read_text())) == (made[1], made[2])
    seeded = {**CONFIG, "seed": 1}
    assert squad_sets.dataset_name(seeded) == made[1]  # another seed takes its place, as in every data set
    assert squad_sets.parameters(seeded) != squad_sets.parameters(CONFIG)
    for change in ({"vocab_size": 300}, {"max_length": 64}, {"new_tokens": 4}, {"eval_size": 5}):
        assert squad_sets.dataset_name({**CONFIG, **change}) != made[1]


def test_answers_to_score_are_in_the_digest(made, tmp_path, monkeypatch) -> None:
    from perfscribe.data import squad_tokenised

    whole = squad_tokenised.tokenised

    def with_another_reference(made_from):
        arrays, facts, text = whole(made_from)
        facts["references"][min(facts["references"])].append("another")
        return arrays, facts, text

    monkeypatch.setattr(squad_tokenised, "tokenised", with_another_reference)
    assert json.loads(_make(CONFIG, tmp_path)[1].read_text())["arrays"] != made[2]["arrays"]


def test_so_is_the_tokenizer_that_decodes_them(made, tmp_path, monkeypatch) -> None:
    from perfscribe.data import squad_tokenised

    whole = squad_tokenised.tokenised
    monkeypatch.setattr(squad_tokenised, "tokenised", lambda made_from: (*whole(made_from)[:2], "{}"))
    assert json.loads(_make(CONFIG, tmp_path)[1].read_text())["arrays"] != made[2]["arrays"]


def test_texts_of_answers_end_at_the_first_end(made) -> None:
    held = _read(made, "answer")
    inner = own_tokenizer.from_text(held.tokenizer)
    end = held.facts["tokenizer"]["end_id"]
    ids = inner.encode(" Étienne's river", add_special_tokens=False).ids
    assert own_tokenizer.texts_of([[*ids, end, *ids], [end], []], held.tokenizer, end) == ["Étienne's river", "", ""]


def _own(folder: Path, **names: object) -> Path:
    trained = tokenizer.train(["the river rises and the rivers fall"] * 3, 300)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(trained.inner.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def test_a_models_own_tokenizer_is_taken_where_its_weights_bring_one(tmp_path) -> None:
    folder = _own(tmp_path / "model", pad_token="<pad>", eos_token={"content": "</s>", "lstrip": False})
    config = {**CONFIG, "workshop": {**NOWHERE, "weights": str(folder)}}
    name, _ = _make(config, tmp_path / "data")
    told = squad_sets.read(tmp_path / "data", name, "answer").facts["tokenizer"]
    assert told["kind"] == "own"
    assert told["vocabulary_reached"] == own_tokenizer.load(folder).vocab_size
    named = {**CONFIG, "workshop": {**NOWHERE, "tokenizer": str(folder)}}
    assert squad_sets.dataset_name(named) == name
    moved = folder.rename(tmp_path / "elsewhere")
    assert squad_sets.dataset_name({**CONFIG, "workshop": {**NOWHERE, "tokenizer": str(moved)}}) == name


def test_where_files_lie_is_not_in_the_digest_file(tmp_path) -> None:
    folder = _own(tmp_path / "model")
    config = {**CONFIG, "workshop": {**NOWHERE, "tokenizer": str(folder)}}
    _, digest = _make(config, tmp_path / "data")
    told = json.loads(digest.read_text())["parameters"]["tokenizer"]
    assert told == {"sha256": own_tokenizer.sha256_of(folder)}


@pytest.mark.parametrize(
    ("names", "text", "told"),
    [
        ({"pad_token": "<none>"}, None, "its pad_token '<none>' is not in its vocabulary"),
        ({}, "{}", "no tokenizer"),
        ({}, None, ""),
    ],
)
def test_a_tokenizer_that_is_none(tmp_path, names, text, told) -> None:
    folder = _own(tmp_path / "model", **names)
    if text is not None:
        (folder / "tokenizer.json").write_text(text)
    if not told:
        assert own_tokenizer.load(folder).ids.end_id == 1
        return
    with pytest.raises(ValueError, match=told) as failure:
        own_tokenizer.load(folder)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("key", ["squad", "tokenizer"])
def test_paths_that_lead_nowhere(key) -> None:
    with pytest.raises(ValueError, match=r"(?i)no such file") as failure:
        squad_sets.datasets({**CONFIG, "workshop": {**NOWHERE, key: "no/such/folder"}})
    assert "\n" not in str(failure.value)


def test_labels_that_no_data_set_holds(made) -> None:
    with pytest.raises(ValueError, match="labels: 'other': not in squad_12x6x96_"):
        _read(made, "other")


@pytest.mark.skipif(not REAL.is_dir(), reason="SQuAD is not at hand")
def test_real_questions(tmp_path) -> None:
    config = {**CONFIG, "train_size": 40, "eval_size": 10, "max_length": 512, "vocab_size": 50_000}
    config["workshop"] = {**NOWHERE, "squad": str(REAL)}
    name, _ = _make(config, tmp_path)
    held = squad_sets.read(tmp_path, name, "answer")
    told = held.facts["tokenizer"]
    assert held.facts["origin"] == "file"
    assert [source["questions"] for source in held.facts["sources"]] == [4370, 10570]
    assert 256 < told["vocabulary_reached"] < 50_000 == told["vocabulary_asked"]
    assert held.facts["trains"]["answer"]["rows_asked"] == 40
    other = dict(config, workshop={**NOWHERE, "squad": str(REAL / "dev-v1.1.json")})
    assert squad_sets.dataset_name(other) != name


def test_planning_a_generated_set_loads_no_numpy() -> None:
    code = (
        "import sys; from perfscribe.data import squad_sets\n"
        f"squad_sets.datasets({CONFIG!r})\n"
        "print([name for name in ('numpy', 'torch', 'tokenizers', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
