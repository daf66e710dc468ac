"""Compile the Triton kernels for a GPU that need not be there, and print what came out, one JSON object a kernel.

flash_compile.py CAPABILITY CASES: CASES is a JSON list of {"pass": "forward" | "backward", "dtype", "d", "n": [queries,
keys], "causal", "backward", "products"}, all but "pass" optional. The launches are those of a real call; only the
driver that says which GPU there is, and the launch itself, are replaced.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfscribe.attention import triton_configs  # noqa: E402
from perfscribe.attention.triton_backward import backward  # noqa: E402
from perfscribe.attention.triton_forward import Problem, forward  # noqa: E402
from perfscribe.attention.triton_launches import layout_of  # noqa: E402

HOPPERS_MULTIPROCESSORS = 132  # of an H100 or H200 SXM
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def compile_only(capability: int, log: list) -> None:
    """From now on launches only compile, for a GPU of the compute capability given (90: Hopper), and are logged."""
    target = GPUTarget("cuda", capability, 32)
    driver = SimpleNamespace(
        get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0
    )
    triton.runtime.driver.set_active(driver)
    triton_configs.has_tma = lambda: capability >= 90
    triton_configs.has_wgmma = lambda device: capability == 90
    triton_configs.multiprocessors = lambda device: HOPPERS_MULTIPROCESSORS
    run = triton.runtime.JITFunction.run

    def compiled(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        log.append((self.__name__, kernel))
        return kernel

    triton.runtime.JITFunction.run = compiled


def launch(case: dict) -> None:
    """Kernels that FlashAttentionTriton would launch for the case, on tensors in CPU memory."""
    d, dtype = case.get("d", 64), DTYPES[case.get("dtype", "bf16")]
    n_queries, n_keys = case.get("n", [4096, 4096])
    products, kind = case.get("products"), case.get("backward")
    settings = triton_configs.Settings(float32_products=products, backward=kind, dq_sum="tma")
    precision = triton_configs.float32_precision(settings.float32_products) if dtype == torch.float32 else "tf32"
    sizes = ((1, 1), n_queries, n_keys, d, case.get("causal", True), dtype, precision)
    problem = Problem(*sizes, torch.device("cpu"), False, settings)
    q, k = (torch.empty(1, 1, n, d, dtype=dtype) for n in (n_queries, n_keys))
    queries, keys = layout_of(q), layout_of(k)
    if case["pass"] == "forward":
        forward(problem, queries, keys, keys)(q, k, k)
    else:
        call = backward(problem, (queries, keys, keys, queries), q.stride())
        call(q, k, k, q, torch.empty(1, 1, n_queries), q)


def spilled_bytes(cubin: bytes) -> int:
    """Bytes of local memory a thread, which are those of spilled registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"STACK:(\d+)", text)
    assert match, text
    return int(match.group(1))


def describe(name: str, kernel) -> dict:
    """Spilled and shared bytes of a compiled kernel, and counts of its tensor core and TMA instructions."""
    ptx = kernel.asm["ptx"]
    return {
        "kernel": name,
        "spilled_bytes": spilled_bytes(kernel.asm["cubin"]),
        "shared_bytes": kernel.metadata.shared,
        "wgmma": ptx.count("wgmma.mma_async"),
        "mma": ptx.count("mma.sync"),
        "tma_loads": ptx.count("cp.async.bulk.tensor"),
        "tma_sums": ptx.count("cp.reduce.async.bulk"),
    }


def main() -> None:
    """Compile the cases and print."""
    log: list = []
    compile_only(int(sys.argv[1]), log)
    for index, case in enumerate(json.loads(sys.argv[2])):
        log.clear()
        launch(case)
        for name, kernel in log:
            print(json.dumps({"case": index, **describe(name, kernel)}))


if __name__ == "__main__":
    main()
