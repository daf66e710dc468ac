"""The clusters of tests: started where this machine can have them."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator

import pytest
from local_slurm import LocalSlurm, NotHere, require


@contextlib.contextmanager
def cluster(**more: object) -> Iterator[LocalSlurm]:
    """A cluster of two nodes, down when left.

    The test is skipped where this machine cannot have one; where REQUIRE names slurm, it runs or fails.
    """
    try:
        if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
            raise NotHere("snakemake-executor-plugin-slurm is not installed")
        require()
    except NotHere as reason:
        if "slurm" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail(f"REQUIRE names slurm, but {reason}")
        pytest.skip(str(reason))
    with LocalSlurm(**more) as up:  # type: ignore[arg-type]
        yield up
