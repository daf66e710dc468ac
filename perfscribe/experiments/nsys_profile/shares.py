"""What a record says of kernels: device time by range, kernel and family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfscribe.experiments.nsys_profile.reading import REST
from perfscribe.profiling.families import OTHER, family
from perfscribe.records import Record

PASSES = {
    "inference": ("inference",),
    "forward": ("forward",),
    "backward": ("backward",),
    "forward and backward": ("forward", "backward"),
    "optimizer": ("optimizer",),
    "full step": ("forward", "backward", "optimizer"),
}


@dataclass(frozen=True)
class KernelTime:
    """A kernel in one range, all traced passes together; kernels: how many rare ones the row adds up."""

    name: str
    launches: int
    total_ns: int
    kernels: int = 1

    @property
    def family(self) -> str:
        """Its family; rare kernels that were added up have none."""
        return OTHER if self.name == REST else family(self.name)


def kernels(record: Record, label: str) -> list[KernelTime]:
    """The kernels of one range, the largest first; KeyError where the record has none of the range."""
    names, rest = record.series["kernel_names"], record.series.get(f"{label}_rest_kernels", [1])[0]
    parallel = (record.series[f"{label}_{name}"] for name in ("kernel", "launches", "total_ns"))
    return [
        KernelTime(names[place], launches, total_ns, rest if names[place] == REST else 1)
        for place, launches, total_ns in zip(*parallel, strict=True)
    ]


def together(record: Record, labels: Sequence[str]) -> list[KernelTime]:
    """The kernels of several ranges, each kernel once, the largest first."""
    launches: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    for label in labels:
        for kernel in kernels(record, label):
            launches[kernel.name] += kernel.launches
            total_ns[kernel.name] += kernel.total_ns
    found = [KernelTime(name, launches[name], total_ns[name]) for name in total_ns]
    return sorted(found, key=lambda kernel: -kernel.total_ns)


def family_ns(record: Record, labels: Sequence[str]) -> Counter[str]:
    """Device time by family in these ranges, all traced passes together."""
    times: Counter[str] = Counter()
    for kernel in together(record, labels):
        times[kernel.family] += kernel.total_ns
    return times


def family_percent(record: Record, labels: Sequence[str], name: str) -> float:
    """Share of a family in the device time of these ranges."""
    times = family_ns(record, labels)
    return 100 * times[name] / times.total()


def traced(record: Record) -> int:
    """Passes that figures of a record are sums over."""
    return int(record.factors["traced_steps"])


def a_pass(launches: int, passes: int) -> float:
    """Launches of a pass, to a tenth: the mean of several need not be whole, and a count has no other rounding."""
    return round(launches / passes, 1)
