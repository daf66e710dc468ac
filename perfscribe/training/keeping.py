"""The last whole checkpoint that Trainer wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

STATE = "trainer_state.json"
NAME = re.compile(r"checkpoint-(\d+)")


def last_whole(folder: Path) -> tuple[int, Path] | None:
    """Trainer's last whole checkpoint and its optimizer steps; None where there is none.

    Trainer writes its state last: a checkpoint without it, or with half of it, was being written when training died.
    """
    found = ((NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    whole = [(int(match[1]), path) for match, path in found if match and _is_whole(path)]
    return max(whole, default=None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        return isinstance(json.loads((checkpoint / STATE).read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False
