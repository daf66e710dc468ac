"""What was found in texts, kept from run to run: the same text is not searched twice.

Nothing depends on it: a file that is lost, damaged or of another method is as good as none. Its first line is the
digest of the rest, since one wrong bit in it would have cells measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscribe.base import files


class Memory:
    """Findings by the text that they were made of.

    path: the file that holds them. method: how findings are made; those of another method are dropped.
    """

    def __init__(self, path: Path, method: str) -> None:
        self.path, self.method = path, method
        self._before = self._load()
        self._now: dict[str, Any] = {}

    def _load(self) -> dict[str, Any]:
        try:
            digest, _, text = self.path.read_text(encoding="utf-8").partition("\n")
            kept = json.loads(text) if digest == _digest(text) else {}
            return dict(kept["found"]) if kept["method"] == self.method else {}
        except (OSError, ValueError, TypeError, LookupError):
            return {}

    def recall(self, what: str, source: str, find: Callable[[], Any]) -> Any:
        """The finding of these words in this text, a JSON value; find() makes it where it is not known."""
        key = _digest(f"{what}\0{source}")
        if key not in self._now:
            self._now[key] = self._before[key] if key in self._before else find()
        return self._now[key]

    def save(self) -> None:
        """Keep what was asked for since this memory was made, and nothing else; a folder without room is no fault."""
        if self._now.keys() != self._before.keys():
            with contextlib.suppress(OSError):
                text = files.canonical({"method": self.method, "found": self._now})
                files.write_text(self.path, f"{_digest(text)}\n{text}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
