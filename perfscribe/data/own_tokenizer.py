"""The tokenizer that belongs to a model, read from its folder, and texts from ids by whichever tokenizer there is.

Only tokenizer.json is read (transformers' own file of the package `tokenizers`), and from tokenizer_config.json the
names of two special tokens: nothing that could run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.data.prompts import TokenIds

if TYPE_CHECKING:
    import tokenizers

FILE, NAMES_FILE = "tokenizer.json", "tokenizer_config.json"
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>"}  # BLOOM's, where the names' file is silent


@dataclass(frozen=True)
class OwnTokenizer:
    """A model's tokenizer; vocab_size counts its special tokens. text: the file's content."""

    ids: TokenIds
    vocab_size: int
    text: str


def sha256_of(folder: Path) -> str:
    """SHA-256 of the folder's tokenizer.json; ValueError with one line where there is none."""
    return hashlib.sha256(_read(folder / FILE).encode()).hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise ValueError(f"tokenizer: {path.parent.name}/{path.name}: cannot be read: {reason}") from None


def from_text(text: str) -> tokenizers.Tokenizer:
    """The tokenizer that a JSON text describes; ValueError with one line where it describes none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"tokenizer: {FILE}: no tokenizer: {error}") from None


def load(folder: Path) -> OwnTokenizer:
    """The tokenizer of a folder; ValueError with one line where it is missing or lacks an id to pad or to end with."""
    text = _read(folder / FILE)
    inner = from_text(text)
    ids = {}
    for kind, name in (SPECIAL | _named(folder / NAMES_FILE)).items():
        number = inner.token_to_id(name)
        if number is None:
            raise ValueError(f"tokenizer: {folder.name}: its {kind} {name!r} is not in its vocabulary")
        ids[kind] = int(number)
    return OwnTokenizer(TokenIds(inner, ids["pad_token"], ids["eos_token"]), inner.get_vocab_size(), text)


def _named(path: Path) -> dict[str, str]:
    """Special tokens by kind as the names' file gives them: texts, or objects with the text as `content`."""
    if not path.is_file():
        return {}
    try:
        held: Any = json.loads(_read(path))
    except ValueError as error:
        raise ValueError(f"tokenizer: {path.name}: no JSON: {error}") from None
    found = {kind: held.get(kind) for kind in SPECIAL} if isinstance(held, dict) else {}
    texts = {kind: value.get("content") if isinstance(value, dict) else value for kind, value in found.items()}
    return {kind: value for kind, value in texts.items() if isinstance(value, str)}


def texts_of(answers: Sequence[Sequence[int]], tokenizer_text: str, end_id: int) -> list[str]:
    """The texts of generated ids, each up to its first end, without special tokens and outer white space."""
    inner = from_text(tokenizer_text)
    texts = []
    for answer in answers:
        ids = [int(number) for number in answer]
        kept = ids[: ids.index(end_id)] if end_id in ids else ids
        texts.append(str(inner.decode(kept, skip_special_tokens=True)).strip())
    return texts
