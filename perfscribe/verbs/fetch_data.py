"""Downloads SQuAD v1.1: the two original files, validated before they are kept."""

import http.client
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscribe.base.atomic import replacing
from perfscribe.data.squad import Questions, parse

BASE = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
NAMES = ("train-v1.1.json", "dev-v1.1.json")
LICENCE = "CC BY-SA 4.0"
TIMEOUT_S = 30
FETCHED = "downloads/squad"  # relative to the checkout


def main(root: Path, arguments: Sequence[str], _: Any) -> int:
    """Download SQuAD; ValueError (one line) on failure."""
    if list(arguments) != ["squad"]:
        raise ValueError(f"fetch-data: got {' '.join(arguments) or 'nothing'!r}, expected squad")
    try:
        sets = squad(root / FETCHED)
    except ValueError as error:
        does_too = f"a folder with {' and '.join(NAMES)} does as well: workshop.squad"
        raise ValueError(f"fetch-data: {error}; {does_too}") from None
    for name, questions in sets.items():
        print(f"{FETCHED}/{name}: {len(questions.rows)} questions, SHA-256 {questions.sha256}, {LICENCE}")
    print(f"to use it, set in config.yaml: workshop: {{squad: {FETCHED}}}")
    return 0


def _download(url: str) -> bytes:
    """Download a URL; ValueError (one line) on failure."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # url is a constant of this module
            content: bytes = answer.read()
            return content
    except (http.client.HTTPException, OSError) as error:
        raise ValueError(f"{url}: cannot be fetched ({getattr(error, 'reason', error)})") from None


def squad(folder: Path) -> dict[str, Questions]:
    """Write both files into the folder, or neither; return their questions by file name.

    ValueError (one line) if one cannot be downloaded or is not SQuAD v1.1.
    """
    contents = {name: _download(BASE + name) for name in NAMES}
    questions = {name: parse(content, name, "file") for name, content in contents.items()}
    with replacing(folder) as temporary:
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / name).write_bytes(content)
    return questions
