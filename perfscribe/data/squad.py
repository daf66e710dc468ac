"""Reads questions in SQuAD v1.1's original JSON layout, and draws rows from them.

Layout: data > paragraphs > context, qas > id, question, answers > text, answer_start (in characters).
Source: Rajpurkar et al., EMNLP 2016.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LAYOUT = "expected SQuAD v1.1's original layout, as `./run fetch-data squad` gets it"
SHOWN = 5  # most file names listed in a message
GZIP_MAGIC = b"\x1f\x8b"
RULE = (
    "questions in the order of SHA-256(seed, NUL, id), the first ones; training first, then evaluation, which takes no "
    "question whose context is among the training rows"
)


@dataclass(frozen=True)
class Question:
    """A question; `answers`: all reference answers in the file's order, at least one, duplicates kept."""

    id: str
    context: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Questions:
    """The questions of one file or of one generated set.

    name: the file's name, or "generated (…)". sha256: of the JSON text (of a .gz file's content, not the file itself).
    """

    name: str
    origin: Literal["file", "generated"]
    sha256: str
    rows: tuple[Question, ...]


@dataclass(frozen=True)
class Drawn:
    """Rows for training and evaluation, drawn by RULE, and their sources."""

    training: tuple[Question, ...]
    evaluation: tuple[Question, ...]
    sources: tuple[Questions, Questions]

    @property
    def origin(self) -> str:
        """Origin of both sources: file or generated."""
        return self.sources[0].origin


class _Bad(Exception):
    """Fault at a place in the document, without the file's name."""


def _get(value: Any, key: str, kind: type, place: str) -> Any:
    """Return value[key]; raises _Bad (with the place) if its type is wrong, or if it is blank or invalid Unicode."""
    where = f"{place}.{key}".lstrip(".")
    if not isinstance(value, dict):
        raise _Bad(f"{place or 'top level'}: expected an object, found {type(value).__name__}")
    if key not in value:
        raise _Bad(f"{where}: missing")
    child: Any = value[key]
    if not isinstance(child, kind) or isinstance(child, bool):
        raise _Bad(f"{where}: expected {kind.__name__}, found {type(child).__name__}")
    if isinstance(child, str) and not child.strip():
        raise _Bad(f"{where}: empty")
    if isinstance(child, str) and re.search("[\ud800-\udfff]", child):
        raise _Bad(f"{where}: half of a surrogate pair, which is no text")
    return child


def _each(value: Any, key: str, place: str) -> Iterator[tuple[Any, str]]:
    for number, element in enumerate(_get(value, key, list, place)):
        yield element, f"{place}.{key}[{number}]".lstrip(".")


def _questions(document: Any) -> Iterator[tuple[Question, str]]:
    """Yield every question with its place in the document; raises _Bad at the first fault.

    Only the answers' texts are used: their positions may be wrong.
    """
    for article, at in _each(document, "data", ""):
        for paragraph, within in _each(article, "paragraphs", at):
            context = _get(paragraph, "context", str, within)
            for qa, place in _each(paragraph, "qas", within):
                identity, question = _get(qa, "id", str, place), _get(qa, "question", str, place)
                texts = []
                for answer, where in _each(qa, "answers", place):
                    texts.append(_get(answer, "text", str, where))
                    _get(answer, "answer_start", int, where)
                if not texts:
                    raise _Bad(f"{place}.answers: empty; every question of SQuAD v1.1 has one (v2.0 is not read)")
                yield Question(identity, context, question, tuple(texts)), place


def parse(text: bytes, name: str, origin: Literal["file", "generated"]) -> Questions:
    """Check a whole document and return its questions; raises ValueError (one line with `name` and the place)."""
    rows: dict[str, Question] = {}
    try:
        for row, place in _questions(json.loads(text.decode("utf-8-sig"))):
            if row.id in rows:
                raise _Bad(f"{place}.id: {row.id!r} is also that of another question")
            rows[row.id] = row
        if not rows:
            raise _Bad("data: no question in it")
    except _Bad as error:
        raise ValueError(f"{name}: no SQuAD v1.1: {error}") from None
    except (ValueError, RecursionError) as error:
        lines = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        hint = f" (JSON lines?); {LAYOUT}" if lines else ""
        raise ValueError(f"{name}: no JSON: {error}{hint}") from None
    return Questions(name, origin, hashlib.sha256(text).hexdigest(), tuple(rows.values()))


def read(path: Path) -> Questions:
    """Return the questions of a JSON file, gzipped or not (by its first bytes); raises ValueError (one line) if bad."""
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
    """Return the train*.json[.gz] and dev*.json[.gz] of a folder; raises ValueError unless there is one of each."""
    files, there = [], sorted(path.name for path in folder.iterdir())
    for start in ("train", "dev"):
        paths = sorted(path for ending in ("json", "json.gz") for path in folder.glob(f"{start}*.{ending}"))
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths) or f"none among {', '.join(there[:SHOWN]) or 'no files'}"
            what = f"expected one file {start}*.json or {start}*.json.gz, found {names}"
            raise ValueError(f"{folder}: {what}; {LAYOUT}")
        files.append(paths[0])
    return files[0], files[1]


def _in_drawing_order(rows: Iterable[Question], seed: int) -> list[Question]:
    return sorted(rows, key=lambda row: (hashlib.sha256(f"{seed}\0{row.id}".encode()).digest(), row.id))


def _first(rows: Sequence[Question], count: int, key: str, source: Questions) -> tuple[Question, ...]:
    if len(rows) < count:
        raise ValueError(f"{key}: {count}: expected 0 to {len(rows)}, which {source.name} has to give")
    return tuple(rows[:count])


def draw(training: Questions, evaluation: Questions, train_size: int, eval_size: int, seed: int) -> Drawn:
    """Draw rows by RULE; raises ValueError if a set has too few.

    The file's order does not matter, and a larger draw contains the smaller ones. Both sets may be the same file: no
    evaluation question has a context that was trained on.
    """
    trained = _first(_in_drawing_order(training.rows, seed), train_size, "train_size", training)
    contexts = {row.context for row in trained}
    free = [row for row in _in_drawing_order(evaluation.rows, seed) if row.context not in contexts]
    return Drawn(trained, _first(free, eval_size, "eval_size", evaluation), (training, evaluation))


def texts(rows: Sequence[Question]) -> Iterator[str]:
    """Yield texts to train a tokenizer on: each context once, then every question and answer, in the rows' order."""
    yield from dict.fromkeys(row.context for row in rows)
    for row in rows:
        yield row.question
        yield from row.answers


def obtain(path: Path | None, train_size: int, eval_size: int, seed: int) -> Drawn:
    """Draw rows from the files of a folder (or from one file), or from a generated set if path is None.

    The result's `origin` tells which. Raises ValueError (one line) for bad files or too few rows.
    """
    if path is None:
        from perfscribe.data import squad_generated

        sources = squad_generated.pair(train_size, eval_size, seed)
    elif path.is_dir():
        first, second = files_in(path)
        sources = read(first), read(second)
    else:
        sources = (read(path),) * 2
    return draw(*sources, train_size, eval_size, seed)
