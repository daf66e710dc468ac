"""SQuAD v1.1: reading its layout, one line for a bad file, the drawing of rows, and the generated set."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from perfscribe.data import squad, squad_generated

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT.parent / "shared" / "data" / "squad"

DOCUMENT = {
    "version": "1.1",
    "data": [
        {
            "title": "Rivers",
            "paragraphs": [
                {
                    "context": "The Rhône rises in Valais. The Rhine rises in Grisons.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "Where does the Rhône rise?",
                            "answers": [
                                {"text": "Valais", "answer_start": 19},
                                {"text": "in Valais", "answer_start": 16},
                            ],
                        },
                        {
                            "id": "q2",
                            "question": "Where does the Rhine rise?",
                            "answers": [{"text": "Grisons", "answer_start": 3}],
                        },
                    ],
                }
            ],
        }
    ],
}


def written(path: Path, document: object = DOCUMENT) -> Path:
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return path


def test_a_question_comes_with_context_and_all_answers(tmp_path: Path) -> None:
    whole = squad.read(written(tmp_path / "own.json"))
    assert (whole.name, whole.origin, whole.misplaced) == ("own.json", "file", 1)
    assert whole.rows[0] == squad.Question(
        "q1",
        "Rivers",
        "The Rhône rises in Valais. The Rhine rises in Grisons.",
        "Where does the Rhône rise?",
        ("Valais", "in Valais"),
    )
    assert whole.rows[1].answers == ("Grisons",)


def test_texts_hold_a_context_once(tmp_path: Path) -> None:
    rows = squad.read(written(tmp_path / "own.json")).rows
    first, second = rows
    expected = [first.context, first.question, *first.answers, second.question, *second.answers]
    assert list(squad.texts(rows)) == expected


def test_gzip_is_told_by_its_content(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain.json")
    for name in ("packed.json.gz", "packed.json"):
        (tmp_path / name).write_bytes(gzip.compress(plain.read_bytes()))
        packed = squad.read(tmp_path / name)
        assert packed.rows == squad.read(plain).rows and packed.sha256 == squad.read(plain).sha256
    assert packed.sha256 == hashlib.sha256(plain.read_bytes()).hexdigest()


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(DOCUMENT).encode())
    assert len(squad.read(tmp_path / "bom.json").rows) == 2


def edited(*path: object, to: object) -> dict:
    """The document with one place changed, or taken out where `to` is `...`."""
    result = copy.deepcopy(DOCUMENT)
    place: object = result
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    if to is ...:
        del place[path[-1]]  # type: ignore[attr-defined]
    else:
        place[path[-1]] = to  # type: ignore[index]
    return result


QA = ("data", 0, "paragraphs", 0, "qas", 1)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "top level: expected an object, found list"),
        ({}, "data: missing"),
        ({"data": 3}, "data: expected list, found int"),
        ({"data": []}, "data: no question in it"),
        ({"data": ["x"]}, "data[0]: expected an object, found str"),
        (edited("data", 0, "title", to=...), "data[0].title: missing"),
        (edited("data", 0, "paragraphs", 0, "context", to=" "), "data[0].paragraphs[0].context: empty"),
        (edited(*QA, "question", to=None), "data[0].paragraphs[0].qas[1].question: expected str, found NoneType"),
        (
            edited(*QA, "id", to="q1"),
            "data[0].paragraphs[0].qas[1].id: 'q1' is also that of data[0].paragraphs[0].qas[0]",
        ),
        (
            edited(*QA, "answers", to=[]),
            "data[0].paragraphs[0].qas[1].answers: empty; in SQuAD v1.1 "
            "every question has an answer (v2.0 is not read)",
        ),
        (
            edited(*QA, "answers", 0, "answer_start", to=True),
            "data[0].paragraphs[0].qas[1].answers[0].answer_start: expected int, found bool",
        ),
        (
            edited(*QA, "answers", 0, "text", to="half \ud83d"),
            "data[0].paragraphs[0].qas[1].answers[0].text: half of a surrogate pair, which is no character",
        ),
    ],
)
def test_a_bad_document_is_one_line_with_its_place(tmp_path: Path, document: object, complaint: str) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(ValueError) as caught:
        squad.read(tmp_path / "bad.json")
    assert str(caught.value) == f"bad.json: no SQuAD v1.1: {complaint}"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", r"bad: no JSON: line 1, column 1: Expecting value"),
        (b'{"data":\n [1,', r"bad: no JSON: line 2, column 5: Expecting value"),
        (b'{"data": ' + b"9" * 5000 + b"}", r"bad: no JSON: Exceeds the limit .*"),
        (b"[" * 200_000, r"bad: no SQuAD v1\.1: nested too deeply"),
        (b'{"data": "\xff"}', r"bad: no UTF-8: byte 10"),
        (b"\x80\x04K\x01.", r"bad: no UTF-8: byte 0"),  # a pickle
        (gzip.compress(b"{}" * 1000, mtime=0)[:-12], r"bad: damaged gzip: .*"),
        (b"\x1f\x8bxx", r"bad: damaged gzip: .*"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else f"{len(value)} bytes",
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{complaint}$"):
        squad.read(tmp_path / "bad")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^none\.json: cannot be read: No such file or directory$"):
        squad.obtain(tmp_path / "none.json", 1, 1, 0)


def test_a_folder_has_one_file_of_each_part(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected one file train\*\.json or train\*\.json\.gz, found none$"):
        squad.files_in(tmp_path)
    for name in ("train-v1.1.json", "dev-v1.1.json.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in squad.files_in(tmp_path)] == ["train-v1.1.json", "dev-v1.1.json.gz"]
    (tmp_path / "dev-v1.1.json").touch()
    with pytest.raises(ValueError, match=r"dev.*, found dev-v1\.1\.json, dev-v1\.1\.json\.gz$"):
        squad.files_in(tmp_path)


def test_rows_depend_on_seed_and_ids_alone() -> None:
    whole = squad_generated.generated(200, 0, "train", 1)
    backwards = squad.Questions(whole.name, whole.origin, whole.sha256, whole.rows[::-1])
    dev = squad_generated.generated(50, 0, "dev", 3)
    drawn = squad.draw(whole, dev, 40, 10, seed=42)
    assert squad.draw(backwards, dev, 40, 10, seed=42).training == drawn.training
    assert squad.draw(whole, dev, 60, 10, seed=42).training[:40] == drawn.training
    other = squad.draw(whole, dev, 40, 10, seed=43)
    assert set(other.training) != set(drawn.training) and other.evaluation != drawn.evaluation
    by_hand = sorted(whole.rows, key=lambda row: hashlib.sha256(b"42\0" + row.id.encode()).hexdigest())
    assert drawn.training == tuple(by_hand[:40])


def test_one_file_for_both_parts_shares_no_context(tmp_path: Path) -> None:
    document = squad_generated.document(100, 0, "train", 1)
    drawn = squad.obtain(written(tmp_path / "one.json", document), 20, 20, 1)
    assert len(drawn.evaluation) == 20
    assert not {row.context for row in drawn.training} & {row.context for row in drawn.evaluation}
    with pytest.raises(ValueError, match=r"^eval_size: 90: expected 0 to \d+, which one\.json has to give$"):
        squad.obtain(tmp_path / "one.json", 20, 90, 1)


def test_too_few_rows_are_named() -> None:
    whole = squad_generated.generated(5, 0, "train", 1)
    with pytest.raises(ValueError, match=r"^train_size: 6: expected 0 to 5, which generated \(train, "):
        squad.draw(whole, whole, 6, 0, 0)


def test_generated_rows_are_the_same_everywhere() -> None:
    content = json.dumps(squad_generated.document(60, 42, "dev", 3), ensure_ascii=False, sort_keys=True)
    assert hashlib.sha256(content.encode()).hexdigest() == (
        "761d160081c8ff935de3fde94d6cdef820b1e939f66eec80cb1111976f2aaf4e"
    )


def test_a_generated_set_has_the_shape_of_squad(tmp_path: Path) -> None:
    drawn = squad.obtain(None, 500, 100, 42)
    assert drawn.origin == "generated" and all(source.origin == "generated" for source in drawn.sources)
    assert (len(drawn.training), len(drawn.evaluation)) == (500, 100)
    assert all(len(row.answers) == 1 for row in drawn.training)
    assert all(len(row.answers) == 3 for row in drawn.evaluation)
    assert any(len(set(row.answers)) > 1 for row in drawn.evaluation)
    assert [source.misplaced for source in drawn.sources] == [0, 0]  # every answer is a span of its context
    assert not {row.context for row in drawn.training} & {row.context for row in drawn.evaluation}
    assert squad.obtain(None, 500, 100, 42) == drawn != squad.obtain(None, 500, 100, 43)
    assert any(not row.context.isascii() for row in drawn.training)
    words = [len(row.context.split()) for row in squad_generated.generated(4000, 1, "train", 1).rows]
    assert min(words) >= 25 and max(words) <= 499
    np.testing.assert_allclose(np.quantile(words, [0.25, 0.5, 0.75]), [75, 104, 148], rtol=0.08)


def test_a_generated_set_survives_a_file(tmp_path: Path) -> None:
    document = squad_generated.document(30, 5, "dev", 3)
    read = squad.read(written(tmp_path / "dev.json", document))
    assert read.rows == squad_generated.generated(30, 5, "dev", 3).rows and read.origin == "file"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data is not beside this checkout")
def test_the_real_files() -> None:
    drawn = squad.obtain(REAL, 500, 100, 42)
    training, evaluation = drawn.sources
    assert drawn.origin == "file"
    assert (len(training.rows), len(evaluation.rows)) == (4370, 10570)
    assert (training.misplaced, evaluation.misplaced) == (0, 0)
    assert sum(len(row.answers) for row in evaluation.rows) == 34726
    assert len({row.title for row in training.rows}) == 12 and len({row.title for row in evaluation.rows}) == 48
    assert training.sha256.startswith("8ea0f0db511a694f") and evaluation.sha256.startswith("73d2d21e47d63fd1")
    assert all(len(row.answers) == 1 for row in drawn.training)
    assert drawn.training[0].id == "56cd8d2462d2951400fa66d5"
