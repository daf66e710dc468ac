"""Provenance of measurements: facts that are in no key."""

import os
import platform
import re
from pathlib import Path
from typing import Any

from perfscribe.instruments import nvml
from perfscribe.records import checkout, machine

# Variables that affect measurements. PYTORCH_ and TORCHINDUCTOR_ settings count like TORCH_ ones.
VARIABLES = re.compile(
    r"(NCCL|CUDA|CUBLAS(LT)?|CUDNN|NVIDIA_TF32|(PY)?TORCH[A-Z]*|TRITON|GLOO|G?OMP|MKL|KMP|ATEN|DNNL|ONEDNN|MALLOC"
    r"|ACCELERATE)_|(LD_PRELOAD|GLIBC_TUNABLES|PYTHON(MALLOC|DEVMODE|TRACEMALLOC))$"
)


def collect(root: Path) -> dict[str, Any]:
    """Provenance of what this process measures; `root` is the checkout.

    Includes the node's name, which `scrub` removes before publishing.
    """
    commit, dirty = checkout.commit(root)
    return {
        "commit": commit,
        "dirty": dirty,
        "node": platform.node(),
        "boot": machine.boot(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "gpu_clocks_mhz": _gpu_clocks_mhz(),
        "variables": {name: _as_text(os.environ[name]) for name in sorted(os.environ) if VARIABLES.match(name)},
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
    }


def _as_text(variable: str) -> str:
    """Replace bytes that are not UTF-8, which our files cannot hold."""
    return variable.encode(errors="replace").decode()


def _gpu_clocks_mhz() -> list[dict[str, int | None]]:
    kinds = {"sm": ("nvmlDeviceGetClockInfo", 1), "memory": ("nvmlDeviceGetClockInfo", 2)}
    kinds["sm_max"] = ("nvmlDeviceGetMaxClockInfo", 1)  # 1 and 2: NVML_CLOCK_SM, NVML_CLOCK_MEM
    return [{name: nvml.ask(call, gpu, kind) for name, (call, kind) in kinds.items()} for gpu in nvml.visible_gpus()]
