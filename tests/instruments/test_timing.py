"""Both timers: what lies inside a sample and what does not. The CUDA ones run on a recorded stand-in for torch.cuda."""

from types import SimpleNamespace

import pytest
from fake_cuda import FakeCuda

from perfscribe.instruments import timing


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


def test_host_timers_synchronise_before_and_after_the_call_and_at_each_mark(monkeypatch):
    cuda = FakeCuda(monkeypatch)
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


def test_device_timer_flushes_outside_the_events_and_waits_once(monkeypatch):
    cuda = FakeCuda(monkeypatch)
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
