"""Device time by replaying CUDA graphs, without the time to launch kernels one by one.

A call is captured once and replayed. CUDA events enclose each replay; before it, outside the events, 256 MiB are
overwritten, so that none of the call's inputs are in L2.

A sample includes the kernels, the gaps between them (about 1 us each) and the start of the graph on the device (some
us, shared by its calls). It excludes Python, the dispatcher, autograd's bookkeeping, launches by the host, the flush.

Short calls: events resolve about 0.5 us, and starting a graph takes longer, so a call below SHORT_MS is captured
several times into one graph; a sample is the replay's time over the number of calls. Flushing between the calls, inside
the events, would take ten times as long as the shortest calls and add its noise. Instead every call of the graph works
on separate tensors, all of which the flush before the replay evicts from L2, so that each call is cold. Tensors that
the calls share (a mask) are cold only for the first.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfscribe.base.cells import Measurement, Unsupported
from perfscribe.instruments.memory import is_oom
from perfscribe.instruments.timing import CUDA_EVENTS, FLUSH_BYTES, Timing, record, time_device, time_host

if TYPE_CHECKING:
    import torch

GRAPH_REPLAY = "CUDA graph replay"
IN_TURNS = f"{CUDA_EVENTS}, median of each turn"
SHORT_MS = 0.1  # below this, the start of a graph and the events' resolution would matter
BATCH_MS = 0.2  # least duration of a graph of several calls, as far as MOST_CALLS allows
MOST_CALLS = 32
# Warm-up replays, which measure a call's duration. The first uploads the graph; of eager attention over 32768 tokens
# and more, the first three have taken up to 12 % longer than later ones (H100, H200).
PROBES = 4
FEWEST_SAMPLES = 3
ENOUGH_MS = 100.0  # total time of timed calls beyond which fewer samples than requested are taken
DIGITS = 5  # significant digits of a sample that Clocks keeps: events resolve 0.5 us, and there are hundreds of cells
HOST_WARMUP = 1
# Calls timed with launches: warm-up and time of a turn are do_bench's. Two turns, as the grid is measured in rounds.
LAUNCHED_TURNS = 2
LAUNCHED_WARMUP_MS, LAUNCHED_MS = 25.0, 100.0

Make = Callable[[], Callable[[], object]]


class CaptureFailed(Exception):
    """A call that cannot be captured into a graph; the text is the first line of the reason."""


@dataclass(frozen=True)
class GraphTiming:
    """Samples of one call by graph replay, or by plain events if it cannot be captured.

    calls_per_sample: calls per replay; samples are times of one call. fallback: reason why there was no graph.
    """

    timing: Timing
    calls_per_sample: int
    fallback: str = ""


def samples_within(call_ms: float, samples: int) -> int:
    """Return `samples`, or as many as fit in ENOUGH_MS if fewer, but then not below FEWEST_SAMPLES."""
    affordable = int(ENOUGH_MS / call_ms) if call_ms > 0 else samples
    return max(min(FEWEST_SAMPLES, samples), min(samples, affordable))


def time_replays(make: Make, *, samples: int, recorder: CudaGraphs) -> GraphTiming:
    """Time a call by graph replay, or by CUDA events around plain calls if it cannot be captured.

    make() returns a call with its own tensors. For graphs both run on the recorder's stream, and so does backward.
    The timer's name tells which method was used. Out-of-memory errors are raised.
    """
    started, reason = time.perf_counter(), ""
    try:
        calls, warmup_ms, samples_ms, timed_s = _replayed(make, samples, recorder)
    except CaptureFailed as error:
        reason = str(error)
    if reason:  # outside `except`: the error's frames would keep the call's tensors alive
        return _by_events(make, samples, reason)
    spent_s = time.perf_counter() - started
    return GraphTiming(Timing(samples_ms, warmup_ms, GRAPH_REPLAY, spent_s - timed_s, timed_s), calls)


def _replayed(make: Make, samples: int, recorder: CudaGraphs) -> tuple[int, list[float], list[float], float]:
    """Return calls per graph, warm-up samples and samples in ms per call, wall seconds of the timed replays."""
    with recorder.capture(make, 1) as graph:
        probes_ms = graph.replay_ms(PROBES)
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


def time_launched(make: Make, *, call_ms: float, turns: int = LAUNCHED_TURNS) -> Timing:
    """Time a call by CUDA events around plain calls, launches included, like triton.testing.do_bench.

    Returns the median of each turn; the first is warmed up, the others follow at once. call_ms: duration of a call
    without launches. The host runs ahead while the device overwrites 256 MiB before each call, so launches are hidden
    for that long (about 0.1 ms) and visible beyond it.
    """
    call = make()
    first = time_device(call, warmup=1, timed=1)
    expected_ms = max(call_ms, first.samples_ms[0])
    warmup, timed = int(LAUNCHED_WARMUP_MS / expected_ms), max(1, int(LAUNCHED_MS / expected_ms))
    timings = [time_device(call, warmup=0 if turn else warmup, timed=timed) for turn in range(turns)]
    medians = [statistics.median(timing.samples_ms) for timing in timings]
    warmup_s = sum(timing.warmup_s for timing in (first, *timings)) + first.timed_s
    return Timing(medians, [], IN_TURNS, warmup_s, sum(timing.timed_s for timing in timings))


class CudaGraphs:
    """Captures and replays graphs on a separate stream; use one per cell, because it holds the flush buffer.

    Raises Unsupported without a CUDA device.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise Unsupported("CUDA graphs need a CUDA device; time CPU work by the host clock")
        self._stream = torch.cuda.Stream()
        self._buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    @contextmanager
    def capture(self, make: Make, calls: int) -> Iterator[Graph]:
        """Yield a graph of `calls` calls, each run once before, so that libraries are loaded and have allocated memory.

        Raises CaptureFailed if capture is impossible; out-of-memory errors and errors of the calls are raised
        unchanged.
        """
        import torch

        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            prepared = [make() for _ in range(calls)]
            for call in prepared:
                call()
        graph = torch.cuda.CUDAGraph()
        try:
            self._record(graph, prepared)
            yield Graph(graph, self._stream, self._buffer)
        finally:
            torch.cuda.synchronize()
            graph.reset()
            prepared.clear()

    def _record(self, graph: torch.cuda.CUDAGraph, calls: list[Callable[[], object]]) -> None:
        import torch

        try:
            with torch.cuda.graph(graph, stream=self._stream):
                held = [call() for call in calls]  # kept to the end, so that no two calls write to the same memory
            del held
        except RuntimeError as error:
            # Ending a broken capture raises another error. No name may refer to an error that is not re-raised: its
            # frames would keep their tensors alive.
            causes = (cause for cause in (error, error.__context__) if cause is not None and is_oom(cause))
            out_of_memory = next(causes, None)
            del causes
            if out_of_memory is not None:
                raise out_of_memory from None
            raise CaptureFailed((str(error).splitlines() or [type(error).__name__])[0]) from error


@dataclass(frozen=True)
class Graph:
    """A CUDA graph, its replay stream and the buffer that flushes L2."""

    graph: torch.cuda.CUDAGraph
    stream: torch.cuda.Stream
    buffer: torch.Tensor

    def replay_ms(self, times: int) -> list[float]:
        """Return the milliseconds of each replay; the host waits once, at the end, so that the queue stays full."""
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
    """The timers of a device: graph replay and plain events on CUDA, the host clock on the CPU.

    launched_turns: number of samples with launches, one per turn. replays: False skips graph replay.
    """

    def __init__(self, device: str, samples: int, launched_turns: int = LAUNCHED_TURNS, replays: bool = True) -> None:
        self._recorder = CudaGraphs() if device == "cuda" else None
        self._samples, self._turns, self._replays = samples, launched_turns, replays
        self._calls: dict[str, int] = {}
        self._fallbacks: dict[str, str] = {}

    def time(self, measurement: Measurement, name: str, make: Make) -> None:
        """Record <name>_ms of the calls that make() returns, and on CUDA <name>_launched_ms, with launches."""
        if self._recorder is None:
            timing = time_host(make(), warmup=HOST_WARMUP, timed=self._samples, device="cpu")
            _keep(measurement, f"{name}_ms", timing)
            return
        if self._replays:
            self._time_replays(measurement, name, make, self._recorder)
        call_ms = min(measurement.samples.get(f"{name}_ms", [0.0]))
        _keep(measurement, f"{name}_launched_ms", time_launched(make, call_ms=call_ms, turns=self._turns))

    def _time_replays(self, measurement: Measurement, name: str, make: Make, recorder: CudaGraphs) -> None:
        replayed = time_replays(make, samples=self._samples, recorder=recorder)
        _keep(measurement, f"{name}_ms", replayed.timing)
        self._calls[name] = replayed.calls_per_sample
        if replayed.fallback:
            self._fallbacks[name] = replayed.fallback

    def time_on_one_thread(self, measurement: Measurement, name: str, make: Make) -> None:
        """Record <name>_one_thread_ms on CUDA: with launches, backward on the calling thread, not on autograd's own."""
        import torch

        if self._recorder is None:  # a CPU's backward runs on the calling thread anyway
            return
        call_ms = min(measurement.samples.get(f"{name}_ms", [0.0]))
        with torch.autograd.set_multithreading_enabled(False):
            _keep(measurement, f"{name}_one_thread_ms", time_launched(make, call_ms=call_ms, turns=self._turns))

    def values(self) -> dict[str, str]:
        """Return record values: calls per replay in the order timed, and reasons where a graph was not possible."""
        values = {"calls_per_sample": " ".join(map(str, self._calls.values()))} if self._calls else {}
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self._fallbacks.items())
        return values | ({"no_graph": reasons} if reasons else {})


def _keep(measurement: Measurement, name: str, timing: Timing) -> None:
    samples, warmup = ([float(f"{ms:.{DIGITS}g}") for ms in each] for each in (timing.samples_ms, timing.warmup_ms))
    record(measurement, name, replace(timing, samples_ms=samples, warmup_ms=warmup))
