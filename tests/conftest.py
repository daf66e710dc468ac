"""Which files of tests begin first: a worker that is left with a long one at the end keeps the other waiting."""

from __future__ import annotations

import os

import pytest

# Copies of the project would compile torch anew, each for itself (perfscribe/bytecode.py).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Minutes each, longest first.
LONG = (
    "test_slurm.py",
    "test_workflow.py",
    "test_slurm_jobs.py",
    "test_reruns.py",
    "test_kills.py",
    "test_faults.py",
    "test_publish.py",
    "test_ddp.py",
    "test_leases.py",
    "test_gate.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: those under Slurm mostly wait, and others that wait for nothing run beside them."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
