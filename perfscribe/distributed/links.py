"""Links between GPUs, by NVML, and their rated bandwidth: all NVLinks of a pair, in one direction."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from perfscribe.base.cells import Unsupported

Answer = TypeVar("Answer")

# NVML's numbers: nvmlGpuTopologyLevel_t, NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK.
_LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_CAPS_INDEX_NVLINK, _P2P_STATUS_OK = 2, 0
_REMOTE_IS_GPU = 0
_MB_PER_GB = 1000
# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, for package versions that do not define it: MB/s per link, one way.
_SPEED_FIELD = 90
# One NVLink, one way, in GB/s, by compute capability. NVIDIA's data sheets print the sum of a GPU's links, both ways:
# V100 300 GB/s for 6 links, A100 600 for 12, H100 and H200 900 for 18, B200 1800 for 18. Other cards' links differ.
_DATA_SHEET_GB_PER_S: dict[tuple[int, ...], float] = {(7, 0): 25.0, (8, 0): 25.0, (9, 0): 25.0, (10, 0): 50.0}
DRIVER, DATA_SHEET = "driver", "data sheet"
NOT_KNOWN = "not told"


@dataclass(frozen=True)
class Link:
    """Connection of two GPUs. kind: NV<links>, or nvidia-smi's names of PCIe paths; None: NVML does not tell.

    gb_per_s: for NVLink, links times the speed of one, in 10^9 bytes per second each way. by: source of that speed,
    DRIVER or DATA_SHEET. None if not known.
    """

    first: int
    second: int
    kind: str | None
    gb_per_s: float | None = None
    by: str | None = None

    @property
    def is_nvlink(self) -> bool:
        """Whether it is NVLink, directly or through switches."""
        return (self.kind or "").startswith("NV")


def visible_links(count: int) -> list[Link]:
    """Return the links among the first `count` GPUs that torch sees; empty if NVML cannot be queried."""
    return of_visible(count, links)


def recorded(first: int, second: int) -> dict[str, Any]:
    """Return the link of two GPUs that torch sees, and its rate in each direction if known, for a record."""
    pair = {first, second}
    visible = visible_links(max(pair) + 1)
    link = next((link for link in visible if {link.first, link.second} == pair), None)
    if link is None or link.kind is None:
        return {"link": NOT_KNOWN}
    rate = {} if link.gb_per_s is None else {"rated_gb_per_s": link.gb_per_s, "rated_by": link.by}
    return {"link": link.kind, **rate}


def of_visible(count: int, question: Callable[[Any, list[Any]], list[Answer]]) -> list[Answer]:
    """Return question(pynvml, handles) for the first `count` GPUs that torch sees; empty if NVML cannot be queried."""
    import torch

    try:
        # Imported by a computed name, so that no fingerprint includes its version.
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(count)]
        return question(pynvml, [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids])
    except Exception:  # no package, no driver, a MIG device
        return []


def require_nvlink(count: int) -> None:
    """Raise Unsupported if two of the first `count` visible GPUs are known to be linked by anything but NVLink."""
    for link in visible_links(count):
        if link.kind is not None and not link.is_nvlink:
            raise Unsupported(f"GPUs {link.first} and {link.second} are joined by {link.kind}, not by NVLink")


def links(nvml: Any, gpus: Sequence[Any]) -> list[Link]:
    """Return the link of each pair of NVML handles."""
    pairs = [(first, second) for second in range(len(gpus)) for first in range(second)]
    return [Link(first, second, *_kind_and_rate(nvml, gpus[first], gpus[second])) for first, second in sorted(pairs)]


def _kind_and_rate(nvml: Any, first: Any, second: Any) -> tuple[str | None, float | None, str | None]:
    joined = _ask(nvml, "nvmlDeviceGetP2PStatus", first, second, _P2P_CAPS_INDEX_NVLINK)
    if joined == _P2P_STATUS_OK:
        count = min(_nvlinks(nvml, first, second), _nvlinks(nvml, second, first))
        return (f"NV{count}", *_rate(nvml, first, count))
    level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", first, second)
    return None if level is None else _LEVELS.get(level), None, None


def _rate(nvml: Any, gpu: Any, count: int) -> tuple[float | None, str | None]:
    """Return rate and source of `count` NVLinks; a virtual machine's driver may not report the speed."""
    field = getattr(nvml, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", _SPEED_FIELD)
    (speed,) = _ask(nvml, "nvmlDeviceGetFieldValues", gpu, [field]) or (None,)
    if speed is not None and speed.nvmlReturn == 0 and speed.value.uiVal > 0:
        return count * speed.value.uiVal / _MB_PER_GB, DRIVER
    printed = _DATA_SHEET_GB_PER_S.get(tuple(_ask(nvml, "nvmlDeviceGetCudaComputeCapability", gpu) or ()))
    return (None, None) if printed is None else (count * printed, DATA_SHEET)


def _ask(nvml: Any, function: str, *arguments: Any) -> Any | None:
    """Return NVML's answer, or None on an error."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _nvlinks(nvml: Any, gpu: Any, peer: Any) -> int:
    """Return the number of a GPU's active NVLinks to its peer; those to switches lead to every peer."""
    peer_bus = getattr(_ask(nvml, "nvmlDeviceGetPciInfo", peer), "busId", None)
    most = getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)
    active = [link for link in range(most) if _ask(nvml, "nvmlDeviceGetNvLinkState", gpu, link) == 1]
    direct = [link for link in active if _ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link) == _REMOTE_IS_GPU]
    if not direct:
        return len(active)
    remote = [getattr(_ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu, link), "busId", None) for link in direct]
    return remote.count(peer_bus)
