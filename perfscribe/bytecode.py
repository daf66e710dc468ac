"""Compiled Python files, kept where an environment asks for none beside their sources.

Images of GPU hosts often set PYTHONDONTWRITEBYTECODE, and hold torch without its compiled files: then each process
compiles torch and sympy anew, for seconds. A folder of the checkout's own leaves their folders as they are.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

FOLDER = Path(".perfscribe") / "bytecode"


def keep(env: MutableMapping[str, str], root: Path) -> None:
    """Let processes with this environment keep compiled files below root, unless it names another place for them."""
    if env.pop("PYTHONDONTWRITEBYTECODE", ""):
        env.setdefault("PYTHONPYCACHEPREFIX", str(root / FOLDER))
