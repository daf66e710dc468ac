"""SQuAD v1.1: its layout, one line for a bad file, rows drawn; tokenised as a data set: content, digest, tokenizers."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
from measured_cells import generated

pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
from perfscribe.data import squad, squad_generated, squad_sets, squad_tokenised, tokenizer

CONTEXT = "The Rhône rises in Valais. The Rhine rises in Grisons."
FIRST = {
    "id": "q1",
    "question": "Where does the Rhône rise?",
    "answers": [{"text": "Valais", "answer_start": 19}, {"text": "in Valais", "answer_start": 16}],
}
SECOND = {"id": "q2", "question": "Where does the Rhine rise?", "answers": [{"text": "Grisons", "answer_start": 3}]}


def document(*questions: object) -> dict:
    return {"data": [{"paragraphs": [{"context": CONTEXT, "qas": questions}]}]}


def test_a_question_comes_with_context_and_all_answers(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps(document(FIRST, SECOND), ensure_ascii=False), encoding="utf-8")
    whole = squad.read(tmp_path / "own.json")
    assert (whole.name, whole.origin) == ("own.json", "file")
    first = squad.Question("q1", CONTEXT, "Where does the Rhône rise?", ("Valais", "in Valais"))
    assert whole.rows == (first, squad.Question("q2", CONTEXT, SECOND["question"], ("Grisons",)))


PLACE = r"no SQuAD v1\.1: data\[0\]\.paragraphs\[0\]\.qas"
BAD = [
    ([], r"no SQuAD v1\.1: top level: expected an object, found list"),
    (document(FIRST, SECOND | {"question": None}), rf"{PLACE}\[1\]\.question: expected str, found NoneType"),
    (document(FIRST, FIRST), rf"{PLACE}\[1\]\.id: 'q1' is also that of another question"),
    (document(FIRST | {"answers": []}), rf"{PLACE}\[0\]\.answers: empty; every question of .* \(v2\.0 is not read\)"),
    (document(FIRST | {"question": "\ud800?"}), rf"{PLACE}\[0\]\.question: half of a surrogate pair, which is no text"),
    (b'{"id": "q1"}\n{"id": "q2"}\n', r"no JSON: Extra data: line 2 .* \(JSON lines\?\); expected SQuAD v1\.1's .*"),
    (b'{"data": "\xff"}', "no JSON: 'utf-8' codec can't decode byte 0xff .*"),
    (gzip.compress(b"{}" * 1000, mtime=0)[:-12], "damaged gzip: .*"),
]


@pytest.mark.parametrize(("content", "complaint"), BAD, ids=range(len(BAD)))
def test_a_bad_file_is_one_line_with_its_place(tmp_path: Path, content: object, complaint: str) -> None:
    (tmp_path / "bad").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ValueError, match=rf"^bad: {complaint}$"):
        squad.read(tmp_path / "bad")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "train*.json or train*.json.gz, found none among no files"),
        (["train.json", "validation.json"], "dev*.json or dev*.json.gz, found none among train.json, validation.json"),
        (["train-a.json", "train-b.json", "dev.json"], "found train-a.json, train-b.json"),
    ],
)
def test_a_folder_in_another_form_is_one_line_with_what_is_there(tmp_path: Path, names: list[str], found: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    complaint = rf"^{tmp_path}: expected one file .*{re.escape(found)}.*; expected SQuAD.*fetch-data squad"
    with pytest.raises(ValueError, match=complaint):
        squad.files_in(tmp_path)


def test_rows_depend_on_seed_and_ids_alone() -> None:
    whole = squad_generated.generated(200, 0, "train", 1)
    backwards = squad.Questions(whole.name, whole.origin, whole.sha256, whole.rows[::-1])
    dev = squad_generated.generated(50, 0, "dev", 3)
    drawn = squad.draw(whole, dev, 40, 10, seed=42)
    assert squad.draw(backwards, dev, 40, 10, seed=42).training == drawn.training
    assert squad.draw(whole, dev, 60, 10, seed=42).training[:40] == drawn.training
    assert squad.draw(whole, dev, 40, 10, seed=43).evaluation != drawn.evaluation
    by_hand = sorted(whole.rows, key=lambda row: hashlib.sha256(b"42\0" + row.id.encode()).hexdigest())
    assert drawn.training == tuple(by_hand[:40])


def test_one_file_for_both_parts_shares_no_context(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(squad_generated.document(100, 0, "train", 1)))
    drawn = squad.obtain(tmp_path / "one.json", 20, 20, 1)
    assert len(drawn.evaluation) == 20
    assert not {row.context for row in drawn.training} & {row.context for row in drawn.evaluation}
    with pytest.raises(ValueError, match=r"^eval_size: 90: expected 0 to \d+, which one\.json has to give$"):
        squad.obtain(tmp_path / "one.json", 20, 90, 1)


def test_generated_rows_are_the_same_everywhere() -> None:
    whole = squad_generated.generated(60, 42, "dev", 3)
    assert whole.sha256 == "761d160081c8ff935de3fde94d6cdef820b1e939f66eec80cb1111976f2aaf4e"
    drawn = squad.obtain(None, 50, 20, 42)
    assert drawn.origin == "generated" and {len(row.answers) for row in drawn.evaluation} == {3}


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
        (b'{"pad_token": ', "tokenizer_config.json: no JSON: Expecting value: line 1 .*"),
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
