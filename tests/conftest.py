"""Which files of tests begin first: a worker that is left with a long one at the end keeps the others waiting."""

from __future__ import annotations

import pytest

# Minutes each, longest first. On a real Slurm most of that is waiting, in which other workers have the cores.
LONG = (
    "test_slurm_jobs.py",
    "test_slurm.py",
    "test_workflow.py",
    "test_reruns.py",
    "test_kills.py",
    "test_faults.py",
    "test_publish.py",
    "test_ddp.py",
    "test_leases.py",
    "test_gate.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, all else in its order."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
