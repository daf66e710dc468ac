"""What the links between GPUs are rated at: a pair's NVLinks, in one direction, as NVML gives their speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.parallel.transport import Link, links, of_visible

_MB_PER_GB = 1000
# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, for versions of the package that do not name it: MB/s of each link, one way.
_SPEED_FIELD = 90


@dataclass(frozen=True)
class RatedLink:
    """A pair of GPUs. kind: as transport.Link has it; gb_per_s: 10^9 bytes a second each way, None where not known."""

    first: int
    second: int
    kind: str | None
    gb_per_s: float | None


def rated(nvml: Any, gpus: Sequence[Any]) -> list[RatedLink]:
    """The link of each pair of NVML handles, with its rate where it is NVLink: links times the speed of one."""
    return [_rated(nvml, link, gpus[link.first]) for link in links(nvml, gpus)]


def _rated(nvml: Any, link: Link, gpu: Any) -> RatedLink:
    speed = _speed_gb_per_s(nvml, gpu) if link.is_nvlink else None
    count = int((link.kind or "").removeprefix("NV")) if link.is_nvlink else 0
    return RatedLink(link.first, link.second, link.kind, count * speed if count and speed else None)


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
