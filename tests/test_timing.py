"""Both timers: what lies inside a sample and what does not. The CUDA ones run on a recorded stand-in for torch.cuda."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from perfscribe.base.cells import Measurement, Unsupported
from perfscribe.instruments import timing


class FakeCuda:
    """Stands in for torch.cuda: a stream that takes 1 ms for each piece of work and notes the order of everything."""

    def __init__(self, monkeypatch):
        self.log = []
        self.clock_ms = 0.0
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: self.log.append("synchronise"))
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(self, enable_timing))
        monkeypatch.setattr(torch, "empty", self.empty)

    def empty(self, size, dtype, device):
        assert (size, dtype, device) == (256 * 2**20, torch.uint8, "cuda")
        return SimpleNamespace(zero_=lambda: self.work("flush"))

    def work(self, name, ms=1.0):
        self.log.append(name)
        self.clock_ms += ms


class FakeEvent:
    def __init__(self, cuda, enable_timing):
        assert enable_timing
        self.cuda = cuda

    def record(self):
        self.cuda.log.append("event")
        self.at_ms = self.cuda.clock_ms

    def elapsed_time(self, end):
        assert self.cuda.log[-1] == "synchronise", "events are read before the device has finished"
        return end.at_ms - self.at_ms


class Clock:
    """Stands in for the host clock: time passes only where a test says so."""

    def __init__(self):
        self.now_s = 0.0

    def pass_ms(self, ms):
        self.now_s += ms / 1e3


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    return clock


def test_host_timer_reads_the_real_clock():
    result = timing.time_host(lambda: time.sleep(0.005), warmup=1, timed=2, device="cpu")
    assert min(*result.warmup_ms, *result.samples_ms) >= 5
    assert result.warmup_s >= 0.005 and result.timed_s >= 0.01


def test_host_timer_keeps_every_call(clock):
    spans = iter([30, 20, 5, 6, 7])
    result = timing.time_host(lambda: clock.pass_ms(next(spans)), warmup=2, timed=3, device="cpu")
    assert result.timer == "host clock"
    assert result.warmup_ms == pytest.approx([30, 20])
    assert result.samples_ms == pytest.approx([5, 6, 7])
    assert (result.warmup_s, result.timed_s) == pytest.approx((0.05, 0.018))


def test_host_timer_leaves_prepare_outside(clock):
    calls = []

    def prepare():
        calls.append("prepare")
        clock.pass_ms(20)

    def fn():
        calls.append("fn")
        clock.pass_ms(1)

    result = timing.time_host(fn, warmup=1, timed=2, device="cpu", prepare=prepare)
    assert calls == ["prepare", "fn"] * 3
    assert result.samples_ms == pytest.approx([1, 1])
    assert result.timed_s == pytest.approx(0.042)


def test_host_timer_frees_the_result_outside(clock):
    class Graph:
        def __del__(self):
            clock.pass_ms(20)

    result = timing.time_host(Graph, warmup=0, timed=2, device="cpu")
    assert result.samples_ms == [0, 0] and result.timed_s == pytest.approx(0.04)


def test_host_timer_synchronises_before_and_after_the_call(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    timing.time_host(lambda: cuda.work("fn"), warmup=0, timed=2, device="cuda", prepare=lambda: cuda.work("prepare"))
    assert cuda.log == ["prepare", "synchronise", "fn", "synchronise"] * 2


def test_synchronise_knows_cpu_and_cuda_only():
    timing.synchronise("cpu")
    with pytest.raises(ValueError, match="meta"):
        timing.synchronise("meta")


def test_device_timer_flushes_outside_the_events_and_waits_once(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    result = timing.time_device(
        lambda: cuda.work("fn", 3.0), warmup=1, timed=2, prepare=lambda: cuda.work("prepare", 7.0)
    )
    call = ["prepare", "flush", "event", "fn", "event"]
    assert cuda.log == [*call, "synchronise", *call, *call, "synchronise"]
    assert (result.warmup_ms, result.samples_ms, result.timer) == ([3.0], [3.0, 3.0], "CUDA events")


def test_device_timer_without_flush(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    timing.time_device(lambda: cuda.work("fn"), warmup=0, timed=1, flush_l2=False)
    assert "flush" not in cuda.log


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_device_timer_without_a_device_says_what_is_missing():
    with pytest.raises(Unsupported, match="CUDA device"):
        timing.time_device(lambda: None, warmup=0, timed=1)


@pytest.mark.parametrize("warmup, timed", [(-1, 1), (0, 0)])
def test_counts_are_checked(warmup, timed):
    with pytest.raises(ValueError, match="timed >= 1"):
        timing.time_host(lambda: None, warmup=warmup, timed=timed, device="cpu")


def test_phases_of_one_pass(clock):
    def step(mark):
        for phase, ms in (("forward", 5), ("backward", 10), ("optimizer", 2)):
            clock.pass_ms(ms)
            mark(phase)
        clock.pass_ms(4)

    phases = timing.time_phases(step, warmup=1, timed=2, device="cpu", prepare=lambda: clock.pass_ms(100))
    assert list(phases) == ["forward", "backward", "optimizer", "step"]
    for name, ms in (("forward", 5), ("backward", 10), ("optimizer", 2), ("step", 21)):
        assert phases[name].samples_ms == pytest.approx([ms, ms])
        assert phases[name].warmup_ms == pytest.approx([ms])
        assert phases[name].timer == "host clock"
    assert phases["step"].timed_s == pytest.approx(0.242)
    assert phases["forward"].timed_s == phases["forward"].warmup_s == 0


def test_phases_synchronise_at_each_mark(monkeypatch):
    cuda = FakeCuda(monkeypatch)

    def step(mark):
        for phase in ("forward", "backward"):
            cuda.work(phase)
            mark(phase)

    timing.time_phases(step, warmup=0, timed=1, device="cuda", prepare=lambda: cuda.work("prepare"))
    waits = "synchronise"
    assert cuda.log == ["prepare", waits, "forward", waits, "backward", waits, waits]


def test_a_phase_marked_twice_adds_up(clock):
    def step(mark):
        for _ in range(2):
            clock.pass_ms(4)
            mark("forward")
            clock.pass_ms(1)
            mark("backward")

    phases = timing.time_phases(step, warmup=0, timed=1, device="cpu")
    assert phases["forward"].samples_ms == pytest.approx([8]) and phases["backward"].samples_ms == pytest.approx([2])


def test_phases_are_checked():
    turns = iter(["forward", "backward"])
    for step, said in (
        (lambda mark: None, "no phase"),
        (lambda mark: mark("step"), "the whole"),
        (lambda mark: mark(next(turns)), "different phases"),
    ):
        with pytest.raises(ValueError, match=said):
            timing.time_phases(step, warmup=1, timed=1, device="cpu")


def test_recorded_timings_name_their_timer_and_sum_the_wall_time():
    measurement = Measurement()
    timing.record(measurement, "forward_ms", timing.Timing([1.0, 2.0], [9.0], "host clock", 0.5, 0.25))
    timing.record(measurement, "kernel_ms", timing.Timing([3.0], [], "CUDA events", 0.5, 0.25))
    assert measurement.samples == {"forward_ms": [1.0, 2.0], "kernel_ms": [3.0]}
    assert measurement.warmup == {"forward_ms": [9.0]}
    assert measurement.timers == {"forward_ms": "host clock", "kernel_ms": "CUDA events"}
    assert (measurement.warmup_s, measurement.timed_s) == (1.0, 0.5)


@pytest.mark.parametrize("name", ["forward", "forward_s", "forward_ms"])
def test_recorded_names_are_checked(name):
    measurement = Measurement(samples={"forward_ms": [1.0]})
    with pytest.raises(ValueError, match="sample name"):
        timing.record(measurement, name, timing.Timing([1.0], [], "host clock", 0.0, 0.0))
