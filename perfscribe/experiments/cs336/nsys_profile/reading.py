"""Reduces a trace to a record: times of each phase, and the kernels of each range.

Kernels are kept by name, not by family, so that a better rule for families needs no new measurement: nothing here may
import those rules.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median, stdev
from typing import Any

from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.profiling.summary import Launches, device_time
from perfscribe.instruments.profiling.trace import Range, Trace

NS_PER_MS = 1e6
PHASES = {
    "inference": ranges.INFERENCE,
    "forward": ranges.FORWARD,
    "backward": ranges.BACKWARD,
    "optimizer": ranges.OPTIMIZER,
}
# Only of a training step's forward pass: inference has the same ranges again.
PARTS = {"scores": ranges.ATTENTION_SCORES, "softmax": ranges.SOFTMAX, "final_matmul": ranges.FINAL_MATMUL}
# In a record that is not detailed, the kernels of a range's last 3 % of device time share one row.
KEPT_SHARE = 0.97
REST = "further kernels"


class NoKernel(ValueError):
    """A trace lacks the kernels of a phase."""


def _instances(trace: Trace, name: str, inside: Sequence[Range] = ()) -> list[Range]:
    """Return the program's ranges of this name outside warm-up and, if `inside` is given, within one of these."""
    own = [found for found in trace.ranges if not found.domain]  # libraries use other domains
    warmup = [found for found in own if found.name == ranges.WARMUP]
    named = [found for found in own if found.name == name and not _lies_in(found, warmup)]
    return [found for found in named if not inside or _lies_in(found, inside)]


def _lies_in(inner: Range, outer: Iterable[Range]) -> bool:
    return any(one.start_ns <= inner.start_ns and inner.end_ns <= one.end_ns for one in outer)


def host_ranges(trace: Trace) -> dict[str, list[float]]:
    """Return milliseconds of each phase's range on the host, one sample per pass."""
    found = {phase: _instances(trace, name) for phase, name in PHASES.items()}
    return {
        f"{phase}_range_ms": [r.duration_ns / NS_PER_MS for r in passes] for phase, passes in found.items() if passes
    }


def device_times(trace: Trace) -> dict[str, list[float]]:
    """Return ms of each phase in which the device was busy, per pass; for forward also span and waiting for launches.

    Raises NoKernel if a phase launched none.
    """
    launches, samples = Launches(trace), defaultdict(list)
    for phase, name in PHASES.items():
        for found in _instances(trace, name):
            kernels = launches.within(found)
            if not kernels:
                raise NoKernel(f"{trace.tool} recorded no kernel in a range {name}")
            time = device_time(kernels)
            samples[f"{phase}_busy_ms"].append(time.busy_ns / NS_PER_MS)
            if phase == "forward":
                samples["forward_span_ms"].append(time.span_ns / NS_PER_MS)
                samples["forward_launch_bound_ms"].append(time.launch_bound_ns / NS_PER_MS)
    return dict(samples)


def kernel_series(trace: Trace, detailed: bool) -> dict[str, list[Any]]:
    """Return device time by range and kernel, largest of each range first; attention's ranges only within forward.

    kernel_names, and for each range parallel lists: kernel (index in kernel_names), launches and total_ns of all
    passes; with detailed also median_ns, min_ns, max_ns and std_ns (sample standard deviation, as nsys). Otherwise rare
    kernels are summed under the name REST, and RANGE_rest_kernels counts them.
    """
    launches, forward = Launches(trace), _instances(trace, ranges.FORWARD)
    wanted = {phase: _instances(trace, name) for phase, name in PHASES.items()}
    wanted |= {part: _instances(trace, name, forward) for part, name in PARTS.items() if forward}
    by_range = {}
    for label, passes in wanted.items():
        by_name: dict[str, list[int]] = defaultdict(list)
        for kernel in (kernel for one in passes for kernel in launches.within(one)):
            by_name[kernel.name].append(kernel.duration_ns)
        by_range[label] = sorted(by_name.items(), key=lambda row: (-sum(row[1]), row[0]))
    short = short_names(name for rows in by_range.values() for name, _ in rows)
    places: dict[str, int] = {}
    series: dict[str, list[Any]] = {}
    for label, rows in by_range.items():
        rare = [] if detailed else rows[_common(rows) :]
        shown = rows[: len(rows) - len(rare)]
        if rare:
            shown.append((REST, [ns for _, durations_ns in rare for ns in durations_ns]))
            series[f"{label}_rest_kernels"] = [len(rare)]
        for name, durations_ns in shown:
            place = places.setdefault(short.get(name, name), len(places))
            figures = {"kernel": place, "launches": len(durations_ns), "total_ns": sum(durations_ns)}
            if detailed:
                figures["median_ns"] = round(median(durations_ns))
                figures |= {"min_ns": min(durations_ns), "max_ns": max(durations_ns)}
                figures["std_ns"] = round(stdev(durations_ns)) if len(durations_ns) > 1 else 0
            for figure, value in figures.items():
                series.setdefault(f"{label}_{figure}", []).append(value)
    return {"kernel_names": list(places), **series}


def _common(rows: Sequence[tuple[str, Sequence[int]]]) -> int:
    """Return how many of a range's kernels, largest first, make up KEPT_SHARE of its device time."""
    totals = [sum(durations_ns) for _, durations_ns in rows]
    left, kept = KEPT_SHARE * sum(totals), 0
    while left > 0:
        left -= totals[kept]
        kept += 1
    return kept


# --- kernel names: short, and unique per kernel ---------------------------------------------------------------------

LONGEST = 60
ELLIPSIS = "…"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# Prefixes and namespaces of most names; compilers write an anonymous namespace in several ways.
_LEFT_OUT = re.compile(
    r"^(?:void|static|__global__|std::enable_if<[^>]*>::type)\s+"
    r"|\(anonymous namespace\)::|<unnamed>::|\b(?:at|c10|native)::"
)
# Template arguments that distinguish instances of a kernel better than plain argument types.
_TELLING = re.compile(
    r"\bCopy<|\w*(?:[Ff]unctor|Ops?|Copy|Softmax|SoftMax|Epilogue|Norm|Loss|[Kk]ernel)\w*|(?:cutlass|sm\d+|cublas)\w+"
)
# Wrappers that nearly all of PyTorch's instances share.
_WRAPPERS = re.compile(r"gpu_kernel_impl\w*|(?:Unary|Binary|BUnary|AUnary)Functor|ReduceOp")
# Inductor's names list every operation of the kernel.
_COMPILED = "triton_"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short name for each kernel name; different names stay different.

    Names that would become equal get the first digits of the full name's SHA-256 as a suffix.
    """
    short = {name: shortened(name) for name in sorted(set(names))}
    counts = Counter(short.values())
    return {
        name: f"{text}#{hashlib.sha256(name.encode()).hexdigest()[:6]}" if counts[text] > 1 else text
        for name, text in short.items()
    }


def shortened(name: str) -> str:
    """Return base name and distinguishing template arguments, without parameters, plain types, PyTorch's namespaces.

    Operators (aten::mm) and names without a template lose only their parameters, and are cut at LONGEST characters. The
    parts by which perfscribe.instruments.profiling.families recognises a family stay in the name.
    """
    bare = _LEFT_OUT.sub("", name.strip())
    base, opening, rest = bare.partition("<")
    if opening and _IDENTIFIER.search(base):
        found = _TELLING.findall(rest[: _closing(rest)])
        told = dict.fromkeys(f"{one}>" if one.endswith("<") else one for one in found if not _WRAPPERS.fullmatch(one))
        text = f"{base}<{', '.join(told)}>" if told else base
    else:
        text = re.sub(r"(?<=\S)\([^()]*\)$", "", bare)
    if len(text) <= LONGEST or text.startswith(_COMPILED):
        return text
    return text[: LONGEST - len(ELLIPSIS)] + ELLIPSIS


def _closing(rest: str) -> int:
    """Return the index at which the template open at the start of this text closes."""
    depth = 1
    for place, character in enumerate(rest):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if depth == 0:
            return place
    return len(rest)
