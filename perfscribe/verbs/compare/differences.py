"""What differs between two sides: machines, software, commits, variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.show.provenance import commit_name, device_name
from perfscribe.verbs.compare.cells import Side


def machines(side: Side) -> str:
    """Short names of the machines that measured a side."""
    return "; ".join(sorted({device_name(identity) for identity in side.used})) or "nothing was measured"


def commits(side: Side) -> str:
    """The commits that measured a side."""
    return ", ".join(sorted({commit_name(row["provenance"]) for row in _measured(side)})) or "none"


def _measured(side: Side) -> list[Mapping[str, Any]]:
    cells = (cell for of in side.cells.values() for cell in of.values())
    return [row for cell in cells for row in cell.rows if row["provenance"]]


def _variables(side: Side) -> dict[str, set[str]]:
    """Variables that change what is measured, as the records have them; other settings of where things lie left out."""
    found: dict[str, set[str]] = {}
    for row in _measured(side):
        for name, value in (row["provenance"].get("variables") or {}).items():
            if "<path>" not in str(value) and "/" not in str(value):
                found.setdefault(name, set()).add(str(value))
    return found


def between(a: Side, b: Side) -> list[list[str]]:
    """What the machines and their settings do not have in common: name, of A, of B.

    Libraries that only one side's experiments import are no difference.
    """
    left, right = a.together(), b.together()
    both = [name for name in left if name in right and left[name] != right[name]]
    rows = [[name, *(", ".join(sorted(side[name])) for side in (left, right))] for name in both]
    set_a, set_b = _variables(a), _variables(b)
    for name in sorted(set(set_a) | set(set_b)):
        if set_a.get(name) != set_b.get(name):
            rows.append([name, *(", ".join(sorted(side.get(name, {"not set"}))) for side in (set_a, set_b))])
    return rows
