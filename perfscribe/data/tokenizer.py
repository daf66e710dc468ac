"""Tokenizers: byte-level BPE trained only on given texts, or a model's own; and decoding of ids.

Training, encoding and file format are those of the package `tokenizers`; transformers reads the same file
(PreTrainedTokenizerFast(tokenizer_file=…)). From a model's folder only tokenizer.json is read, and the names of two
special tokens from tokenizer_config.json: nothing that could run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

FILE, NAMES_FILE = "tokenizer.json", "tokenizer_config.json"
PAD, END = "<pad>", "</s>"  # the same as BLOOM's
LEAST_VOCABULARY = 256 + len((PAD, END))  # contains all bytes, so that every text can be encoded
LEAST_FREQUENCY = 2  # a pair that occurs once does not generalise


@dataclass(frozen=True)
class Tokenizer:
    """inner: encodes and decodes. pad_id, end_id: for padding and the end of an answer. text: its tokenizer.json."""

    inner: tokenizers.Tokenizer
    pad_id: int
    end_id: int
    text: str

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without the tokenizer's special tokens."""
        return self.inner.encode(text, add_special_tokens=False).ids


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train on texts; the same texts in the same order give the same tokenizer.

    vocab_size: upper bound, including special tokens and the 256 bytes; not reached if the texts have too few pairs.
    Raises ValueError if it is too small for these.
    """
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab_size < LEAST_VOCABULARY:
        raise ValueError(f"vocab_size: {vocab_size}: expected at least {LEAST_VOCABULARY} (bytes and special tokens)")
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_FREQUENCY,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    # Otherwise a special token's text within a question would be encoded as the token itself.
    inner.encode_special_tokens = True
    return Tokenizer(inner, pad_id=0, end_id=1, text=inner.to_str())  # special tokens come first


def sha256_of(folder: Path) -> str:
    """Return the SHA-256 of the folder's tokenizer.json; raises ValueError (one line) if there is none."""
    return hashlib.sha256(_read(folder / FILE).encode()).hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"tokenizer: {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"tokenizer: {path}: no UTF-8 text") from None


def _names(path: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, {} if missing; raises ValueError (one line) if not a JSON object."""
    try:
        held = json.loads(_read(path)) if path.is_file() else {}
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"tokenizer: {path}: no JSON: {error}") from None
    if not isinstance(held, dict):
        raise ValueError(f"tokenizer: {path}: expected an object, found {type(held).__name__}")
    return held


def load(folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder; raises ValueError (one line) if it is missing or has no pad or end token."""
    text = _read(folder / FILE)
    inner = from_text(text, str(folder / FILE))
    ids: list[int] = []
    held = _names(folder / NAMES_FILE)
    for kind, usual in (("pad_token", PAD), ("eos_token", END)):
        named = held.get(kind)  # a text, or an object with the text as `content`
        name = named.get("content") if isinstance(named, dict) else named
        number = inner.token_to_id(str(name or usual))
        if number is None:
            whose = f"its {kind} {name!r}" if name else f"{NAMES_FILE} names no {kind}, and the usual {usual!r}"
            raise ValueError(f"tokenizer: {folder}: {whose} is not in its vocabulary")
        ids.append(number)
    return Tokenizer(inner, ids[0], ids[1], text)


def from_text(text: str, name: str = FILE) -> tokenizers.Tokenizer:
    """Build the tokenizer that a JSON text describes; raises ValueError (one line) if it describes none."""
    from tokenizers import Tokenizer as Inner

    try:
        return Inner.from_str(text)
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"tokenizer: {name}: no tokenizer: {error}") from None


def texts_of(answers: Iterable[Sequence[int]], tokenizer_text: str, end_id: int) -> list[str]:
    """Decode generated ids, each up to its first end token, without special tokens and outer white space."""
    inner = from_text(tokenizer_text)
    kept = [ids[: ids.index(end_id)] if end_id in ids else ids for ids in answers]
    return [inner.decode(ids, skip_special_tokens=True).strip() for ids in kept]
