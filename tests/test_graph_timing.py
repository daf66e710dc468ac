"""Graph replay as a timer: what is captured, what stands between the events, what happens without a graph."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from perfscribe.base.cells import Unsupported
from perfscribe.instruments import graph_timing as g
from perfscribe.instruments.timing import CUDA_EVENTS, Timing


class FakeRecorder:
    """Graphs whose replays last `start_ms` and `call_ms` for each call in them."""

    def __init__(self, call_ms: float, start_ms: float = 0.0, error: Exception | None = None) -> None:
        self.call_ms, self.start_ms, self.error = call_ms, start_ms, error
        self.captured: list[int] = []
        self.replays: list[int] = []
        self.open = 0

    @contextmanager
    def capture(self, make: g.Make, calls: int) -> Iterator[Any]:
        if self.error is not None:
            raise self.error
        assert self.open == 0, "two graphs at once would hold twice the memory"
        self.captured.append(calls)
        made = [make() for _ in range(calls)]
        assert len({id(call) for call in made}) == calls
        self.open += 1
        yield SimpleNamespace(replay_ms=lambda times: self._replayed(times, calls))
        self.open -= 1

    def _replayed(self, times: int, calls: int) -> list[float]:
        self.replays.append(times)
        return [self.start_ms + calls * self.call_ms + 1e-6 * number for number in range(times)]


def make() -> Callable[[], object]:
    return lambda: None


def test_a_long_call_is_captured_alone() -> None:
    recorder = FakeRecorder(call_ms=3.0)
    found = g.time_replays(make, samples=10, recorder=recorder)
    assert recorder.captured == [1] and recorder.replays == [1, 1, 10]
    assert found.calls_per_sample == 1 and found.fallback == ""
    assert found.timing.timer == g.GRAPH_REPLAY
    assert found.timing.samples_ms == pytest.approx([3.0] * 10, abs=1e-4)
    assert len(found.timing.warmup_ms) == g.PROBES


def test_a_short_call_is_captured_several_times_and_samples_are_of_one() -> None:
    recorder = FakeRecorder(call_ms=0.010, start_ms=0.005)
    found = g.time_replays(make, samples=10, recorder=recorder)
    calls = g.calls_in_a_graph(0.015)
    assert calls == 14 and recorder.captured == [1, calls]
    assert found.calls_per_sample == calls
    # The start of the graph is shared by its calls.
    assert found.timing.samples_ms == pytest.approx([0.010 + 0.005 / calls] * 10, abs=1e-5)
    assert found.timing.warmup_ms == pytest.approx([0.010 + 0.005 / calls] * g.PROBES, abs=1e-5)


@pytest.mark.parametrize(
    ("call_ms", "calls"), [(5.0, 1), (0.1, 1), (0.0999, 3), (0.05, 4), (0.002, g.MOST_CALLS), (0.0, g.MOST_CALLS)]
)
def test_how_many_calls_a_graph_holds(call_ms: float, calls: int) -> None:
    assert g.calls_in_a_graph(call_ms) == calls


@pytest.mark.parametrize(
    ("call_ms", "asked", "taken"), [(0.01, 10, 10), (10, 10, 10), (20, 10, 5), (400, 10, 3), (400, 2, 2), (0, 7, 7)]
)
def test_how_many_samples_are_taken(call_ms: float, asked: int, taken: int) -> None:
    assert g.samples_within(call_ms, asked) == taken


def test_slow_calls_are_sampled_less() -> None:
    recorder = FakeRecorder(call_ms=300.0)
    assert len(g.time_replays(make, samples=10, recorder=recorder).timing.samples_ms) == g.FEWEST_SAMPLES
    assert recorder.replays == [1, g.FEWEST_SAMPLES]  # and one replay is enough to tell


def test_what_cannot_be_captured_is_timed_by_events_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int]] = []

    def time_device(call: Callable[[], object], **counts: int) -> Timing:
        asked.append(counts)
        return Timing([2.0] * counts["timed"], [2.5] * counts["warmup"], CUDA_EVENTS, 0.1, 0.2)

    monkeypatch.setattr(g, "time_device", time_device)
    recorder = FakeRecorder(1.0, error=g.CaptureFailed("operation not permitted when stream is capturing"))
    found = g.time_replays(make, samples=10, recorder=recorder)
    assert found.timing.timer == CUDA_EVENTS and found.calls_per_sample == 1
    assert found.fallback == "operation not permitted when stream is capturing"
    assert len(found.timing.samples_ms) == 10 and len(found.timing.warmup_ms) == 1
    assert asked == [{"warmup": 1, "timed": 1}, {"warmup": 0, "timed": 10}]


def test_the_tensors_of_a_failed_capture_are_gone_before_its_fallback(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda
) -> None:
    class Held:
        """What a call holds."""

    alive: list[weakref.ref[Held]] = []
    left: list[int] = []

    def make() -> Callable[[], object]:
        held = Held()
        alive.append(weakref.ref(held))
        return lambda: held

    def time_device(call: Callable[[], object], **counts: int) -> Timing:
        left.append(sum(one() is not None for one in alive))
        return Timing([2.0] * counts["timed"], [], CUDA_EVENTS, 0.1, 0.2)

    class Refused(RuntimeError):
        def __init__(self) -> None:
            super().__init__("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(g, "time_device", time_device)
    cuda.failure = cuda.failure_at_end = Refused  # the class: an object would keep the frames that it went through
    recorder = g.CudaGraphs()
    gc.disable()
    try:
        assert g.time_replays(make, samples=3, recorder=recorder).fallback.startswith("CUDA error")
    finally:
        gc.enable()
    assert left[0] == 1  # the fallback's own call


def test_other_errors_of_a_capture_are_raised() -> None:
    with pytest.raises(MemoryError):
        g.time_replays(make, samples=10, recorder=FakeRecorder(1.0, error=MemoryError()))
    with pytest.raises(ValueError, match="samples >= 1, not 0"):
        g.time_replays(make, samples=0, recorder=FakeRecorder(1.0))


# --- CudaGraphs over a stand-in of torch.cuda -----------------------------------------------------------------------


class FakeStream:
    def __init__(self, log: list[str]) -> None:
        self.synchronize = lambda: log.append("wait")


class FakeGraph:
    def __init__(self, log: list[str]) -> None:
        self.replay, self.reset = (partial(log.append, word) for word in ("replay", "reset"))


class FakeEvent:
    def __init__(self, log: list[str], enable_timing: bool = False) -> None:
        assert enable_timing
        self.record = partial(log.append, "event")

    def elapsed_time(self, end: Any) -> float:
        return 1.5


class FakeCuda:
    """torch.cuda as far as CudaGraphs uses it; log is what was asked of the device, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failure: Exception | type[Exception] | None = None
        self.failure_at_end: Exception | type[Exception] | None = None
        self.Stream, self.CUDAGraph, self.Event = (partial(c, self.log) for c in (FakeStream, FakeGraph, FakeEvent))

    def is_available(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.log.append("synchronize")

    @contextmanager
    def stream(self, _: FakeStream) -> Iterator[None]:
        self.log.append("stream")
        yield
        self.log.append("end of stream")

    @contextmanager
    def graph(self, _: FakeGraph, stream: Any = None) -> Iterator[None]:
        assert isinstance(stream, FakeStream)
        self.log.append("begin capture")
        try:
            if self.failure is not None:
                raise self.failure
            yield
        finally:
            self.log.append("end capture")
            if self.failure_at_end is not None:
                raise self.failure_at_end


class FakeBuffer:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def zero_(self) -> None:
        self.log.append("flush")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    import torch

    fake = FakeCuda()
    for name in ("CUDAGraph", "Event", "Stream", "stream", "graph", "is_available", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: FakeBuffer(fake.log))
    return fake


def making(log: list[str]) -> g.Make:
    def make() -> Callable[[], object]:
        log.append("make")
        return lambda: log.append("call")

    return make


def test_calls_are_made_and_run_on_the_stream_before_they_are_captured(cuda: FakeCuda) -> None:
    with g.CudaGraphs().capture(making(cuda.log), 2) as graph:
        before = list(cuda.log)
        assert graph.replay_ms(2) == [1.5, 1.5]
        during = cuda.log[len(before) :]
    assert before == [
        *("synchronize", "stream", "make", "make", "call", "call", "end of stream"),
        *("begin capture", "call", "call", "end capture"),
    ]
    one = ["flush", "event", "replay", "event"]  # the flush is outside the events
    assert during == ["stream", *one, *one, "end of stream", "wait"]
    assert cuda.log[-2:] == ["synchronize", "reset"]


def test_a_capture_that_fails_is_said_and_freed(cuda: FakeCuda) -> None:
    cuda.failure = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")
    capture = g.CudaGraphs().capture(making(cuda.log), 1)
    with (
        pytest.raises(g.CaptureFailed, match=r"^CUDA error: operation not permitted when stream is capturing$"),
        capture,
    ):
        pytest.fail("no graph")
    assert cuda.log[-1] == "reset"


def test_out_of_memory_while_capturing_stays_what_it_is(cuda: FakeCuda) -> None:
    cuda.failure = RuntimeError("CUDA out of memory. Tried to allocate 16.00 GiB")
    cuda.failure_at_end = RuntimeError("CUDA error: capture was invalidated")
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory"), g.CudaGraphs().capture(making(cuda.log), 1):
        pytest.fail("no graph")
    assert cuda.log[-1] == "reset"


def test_without_a_gpu_there_is_no_recorder() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(Unsupported, match="CUDA device"):
        g.CudaGraphs()
