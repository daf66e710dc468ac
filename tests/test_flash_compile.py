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


# bench/flash_compile.py in a process for each order, forked from one that has imported torch and Triton, and has read
# Triton's own files for the keys of its cache: that takes as long as compiling.
SERVER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import flash_compile
from triton.runtime.cache import triton_key

triton_key()
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
for number, name in ((1, "said"), (2, "error")):
    os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT), number)
os.environ["TRITON_CACHE_DIR"] = order["cache"]
sys.argv[1:] = order["arguments"]
flash_compile.main()
"""


@pytest.fixture(scope="module")
def compiler():
    """The server that orders go to; TRITON_INTERPRET must not be set there."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(HERE.parent / "bench")],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield server
        server.stdin.close()


@pytest.fixture
def compiled(compiler, tmp_path):
    """Compiles cases: kernels that bench/flash_compile.py made, a list for each case."""

    def compile_cases(cases, capability=90):
        said, error = tmp_path / "said", tmp_path / "error"
        order = {"said": str(said), "error": str(error), "cache": str(tmp_path / "cache")}
        order["arguments"] = [str(capability), json.dumps(cases)]
        compiler.stdin.write(json.dumps(order) + "\n")
        compiler.stdin.flush()
        assert compiler.stdout.readline() == "0\n", error.read_text()[-3000:]
        rows = [json.loads(line) for line in said.read_text().splitlines()]
        assert not [row for row in rows if "failed" in row]
        return [[row for row in rows if row["case"] == index] for index in range(len(cases))]

    return compile_cases


def attention_kernels(kernels):
    return [kernel for kernel in kernels if kernel["kernel"] in NAMES.values()]


def check_fits(kernel):
    assert kernel["shared_bytes"] <= SHARED_LIMIT_BYTES, kernel
    assert kernel["spilled_bytes"] <= SPILL_LIMIT_BYTES, kernel


@pytest.mark.parametrize("d", [64, 128])
def test_the_default_tiles_of_bf16(compiled, d):
    cases = [{"pass": "forward", "d": d, "n": [n, n]} for n in (4096, 16384)]
    cases += [
        {"pass": "backward", "backward": variant, "d": d, "n": [n, n]}
        for variant in ("one_pass", "two_pass")
        for n in (4096, 16384)
    ]
    for case, kernels in zip(cases, compiled(cases), strict=True):
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
def test_scores_made_ahead_fit_the_registers(compiled, splits):
    tiles = ({"own": 128, "streamed": 128, "warps": 8}, {"own": 64, "streamed": 64, "warps": 4})
    cases = [
        {"pass": "forward", "d": d, "tiles": {"forward": tile | {"stages": 2, "ahead": True}}, "splits": splits}
        for tile in tiles
        for d in (64, 128)
    ]
    for kernels in compiled(cases):
        for kernel in attention_kernels(kernels):
            check_fits(kernel)
            assert kernel["spilled_bytes"] <= 32 and kernel["wgmma"], kernel


def test_odd_sizes_and_head_dimensions(compiled):
    """One row, where Triton makes a constant of the length; tails; columns to be masked; no causal mask."""
    cases = [
        {"pass": side, "d": d, "n": n, "causal": causal}
        for side in ("forward", "backward")
        for d, n, causal in ((80, [1, 1], True), (24, [1000, 777], False), (16, [1, 300], True))
    ]
    for kernels in compiled(cases):
        assert kernels and all(kernel["shared_bytes"] <= SHARED_LIMIT_BYTES for kernel in kernels)


@pytest.mark.parametrize("products", ["tf32", "tf32x3", "ieee"])
def test_fp32(compiled, products):
    cases = [{"pass": side, "dtype": "fp32", "d": 64, "products": products} for side in ("forward", "backward")]
    for kernels in compiled(cases):
        for kernel in attention_kernels(kernels):
            check_fits(kernel)
            # tiles of 32 rows have too few for a warp group's instruction, but not for a warp's
            assert bool(kernel["wgmma"] or kernel["mma"]) == (products != "ieee"), kernel


def test_older_gpus_get_tiles_that_fit_them(compiled):
    cases = [{"pass": side, "d": d} for side in ("forward", "backward") for d in (64, 128)]
    for kernels in compiled(cases, capability=86):
        for kernel in attention_kernels(kernels):
            assert kernel["shared_bytes"] <= 99 * 1024 and not kernel["tma_loads"], kernel
