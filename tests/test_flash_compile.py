"""The Triton kernels compile for Hopper on a machine without a GPU, fit it, and use what they are written for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SHARED_LIMIT_BYTES = 227 * 1024
SPILL_LIMIT_BYTES = 256  # one pass at d = 128 needs all 255 registers, and addresses that do not change go to memory
NAMES = {"forward": "forward_kernel", "one_pass": "dkdv_kernel", "dkdv": "dkdv_kernel", "dq": "dq_kernel"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here"),
]


def compiled(tmp_path, cases, capability=90):
    """Kernels that bench/flash_compile.py made, a list for each case; TRITON_INTERPRET must not be set there."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(HERE.parent / "bench" / "flash_compile.py"), str(capability), json.dumps(cases)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [row for row in rows if "failed" in row]
    return [[row for row in rows if row["case"] == index] for index in range(len(cases))]


def attention_kernels(kernels):
    return [kernel for kernel in kernels if kernel["kernel"] in NAMES.values()]


def check_fits(kernel):
    assert kernel["shared_bytes"] <= SHARED_LIMIT_BYTES, kernel
    assert kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel


@pytest.mark.parametrize("d", [64, 128])
def test_the_default_tiles_of_bf16(tmp_path, d):
    cases = [{"pass": "forward", "d": d, "n": [n, n]} for n in (4096, 16384)]
    cases += [
        {"pass": "backward", "backward": variant, "d": d, "n": [n, n]}
        for variant in ("one_pass", "two_pass")
        for n in (4096, 16384)
    ]
    for case, kernels in zip(cases, compiled(tmp_path, cases), strict=True):
        for kernel in attention_kernels(kernels):
            check_fits(kernel)
            one_pass = case.get("backward") == "one_pass"
            tma = default_tile(kernel["kernel"], one_pass, d, case["n"][0]).tma
            assert kernel["wgmma"] and bool(kernel["tma_loads"]) == tma, kernel
            assert bool(kernel["tma_sums"]) == (one_pass and tma), kernel


def default_tile(name, one_pass, d, n):
    """The tile of HALF that a kernel function is compiled with."""
    from perfscribe.attention.triton_configs import HALF, LONG

    kernel = "one_pass" if one_pass else next(kernel for kernel, known in NAMES.items() if known == name)
    tiles = HALF["narrow" if d <= 64 else "wide", "long" if n >= LONG else "short"]
    return tiles["dkdv" if name == "dkdv_kernel" and not one_pass else kernel]


@pytest.mark.parametrize("splits", [1, 2])
def test_scores_made_ahead_fit_the_registers(tmp_path, splits):
    tiles = ({"own": 128, "streamed": 128, "warps": 8}, {"own": 64, "streamed": 64, "warps": 4})
    cases = [
        {"pass": "forward", "d": d, "tiles": {"forward": tile | {"stages": 2, "ahead": True}}, "splits": splits}
        for tile in tiles
        for d in (64, 128)
    ]
    for kernels in compiled(tmp_path, cases):
        for kernel in attention_kernels(kernels):
            check_fits(kernel)
            assert kernel["spilled_bytes"] <= 32 and kernel["wgmma"], kernel


def test_odd_sizes_and_head_dimensions(tmp_path):
    """One row, where Triton makes a constant of the length; tails; columns to be masked; no causal mask."""
    cases = [
        {"pass": side, "d": d, "n": n, "causal": causal}
        for side in ("forward", "backward")
        for d, n, causal in ((80, [1, 1], True), (24, [1000, 777], False), (16, [1, 300], True))
    ]
    for kernels in compiled(tmp_path, cases):
        assert kernels and all(kernel["shared_bytes"] <= SHARED_LIMIT_BYTES for kernel in kernels)


@pytest.mark.parametrize("products", ["tf32", "tf32x3", "ieee"])
def test_fp32(tmp_path, products):
    cases = [{"pass": side, "dtype": "fp32", "d": 64, "products": products} for side in ("forward", "backward")]
    for kernels in compiled(tmp_path, cases):
        for kernel in attention_kernels(kernels):
            check_fits(kernel)
            # tiles of 32 rows have too few for a warp group's instruction, but not for a warp's
            assert bool(kernel["wgmma"] or kernel["mma"]) == (products != "ieee"), kernel


def test_older_gpus_get_tiles_that_fit_them(tmp_path):
    cases = [{"pass": side, "d": d} for side in ("forward", "backward") for d in (64, 128)]
    for kernels in compiled(tmp_path, cases, capability=86):
        for kernel in attention_kernels(kernels):
            assert kernel["shared_bytes"] <= 99 * 1024 and not kernel["tma_loads"], kernel
