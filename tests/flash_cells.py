"""Made-up cells of flash_benchmarking on a CUDA device: the gpu preset's own plan with times from simple models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import unmeasured

from perfscribe.attention.backends import named
from perfscribe.plan import plan
from perfscribe.records.records import Record

# TFLOP/s that each would reach at endless length, forward; backward at 0.8 of it, fp32 at a tenth.
RATES = {"eager": 40, "triton": 500, "triton_ieee": 150, "sdpa_flash": 320, "sdpa_cudnn": 600, "sdpa_efficient": 200}
RATES |= {"compiled": 80, "flex": 300}
PRODUCTS = {"fp32": 50.0, "tf32": 400.0, "bf16": 780.0, "fp16": 770.0}
SHORTEST_MS, LAUNCHES_MS = 0.004, 0.04
TIMER = "CUDA graph replay"


def samples(median: float) -> list[list[float]]:
    """One round of ten samples around a median, 2 % apart from first to last."""
    return [[median * (1 + 0.02 * (number / 9 - 0.5)) for number in range(10)]]


def times_ms(factors: Mapping[str, Any]) -> dict[str, float]:
    """Device time of both passes and of them together."""
    slow = {"fp32": 10, "tf32": 2}.get(factors["dtype"], 1)
    work = 2 * factors["heads"] * factors["seq_len"] ** 2 * factors["head_dim"]
    work *= slow / RATES[factors["implementation"]]
    forward, backward = SHORTEST_MS + work / 1e9, SHORTEST_MS + 2.5 * work / 0.8 / 1e9
    return {"forward": forward, "backward": backward, "both": forward + backward}


def attention(factors: Mapping[str, Any]) -> Record:
    """An attention cell: ok, out of memory, or refused, as on a GPU with 80 GB."""
    name, experiment = factors["implementation"], "flash_benchmarking"
    if name in ("sdpa_flash", "sdpa_cudnn") and factors["dtype"] == "fp32":
        return Record(experiment, factors, "unsupported", "Expected query, key and value to all be Half", "measured")
    device = {f"{one}_ms": samples(ms) for one, ms in times_ms(factors).items()}
    launched = {f"{one}_launched_ms": samples(max(ms, LAUNCHES_MS)) for one, ms in times_ms(factors).items()}
    found = Record(experiment, factors, "ok", "", "measured", device | launched, environments=["0123456789ab"])
    found.timers, found.spent = dict.fromkeys(device, TIMER), {"compile_s": 0.5}
    found.values = {"largest_relative_error": 0.003, "kernels": "k", "calls_per_sample": "1 1 1"}
    if named(name).sdpa:
        found.values["sdpa_backend"] = named(name).sdpa
    if name == "eager" and factors["dtype"] in ("fp32", "tf32") and factors["seq_len"] == 65536:
        found.status, found.reason, found.values = "oom", "CUDA out of memory.", {}
        found.error = {"requested_bytes": 2**34, "free_bytes": 2**33}
        found.samples = {"forward_ms": device["forward_ms"], "forward_launched_ms": launched["forward_launched_ms"]}
    return found


def product(factors: Mapping[str, Any]) -> Record:
    """A product at the rate of its dtype."""
    timed = {"product_ms": samples(2 * factors["matrix_size"] ** 3 / PRODUCTS[factors["dtype"]] / 1e9)}
    return Record("flash_benchmarking", factors, "ok", "", "measured", timed, timers={"product_ms": TIMER})


def gpu_site() -> list[Record]:
    """Every cell of the gpu preset."""
    cells = plan.planned_cells(unmeasured.raw_config(), "flash_benchmarking", "gpu")
    return [(product if cell["workload"] == "matmul" else attention)(dict(cell.factors)) for cell in cells]
