"""A rank that says what its launcher has told it, and leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")


def main() -> None:
    """One file in $REPORTS; agent: the process that has started this one."""
    told = {name: os.environ.get(name) for name in NAMES}
    report = {"kind": "rank", "agent": os.getppid(), **told}
    Path(os.environ["REPORTS"], f"rank-{os.getpid()}.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
