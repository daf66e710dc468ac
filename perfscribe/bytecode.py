"""Compiled Python files, kept where the machine's environment asks for none.

Images of GPU hosts often set PYTHONDONTWRITEBYTECODE, and hold torch without its compiled files: then each process
compiles torch and sympy anew, for seconds. Below the checkout's own environment pip has compiled every package, so the
files stay beside their sources; another Python's folders are left as they are, and a folder of the checkout's own
takes the files.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from pathlib import Path

FOLDER = Path(".perfscribe") / "bytecode"


def keep(env: MutableMapping[str, str], root: Path, prefix: str = sys.prefix) -> None:
    """Let processes with this environment keep compiled files, unless it names a place for them.

    root: the checkout. prefix: where the Python that they run with is installed.
    """
    if env.pop("PYTHONDONTWRITEBYTECODE", "") and not Path(prefix).is_relative_to(root.absolute()):
        env.setdefault("PYTHONPYCACHEPREFIX", str(root / FOLDER))
