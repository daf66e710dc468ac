"""Bandwidths from data sheets: a GPU's memory, its NVLinks, its PCIe slot. 1 GB = 10^9 bytes.

Memory: reads and writes together. NVLink and PCIe: one direction; data sheets print the sum of both, which is halved
here, and of NVLink that of all links of a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MEMORY, NVLINK, PCIE = "memory", "nvlink", "pcie"
KINDS = (MEMORY, NVLINK, PCIE)
GB = 10**9


@dataclass(frozen=True)
class PeakBandwidth:
    """Bytes a second, and where that is printed."""

    bytes_per_s: float
    source: str


@dataclass(frozen=True)
class _Device:
    name: str  # regular expression for the whole name that the driver gives, as in peaks.py
    memory_gb: float
    nvlink_gb: float | None  # both directions, as printed; None: no NVLink, or none printed
    pcie_gb: float | None  # both directions, as printed
    source: str


_DEVICES = (
    _Device(r"NVIDIA H100 80GB HBM3|NVIDIA H100 SXM5 80GB", 3350, 900, 128, "NVIDIA H100 data sheet (SXM)"),
    _Device(r"NVIDIA H200", 4800, 900, 128, "NVIDIA H200 data sheet (SXM)"),
    _Device(r"NVIDIA H100 NVL", 3900, 600, 128, "NVIDIA H100 data sheet (NVL)"),
    _Device(r"NVIDIA H200 NVL", 4800, 900, 128, "NVIDIA H200 data sheet (NVL)"),
    _Device(r"NVIDIA H100 PCIe", 2000, 600, 128, "NVIDIA H100 PCIe data sheet"),
    _Device(r"(NVIDIA )?A100-(SXM4|PCIE|PCIe)-40GB", 1555, 600, 64, "NVIDIA A100 data sheet (40 GB)"),
    _Device(r"(NVIDIA )?A100-SXM4-80GB", 2039, 600, 64, "NVIDIA A100 data sheet (80 GB SXM)"),
    _Device(r"NVIDIA A100 80GB PCIe|(NVIDIA )?A100-(PCIE|PCIe)-80GB", 1935, 600, 64, "NVIDIA A100 data sheet (80 GB)"),
    _Device(r"NVIDIA L40S", 864, None, 64, "NVIDIA L40S data sheet"),
    _Device(r"NVIDIA GeForce RTX 4090", 1008, None, None, "NVIDIA Ada GPU architecture whitepaper"),
    _Device(r"NVIDIA GeForce RTX 5090", 1792, None, None, "NVIDIA RTX Blackwell GPU architecture whitepaper"),
    _Device(r"Tesla V100-SXM2-(16|32)GB", 900, 300, 32, "NVIDIA V100 data sheet (SXM2)"),
    _Device(r"Tesla V100-PCIE-(16|32)GB", 900, None, 32, "NVIDIA V100 data sheet (PCIe)"),
)


def peak_bandwidth(gpu_name: str, kind: str) -> PeakBandwidth | None:
    """What the data sheet of the GPU that the driver calls gpu_name prints, or None where we have no source for it.

    kind: memory, nvlink (of all links together, one direction) or pcie (one direction). ValueError: another word.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    for device in _DEVICES:
        if re.fullmatch(device.name, gpu_name.strip()):
            printed = {MEMORY: device.memory_gb, NVLINK: device.nvlink_gb, PCIE: device.pcie_gb}[kind]
            if printed is None:
                return None
            one_way = printed if kind == MEMORY else printed / 2
            halved = "" if kind == MEMORY else "; both directions are printed, one is half"
            return PeakBandwidth(one_way * GB, device.source + halved)
    return None
