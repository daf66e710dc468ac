"""What a comment above a table asks for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfscribe.filling.document import Comment
from perfscribe.filling.site_tables import TABLE

FORM = '<!-- perfscribe: TABLE [site=NAME] [FACTOR=LEVEL ...] ["HEADING"=COLUMN ...] -->'
LEAVE = "none"


@dataclass(frozen=True)
class Asked:
    """table, site: empty where the comment does not say; leave: the table is to stay; words: all else by name."""

    table: str = ""
    site: str = ""
    leave: bool = False
    words: Mapping[str, str] = field(default_factory=dict)


def read(comment: Comment | None) -> Asked:
    """What is asked; ValueError with one line where that cannot be told."""
    if comment is None:
        return Asked()
    try:
        parts = shlex.split(comment.text or "")
    except ValueError as error:
        raise ValueError(f"the comment above it has no {str(error).removeprefix('No ')}: expected {FORM}") from None
    first = parts.pop(0) if parts and "=" not in parts[0] else ""
    if first == LEAVE and not parts:
        return Asked(leave=True)
    words = dict(part.partition("=")[::2] for part in parts if "=" in part)
    wrong = [part for part in parts if not all(part.partition("="))]
    if wrong or (first and not TABLE.fullmatch(first)) or not (first or words):
        raise ValueError(f"the comment above it says {' '.join(wrong) or comment.text or first!r}: expected {FORM}")
    return Asked(first, words.pop("site", ""), words=words)
