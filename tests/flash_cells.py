"""Made-up cells of flash_benchmarking on a CUDA device: the gpu preset's own plan with times from simple models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import unmeasured

from perfscribe.attention.backends import named
from perfscribe.plan import plan
from perfscribe.records.records import Record

EXPERIMENT = "flash_benchmarking"
# TFLOP/s that each would reach at endless length, forward; backward at 0.8 of it, fp32 at a tenth.
RATES = {
    "eager": 40.0,
    "triton": 500.0,
    "triton_ieee": 150.0,
    "sdpa_flash": 320.0,
    "sdpa_cudnn": 600.0,
    "sdpa_efficient": 200.0,
    "compiled": 80.0,
    "flex": 300.0,
}
PRODUCTS = {"fp32": 50.0, "tf32": 400.0, "bf16": 780.0, "fp16": 770.0}
LAUNCHES_MS = {"eager": 0.09, "triton": 0.04}
SHORTEST_MS = 0.004


def samples(median: float) -> list[list[float]]:
    """One round of ten samples around a median, 2 % apart from first to last."""
    return [[median * (1 + 0.02 * (number / 9 - 0.5)) for number in range(10)]]


def times_ms(factors: Mapping[str, Any]) -> dict[str, float]:
    """Device time of both passes and of them together."""
    name, dtype = factors["implementation"], factors["dtype"]
    slow = {"fp32": 10.0, "tf32": 2.0}.get(dtype, 1.0)
    forward = 2 * factors["heads"] * factors["seq_len"] ** 2 * factors["head_dim"]
    floor = SHORTEST_MS * (6 if name == "eager" else 1)
    found = {}
    for one, work, share in (("forward", forward, 1.0), ("backward", 2.5 * forward, 0.8)):
        found[one] = floor + work / (RATES[name] * share / slow) / 1e9
    return {**found, "both": found["forward"] + found["backward"]}


def attention(factors: Mapping[str, Any]) -> Record:
    """An attention cell: ok, out of memory, or refused, as on a GPU with 80 GB."""
    name = factors["implementation"]
    common = {"experiment": EXPERIMENT, "factors": dict(factors), "origin": "measured"}
    if name in ("sdpa_flash", "sdpa_cudnn") and factors["dtype"] == "fp32":
        return Record(**common, status="unsupported", reason="Expected query, key and value to all be of dtype: {Half}")
    times = times_ms(factors)
    if name == "eager" and factors["dtype"] in ("fp32", "tf32") and factors["seq_len"] == 65536:
        return Record(
            **common,
            status="oom",
            reason="CUDA out of memory.",
            samples={"forward_ms": samples(times["forward"]), "forward_launched_ms": samples(times["forward"])},
            timers={"forward_ms": "CUDA graph replay"},
            error={"requested_bytes": 2**34, "free_bytes": 2**33},
            environments=["0123456789ab"],
        )
    launches = LAUNCHES_MS.get(name, 0.02)
    measured = {f"{one}_ms": samples(ms) for one, ms in times.items()}
    launched = {f"{one}_launched_ms": samples(max(ms, launches)) for one, ms in times.items()}
    return Record(
        **common,
        status="ok",
        reason="",
        samples=measured | launched,
        timers=dict.fromkeys(measured, "CUDA graph replay"),
        values={
            "largest_relative_error": 0.003,
            "kernels": "k",
            "calls_per_sample": "1 1 1",
            **({"sdpa_backend": named(name).sdpa} if named(name).sdpa else {}),
        },
        environments=["0123456789ab"],
        spent={"compile_s": 0.5},
    )


def product(factors: Mapping[str, Any]) -> Record:
    """A product at the rate of its dtype."""
    ms = 2 * factors["matrix_size"] ** 3 / PRODUCTS[factors["dtype"]] / 1e9
    return Record(
        EXPERIMENT,
        dict(factors),
        "ok",
        "",
        "measured",
        samples={"product_ms": samples(ms)},
        timers={"product_ms": "CUDA graph replay"},
        values={"relative_error": 1e-3},
        environments=["0123456789ab"],
        gpu="NVIDIA H200",
    )


def gpu_site() -> list[Record]:
    """Every cell of the gpu preset."""
    cells = plan.planned_cells(unmeasured.raw_config(), EXPERIMENT, "gpu")
    return [(product if cell["workload"] == "matmul" else attention)(cell.factors) for cell in cells]
