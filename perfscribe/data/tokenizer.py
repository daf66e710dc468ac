"""A byte-level BPE trained on given texts alone, for models that bring no tokenizer of their own.

The training, the encoding and the file are those of the package `tokenizers`; transformers reads the same file
(PreTrainedTokenizerFast(tokenizer_file=…)). Every text can be encoded, since all 256 bytes are in the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfscribe.base.atomic import replacing

if TYPE_CHECKING:
    import tokenizers

PAD, END = "<pad>", "</s>"
BYTES = 256
LEAST_VOCABULARY = BYTES + len((PAD, END))
LEAST_FREQUENCY = 2  # a pair that occurs once says nothing about other texts


@dataclass(frozen=True)
class BytePairTokenizer:
    """Encodes texts; vocab_size is the size reached: smaller than the one asked where the texts gave no more pairs."""

    inner: tokenizers.Tokenizer
    vocab_size: int
    pad_id: int
    end_id: int

    def encode(self, text: str) -> list[int]:
        """Ids of a text, each in [0, vocab_size), without special tokens of the tokenizer's own."""
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids without special tokens; bytes that are no whole character become U+FFFD."""
        return str(self.inner.decode([int(number) for number in ids], skip_special_tokens=True))


def _wrapped(inner: tokenizers.Tokenizer) -> BytePairTokenizer:
    pad_id, end_id = inner.token_to_id(PAD), inner.token_to_id(END)
    if pad_id is None or end_id is None:
        raise ValueError(f"no tokenizer of this project: {PAD if pad_id is None else END} is not in its vocabulary")
    return BytePairTokenizer(inner, inner.get_vocab_size(), pad_id, end_id)


def train(texts: Iterable[str], vocab_size: int) -> BytePairTokenizer:
    """Train on texts; the same texts in the same order give the same tokenizer.

    vocab_size: the size asked, special tokens and the 256 bytes included; ValueError where they do not fit in.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < LEAST_VOCABULARY:
        raise ValueError(f"vocab_size: {vocab_size}: expected at least {LEAST_VOCABULARY} (bytes and special tokens)")
    inner = Tokenizer(models.BPE())
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
    # A special token's text within a question is text: without this it would be read as the token itself.
    inner.encode_special_tokens = True
    return _wrapped(inner)


def save(tokenizer: BytePairTokenizer, path: Path) -> None:
    """Write the tokenizer as JSON, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(tokenizer.inner.to_str(pretty=True) + "\n", encoding="utf-8")


def load(path: Path) -> BytePairTokenizer:
    """Read what save() wrote; ValueError with one line where the file is missing or no byte-level BPE of this kind."""
    from tokenizers import Tokenizer

    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        kinds = [content[part]["type"] for part in ("model", "pre_tokenizer", "decoder")]
    except OSError as error:
        raise ValueError(f"{path.name}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: no JSON: {error}") from None
    except (KeyError, TypeError):
        kinds = []
    if kinds != ["BPE", "ByteLevel", "ByteLevel"]:
        raise ValueError(f"{path.name}: no byte-level BPE tokenizer")
    try:
        inner = Tokenizer.from_str(text)
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"{path.name}: no tokenizer: {error}") from None
    try:
        inner.encode_special_tokens = True
        return _wrapped(inner)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
