"""Timeline of one step: spans in which one rank computes, communicates, or does both at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from perfscribe.instruments.profiling import ranges
from perfscribe.instruments.profiling.families import COMMUNICATION, GLOO, family, require_communication
from perfscribe.instruments.profiling.summary import Launches, Span, length_ns, merged
from perfscribe.instruments.profiling.trace import Kernel, Range, Trace
from perfscribe.instruments.timing import Mark

PHASES = {"forward": ranges.FORWARD, "backward": ranges.BACKWARD, "communication": "finish", "optimizer": "optimizer"}
# Spans closer than this fraction of a step are merged in a record: a figure resolves no more.
SHORTEST = 1 / 500
GATHER = re.compile(r"(?i)all_?gather")


@dataclass(frozen=True)
class Lanes:
    """Timeline of one step on a rank: a lane is a sorted list of disjoint (start, end), in ns from the step's start.

    gathers: the all-gathers of communication. phases: one span per name. own_stream: on CUDA, compute and communication
    share no stream; False on the CPU. tool: the profiler.
    """

    step_ns: int
    compute: list[Span]
    communication: list[Span]
    gathers: list[Span]
    phases: dict[str, Span]
    own_stream: bool
    tool: str

    def values(self) -> dict[str, Any]:
        """Return milliseconds of the step, of each lane, and of both at once."""
        lengths_ns = {
            "step": self.step_ns,
            "compute": length_ns(self.compute),
            "communication": length_ns(self.communication),
        }
        either = length_ns(merged([*self.compute, *self.communication]))
        lengths_ns["both"] = lengths_ns["compute"] + lengths_ns["communication"] - either
        found = {f"traced_{name}_ms": ns / 1e6 for name, ns in lengths_ns.items()}
        return found | {"own_stream": self.own_stream, "trace_tool": self.tool}

    def series(self, **others: list[Span]) -> dict[str, list[Any]]:
        """Return all spans as columns lane, start_ns and ns; others: further lanes by name. Small gaps are closed."""
        nearest = int(self.step_ns * SHORTEST)
        lanes = {"compute": self.compute, "communication": self.communication, **others}
        named = [(lane, span) for lane, spans in lanes.items() for span in merged(spans, nearest)]
        named += [(f"phase {name}", span) for name, span in self.phases.items()]
        return {
            "lane": [lane for lane, _ in named],
            "start_ns": [start for _, (start, _) in named],
            "ns": [end - start for _, (start, end) in named],
        }


def record(prepare: Callable[[], object], step: Callable[[Mark], object], device: str) -> Trace:
    """Trace one step, after prepare(); step calls its mark where a phase ends. Only the end synchronises the device."""
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
    """Return the step of a trace as lanes. ValueError: several ranks without communication in the step."""
    step = next(span for span in trace.ranges if span.name == ranges.STEP)
    inside = [kernel for kernel in trace.kernels if step.start_ns <= kernel.start_ns < step.end_ns]
    sent = [kernel for kernel in inside if family(kernel.name) == COMMUNICATION]
    collectives: list[Any] = [span for span in trace.ranges if span.name.startswith(GLOO)]
    threads = {span.thread for span in collectives}  # gloo's, which copy from and to its buffers
    computed = [
        kernel for kernel in inside if family(kernel.name) != COMMUNICATION and kernel.launch_thread not in threads
    ]
    if device == "cuda":
        require_communication(replace(trace, kernels=inside), world_size)
        collectives = list(sent)
    communication = _within(step, collectives)
    if device == "cpu" and world_size > 1 and not communication:
        raise ValueError(f"a trace of {world_size} ranks without a communication: {trace.tool} saw no {GLOO}")
    return Lanes(
        step_ns=step.duration_ns,
        compute=merged(_within(step, computed)),
        communication=merged(communication),
        gathers=merged(_within(step, [span for span in collectives if GATHER.search(span.name)])),
        phases=_phases(trace, step, device),
        own_stream=device == "cuda" and not {kernel.stream for kernel in sent} & {kernel.stream for kernel in computed},
        tool=trace.tool,
    )


def _within(step: Range, spans: Iterable[Range | Kernel]) -> list[Span]:
    """Return spans that begin in the step, relative to its start and cut at its end."""
    begun = [span for span in spans if step.start_ns <= span.start_ns < step.end_ns]
    return [(span.start_ns - step.start_ns, min(span.end_ns, step.end_ns) - step.start_ns) for span in begun]


def _phases(trace: Trace, step: Range, device: str) -> dict[str, Span]:
    """Return the span of each phase: on a GPU from its first to its last kernel, communication excluded."""
    phases: dict[str, Span] = {}
    launches = Launches(trace)
    for name, called in PHASES.items():
        for phase in trace.ranges:
            if phase.name != called or not step.start_ns <= phase.start_ns < step.end_ns:
                continue
            spans: list[Any] = [phase]
            if device == "cuda":
                spans = [kernel for kernel in launches.within(phase) if family(kernel.name) != COMMUNICATION]
            if spans:
                end = min(max(span.end_ns for span in spans), step.end_ns)
                phases[name] = (spans[0].start_ns - step.start_ns, end - step.start_ns)
    return phases
