"""How a bad config is told: one line with the dotted key, the value given and what was expected."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST_VALUE = 80  # characters


class ConfigError(Exception):
    """A config that cannot be used. Its text is exactly one line of printable characters."""

    def __init__(self, text: str) -> None:
        super().__init__(_printable(text))


def _printable(text: str) -> str:
    """Line breaks and control characters as escapes, so that no input can break the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> str:
    """The value as a config file would write it (JSON), cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + " …"


def dotted(path: Sequence[str | int]) -> str:
    """("experiments", "attention", "seq_len", 2) as experiments.attention.seq_len[2]."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if len(step) <= LONGEST_VALUE else step[:LONGEST_VALUE] + " …")
    return text or "config"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word that looks most like this one, whatever its case and dashes; None where none is alike."""
    by_plain_form = {known.lower().replace("-", "_"): known for known in words}
    found = difflib.get_close_matches(word[:200].lower().replace("-", "_"), by_plain_form, n=1, cutoff=0.55)
    return by_plain_form[found[0]] if found else None


def hint(word: str, words: Iterable[str]) -> str:
    """The end of a line about a word that is not known: the nearest one, if any."""
    near = nearest(word, words)
    return f"; did you mean {near}?" if near else ""


def fault(key: str, given: Any, expected: str) -> str:
    """The line for a value that is not what was expected."""
    return f"{key}: got {shown(given)}, expected {expected}"
