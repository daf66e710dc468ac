"""The clusters of tests: started where this machine can have them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator

import pytest
from local_slurm import LocalSlurm, NotHere, require


@contextlib.contextmanager
def cluster(accounting: bool = False, **more: object) -> Iterator[LocalSlurm]:
    """A cluster of two nodes, down when left.

    Where this machine cannot have one, the test is skipped; where REQUIRE names slurm, it fails.
    """
    try:
        if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
            raise NotHere("snakemake-executor-plugin-slurm is not installed")
        require(accounting)
    except NotHere as reason:
        if "slurm" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail(f"REQUIRE names slurm, but {reason}")
        pytest.skip(str(reason))
    with LocalSlurm(accounting=accounting, **more) as up:  # type: ignore[arg-type]
        yield up
