"""Notes below tables: one that stands below an earlier table of the chapter is named with its place, not said again."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Letters up to which a note is said again: its name and its place would hardly be shorter.
SHORT = 150
LONGEST_NAME, FIRST_WORDS = 60, 5


class Notes:
    """The notes that a chapter's tables have said so far, and below which table."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def below(self, table_id: str, title: str, notes: Sequence[str]) -> list[str]:
        """A table's notes: those that are new, then where the others stand."""
        here = f"*{title}* (`{table_id}`)"
        new: list[str] = []
        again: dict[str, list[str]] = {}
        for note in notes:
            there = self._said.setdefault(note, here)
            if there == here or len(note) <= SHORT:
                new.append(note)
            else:
                again.setdefault(there, []).append(name_of(note))
        return [*new, *(f"Notes as under {there}: {'; '.join(names)}." for there, names in again.items())]


def name_of(note: str) -> str:
    """How a note begins, in quotes: the words before its first colon, else its first clause or words."""
    head, colon, _ = note.partition(":")
    if colon and len(head) <= LONGEST_NAME:
        return f"“{head}”"
    clause = re.split(r"[,;.] ", note, maxsplit=1)[0]
    return f"“{clause if len(clause) <= LONGEST_NAME else ' '.join(note.split()[:FIRST_WORDS])} …”"
