"""Compiled Python files, kept where the machine's environment asks for none.

Images of GPU hosts often set PYTHONDONTWRITEBYTECODE, and hold torch without its compiled files: then each process
compiles torch and sympy anew, for seconds. Below the checkout's own environment pip has compiled every package, so the
files stay beside their sources; another Python's folders are left as they are, and a folder of the checkout's own
takes the files.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from perfscribe.run.lifeline import die_with_parent

FOLDER = Path(".perfscribe") / "bytecode"
# What `import torch` comes to last; another process has compiled it by then, while shared libraries load.
LAST_OF_TORCH = ("_decomp", "_refs", "_prims", "_prims_common", "export", "_subclasses", "_higher_order_ops", "fx")


def keep(env: MutableMapping[str, str], root: Path, prefix: str = sys.prefix) -> None:
    """Let processes with this environment keep compiled files, unless it names a place for them.

    root: the checkout. prefix: where the Python that they run with is installed.
    """
    if env.pop("PYTHONDONTWRITEBYTECODE", "") and not Path(prefix).is_relative_to(root.absolute()):
        env.setdefault("PYTHONPYCACHEPREFIX", str(root / FOLDER))


def compile_ahead(root: Path, prefix: str = sys.prefix) -> list[subprocess.Popen[bytes]]:
    """Compile in processes of their own what a job on a GPU imports late; none where that is done or not kept.

    A machine's first job would else compile all of it alone, one module after the other. They end with this process.
    """
    env = dict(os.environ)
    keep(env, root, prefix)
    kept = env.get("PYTHONPYCACHEPREFIX", "")
    origin = _origin("sympy")
    if not kept or origin is None or Path(kept, *origin.parent.parts[1:]).is_dir():
        return []
    # The first backward pass of a process asks torch's symbolic shapes, hence imports sympy.
    programs = (["-c", "import sympy"], ["-m", "compileall", "-qq", *map(str, _folders("torch", LAST_OF_TORCH))])
    begin = functools.partial(die_with_parent, os.getpid())
    return [
        subprocess.Popen([sys.executable, *words], env=env, stderr=subprocess.DEVNULL, preexec_fn=begin)
        for words in programs
    ]


def _origin(package: str) -> Path | None:
    """Where its __init__.py is; None where it is not installed."""
    found = importlib.util.find_spec(package)
    return Path(found.origin) if found and found.origin else None


def _folders(package: str, names: Sequence[str]) -> list[Path]:
    origin = _origin(package)
    return [] if origin is None else [path for name in names if (path := origin.with_name(name)).is_dir()]
