"""What the links between GPUs are rated at: a pair's NVLinks, in one direction, by the driver or the data sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.distributed.transport import Link, links, of_visible

_MB_PER_GB = 1000
# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, for versions of the package that do not name it: MB/s of each link, one way.
_SPEED_FIELD = 90
# One NVLink, one way, in GB/s, by compute capability. NVIDIA's data sheets print the sum of all links of a GPU, both
# ways: V100 300 GB/s of 6 links, A100 600 of 12, H100 and H200 900 of 18, B200 1800 of 18. Other cards' links differ.
_DATA_SHEET_GB_PER_S = {(7, 0): 25.0, (8, 0): 25.0, (9, 0): 25.0, (10, 0): 50.0}
DRIVER, DATA_SHEET = "driver", "data sheet"


@dataclass(frozen=True)
class RatedLink:
    """A pair of GPUs. kind: as transport.Link has it; gb_per_s: 10^9 bytes a second each way, None where not known.

    by: DRIVER or DATA_SHEET, whose rate of one link it is; None where there is none.
    """

    first: int
    second: int
    kind: str | None
    gb_per_s: float | None
    by: str | None = None


def rated(nvml: Any, gpus: Sequence[Any]) -> list[RatedLink]:
    """The link of each pair of NVML handles, with its rate where it is NVLink: links times the speed of one."""
    return [_rated(nvml, link, gpus[link.first]) for link in links(nvml, gpus)]


def _rated(nvml: Any, link: Link, gpu: Any) -> RatedLink:
    count = int((link.kind or "").removeprefix("NV")) if link.is_nvlink else 0
    by, speed = _speed(nvml, gpu) if count else (None, None)
    return RatedLink(link.first, link.second, link.kind, count * speed if speed else None, by)


def _speed(nvml: Any, gpu: Any) -> tuple[str | None, float | None]:
    """Whose rate of one link, in one direction, and the rate. A virtual machine's driver may not tell its own."""
    told = _speed_gb_per_s(nvml, gpu)
    if told is not None:
        return DRIVER, told
    try:
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(gpu))
    except (nvml.NVMLError, AttributeError):
        return None, None
    printed = _DATA_SHEET_GB_PER_S.get(capability)
    return (None, None) if printed is None else (DATA_SHEET, printed)


def _speed_gb_per_s(nvml: Any, gpu: Any) -> float | None:
    """One link's speed in one direction."""
    field = getattr(nvml, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", _SPEED_FIELD)
    try:
        (found,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
    except (nvml.NVMLError, AttributeError, ValueError):
        return None
    speed = int(found.value.uiVal) if found.nvmlReturn == 0 else 0
    return speed / _MB_PER_GB if speed > 0 else None


def visible_rates(count: int) -> list[RatedLink]:
    """The links among the first `count` GPUs that torch sees; none where NVML cannot be asked."""
    return of_visible(count, rated)
