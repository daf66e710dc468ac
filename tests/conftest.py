"""How tests are collected, and which files begin first: a long one that comes last keeps the other worker waiting."""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from fake_nvml import FakeNvml

from perfscribe.instruments import nvml
from perfscribe.records import libraries

# Copies of the project would compile torch anew, each for itself (session.keep_bytecode).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Threads that wait spin by default, and take the cores from the other workers' tests: three processes of small products
# on two cores take 22 s then, and 6 s where they sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell starts what runs in its background with Ctrl-C ignored, and every process of a test would take that over.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Twenty seconds and more each, longest first; with what is left all workers end at about the same time.
LONG = (
    "test_slurm.py",
    "test_workflow.py",
    "test_slurm_jobs.py",
    "test_publish.py",
    "test_fault_trials.py",
    "test_reruns.py",
    "test_faults.py",
    "test_cli.py",
    "test_subject_cells.py",
)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two H200 of one host; CUDA_VISIBLE_DEVICES unset; torch built for CUDA 13.0."""
    library = FakeNvml(2)
    monkeypatch.setattr(nvml, "load", lambda: library)
    monkeypatch.setattr(libraries, "constants", lambda name: {"__version__": "2.11.0+cu130", "cuda": "13.0"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: modules and tests stay, and going through them took half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first on several workers: those under Slurm mostly wait, and others that wait for nothing run beside.

    Alone the order is that of the command line: planted/plant.py ends with the first test that fails.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = {name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
