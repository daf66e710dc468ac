"""The clusters of tests: started where they are asked for and this machine can have them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator

import pytest
from local_slurm import LocalSlurm, NotHere, require

ASKED_FOR = "PERFSCRIBE_SLURM_TESTS"
NOT_ASKED_FOR = f"tests on a real Slurm take minutes and install its packages: set {ASKED_FOR}=1 or REQUIRE=slurm"


@contextlib.contextmanager
def cluster(accounting: bool = False, **more: object) -> Iterator[LocalSlurm]:
    """A cluster of two nodes, down when left.

    The test is skipped where PERFSCRIBE_SLURM_TESTS is not set, and where this machine cannot have one. Where REQUIRE
    names slurm, it runs or fails.
    """
    required = "slurm" in os.environ.get("REQUIRE", "").split(",")
    if not required and not os.environ.get(ASKED_FOR):
        pytest.skip(NOT_ASKED_FOR)
    try:
        if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
            raise NotHere("snakemake-executor-plugin-slurm is not installed")
        require(accounting)
    except NotHere as reason:
        if required:
            pytest.fail(f"REQUIRE names slurm, but {reason}")
        pytest.skip(str(reason))
    with LocalSlurm(accounting=accounting, **more) as up:  # type: ignore[arg-type]
        yield up
