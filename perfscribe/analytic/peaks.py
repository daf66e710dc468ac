"""Peak rates and bandwidths from data sheets, and the share of them that a measurement reached. 1 GB = 10^9 bytes.

Memory: reads and writes together. PCIe: one direction; data sheets print the sum of both, which is halved here.
"""

import re
from dataclasses import dataclass

MEMORY, PCIE = "memory", "pcie"
GB = 10**9


@dataclass(frozen=True)
class PeakRate:
    """Dense peak of matrix products at boost clock, and its source."""

    flop_per_s: float
    source: str


@dataclass(frozen=True)
class PeakBandwidth:
    """Peak bandwidth of a GPU's memory, or of PCIe in one direction, and its source."""

    bytes_per_s: float
    source: str


@dataclass(frozen=True)
class _Rates:
    tera: dict[str, float]  # TFLOP/s by dtype, dense; fp16 and bf16 accumulate in fp32
    source: str


def _rates(fp32: float, tf32: float, half: float, source: str) -> _Rates:
    return _Rates({"fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half}, source)


_HALVED = "printed with sparsity; dense is half"
_SXM = f"NVIDIA H100 and H200 SXM data sheets ({_HALVED}); TF32 from the H100 architecture whitepaper"
_HOPPER_SXM = _rates(67, 494.7, 989, _SXM)
_HOPPER_NVL = _rates(60, 417.5, 835.5, f"NVIDIA H100 NVL and H200 NVL data sheets ({_HALVED})")
_HOPPER_PCIE = _rates(51, 378, 756, f"NVIDIA H100 PCIe data sheet ({_HALVED})")
_A100 = _rates(19.5, 156, 312, "NVIDIA A100 data sheet")
_L40S = _rates(91.6, 183, 362.05, "NVIDIA L40S data sheet")
_ADA, _BLACKWELL = "NVIDIA Ada GPU architecture whitepaper", "NVIDIA RTX Blackwell GPU architecture whitepaper"
_4090 = _rates(82.6, 82.6, 165.2, f"{_ADA}, fp32 accumulation")
_5090 = _rates(104.8, 104.8, 209.5, f"{_BLACKWELL}, fp32 accumulation")
_V100_SXM2 = _Rates({"fp32": 15.7, "fp16": 125}, "NVIDIA V100 data sheet")
_V100_PCIE = _Rates({"fp32": 14, "fp16": 112}, "NVIDIA V100 data sheet")

# Keys are regular expressions for the driver's full device name (no MIG slices or variants). Values: matrix products;
# GB/s of memory and of PCIe (both directions, as printed; None: not printed); source of the bandwidths.
_DEVICES: dict[str, tuple[_Rates, tuple[float, float | None], str]] = {
    r"NVIDIA H100 80GB HBM3|NVIDIA H100 SXM5 80GB": (_HOPPER_SXM, (3350, 128), "NVIDIA H100 data sheet (SXM)"),
    r"NVIDIA H200": (_HOPPER_SXM, (4800, 128), "NVIDIA H200 data sheet (SXM)"),
    r"NVIDIA H100 NVL": (_HOPPER_NVL, (3900, 128), "NVIDIA H100 data sheet (NVL)"),
    r"NVIDIA H200 NVL": (_HOPPER_NVL, (4800, 128), "NVIDIA H200 data sheet (NVL)"),
    r"NVIDIA H100 PCIe": (_HOPPER_PCIE, (2000, 128), "NVIDIA H100 PCIe data sheet"),
    r"(NVIDIA )?A100-(SXM4|PCIE|PCIe)-40GB": (_A100, (1555, 64), "NVIDIA A100 data sheet (40 GB)"),
    r"(NVIDIA )?A100-SXM4-80GB": (_A100, (2039, 64), "NVIDIA A100 data sheet (80 GB SXM)"),
    r"NVIDIA A100 80GB PCIe|(NVIDIA )?A100-(PCIE|PCIe)-80GB": (
        _A100,
        (1935, 64),
        "NVIDIA A100 data sheet (80 GB)",
    ),
    r"NVIDIA L40S": (_L40S, (864, 64), "NVIDIA L40S data sheet"),
    r"NVIDIA GeForce RTX 4090": (_4090, (1008, None), _ADA),
    r"NVIDIA GeForce RTX 5090": (_5090, (1792, None), _BLACKWELL),
    r"Tesla V100-SXM2-(16|32)GB": (_V100_SXM2, (900, 32), "NVIDIA V100 data sheet (SXM2)"),
    r"Tesla V100-PCIE-(16|32)GB": (_V100_PCIE, (900, 32), "NVIDIA V100 data sheet (PCIe)"),
}


def peak_flops(gpu_name: str, dtype: str) -> PeakRate | None:
    """Return the dense peak of a GPU, named as by its driver; None if not listed.

    dtype: fp32 (no tensor cores), tf32, bf16, fp16.
    """
    for name, (rates, *_) in _DEVICES.items():
        if re.fullmatch(name, gpu_name.strip()) and dtype in rates.tera:
            return PeakRate(rates.tera[dtype] * 1e12, rates.source)
    return None


def peak_bandwidth(gpu_name: str, kind: str) -> PeakBandwidth | None:
    """Return the data sheet's bandwidth of a GPU, named as by its driver; None if not listed.

    kind: memory or pcie (one direction).
    """
    for name, (_, printed_gb, source) in _DEVICES.items():
        printed = printed_gb[(MEMORY, PCIE).index(kind)]
        if re.fullmatch(name, gpu_name.strip()) and printed is not None:
            if kind == MEMORY:
                return PeakBandwidth(printed * GB, source)
            return PeakBandwidth(printed * GB / 2, f"{source}; both directions are printed, one is half")
    return None


def mfu(flop: float, seconds: float, peak: PeakRate | None) -> float | None:
    """Return the share of the peak, flop / (seconds · peak); None if the peak is unknown.

    It is the model FLOP utilisation if flop follows the PaLM convention (flops.palm_flop_per_token · tokens).
    """
    return None if peak is None else flop / (seconds * peak.flop_per_s)
