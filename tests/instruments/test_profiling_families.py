"""Kernel families: names as profilers print them, with the family that each belongs to.

The names come from published profiles, issues and sources of the libraries; where those cut long argument lists, the
rest is completed from the source.
"""

import csv
from pathlib import Path

import pytest

from perfscribe.instruments.profiling.families import family, require_communication
from perfscribe.instruments.profiling.trace import Kernel, Trace, thread_key

with open(Path(__file__).parents[1] / "fixtures" / "kernel_names.csv", encoding="utf-8", newline="") as stream:
    NAMES = [(row["name"], row["family"]) for row in csv.DictReader(stream)]


def test_names_have_their_families() -> None:
    assert [(name, family(name)) for name, _ in NAMES] == NAMES


def trace(*names: str) -> Trace:
    threads = [thread_key(100 + n, 1) for n in range(len(names))]
    return Trace("nsys 1", [Kernel(name, 0, 1, 0, 1, t) for name, t in zip(names, threads, strict=True)], [])


def test_a_trace_of_several_ranks_holds_communication() -> None:
    require_communication(trace("ampere_sgemm_128x64_tn"), ranks=1)
    require_communication(trace("ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), ranks=2)
    expected = "2 ranks without a communication kernel: 1 kernels of 1 processes by nsys 1"
    with pytest.raises(ValueError, match=expected):
        require_communication(trace("ampere_sgemm_128x64_tn"), ranks=2)
