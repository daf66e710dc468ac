"""The Triton kernels compile for Hopper on a machine without a GPU, fit it, and use what they are written for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
SHARED_LIMIT_BYTES = 227 * 1024
SPILL_LIMIT_BYTES = 256  # one pass at d = 128 needs all 255 registers, and addresses that do not change go to memory
KERNELS = {"forward_kernel", "dkdv_kernel", "dq_kernel"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here"),
]


def compiled(cases, tmp_path, capability=90):
    """Each case with the attention kernels that bench/flash_compile.py made for it, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(BENCH / "flash_compile.py"), str(capability), json.dumps(cases)],
        env=environment | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [row for row in rows if "failed" in row] and {row["case"] for row in rows} == set(range(len(cases)))
    return [(cases[row["case"]], row) for row in rows if row["kernel"] in KERNELS]


def backward(variant, d, n):
    return {"pass": "backward", "backward": variant, "d": d, "n": [n, n]}


def test_the_default_tiles_of_bf16(tmp_path):
    from perfscribe.attention.triton_configs import HALF

    cases = [{"pass": "forward", "d": 64}, backward("one_pass", 64, 4096), backward("two_pass", 128, 16384)]
    cases.append(backward("one_pass", 128, 16384))
    for case, kernel in compiled(cases, tmp_path):
        assert kernel["shared_bytes"] <= SHARED_LIMIT_BYTES and kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel
        one_pass = case.get("backward") == "one_pass"
        name = "one_pass" if one_pass else kernel["kernel"].removesuffix("_kernel")
        length = "long" if 16384 in case.get("n", ()) else "short"
        tma = HALF["narrow" if case["d"] == 64 else "wide", length][name].tma
        assert kernel["wgmma"] and bool(kernel["tma_loads"]) == tma, kernel
        assert bool(kernel["tma_sums"]) == (one_pass and tma), kernel


def test_scores_made_ahead_fit_the_registers(tmp_path):
    tile = {"own": 128, "streamed": 128, "warps": 8, "stages": 2, "ahead": True}
    cases = [{"pass": "forward", "d": 128, "tiles": {"forward": tile}, "splits": splits} for splits in (1, 2)]
    for _, kernel in compiled(cases, tmp_path):
        assert kernel["shared_bytes"] <= SHARED_LIMIT_BYTES and kernel["spilled_bytes"] <= 32, kernel
        assert kernel["wgmma"], kernel


def test_odd_sizes_and_head_dimensions(tmp_path):
    """One row, where Triton makes a constant of the length; tails; columns to be masked; no causal mask."""
    cases = [{"pass": side, "d": 80, "n": [1, 1], "causal": True} for side in ("forward", "backward")]
    cases += [{"pass": side, "d": 24, "n": [1000, 777], "causal": False} for side in ("forward", "backward")]
    assert all(kernel["shared_bytes"] <= SHARED_LIMIT_BYTES for _, kernel in compiled(cases, tmp_path))


def test_fp32(tmp_path):
    cases = [{"pass": "forward", "dtype": "fp32", "products": products} for products in ("tf32", "ieee")]
    cases.append({"pass": "backward", "dtype": "fp32", "products": "tf32x3"})
    for case, kernel in compiled(cases, tmp_path):
        assert kernel["shared_bytes"] <= SHARED_LIMIT_BYTES and kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel
        # tiles of 32 rows have too few for a warp group's instruction, but not for a warp's
        assert bool(kernel["wgmma"] or kernel["mma"]) == (case["products"] != "ieee"), kernel


def test_older_gpus_get_tiles_that_fit_them(tmp_path):
    for _, kernel in compiled([{"pass": side, "d": 128} for side in ("forward", "backward")], tmp_path, capability=86):
        assert kernel["shared_bytes"] <= 99 * 1024 and not kernel["tma_loads"], kernel
