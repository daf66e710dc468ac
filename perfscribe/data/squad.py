"""Questions of SQuAD v1.1 in its original JSON layout, read from files, and the rule that draws rows from them.

Layout: data > title, paragraphs > context, qas > id, question, answers > text, answer_start (in characters).
Source: Rajpurkar et al., EMNLP 2016.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

GZIP_MAGIC = b"\x1f\x8b"
RULE = (
    "questions in the order of SHA-256(seed, NUL, id), the first ones; training first, then evaluation, which takes no "
    "question whose context is among the training rows"
)


@dataclass(frozen=True)
class Question:
    """One question; `answers` are all its reference answers in the file's order, at least one, repeats kept."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Questions:
    """The questions of one file or of one generated set.

    name: the file's name, or "generated (…)". sha256: of the JSON text (a .gz file's content, not the file itself).
    misplaced: answers whose answer_start is not where their text stands; texts are used, places are not.
    """

    name: str
    origin: Literal["file", "generated"]
    sha256: str
    rows: tuple[Question, ...]
    misplaced: int = 0


@dataclass(frozen=True)
class Drawn:
    """Rows for training and evaluation, and what they were drawn from; `rule` says how."""

    training: tuple[Question, ...]
    evaluation: tuple[Question, ...]
    origin: Literal["file", "generated"]
    sources: tuple[Questions, Questions]
    seed: int
    rule: str = RULE


class _Bad(Exception):
    """What is wrong at a place of the document, without the file's name."""


def _get(value: Any, key: str, kind: type, place: str) -> Any:
    """value[key] where that is of the kind; _Bad naming the place otherwise."""
    where = f"{place}.{key}".lstrip(".")
    if not isinstance(value, dict):
        raise _Bad(f"{place or 'top level'}: expected an object, found {type(value).__name__}")
    if key not in value:
        raise _Bad(f"{where}: missing")
    if not isinstance(value[key], kind) or isinstance(value[key], bool):
        raise _Bad(f"{where}: expected {kind.__name__}, found {type(value[key]).__name__}")
    return value[key]


def _text(value: Any, key: str, place: str) -> str:
    """A text that is not blank and can be encoded (JSON may hold half of a surrogate pair)."""
    text: str = _get(value, key, str, place)
    if not text.strip():
        raise _Bad(f"{place}.{key}: empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Bad(f"{place}.{key}: half of a surrogate pair, which is no character") from None
    return text


def _answers(qa: Any, context: str, place: str) -> tuple[tuple[str, ...], int]:
    """Texts of a question's answers, and how many of them are not where answer_start says."""
    texts, misplaced = [], 0
    answers = _get(qa, "answers", list, place)
    if not answers:
        raise _Bad(f"{place}.answers: empty; in SQuAD v1.1 every question has an answer (v2.0 is not read)")
    for number, answer in enumerate(answers):
        text = _text(answer, "text", f"{place}.answers[{number}]")
        start = _get(answer, "answer_start", int, f"{place}.answers[{number}]")
        misplaced += start < 0 or not context.startswith(text, start)
        texts.append(text)
    return tuple(texts), misplaced


def _questions(document: Any) -> Iterator[tuple[Question, int, str]]:
    """Every question with its count of misplaced answers and its place in the document; _Bad at the first fault."""
    for a, article in enumerate(_get(document, "data", list, "")):
        title = _text(article, "title", f"data[{a}]")
        for p, paragraph in enumerate(_get(article, "paragraphs", list, f"data[{a}]")):
            at = f"data[{a}].paragraphs[{p}]"
            context = _text(paragraph, "context", at)
            for q, qa in enumerate(_get(paragraph, "qas", list, at)):
                place = f"{at}.qas[{q}]"
                identity, question = _text(qa, "id", place), _text(qa, "question", place)
                answers, misplaced = _answers(qa, context, place)
                yield Question(identity, title, context, question, answers), misplaced, place


def parse(text: bytes, name: str, origin: Literal["file", "generated"]) -> Questions:
    """Check a whole document and give its questions; ValueError with one line that names `name` and the place."""
    rows: list[Question] = []
    seen: dict[str, str] = {}
    misplaced = 0
    try:
        for row, wrong, place in _questions(json.loads(text.decode("utf-8-sig"))):
            if row.id in seen:
                raise _Bad(f"{place}.id: {row.id!r} is also that of {seen[row.id]}")
            seen[row.id] = place
            misplaced += wrong
            rows.append(row)
        if not rows:
            raise _Bad("data: no question in it")
    except _Bad as error:
        raise ValueError(f"{name}: no SQuAD v1.1: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: no UTF-8: byte {error.start}") from None
    except RecursionError:
        raise ValueError(f"{name}: no SQuAD v1.1: nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"{name}: no JSON: {error}") from None
    return Questions(name, origin, hashlib.sha256(text).hexdigest(), tuple(rows), misplaced)


def read(path: Path) -> Questions:
    """The questions of a JSON file, gzipped or not (its first bytes tell); ValueError with one line where it is bad."""
    try:
        text = path.read_bytes()
        if text.startswith(GZIP_MAGIC):
            text = gzip.decompress(text)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path.name}: damaged gzip: {error}") from None
    except OSError as error:
        raise ValueError(f"{path.name}: cannot be read: {error.strerror}") from None
    return parse(text, path.name, "file")


def files_in(folder: Path) -> tuple[Path, Path]:
    """The one train*.json[.gz] and the one dev*.json[.gz] of a folder; ValueError naming what is there otherwise."""
    found = []
    for start in ("train", "dev"):
        paths = sorted(path for ending in ("json", "json.gz") for path in folder.glob(f"{start}*.{ending}"))
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths) or "none"
            raise ValueError(f"{folder.name}: expected one file {start}*.json or {start}*.json.gz, found {names}")
        found.append(paths[0])
    return found[0], found[1]


def _in_drawing_order(rows: Iterable[Question], seed: int) -> list[Question]:
    return sorted(rows, key=lambda row: (hashlib.sha256(f"{seed}\0{row.id}".encode()).digest(), row.id))


def _first(rows: Sequence[Question], count: int, key: str, source: Questions) -> tuple[Question, ...]:
    if count < 0 or len(rows) < count:
        raise ValueError(f"{key}: {count}: expected 0 to {len(rows)}, which {source.name} has to give")
    return tuple(rows[:count])


def draw(training: Questions, evaluation: Questions, train_size: int, eval_size: int, seed: int) -> Drawn:
    """Rows by RULE; ValueError where a set has too few.

    The order of a file does not matter, more rows always contain the fewer, and the two may be one file: no
    evaluation question then has a context that was trained on.
    """
    trained = _first(_in_drawing_order(training.rows, seed), train_size, "train_size", training)
    contexts = {row.context for row in trained}
    free = [row for row in _in_drawing_order(evaluation.rows, seed) if row.context not in contexts]
    evaluated = _first(free, eval_size, "eval_size", evaluation)
    both_read = training.origin == evaluation.origin == "file"
    return Drawn(trained, evaluated, "file" if both_read else "generated", (training, evaluation), seed)


def texts(rows: Iterable[Question]) -> Iterator[str]:
    """What a tokenizer is trained on: each context once, then every question and answer, in the rows' order."""
    held = list(rows)
    yield from dict.fromkeys(row.context for row in held)
    for row in held:
        yield row.question
        yield from row.answers


def obtain(path: Path | None, train_size: int, eval_size: int, seed: int) -> Drawn:
    """Rows drawn from the files of a folder (or from one file), or from a generated set where path is None.

    `origin` of what is returned says which of the two it was. ValueError with one line for bad files or too few rows.
    """
    if path is None:
        from perfscribe.data import squad_generated

        sources = squad_generated.pair(train_size, eval_size, seed)
    elif path.is_dir():
        first, second = files_in(path)
        sources = read(first), read(second)
    else:
        whole = read(path)
        sources = whole, whole
    return draw(*sources, train_size, eval_size, seed)
