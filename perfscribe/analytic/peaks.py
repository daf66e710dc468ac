"""Peak rates from data sheets, and the share of them that a measurement reached."""

from __future__ import annotations

import re
from dataclasses import dataclass

DTYPES = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class PeakRate:
    """Dense peak of matrix products at boost clock, and where it is printed."""

    flop_per_s: float
    source: str


@dataclass(frozen=True)
class _Device:
    name: str  # regular expression for the whole name that the driver gives; a MIG slice or a variant must not match
    tera: dict[str, float]  # TFLOP/s by dtype, dense; fp16 and bf16 accumulate in fp32
    source: str


def _rates(fp32: float, tf32: float, half: float) -> dict[str, float]:
    return {"fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half}


_HALVED = "printed with sparsity; dense is half"

_DEVICES = (
    _Device(
        r"NVIDIA H100 80GB HBM3|NVIDIA H100 SXM5 80GB|NVIDIA H200",
        _rates(67, 494.7, 989),
        f"NVIDIA H100 and H200 SXM data sheets ({_HALVED}); TF32 from the H100 architecture whitepaper",
    ),
    _Device(
        r"NVIDIA H100 NVL|NVIDIA H200 NVL",
        _rates(60, 417.5, 835.5),
        f"NVIDIA H100 NVL and H200 NVL data sheets ({_HALVED})",
    ),
    _Device(r"NVIDIA H100 PCIe", _rates(51, 378, 756), f"NVIDIA H100 PCIe data sheet ({_HALVED})"),
    _Device(
        r"(NVIDIA )?A100-(SXM4|PCIE|PCIe)-(40|80)GB|NVIDIA A100 80GB PCIe",
        _rates(19.5, 156, 312),
        "NVIDIA A100 data sheet",
    ),
    _Device(r"NVIDIA L40S", _rates(91.6, 183, 362.05), "NVIDIA L40S data sheet"),
    _Device(
        r"NVIDIA GeForce RTX 4090",
        _rates(82.6, 82.6, 165.2),
        "NVIDIA Ada GPU architecture whitepaper, fp32 accumulation",
    ),
    _Device(
        r"NVIDIA GeForce RTX 5090",
        _rates(104.8, 104.8, 209.5),
        "NVIDIA RTX Blackwell GPU architecture whitepaper, fp32 accumulation",
    ),
    _Device(r"Tesla V100-SXM2-(16|32)GB", {"fp32": 15.7, "fp16": 125}, "NVIDIA V100 data sheet"),
    _Device(r"Tesla V100-PCIE-(16|32)GB", {"fp32": 14, "fp16": 112}, "NVIDIA V100 data sheet"),
)


def peak_flops(gpu_name: str, dtype: str) -> PeakRate | None:
    """Dense peak of the GPU that the driver calls gpu_name, or None if we have no source for it.

    dtype: fp32 (no tensor cores), tf32, bf16, fp16. Raises ValueError for another word.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    for device in _DEVICES:
        if re.fullmatch(device.name, gpu_name.strip()):
            tera = device.tera.get(dtype)
            return None if tera is None else PeakRate(tera * 1e12, device.source)
    return None


def mfu(flop: float, seconds: float, peak: PeakRate | None, devices: int = 1) -> float | None:
    """Share of the peak: flop / (seconds · devices · peak); None where the peak is unknown.

    It is the model FLOP utilisation if flop follows the PaLM convention (counters.flops.palm_flop_per_token · tokens).
    Raises ValueError if seconds or devices is not positive.
    """
    if seconds <= 0 or devices < 1:
        raise ValueError(f"seconds and devices must be positive: {seconds}, {devices}")
    return None if peak is None else flop / (seconds * devices * peak.flop_per_s)
