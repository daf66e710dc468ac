"""The Triton kernels compile for Hopper on a machine without a GPU, fit it, and use what they are written for."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "flash_compile.py"
SHARED_LIMIT_BYTES = 227 * 1024
SPILL_LIMIT_BYTES = 256  # one pass at d = 128 needs all 255 registers, and addresses that do not change go to memory
KERNELS = {"forward_kernel", "dkdv_kernel", "dq_kernel"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here"),
]


def compiled(cases, tmp_path, capability=90):
    """Each case with the attention kernels that flash_compile.py made for it, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(capability), json.dumps(cases)],
        env=environment | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["case"] for row in rows} == set(range(len(cases)))
    return [(cases[row["case"]], row) for row in rows if row["kernel"] in KERNELS]


DEFAULT = [
    {"pass": "forward", "d": 64},
    {"pass": "backward", "backward": "two_pass", "d": 128, "n": [16384, 16384]},
    {"pass": "backward", "backward": "one_pass", "d": 128, "n": [16384, 16384]},
]
AHEAD = [{"pass": "forward", "d": 128, "n": [131072, 131072]}]  # its tile makes scores ahead
# One row, where Triton makes a constant of the length; tails and columns to be masked without a causal mask.
ODD = [
    {"pass": "backward", "d": 80, "n": [1, 1], "causal": True},
    {"pass": "forward", "d": 24, "n": [1000, 777], "causal": False},
]
FP32 = [
    {"pass": "forward", "dtype": "fp32", "products": "ieee"},
    {"pass": "backward", "dtype": "fp32", "products": "tf32x3"},
]


def test_tiles_fit_hopper_and_use_what_they_are_written_for(tmp_path):
    from perfscribe.attention.triton_configs import HALF

    for case, kernel in compiled([*DEFAULT, *AHEAD, *ODD, *FP32], tmp_path):
        assert kernel["shared_bytes"] <= SHARED_LIMIT_BYTES, kernel
        if case in DEFAULT:
            assert kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel
            one_pass = case.get("backward") == "one_pass"
            name = "one_pass" if one_pass else kernel["kernel"].removesuffix("_kernel")
            tma = HALF["narrow" if case["d"] == 64 else "wide", "long" if "n" in case else "short"][name].tma
            assert kernel["wgmma"] and bool(kernel["tma_loads"]) == tma, kernel
            assert bool(kernel["tma_sums"]) == (one_pass and tma), kernel
        if case in AHEAD:
            assert kernel["spilled_bytes"] <= 32 and kernel["wgmma"], kernel
        if case in FP32:
            assert kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel
            # tiles of 32 rows have too few for a warp group's instruction, but not for a warp's
            assert bool(kernel["wgmma"] or kernel["mma"]) == (case["products"] != "ieee"), kernel


def test_older_gpus_get_tiles_that_fit_them(tmp_path):
    for _, kernel in compiled([{"pass": "forward", "d": 128}], tmp_path, capability=86):
        assert kernel["shared_bytes"] <= 99 * 1024 and not kernel["tma_loads"], kernel
