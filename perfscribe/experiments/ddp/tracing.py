"""The timeline of one step: what one rank computed and what it communicated, and when both at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.profiling.families import COMMUNICATION, family, require_communication
from perfscribe.instruments.profiling.summary import Launches
from perfscribe.instruments.profiling.trace import Range, Trace
from perfscribe.instruments.timing import Mark

Span = tuple[int, int]  # begin and end, ns

PHASES = {"forward": ranges.FORWARD, "backward": ranges.BACKWARD, "communication": "finish", "optimizer": "optimizer"}
# Spans that lie closer than this part of a step are one in a record: a picture shows no more.
SHORTEST = 1 / 500
# Gloo's threads mark their collectives by ranges of this name's beginning; there are no kernels.
GLOO = "gloo:"
NO_STREAMS: dict[str, list[int]] = {"compute": [], "communication": []}


@dataclass(frozen=True)
class Lanes:
    """Spans within a step, ns from its begin, none touching another of its lane; phases by name.

    streams: the CUDA streams of each lane.
    """

    step_ns: int
    compute: list[Span]
    communication: list[Span]
    phases: dict[str, Span]
    streams: dict[str, list[int]]
    tool: str

    def values(self) -> dict[str, Any]:
        """Milliseconds of the step, of each lane, and of both at once, and how many streams each lane has."""
        both = _together(self.compute, self.communication)
        spans = {"compute": self.compute, "communication": self.communication, "both": both}
        found: dict[str, Any] = {f"traced_{name}_ms": _length(of) / 1e6 for name, of in spans.items()}
        shared = set(self.streams["compute"]) & set(self.streams["communication"])
        own = bool(self.streams["communication"]) and not shared
        return found | {"traced_step_ms": self.step_ns / 1e6, "own_stream": own, "trace_tool": self.tool}

    def series(self) -> dict[str, list[Any]]:
        """The lanes and phases as parallel lists."""
        nearest = int(self.step_ns * SHORTEST)
        lanes = {"compute": self.compute, "communication": self.communication}
        named = [(lane, span) for lane, spans in lanes.items() for span in _merged(spans, nearest)]
        named += [(f"phase {name}", span) for name, span in self.phases.items()]
        return {
            "lane": [lane for lane, _ in named],
            "start_ns": [start for _, (start, _) in named],
            "ns": [end - start for _, (start, end) in named],
        }


def record(prepare: Callable[[], object], step: Callable[[Mark], object], device: str) -> Trace:
    """Trace one step with its phases in ranges. The device is waited for at its end, and nowhere else."""
    from perfscribe.instruments.profiling.torch_profiler import recording
    from perfscribe.instruments.timing import synchronise

    with recording(device) as recorded:
        prepare()
        waiting = list(PHASES.values())
        with ranges.annotate(ranges.STEP), ExitStack() as phase:

            def next_phase(_: str) -> None:
                phase.close()
                if waiting:
                    phase.enter_context(ranges.annotate(waiting.pop(0)))

            next_phase("")
            step(next_phase)
            synchronise(device)
    return recorded.trace


def lanes(trace: Trace, world_size: int, device: str) -> Lanes:
    """The step of a trace as lanes. ValueError: several ranks, and no communication in the step."""
    step = next(one for one in trace.ranges if one.name == ranges.STEP)
    inside = [one for one in trace.kernels if step.start_ns <= one.start_ns < step.end_ns]
    sent = [one for one in inside if family(one.name) == COMMUNICATION]
    computed = [one for one in inside if family(one.name) != COMMUNICATION]
    if device == "cuda":
        require_communication(replace(trace, kernels=inside), world_size)
        communication: list[Span] = [(one.start_ns, one.end_ns) for one in sent]
    else:
        communication = _gloo(trace, step)
        if world_size > 1 and not communication:
            raise ValueError(f"a trace of {world_size} ranks without a communication: {trace.tool} saw no {GLOO}")
    return Lanes(
        step_ns=step.duration_ns,
        compute=_merged(_from(step, ((one.start_ns, one.end_ns) for one in computed))),
        communication=_merged(_from(step, communication)),
        phases=_phases(trace, step, device),
        streams={"compute": _streams(computed), "communication": _streams(sent)} if device == "cuda" else NO_STREAMS,
        tool=trace.tool,
    )


def _phases(trace: Trace, step: Range, device: str) -> dict[str, Span]:
    """Where each phase ran: on a GPU from the first to the last kernel that it launched, but for communication."""
    found: dict[str, Span] = {}
    launches = Launches(trace)
    for name, called in PHASES.items():
        for one in trace.ranges:
            if one.name != called or not step.start_ns <= one.start_ns < step.end_ns:
                continue
            span = (one.start_ns, one.end_ns)
            if device == "cuda":
                own = [kernel for kernel in launches.within(one) if family(kernel.name) != COMMUNICATION]
                if not own:
                    continue
                span = (own[0].start_ns, max(kernel.end_ns for kernel in own))
            found[name] = _from(step, [span])[0]
    return found


def _streams(kernels: Iterable[Any]) -> list[int]:
    return sorted({one.stream for one in kernels})


def _gloo(trace: Trace, step: Range) -> list[Span]:
    """Collectives that gloo's threads worked on within the step."""
    return [
        (one.start_ns, one.end_ns)
        for one in trace.ranges
        if one.name.startswith(GLOO) and step.start_ns <= one.start_ns < step.end_ns
    ]


def _from(step: Range, spans: Iterable[Span]) -> list[Span]:
    """Spans from the step's begin, cut at its end."""
    return [(start - step.start_ns, min(end, step.end_ns) - step.start_ns) for start, end in spans]


def _merged(spans: Iterable[Span], nearest: int = 0) -> list[Span]:
    """In order, without those that overlap or lie no further apart than `nearest`."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= nearest:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _together(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Where a span of each lane is; both lanes merged."""
    found, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        start, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start < end:
            found.append((start, end))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)
