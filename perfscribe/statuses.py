"""What the statuses of cells mean, in a reader's words; docs/architecture.md has the same beside what reruns them."""

from __future__ import annotations

import re

MEANINGS = {
    "ok": "has figures",
    "oom": "ran out of memory, in a fresh child too; what it had measured before is shown",
    "unsupported": "the machine lacks what the cell needs, or `run` said so",
    "timeout": "took longer than `timeout_s`, or raised TimeoutError",
    "failed": "raised an exception, died twice, or was not correct against its reference",
    "skipped": "left out by the preset, shown so that every site has the same table; or the machine has fewer GPUs or "
    "nodes than the cell asks for; or held back by a self-test (`preflight 44`, `preflight 46`)",
    "not_run": "nothing was measured yet: the time budget was spent, or the run was stopped",
}


def in_words(status: str, reason: str) -> str:
    """The reason as a sentence's part: what a machine that is too small has is no reason by itself."""
    too_small = status == "skipped" and re.fullmatch(r"\d+ (GPU|node)s?", reason)
    return f"{reason} here, fewer than asked for" if too_small else reason
