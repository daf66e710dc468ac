"""What the links between GPUs are rated at: a pair's NVLinks, in one direction, by the driver or the data sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.distributed.transport import Link, ask, links, of_visible

_MB_PER_GB = 1000
# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, for versions of the package that do not name it: MB/s of each link, one way.
_SPEED_FIELD = 90
# One NVLink, one way, in GB/s, by compute capability. NVIDIA's data sheets print the sum of all links of a GPU, both
# ways: V100 300 GB/s of 6 links, A100 600 of 12, H100 and H200 900 of 18, B200 1800 of 18. Other cards' links differ.
_DATA_SHEET_GB_PER_S: dict[tuple[int, ...], float] = {(7, 0): 25.0, (8, 0): 25.0, (9, 0): 25.0, (10, 0): 50.0}
DRIVER, DATA_SHEET = "driver", "data sheet"


@dataclass(frozen=True)
class RatedLink(Link):
    """A pair of GPUs. gb_per_s: 10^9 bytes a second each way, None where not known; by: whose rate of one link it is.

    by is DRIVER or DATA_SHEET; None where there is no rate.
    """

    gb_per_s: float | None = None
    by: str | None = None


def visible_rates(count: int) -> list[RatedLink]:
    """The links among the first `count` GPUs that torch sees; none where NVML cannot be asked."""
    return of_visible(count, rated)


def rated(nvml: Any, gpus: Sequence[Any]) -> list[RatedLink]:
    """The link of each pair of NVML handles, with its rate where it is NVLink: links times the speed of one."""
    return [_rated(nvml, link, gpus[link.first]) for link in links(nvml, gpus)]


def _rated(nvml: Any, link: Link, gpu: Any) -> RatedLink:
    """A virtual machine's driver may not tell its links' speed."""
    same = (link.first, link.second, link.kind)
    if not link.is_nvlink:
        return RatedLink(*same)
    count = int((link.kind or "").removeprefix("NV"))
    field = getattr(nvml, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", _SPEED_FIELD)
    (found,) = ask(nvml, "nvmlDeviceGetFieldValues", gpu, [field]) or (None,)
    if found is not None and found.nvmlReturn == 0 and found.value.uiVal > 0:
        return RatedLink(*same, count * found.value.uiVal / _MB_PER_GB, DRIVER)
    printed = _DATA_SHEET_GB_PER_S.get(tuple(ask(nvml, "nvmlDeviceGetCudaComputeCapability", gpu) or ()))
    return RatedLink(*same) if printed is None else RatedLink(*same, count * printed, DATA_SHEET)
