"""Timers: what is inside a sample and what is not, on a stand-in for torch.cuda; graphs, and what has none."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from perfscribe.instruments import graph_timing as g
from perfscribe.instruments import timing
from perfscribe.instruments.timing import CUDA_EVENTS, Timing


class FakeCuda:
    """Notes what is asked of a GPU, in order. Only work takes time; a replay start_ms and that of the work captured."""

    def __init__(self, monkeypatch):
        self.log, self.clock_ms = [], 0.0
        self.start_ms, self.failure, self.failure_at_end = 0.0, None, None
        say = self.log.append
        graph = SimpleNamespace(replay=lambda: self.work("replay", self.graph_ms), reset=partial(say, "reset"))
        for name, replacement in {
            "is_available": lambda: True,
            "synchronize": lambda device=None: say("synchronise"),
            "Event": partial(FakeEvent, self),
            "Stream": lambda: SimpleNamespace(synchronize=lambda: say("wait")),
            "stream": lambda _: self._within("stream"),
            "CUDAGraph": lambda: graph,
            "graph": lambda _, stream: self._capture(),
        }.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        monkeypatch.setattr(torch, "empty", self._buffer)

    def _buffer(self, size, dtype, device):
        assert (size, dtype, device) == (256 * 2**20, torch.uint8, "cuda")
        return SimpleNamespace(zero_=lambda: self.work("flush"))

    def work(self, name, ms=1.0):
        self.log.append(name)
        self.clock_ms += ms

    @contextmanager
    def _within(self, name):
        self.log.append(name)
        try:
            yield
        finally:
            self.log.append(f"end of {name}")

    @contextmanager
    def _capture(self):
        began_ms = self.clock_ms
        try:
            with self._within("capture"):
                if self.failure is not None:
                    raise self.failure
                yield
        finally:
            self.graph_ms = self.start_ms + self.clock_ms - began_ms
            if self.failure_at_end is not None:
                raise self.failure_at_end


class FakeEvent:
    def __init__(self, cuda, enable_timing):
        assert enable_timing
        self.cuda = cuda

    def record(self):
        self.cuda.log.append("event")
        self.at_ms = self.cuda.clock_ms

    def elapsed_time(self, end):
        assert self.cuda.log[-1] in ("synchronise", "wait"), "events are read before the device has finished"
        return end.at_ms - self.at_ms


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


@pytest.fixture
def pass_ms(monkeypatch):
    """Lets the host clock go on, which stands still else."""
    now_s = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: sum(now_s)))
    return lambda ms: now_s.append(ms / 1e3)


def test_host_timer_leaves_prepare_and_freeing_outside(pass_ms):
    class Graph:
        def __del__(self):
            pass_ms(10)

    def fn():
        pass_ms(next(spans))
        return Graph()

    spans = iter([30, 5, 6])
    result = timing.time_host(fn, warmup=1, timed=2, device="cpu", prepare=lambda: pass_ms(20))
    assert result.warmup_ms == pytest.approx([30]) and result.samples_ms == pytest.approx([5, 6])
    assert (result.warmup_s, result.timed_s) == pytest.approx((0.06, 0.071)) and result.timer == "host clock"
    with pytest.raises(ValueError, match="timed >= 1"):
        timing.time_host(fn, warmup=0, timed=0, device="cpu")


def test_host_timers_synchronise_before_and_after_the_call_and_at_each_mark(cuda):
    timing.time_host(lambda: cuda.work("fn"), warmup=0, timed=2, device="cuda", prepare=lambda: cuda.work("prepare"))
    assert cuda.log == ["prepare", "synchronise", "fn", "synchronise"] * 2

    def step(mark):
        for phase in ("forward", "backward"):
            cuda.work(phase)
            mark(phase)

    cuda.log.clear()
    timing.time_phases(step, warmup=0, timed=1, device="cuda", prepare=lambda: cuda.work("prepare"))
    waits = "synchronise"
    assert cuda.log == ["prepare", waits, "forward", waits, "backward", waits, waits]


def test_device_timer_flushes_outside_the_events_and_waits_once(cuda):
    result = timing.time_device(
        lambda: cuda.work("fn", 3.0), warmup=1, timed=2, prepare=lambda: cuda.work("prepare", 7.0)
    )
    call = ["prepare", "flush", "event", "fn", "event"]
    assert cuda.log == [*call, "synchronise", *call, *call, "synchronise"]
    assert (result.warmup_ms, result.samples_ms, result.timer) == ([3.0], [3.0, 3.0], "CUDA events")


def test_phases_of_one_pass(pass_ms):
    def step(mark):
        for phase, ms in (("forward", 3), ("backward", 10), ("forward", 2), ("optimizer", 2)):
            pass_ms(ms)
            mark(phase)
        pass_ms(4)

    phases = timing.time_phases(step, warmup=1, timed=2, device="cpu", prepare=lambda: pass_ms(100))
    assert list(phases) == ["forward", "backward", "optimizer", "step"]
    for name, ms in (("forward", 5), ("backward", 10), ("optimizer", 2), ("step", 21)):
        assert phases[name].samples_ms == pytest.approx([ms, ms])
        assert phases[name].warmup_ms == pytest.approx([ms])
        assert phases[name].timer == "host clock"
    assert phases["step"].timed_s == pytest.approx(0.242)
    assert phases["forward"].timed_s == phases["forward"].warmup_s == 0


def idle():
    return lambda: None


@pytest.mark.parametrize(
    ("call_ms", "start_ms", "captured", "replays"),
    [
        (3.0, 0.0, [1], [4, 10]),
        (300.0, 0.0, [1], [4, g.FEWEST_SAMPLES]),
        (0.010, 0.005, [1, 14], [4, 4, 10]),
    ],
)
def test_a_long_call_is_captured_once_and_a_short_one_several_times(cuda, call_ms, start_ms, captured, replays):
    cuda.start_ms = start_ms
    call = partial(cuda.work, "call", call_ms)
    result = g.time_replays(lambda: call, samples=10, recorder=g.CudaGraphs())
    assert cuda.log.count("call") == 2 * sum(captured) and cuda.log.count("replay") == sum(replays)
    graphs = [entry for entry in cuda.log if entry in ("capture", "reset")]
    assert graphs == ["capture", "reset"] * len(captured)  # two graphs at once would hold twice the memory
    assert (result.calls_per_sample, result.fallback, result.timing.timer) == (captured[-1], "", g.GRAPH_REPLAY)
    sample_ms = call_ms + start_ms / captured[-1]  # the start of a graph is shared by its calls
    assert result.timing.samples_ms == pytest.approx([sample_ms] * replays[-1])


def test_calls_are_made_and_run_on_the_stream_before_they_are_captured(cuda):
    def make():
        cuda.log.append("make")
        return lambda: cuda.work("call", 1.5)

    with g.CudaGraphs().capture(make, 2) as graph:
        before = list(cuda.log)
        assert graph.replay_ms(2) == [3.0, 3.0]
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
    result = g.time_replays(idle, samples=10, recorder=g.CudaGraphs())
    assert result.fallback == "CUDA error: operation not permitted when stream is capturing"
    assert (result.timing.timer, result.calls_per_sample, len(result.timing.samples_ms)) == (CUDA_EVENTS, 1, 10)


def test_out_of_memory_while_capturing_stays_what_it_is(cuda):
    cuda.failure = RuntimeError("CUDA out of memory. Tried to allocate 16.00 GiB")
    cuda.failure_at_end = RuntimeError("CUDA error: capture was invalidated")
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory"):
        g.time_replays(idle, samples=3, recorder=g.CudaGraphs())
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
    timing = g.time_launched(idle, call_ms=call_ms)
    assert asked == [(1, 1), (warmup, timed)] + [(0, timed)] * (g.LAUNCHED_TURNS - 1)
    assert timing.samples_ms == [5 * launched_ms] * g.LAUNCHED_TURNS and timing.timer == g.IN_TURNS
