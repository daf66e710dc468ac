"""Which files of tests begin first: a worker that is left with a long one at the end keeps the other waiting."""

from __future__ import annotations

import pytest

# Minutes each, longest first.
LONG = (
    "test_reruns.py",
    "test_workflow.py",
    "test_kills.py",
    "test_faults.py",
    "test_publish.py",
    "test_ddp.py",
    "test_leases.py",
    "test_gate.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, those on a real Slurm last: beside these each test is slow, and they miss their moments."""
    places = {name: place for place, name in enumerate(LONG)}
    last = len(LONG) + 1
    items.sort(key=lambda item: last if "slurm" in item.path.parts else places.get(item.path.name, len(LONG)))
