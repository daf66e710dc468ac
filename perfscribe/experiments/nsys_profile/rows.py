"""What a record says of kernels: device time by range, kernel and family; and rows of passes and of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfscribe.experiments.nsys_profile.reading import PARTS, PHASES, REST
from perfscribe.instruments.profiling.families import OTHER, family
from perfscribe.records.records import Record

PASSES = {
    "inference": ("inference",),
    "forward": ("forward",),
    "backward": ("backward",),
    "forward and backward": ("forward", "backward"),
    "optimizer": ("optimizer",),
    "full step": ("forward", "backward", "optimizer"),
}
# Of a cell that does not keep every kernel, so many of each of these ranges stand in the CSV.
KERNELS_SHOWN = 3
RANGES_SHOWN = ("forward", "backward", "optimizer")
ALL = "all"


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


def same_tool(record: Record) -> bool:
    """Whether ranges and kernels are of one trace, so that their passes are the same ones."""
    return bool(record.values["range_tool"] == record.values["kernel_tool"])


def of_median_pass(record: Record, name: str) -> float:
    """A figure of the traced forward pass of median length, so that its parts add up; of an even number the shorter."""
    lengths = record.samples["forward_range_ms" if same_tool(record) else "forward_span_ms"][0]
    return float(record.samples[name][0][sorted(range(len(lengths)), key=lengths.__getitem__)[(len(lengths) - 1) // 2]])


def by_pass(cells: Sequence[Record], passes: Sequence[str]) -> list[Record]:
    """One record a cell and pass; a cell without figures stays one row."""
    result = []
    for record in cells:
        if record.ok:
            result += [replace(record, factors={**record.factors, "pass": name}) for name in passes]
        else:
            result.append(_row(record, {"pass": ALL}, {}))
    return result


def by_kernel(cells: Sequence[Record]) -> list[Record]:
    """One record a cell, range and kernel."""
    result = []
    for record in cells:
        if not record.ok:
            result.append(_row(record, {"range": ALL, "kernel": ALL}, {}))
            continue
        for label in (*PHASES, *PARTS) if record.factors["detailed"] else RANGES_SHOWN:
            result += [_row(record, levels, values) for levels, values in _kernels_of(record, label)]
    return result


def _row(record: Record, levels: dict[str, Any], values: dict[str, Any]) -> Record:
    return replace(record, factors={**record.factors, **levels}, samples={}, series={}, values=values)


def _kernels_of(record: Record, label: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    found = kernels(record, label)
    total, passes = sum(kernel.total_ns for kernel in found), traced(record)
    shown = found if record.factors["detailed"] else found[:KERNELS_SHOWN]
    for place, kernel in enumerate(shown):
        name = f"{kernel.kernels} {REST}" if kernel.name == REST else kernel.name
        values = {
            "family": kernel.family,
            "launches": a_pass(kernel.launches, passes),
            "percent": round(100 * kernel.total_ns / total, 3),
            "total_us": round(kernel.total_ns / passes / 1e3, 3),
            "mean_us": round(kernel.total_ns / kernel.launches / 1e3, 3),
        }
        for figure in ("median", "min", "max"):
            kept = record.series.get(f"{label}_{figure}_ns")
            values[f"{figure}_us"] = kept[place] / 1e3 if kept else "not kept"
        yield {"range": label, "kernel": name}, values
