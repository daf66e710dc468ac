"""Energy counters: NVML's of a GPU, RAPL's of the processor packages. Joules are differences over a window.

NVML's counter advances in steps of tens of milliseconds and RAPL's counts the whole package, whoever runs on it: a
window lasts a second at least, and nothing else is to run. Sources: nvmlDeviceGetTotalEnergyConsumption (mJ since the
driver was loaded); Linux, Documentation/power/powercap/powercap.rst (energy_uj, max_energy_range_uj).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

NVML, RAPL = "NVML, the GPU's total energy", "RAPL, processor packages"
POWERCAP = Path("/sys/class/powercap")
FEWEST_CALLS = 3


class NoCounter(Exception):
    """The device has no energy counter that can be read; the text says why."""


class Counter(Protocol):
    """name: in records, as the timer of an energy. joules: between two readings."""

    @property
    def name(self) -> str:
        """In words."""

    def read(self) -> list[int]:
        """The counters now."""

    def joules(self, first: list[int], last: list[int]) -> float:
        """What was used between two readings."""


@dataclass(frozen=True)
class NvmlCounter:
    """One GPU's. ask: NVML's answer of a function about it, None where there is none."""

    ask: Callable[[str], Any]
    name: str = NVML

    def read(self) -> list[int]:
        """Millijoules; RuntimeError where NVML, which told before, no longer does."""
        found = self.ask("nvmlDeviceGetTotalEnergyConsumption")
        if found is None:
            raise RuntimeError("NVML no longer tells this GPU's energy")
        return [int(found)]

    def joules(self, first: list[int], last: list[int]) -> float:
        """Of the difference."""
        return (last[0] - first[0]) / 1e3


@dataclass(frozen=True)
class RaplCounter:
    """The packages' in sum. zones: their folders below POWERCAP."""

    zones: tuple[Path, ...]
    name: str = RAPL

    def read(self) -> list[int]:
        """Microjoules of each zone."""
        return [int((zone / "energy_uj").read_text()) for zone in self.zones]

    def joules(self, first: list[int], last: list[int]) -> float:
        """Of the differences; a counter that began again has gone once through its range."""
        ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in self.zones]
        spans = zip(first, last, ranges, strict=True)
        return sum((after - before) % (most + 1) for before, after, most in spans) / 1e6


def of_device(device: str, powercap: Path = POWERCAP) -> Counter:
    """The counter of a device of torch; NoCounter where there is none, or this user may not read it."""
    if device == "cpu":
        return _of_packages(powercap)
    import torch

    from perfscribe.parallel.transport import of_visible

    index = torch.cuda.current_device()
    found = of_visible(index + 1, lambda nvml, handles: [_asker(nvml, handles[index])])
    if not found or found[0]("nvmlDeviceGetTotalEnergyConsumption") is None:
        raise NoCounter("NVML does not tell this GPU's energy")
    return NvmlCounter(found[0])


def _asker(nvml: Any, handle: Any) -> Callable[[str], Any]:
    def ask(function: str) -> Any:
        try:
            return getattr(nvml, function)(handle)
        except (nvml.NVMLError, AttributeError):
            return None

    return ask


def _of_packages(powercap: Path) -> RaplCounter:
    """Zones such as intel-rapl:0; their parts (intel-rapl:0:0) are counted in them."""
    zones = sorted(zone for zone in powercap.glob("*-rapl:*") if zone.name.count(":") == 1)
    packages = tuple(zone for zone in zones if _text(zone / "name").startswith("package"))
    if not packages:
        raise NoCounter("no RAPL counter of the processor (virtual machines have none)")
    if any(not _text(zone / "energy_uj") for zone in packages):
        raise NoCounter("the kernel lets other users alone read RAPL's counter")
    return RaplCounter(packages)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Window:
    """calls of the work, the seconds that they took, and the joules; None without a counter."""

    calls: int
    seconds: float
    joules: float | None

    @property
    def watts(self) -> float | None:
        """Mean power."""
        return None if self.joules is None else self.joules / self.seconds


def window(work: Callable[[], object], counter: Counter | None, least_s: float) -> Window:
    """Call work, which waits for its device, until least_s have passed, three times at least.

    Without a counter there is nothing to wait for: the window ends after three calls.
    """
    wanted_s = least_s if counter is not None else 0.0
    first = counter.read() if counter is not None else []
    began, calls, seconds = time.perf_counter(), 0, 0.0
    while calls < FEWEST_CALLS or seconds < wanted_s:
        work()
        calls += 1
        seconds = time.perf_counter() - began
    joules = counter.joules(first, counter.read()) if counter is not None else None
    return Window(calls, seconds, joules)
