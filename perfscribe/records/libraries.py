"""Versions of installed libraries, without importing them."""

import ast
import importlib.metadata
import importlib.util
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any


def installed(module: str) -> bool:
    """Return whether a module or folder of this name is on the import path."""
    return importlib.util.find_spec(module) is not None


@cache
def version(name: str) -> str | None:
    """Version of the library imported as `name`; None if it is not installed.

    torch's local part (2.11.0+cu130) is read from its source, because PyPI wheels omit it from their metadata.
    """
    distributions = _distributions(name) if installed(name) else ()
    packaged = ", ".join(sorted(set(map(importlib.metadata.version, distributions)))) or None
    local = constants(name).get("__version__") if packaged else None
    return local if isinstance(local, str) and local.startswith(f"{packaged}+") else packaged


def _distributions(name: str) -> Collection[str]:
    """Names of the distributions that hold the library: mostly its own; to search all takes 0.2 s."""
    try:
        return (importlib.metadata.distribution(name).name,)
    except importlib.metadata.PackageNotFoundError:
        return importlib.metadata.packages_distributions().get(name, ())


@cache
def constants(name: str) -> Mapping[str, Any]:
    """Constants in <package>/version.py, read as text: torch states its CUDA version there."""
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).with_name("version.py") if spec and spec.origin else Path()
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    assignments = re.findall(r"""^(\w+)(?:: [^=\n]+)? = ('[^'\\\n]*'|"[^"\\\n]*"|None)$""", text, re.MULTILINE)
    return {constant: ast.literal_eval(value) for constant, value in assignments}
