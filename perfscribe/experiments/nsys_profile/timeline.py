"""One training step of a trace, small enough for a record: its phases, its device time in bins, one layer exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.experiments.nsys_profile.reading import PARTS, PHASES, instances
from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.profiling.summary import Launches
from perfscribe.instruments.profiling.trace import Kernel, Range, Trace

BINS = 120


def series(trace: Trace, names: Sequence[str], short: Mapping[str, str]) -> dict[str, list[Any]]:
    """The training step of median length as a record's series; times in ns from the step's begin.

    timeline_phase, _start_ns, _ns: the ranges of the step and its phases. bin, bin_kernel, bin_ns: device time of a
    kernel (its place in names) in a bin, of which there are BINS. layer_…: the ranges and kernels of one layer's
    forward, from its attention scores to the next layer's; a range stands where its kernels ran.
    Nothing where the trace has no training step.
    """
    steps = sorted(instances(trace, ranges.STEP), key=lambda found: found.duration_ns)
    if not steps:
        return {}
    step, launches, place = steps[len(steps) // 2], Launches(trace), {name: i for i, name in enumerate(names)}
    places = [(place[short[kernel.name]], kernel) for kernel in launches.within(step)]
    return {**_phases(trace, step), **_bins(places, step), **_layer(trace, step, launches, place, short)}


def _phases(trace: Trace, step: Range) -> dict[str, list[Any]]:
    phases = [(label, found) for label, name in PHASES.items() for found in instances(trace, name, [step])]
    shown = [("step", step), *phases]
    return {
        "timeline_phase": [label for label, _ in shown],
        "timeline_start_ns": [found.start_ns - step.start_ns for _, found in shown],
        "timeline_ns": [found.duration_ns for _, found in shown],
    }


def _bins(places: Sequence[tuple[int, Kernel]], step: Range) -> dict[str, list[Any]]:
    busy: Counter[tuple[int, int]] = Counter()
    width = step.duration_ns / BINS
    for place, kernel in places:
        start, end = (max(0, at - step.start_ns) for at in (kernel.start_ns, kernel.end_ns))
        for number in range(int(start / width), min(int(end / width), BINS - 1) + 1):
            busy[number, place] += round(min(end, (number + 1) * width) - max(start, number * width))
    kept = sorted((key, ns) for key, ns in busy.items() if ns > 0)
    return {
        "timeline_bin": [number for (number, _), _ in kept],
        "timeline_bin_kernel": [place for (_, place), _ in kept],
        "timeline_bin_ns": [ns for _, ns in kept],
    }


def _layer(
    trace: Trace, step: Range, launches: Launches, place: Mapping[str, int], short: Mapping[str, str]
) -> dict[str, list[Any]]:
    """One layer from the middle of the model."""
    forward = instances(trace, ranges.FORWARD, [step])
    begins = instances(trace, ranges.ATTENTION_SCORES, forward)
    if not begins:
        return {}
    middle = (len(begins) - 1) // 2
    end_ns = begins[middle + 1].start_ns - 1 if middle + 1 < len(begins) else forward[0].end_ns
    window = Range("layer", begins[middle].start_ns, end_ns, begins[middle].thread)
    kernels = launches.within(window)
    parts = [
        (label, inside)
        for label, name in PARTS.items()
        for found in instances(trace, name, [window])
        if (inside := launches.within(found))
    ]
    return {
        "layer_range": [label for label, _ in parts],
        "layer_range_start_ns": [inside[0].start_ns - step.start_ns for _, inside in parts],
        "layer_range_ns": [max(k.end_ns for k in inside) - inside[0].start_ns for _, inside in parts],
        "layer_kernel": [place[short[kernel.name]] for kernel in kernels],
        "layer_start_ns": [kernel.start_ns - step.start_ns for kernel in kernels],
        "layer_ns": [kernel.duration_ns for kernel in kernels],
    }
