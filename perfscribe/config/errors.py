"""Messages about a bad config: one line with the dotted key, the value given and the values expected."""

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
    """Escape line breaks and control characters, so that no input can break the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> str:
    """Return the value as JSON, truncated to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + " …"


def dotted(path: Sequence[str | int]) -> str:
    """Format ("experiments", "attention", "seq_len", 2) as experiments.attention.seq_len[2]."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if len(step) <= LONGEST_VALUE else step[:LONGEST_VALUE] + " …")
    return text or "config"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the known word closest to this one, ignoring case and dashes; None if none is similar."""
    by_plain_form = {known.lower().replace("-", "_"): known for known in words}
    matches = difflib.get_close_matches(word[:200].lower().replace("-", "_"), by_plain_form, n=1, cutoff=0.55)
    return by_plain_form[matches[0]] if matches else None


def hint(word: str, words: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known one, if any."""
    near = nearest(word, words)
    return f"; did you mean {near}?" if near else ""


def fault(key: str, given: Any, expected: str) -> str:
    """Return the message for a value that is not as expected."""
    return f"{key}: got {shown(given)}, expected {expected}"
