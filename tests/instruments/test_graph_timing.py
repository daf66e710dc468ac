"""Graph replay as a timer: what is captured, what stands between the events, what happens without a graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda

from perfscribe.instruments import graph_timing as g
from perfscribe.instruments.timing import CUDA_EVENTS, Timing


class FakeRecorder:
    """Graphs whose replays last `start_ms` and `call_ms` for each call in them."""

    def __init__(self, call_ms: float, start_ms: float = 0.0) -> None:
        self.call_ms, self.start_ms = call_ms, start_ms
        self.captured: list[int] = []
        self.replays: list[int] = []
        self.open = 0

    @contextmanager
    def capture(self, make: g.Make, calls: int) -> Iterator[Any]:
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
    recorder: Any = FakeRecorder(call_ms=3.0)
    found = g.time_replays(make, samples=10, recorder=recorder)
    assert recorder.captured == [1] and recorder.replays == [1, 1, 10]
    assert (found.calls_per_sample, found.fallback, found.timing.timer) == (1, "", g.GRAPH_REPLAY)
    assert found.timing.samples_ms == pytest.approx([3.0] * 10, abs=1e-4)
    slow: Any = FakeRecorder(call_ms=300.0)
    assert len(g.time_replays(make, samples=10, recorder=slow).timing.samples_ms) == g.FEWEST_SAMPLES
    assert slow.replays == [1, g.FEWEST_SAMPLES]  # and one replay is enough to tell


def test_a_short_call_is_captured_several_times_and_samples_are_of_one() -> None:
    recorder: Any = FakeRecorder(call_ms=0.010, start_ms=0.005)
    found = g.time_replays(make, samples=10, recorder=recorder)
    assert recorder.captured == [1, 14] and found.calls_per_sample == 14
    # The start of the graph is shared by its calls.
    assert found.timing.samples_ms == pytest.approx([0.010 + 0.005 / 14] * 10, abs=1e-5)
    assert found.timing.warmup_ms == pytest.approx([0.010 + 0.005 / 14] * g.PROBES, abs=1e-5)


class GraphCuda(FakeCuda):
    """With streams, and graphs whose replay takes 1.5 ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.failure: Exception | type[Exception] | None = None
        self.failure_at_end: Exception | type[Exception] | None = None
        say = self.log.append
        replayed = SimpleNamespace(replay=lambda: self.work("replay", 1.5), reset=partial(say, "reset"))
        monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(synchronize=lambda: say("wait")))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: replayed)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: self._within("stream", "end of stream"))
        monkeypatch.setattr(torch.cuda, "graph", lambda _, stream: self._capture())

    @contextmanager
    def _within(self, begin: str, end: str) -> Iterator[None]:
        self.log.append(begin)
        yield
        self.log.append(end)

    @contextmanager
    def _capture(self) -> Iterator[None]:
        self.log.append("begin capture")
        try:
            if self.failure is not None:
                raise self.failure
            yield
        finally:
            self.log.append("end capture")
            if self.failure_at_end is not None:
                raise self.failure_at_end


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> GraphCuda:
    return GraphCuda(monkeypatch)


def test_calls_are_made_and_run_on_the_stream_before_they_are_captured(cuda: GraphCuda) -> None:
    def make() -> Callable[[], object]:
        cuda.log.append("make")
        return lambda: cuda.log.append("call")

    with g.CudaGraphs().capture(make, 2) as graph:
        before = list(cuda.log)
        assert graph.replay_ms(2) == [1.5, 1.5]
        during = cuda.log[len(before) :]
    assert before == [
        *("synchronise", "stream", "make", "make", "call", "call", "end of stream"),
        *("begin capture", "call", "call", "end capture"),
    ]
    one = ["flush", "event", "replay", "event"]  # the flush is outside the events
    assert during == ["stream", *one, *one, "end of stream", "wait"]
    assert cuda.log[-2:] == ["synchronise", "reset"]


def test_what_cannot_be_captured_is_timed_by_events(monkeypatch: pytest.MonkeyPatch, cuda: GraphCuda) -> None:
    monkeypatch.setattr(g, "time_device", lambda _, timed, **_more: Timing([2.0] * timed, [], CUDA_EVENTS, 0.1, 0.2))
    cuda.failure = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")
    found = g.time_replays(make, samples=10, recorder=g.CudaGraphs())
    assert found.fallback == "CUDA error: operation not permitted when stream is capturing"
    assert (found.timing.timer, found.calls_per_sample, len(found.timing.samples_ms)) == (CUDA_EVENTS, 1, 10)


def test_out_of_memory_while_capturing_stays_what_it_is(cuda: GraphCuda) -> None:
    cuda.failure = RuntimeError("CUDA out of memory. Tried to allocate 16.00 GiB")
    cuda.failure_at_end = RuntimeError("CUDA error: capture was invalidated")
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory"):
        g.time_replays(make, samples=3, recorder=g.CudaGraphs())
    assert cuda.log[-1] == "reset"


@pytest.mark.parametrize(
    ("call_ms", "launched_ms", "warmup", "timed"), [(0.01, 0.5, 50, 200), (5.0, 2.0, 5, 20), (800.0, 801.0, 0, 1)]
)
def test_calls_with_launches_have_do_benchs_budget_in_each_turn(
    monkeypatch: pytest.MonkeyPatch, call_ms: float, launched_ms: float, warmup: int, timed: int
) -> None:
    asked: list[tuple[int, int]] = []

    def time_device(call: object, warmup: int, timed: int) -> Timing:
        asked.append((warmup, timed))
        return Timing([launched_ms, 9 * launched_ms] * timed, [1.0], CUDA_EVENTS, 0.1, 0.2)

    monkeypatch.setattr(g, "time_device", time_device)
    found = g.time_launched(make, call_ms=call_ms)
    assert asked == [(1, 1), (warmup, timed)] + [(0, timed)] * (g.LAUNCHED_TURNS - 1)
    assert found.samples_ms == [5 * launched_ms] * g.LAUNCHED_TURNS and found.timer == g.IN_TURNS
    turns = g.LAUNCHED_TURNS
    assert (found.warmup_s, found.timed_s) == pytest.approx((0.3 + 0.1 * turns, 0.2 * turns))
