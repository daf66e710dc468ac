"""Graph replay as a timer: what is captured, what is between the events, what happens without a graph."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda

from perfscribe.instruments import graph_timing as g
from perfscribe.instruments.timing import CUDA_EVENTS, Timing


class FakeRecorder:
    """Graphs whose replays last `start_ms` and `call_ms` for each call in them."""

    def __init__(self, call_ms, start_ms):
        self.call_ms, self.start_ms, self.open = call_ms, start_ms, 0
        self.captured, self.replays = [], []

    @contextmanager
    def capture(self, make, calls):
        assert self.open == 0, "two graphs at once would hold twice the memory"
        assert len({id(call) for call in [make() for _ in range(calls)]}) == calls
        self.captured.append(calls)
        self.open += 1
        yield SimpleNamespace(replay_ms=lambda times: self._replayed(times, calls))
        self.open -= 1

    def _replayed(self, times, calls):
        self.replays.append(times)
        return [self.start_ms + calls * self.call_ms] * times


def make():
    return lambda: None


@pytest.mark.parametrize(
    ("call_ms", "start_ms", "captured", "replays"),
    [
        (3.0, 0.0, [1], [1, g.PROBES - 1, 10]),
        (300.0, 0.0, [1], [1, g.FEWEST_SAMPLES]),  # one replay is enough to tell
        (0.010, 0.005, [1, 14], [1, g.PROBES - 1, g.PROBES, 10]),
    ],
)
def test_a_long_call_is_captured_once_and_a_short_one_several_times(call_ms, start_ms, captured, replays):
    recorder = FakeRecorder(call_ms, start_ms)
    result = g.time_replays(make, samples=10, recorder=recorder)
    assert (recorder.captured, recorder.replays) == (captured, replays)
    assert (result.calls_per_sample, result.fallback, result.timing.timer) == (captured[-1], "", g.GRAPH_REPLAY)
    sample_ms = call_ms + start_ms / captured[-1]  # the start of a graph is shared by its calls
    assert result.timing.samples_ms == pytest.approx([sample_ms] * replays[-1])


class GraphCuda(FakeCuda):
    """With streams, and graphs whose replay takes 1.5 ms."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.failure = self.failure_at_end = None
        say = self.log.append
        replayed = SimpleNamespace(replay=lambda: self.work("replay", 1.5), reset=partial(say, "reset"))
        monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(synchronize=lambda: say("wait")))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: replayed)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: self._within("stream"))
        monkeypatch.setattr(torch.cuda, "graph", lambda _, stream: self._within("capture", fails=True))

    @contextmanager
    def _within(self, name, fails=False):
        self.log.append(name)
        try:
            if fails and self.failure is not None:
                raise self.failure
            yield
        finally:
            self.log.append(f"end of {name}")
            if fails and self.failure_at_end is not None:
                raise self.failure_at_end


@pytest.fixture
def cuda(monkeypatch):
    return GraphCuda(monkeypatch)


def test_calls_are_made_and_run_on_the_stream_before_they_are_captured(cuda):
    def make():
        cuda.log.append("make")
        return lambda: cuda.log.append("call")

    with g.CudaGraphs().capture(make, 2) as graph:
        before = list(cuda.log)
        assert graph.replay_ms(2) == [1.5, 1.5]
        during = cuda.log[len(before) :]
    assert before == [
        *("synchronise", "stream", "make", "make", "call", "call", "end of stream"),
        *("capture", "call", "call", "end of capture"),
    ]
    replay = ["flush", "event", "replay", "event"]  # the flush is outside the events
    assert during == ["stream", *replay, *replay, "end of stream", "wait"]
    assert cuda.log[-2:] == ["synchronise", "reset"]


def test_what_cannot_be_captured_is_timed_by_events(monkeypatch, cuda):
    monkeypatch.setattr(g, "time_device", lambda _, timed, **_more: Timing([2.0] * timed, [], CUDA_EVENTS, 0.1, 0.2))
    cuda.failure = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")
    result = g.time_replays(make, samples=10, recorder=g.CudaGraphs())
    assert result.fallback == "CUDA error: operation not permitted when stream is capturing"
    assert (result.timing.timer, result.calls_per_sample, len(result.timing.samples_ms)) == (CUDA_EVENTS, 1, 10)


def test_out_of_memory_while_capturing_stays_what_it_is(cuda):
    cuda.failure = RuntimeError("CUDA out of memory. Tried to allocate 16.00 GiB")
    cuda.failure_at_end = RuntimeError("CUDA error: capture was invalidated")
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory"):
        g.time_replays(make, samples=3, recorder=g.CudaGraphs())
    assert cuda.log[-1] == "reset"


@pytest.mark.parametrize(
    ("call_ms", "launched_ms", "warmup", "timed"), [(0.01, 0.5, 50, 200), (5.0, 2.0, 5, 20), (800.0, 801.0, 0, 1)]
)
def test_calls_with_launches_have_do_benchs_budget_in_each_turn(monkeypatch, call_ms, launched_ms, warmup, timed):
    asked = []

    def time_device(call, warmup, timed):
        asked.append((warmup, timed))
        return Timing([launched_ms, 9 * launched_ms] * timed, [1.0], CUDA_EVENTS, 0.1, 0.2)

    monkeypatch.setattr(g, "time_device", time_device)
    timing = g.time_launched(make, call_ms=call_ms)
    assert asked == [(1, 1), (warmup, timed)] + [(0, timed)] * (g.LAUNCHED_TURNS - 1)
    assert timing.samples_ms == [5 * launched_ms] * g.LAUNCHED_TURNS and timing.timer == g.IN_TURNS
