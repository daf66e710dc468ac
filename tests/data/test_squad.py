"""SQuAD v1.1: reading its layout, one line for a bad file, the drawing of rows, and the generated set."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from perfscribe.data import squad, squad_generated

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
