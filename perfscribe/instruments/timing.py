"""The two timers, never mixed in a sample: the host clock for whole steps and I/O, CUDA events for device work.

Host clock: the device is synchronised before each reading, so a sample contains all work that the call queued and its
launch time. CUDA events: the device's time stamps before and after the queued work, without launch time if the queue is
full; they resolve about 0.5 us, so calls below about 10 us must be timed in batches.
Every call is one sample, including warm-up calls; nothing is dropped here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Measurement, Unsupported

if TYPE_CHECKING:
    import torch

HOST_CLOCK = "host clock"
CUDA_EVENTS = "CUDA events"
FLUSH_BYTES = 256 * 2**20  # five times the 50 MB of L2 in the H200's data sheet
STEP = "step"

Mark = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """Times of repeated calls of one function, ms, in the order taken.

    warmup_s, timed_s: wall seconds of the warm-up and of the timed calls, `prepare` and L2 flushes included.
    """

    samples_ms: list[float]
    warmup_ms: list[float]
    timer: str
    warmup_s: float
    timed_s: float


def synchronise(device: str | torch.device) -> None:
    """Wait for all work queued on the device; raises ValueError for a device that is neither CPU nor CUDA."""
    import torch

    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind != "cpu":
        raise ValueError(f"device {device}: expected cpu or cuda")


def time_host(
    fn: Callable[[], object],
    *,
    warmup: int,
    timed: int,
    device: str | torch.device,
    prepare: Callable[[], object] | None = None,
) -> Timing:
    """Time each call of fn() by the host clock, with the device synchronised before and after it.

    prepare() runs before each call, outside the timed span (gradients set to None, a fresh output for backward); its
    queued work is waited for. fn's result is freed after the span.
    Raises ValueError for warmup below 0 or timed below 1.
    """

    def one_call() -> float:
        if prepare is not None:
            prepare()
        synchronise(device)
        start = time.perf_counter()
        result = fn()
        synchronise(device)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        del result  # held until here: freeing a graph takes time that does not belong to the call
        return elapsed_ms

    return _two_spans(lambda calls: [one_call() for _ in range(calls)], warmup, timed, HOST_CLOCK)


def time_device(
    fn: Callable[[], object],
    *,
    warmup: int,
    timed: int,
    flush_l2: bool = True,
    prepare: Callable[[], object] | None = None,
) -> Timing:
    """Time each call of fn() by CUDA events on the current stream of the current device.

    Before each call, outside the events, prepare() runs and, with flush_l2, 256 MiB are overwritten so that no input is
    in L2. The host waits once at the end, not between calls, so that the queue stays full and launch time is hidden as
    far as possible. The buffer counts in the device's reserved memory: measure peaks in a separate pass. Work that fn
    queues on other streams is timed only if fn makes the current stream wait for it.
    Raises Unsupported without a CUDA device, ValueError for warmup below 0 or timed below 1.
    """
    import torch

    if not torch.cuda.is_available():
        raise Unsupported("CUDA events need a CUDA device; time CPU work by the host clock")
    buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda") if flush_l2 else None

    def calls_in_a_row(calls: int) -> list[float]:
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(calls)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(calls)]
        for start, end in zip(starts, ends, strict=True):
            if prepare is not None:
                prepare()
            if buffer is not None:
                buffer.zero_()
            start.record()
            fn()
            end.record()
        torch.cuda.synchronize()
        return [float(start.elapsed_time(end)) for start, end in zip(starts, ends, strict=True)]

    return _two_spans(calls_in_a_row, warmup, timed, CUDA_EVENTS)


def time_phases(
    step: Callable[[Mark], object],
    *,
    warmup: int,
    timed: int,
    device: str | torch.device,
    prepare: Callable[[], object] | None = None,
) -> dict[str, Timing]:
    """Time the phases of a step and the whole step in one pass, by the host clock.

    step(mark) calls mark(name) at the end of each phase; mark waits for the device, so phases do not overlap. A phase
    lasts from the previous mark (or the start). A name marked several times in a step adds up.
    Returns a Timing for each name, and for "step", the whole call. Work after the last mark counts only in "step". Wall
    seconds are at "step"; those of the phases are 0, so that a sum over all counts the pass once.
    Raises ValueError if no phase is marked, one is called "step", or steps mark different phases.
    """

    def one_step() -> dict[str, float]:
        if prepare is not None:
            prepare()
        synchronise(device)
        start = time.perf_counter()
        marks: list[tuple[str, float]] = []

        def mark(name: str) -> None:
            synchronise(device)
            marks.append((name, time.perf_counter()))

        step(mark)
        synchronise(device)
        return _phases_ms(start, marks, time.perf_counter())

    steps: list[dict[str, float]] = []

    def whole_steps(calls: int) -> list[float]:
        spans = [one_step() for _ in range(calls)]
        steps.extend(spans)
        return [span[STEP] for span in spans]

    whole = _two_spans(whole_steps, warmup, timed, HOST_CLOCK)
    return _timings_of_phases(steps, whole)


def record(measurement: Measurement, name: str, timing: Timing) -> None:
    """Add a timing to a measurement under a name that ends in _ms: samples, warm-up, timer and wall seconds."""
    measurement.samples[name] = list(timing.samples_ms)
    if timing.warmup_ms:
        measurement.warmup[name] = list(timing.warmup_ms)
    measurement.timers[name] = timing.timer
    measurement.warmup_s += timing.warmup_s
    measurement.timed_s += timing.timed_s


def record_of_ranks(measurement: Measurement, name: str, timings: Sequence[Mapping[str, Any]]) -> None:
    """Record the Timings of all ranks (as vars()) for the same calls: of each call the longest time of any rank."""
    samples_ms, warmup_ms = (longest([timing[part] for timing in timings]) for part in ("samples_ms", "warmup_ms"))
    warmup_s, timed_s = (max(timing[part] for timing in timings) for part in ("warmup_s", "timed_s"))
    record(measurement, name, Timing(samples_ms, warmup_ms, timings[0]["timer"], warmup_s, timed_s))


def longest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return, for each call, the longest time of any rank."""
    return [max(call) for call in zip(*by_rank, strict=True)]


def _two_spans(run: Callable[[int], list[float]], warmup: int, timed: int, timer: str) -> Timing:
    """Run `warmup` and then `timed` calls by run(calls), which returns their samples in ms."""
    if warmup < 0 or timed < 1:
        raise ValueError(f"expected warmup >= 0 and timed >= 1, not {warmup} and {timed}")
    start = time.perf_counter()
    warmup_ms = run(warmup)
    between = time.perf_counter()
    samples_ms = run(timed)
    return Timing(samples_ms, warmup_ms, timer, between - start, time.perf_counter() - between)


def _phases_ms(start: float, marks: list[tuple[str, float]], end: float) -> dict[str, float]:
    """Return milliseconds by phase and of the whole step, from clock readings in s."""
    spans: dict[str, float] = {}
    before = start
    for name, at in marks:
        if name == STEP:
            raise ValueError('a phase cannot be called "step": that is the whole')
        spans[name] = spans.get(name, 0.0) + (at - before) * 1e3
        before = at
    return spans | {STEP: (end - start) * 1e3}


def _timings_of_phases(steps: list[dict[str, float]], whole: Timing) -> dict[str, Timing]:
    """Return a Timing per phase from the spans of all steps, warm-up first."""
    names = list(steps[0])
    if len(names) == 1:
        raise ValueError("the step marked no phase")
    for spans in steps:
        if set(spans) != set(names):
            raise ValueError(f"steps marked different phases: {', '.join(names)} and {', '.join(spans)}")
    warmup = len(whole.warmup_ms)
    phases = {
        name: Timing([s[name] for s in steps[warmup:]], [s[name] for s in steps[:warmup]], HOST_CLOCK, 0.0, 0.0)
        for name in names
    }
    return phases | {STEP: whole}
