"""Folders and files in the checkout's root that Python takes for packages: what measures imports from there first.

A folder without __init__.py stands behind an installed package of its name, so that it does no harm; but where none is
installed it is taken for one, and a library that looks for it believes that it is there.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What Trainer is made of, and what it looks for.
OF_TRAINER = ("transformers", "accelerate", "tokenizers", "datasets")


def hidden_by(name: str) -> Path | None:
    """The folder or file in the checkout's root that `import name` finds; None where it finds another."""
    elsewhere = [entry for entry in sys.path if entry and Path(entry).resolve() != ROOT]
    spec = PathFinder.find_spec(name, [str(ROOT), *elsewhere])
    if spec is None:
        return None
    found = [Path(spec.origin)] if spec.origin else [Path(place) for place in spec.submodule_search_locations or ()]
    # An environment may lie in the checkout, too: what is in the way bears the package's name and lies at the top.
    tops = [path.relative_to(ROOT).parts[0] for path in found if path.is_relative_to(ROOT)]
    return next((ROOT / top for top in tops if top.partition(".")[0] == name), None)
