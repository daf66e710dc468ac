"""A third timer: device time by replaying CUDA graphs, without the time to launch kernels one by one.

A call is captured once and replayed; CUDA events stand right before and after each replay, and 256 MiB are overwritten
before each, outside the events, so that the call finds none of its inputs in L2.

In a sample: the kernels, the gaps between them (about 1 us each), the start of the graph on the device (some us,
shared by the calls in it). Not in it: Python, the dispatcher, autograd's bookkeeping, launches by the host, the flush.

Short calls. Events resolve about 0.5 us and starting a graph takes longer than that, so a call below SHORT_MS is
captured several times into one graph, and a sample is the replay's time over the number of calls. A flush between the
calls would have to stand inside the events: it takes ten times as long as the shortest calls and would have to be
subtracted, noise and all. Instead every call of the graph works on tensors of its own, which the one flush before the
replay has pushed out of L2 together; each finds them cold, as a single call would. What all calls share (a mask) is
cold for the first of them alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfscribe.base.cells import Measurement, Unsupported
from perfscribe.instruments.memory import is_oom
from perfscribe.instruments.timing import FLUSH_BYTES, Timing, record, time_device, time_host

if TYPE_CHECKING:
    import torch

GRAPH_REPLAY = "CUDA graph replay"
SHORT_MS = 0.1  # below this the start of a graph and the events' resolution would be seen
BATCH_MS = 0.2  # what a graph of several calls lasts at least, as far as MOST_CALLS allows
MOST_CALLS = 32
PROBES = 2  # replays that tell how long a call takes, the first of which uploads the graph; they are the warm-up
LONG_MS = 10.0  # of a call whose first replay tells enough
FEWEST_SAMPLES = 3
ENOUGH_MS = 100.0  # of timed calls, from which on fewer samples than asked for are taken
DIGITS = 5  # of a sample that Clocks keeps: events resolve 0.5 us, and there are hundreds of cells
HOST_WARMUP = 1
# Of calls with launches: as do_bench warms up, and so many for each sample asked for, as the host's time varies most.
LAUNCHED_WARMUP_MS = 25.0
LAUNCHED_CALLS = 5

Make = Callable[[], Callable[[], object]]


class CaptureFailed(Exception):
    """A call that cannot be captured into a graph; the text is the first line of the reason."""


@dataclass(frozen=True)
class GraphTiming:
    """Samples of one call by graph replay, or by plain events where it cannot be captured.

    calls_per_sample: how many calls a replay held; samples are times of one call. fallback: why there was no graph.
    """

    timing: Timing
    calls_per_sample: int
    fallback: str = ""


def samples_within(call_ms: float, samples: int) -> int:
    """How many calls to time: as asked for, but no fewer than FEWEST_SAMPLES nor many more than ENOUGH_MS of them."""
    affordable = int(ENOUGH_MS / call_ms) if call_ms > 0 else samples
    return max(min(FEWEST_SAMPLES, samples), min(samples, affordable))


def time_replays(make: Make, *, samples: int, recorder: CudaGraphs) -> GraphTiming:
    """Time a call by graph replay; by CUDA events around plain calls where it cannot be captured.

    make() gives a call that works on tensors of its own; it and the call run on the recorder's stream, so that what
    autograd remembers of streams fits. The timer's name says which of the two it was. Out-of-memory errors are raised.
    """
    started, reason = time.perf_counter(), ""
    try:
        calls, warmup_ms, samples_ms, timed_s = _replayed(make, samples, recorder)
    except CaptureFailed as error:
        reason = str(error)
    if reason:  # out here the error is gone, whose frames hold the tensors of the call
        return _by_events(make, samples, reason)
    spent_s = time.perf_counter() - started
    return GraphTiming(Timing(samples_ms, warmup_ms, GRAPH_REPLAY, spent_s - timed_s, timed_s), calls)


def _replayed(make: Make, samples: int, recorder: CudaGraphs) -> tuple[int, list[float], list[float], float]:
    """Calls a graph, warm-up samples and samples in ms a call, wall seconds of the timed replays."""
    with recorder.capture(make, 1) as graph:
        probes_ms = graph.replay_ms(1)
        if probes_ms[0] < LONG_MS:
            probes_ms += graph.replay_ms(PROBES - 1)
        call_ms = min(probes_ms)
        if call_ms >= SHORT_MS:
            return 1, probes_ms, *_timed(graph, 1, samples_within(call_ms, samples))
    calls = min(MOST_CALLS, math.ceil(BATCH_MS / call_ms)) if call_ms > 0 else MOST_CALLS
    with recorder.capture(make, calls) as graph:
        warmup_ms = [replay_ms / calls for replay_ms in graph.replay_ms(PROBES)]
        return calls, warmup_ms, *_timed(graph, calls, samples)


def _timed(graph: Graph, calls: int, samples: int) -> tuple[list[float], float]:
    started = time.perf_counter()
    samples_ms = [replay_ms / calls for replay_ms in graph.replay_ms(samples)]
    return samples_ms, time.perf_counter() - started


def _by_events(make: Make, samples: int, reason: str) -> GraphTiming:
    call = make()
    probe = time_device(call, warmup=1, timed=1)
    timing = time_device(call, warmup=0, timed=samples_within(probe.samples_ms[0], samples))
    warmup_s = probe.warmup_s + probe.timed_s
    return GraphTiming(replace(timing, warmup_ms=probe.samples_ms, warmup_s=warmup_s), 1, reason)


def time_launched(make: Make, *, samples: int, call_ms: float) -> Timing:
    """The same call by CUDA events around plain calls, as triton.testing.do_bench reads it, launches included.

    The host runs ahead while the device overwrites 256 MiB before each call, so launches are hidden for as long as
    that takes (about 0.1 ms) and show beyond it. call_ms: what a call takes.
    """
    timed = samples_within(call_ms, samples)
    warmup = min(timed, int(LAUNCHED_WARMUP_MS / call_ms)) if call_ms > 0 else timed
    return time_device(make(), warmup=max(1, warmup), timed=timed)


class CudaGraphs:
    """Captures and replays on a stream of its own; one for all timings of a cell, as it holds the flush buffer.

    Unsupported: no CUDA device.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise Unsupported("CUDA graphs need a CUDA device; time CPU work by the host clock")
        self._stream = torch.cuda.Stream()
        self._buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    @contextmanager
    def capture(self, make: Make, calls: int) -> Iterator[Graph]:
        """A graph of `calls` calls, each run once before, so that libraries have loaded and allocated what they need.

        CaptureFailed: capture is impossible. Out-of-memory errors and errors of the calls themselves are raised.
        """
        import torch

        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            made = [make() for _ in range(calls)]
            for call in made:
                call()
        graph = torch.cuda.CUDAGraph()
        try:
            self._record(graph, made)
            yield Graph(graph, self._stream, self._buffer)
        finally:
            torch.cuda.synchronize()
            graph.reset()
            made.clear()

    def _record(self, graph: torch.cuda.CUDAGraph, made: list[Callable[[], object]]) -> None:
        import torch

        try:
            with torch.cuda.graph(graph, stream=self._stream):
                held = [call() for call in made]  # alive to the end, so that no two calls write to one place
            del held
        except RuntimeError as error:
            # Ending a broken capture raises an error of its own. No name may stand for an error here that is not raised
            # again: its frames would hold it, and with them their tensors would stay.
            causes = (one for one in (error, error.__context__) if one is not None and is_oom(one))
            out_of_memory = next(causes, None)
            del causes
            if out_of_memory is not None:
                raise out_of_memory from None
            raise CaptureFailed((str(error).splitlines() or [type(error).__name__])[0]) from error


@dataclass(frozen=True)
class Graph:
    """A CUDA graph, the stream it replays on and the buffer that flushes L2."""

    graph: torch.cuda.CUDAGraph
    stream: torch.cuda.Stream
    buffer: torch.Tensor

    def replay_ms(self, times: int) -> list[float]:
        """Milliseconds of each replay; the host waits once, at the end, so that the queue stays full."""
        import torch

        starts = [torch.cuda.Event(enable_timing=True) for _ in range(times)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(times)]
        with torch.cuda.stream(self.stream):
            for start, end in zip(starts, ends, strict=True):
                self.buffer.zero_()
                start.record()
                self.graph.replay()
                end.record()
        self.stream.synchronize()
        return [float(start.elapsed_time(end)) for start, end in zip(starts, ends, strict=True)]


class Clocks:
    """The timers of a device: graph replay and plain events on CUDA, the host clock on the CPU."""

    def __init__(self, device: str, samples: int) -> None:
        self._recorder = CudaGraphs() if device == "cuda" else None
        self._samples = samples
        self._calls: dict[str, int] = {}
        self._fallbacks: dict[str, str] = {}

    def time(self, measurement: Measurement, name: str, make: Make) -> None:
        """Keep <name>_ms of the calls that make() gives, and on CUDA <name>_launched_ms, with the launches."""
        if self._recorder is None:
            timing = time_host(make(), warmup=HOST_WARMUP, timed=self._samples, device="cpu")
            _keep(measurement, f"{name}_ms", timing)
            return
        replayed = time_replays(make, samples=self._samples, recorder=self._recorder)
        _keep(measurement, f"{name}_ms", replayed.timing)
        self._calls[name] = replayed.calls_per_sample
        if replayed.fallback:
            self._fallbacks[name] = replayed.fallback
        call_ms = min(replayed.timing.samples_ms)
        launched = time_launched(make, samples=LAUNCHED_CALLS * self._samples, call_ms=call_ms)
        # Its warm-up calls are those of a call which has run many times by now.
        _keep(measurement, f"{name}_launched_ms", replace(launched, warmup_ms=[]))

    def values(self) -> dict[str, str]:
        """What a record says of the timing: calls a replay in the order timed, and why anything was not replayed."""
        found = {"calls_per_sample": " ".join(map(str, self._calls.values()))} if self._calls else {}
        told = "; ".join(f"{name}: {reason}" for name, reason in self._fallbacks.items())
        return found | ({"no_graph": told} if told else {})


def _keep(measurement: Measurement, name: str, timing: Timing) -> None:
    samples, warmup = ([float(f"{ms:.{DIGITS}g}") for ms in each] for each in (timing.samples_ms, timing.warmup_ms))
    record(measurement, name, replace(timing, samples_ms=samples, warmup_ms=warmup))
