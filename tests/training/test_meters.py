"""The workshop's callback figures by its definitions, and those beside them, from readings and clocks made by hand."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import fake_nvml
import pytest
import torch
import torch.distributed as dist

from perfscribe.distributed import transport
from perfscribe.training import meters
from perfscribe.training.meters import MIB, SpeedMeter, UtilisationMeter

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_readings_by_nvml_and_their_means(monkeypatch):
    busy = [100, 50]
    nvml = fake_nvml.FakeNvml([fake_nvml.Gpu("GPU-1", utilisation=[*busy], used_bytes=[2 * MIB, 6 * MIB])])
    monkeypatch.setattr(transport, "of_visible", lambda count, question: question(nvml, nvml.gpus))
    meter = UtilisationMeter(GPU)
    meter.sample()
    meter.sample()
    found = meter.summary()
    assert found["avg_gpu_util_%"] == 75.0 and found["std_gpu_util_%"] == pytest.approx(statistics.pstdev(busy))
    assert (found["avg_mem_total_MB"], found["peak_mem_total_MB"]) == (4.0, 6.0)
    assert UtilisationMeter(CPU).summary() == {}


def test_what_nvml_does_not_offer_is_left_out(monkeypatch):
    nvml = fake_nvml.FakeNvml(1, lacking={"nvmlDeviceGetUtilizationRates"})
    monkeypatch.setattr(transport, "of_visible", lambda count, question: question(nvml, nvml.gpus))
    meter = UtilisationMeter(GPU)
    meter.sample()
    assert "avg_mem_total_MB" in meter.summary() and "avg_gpu_util_%" not in meter.summary()


def test_peaks_are_those_of_the_fullest_rank(monkeypatch):
    def with_another_rank(there, operation):
        other = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}[operation]
        there.copy_(other(there, torch.full_like(there, 6.0)))

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_reduce", with_another_rank)
    meter = UtilisationMeter(CPU)
    monkeypatch.setattr(meter, "read", lambda: {"mem_alloc_MB": 2.0})
    meter.sample()
    assert meter.summary()["peak_mem_alloc_MB"] == 6.0


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(meters, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


def test_the_workshops_clock_counts_what_is_no_training(clock):
    meter = SpeedMeter(8)
    assert meter.summary() == {}
    clock.now = 5.0  # the model is moved, the optimizer made
    for step in range(1, 5):
        meter.begin_step()
        clock.now += 1.0
        meter.end_step()
        if step % 2 == 0:
            meter.log(step)
            meter.pause()
            clock.now += 10.0  # evaluation and checkpoint
    found = meter.summary()
    assert found["steps/s"] == pytest.approx(4 / 19)  # the second evaluation is after the last log
    assert found["train/samples_per_second_mean"] == pytest.approx(32 / 19)
    assert meter.first_s == [1.0]
    assert found["stepping_steps"] == 3  # the first is left out
    assert found["stepping_steps/s"] == pytest.approx(1.0)
    assert found["stepping_samples_per_second"] == pytest.approx(8.0)


def test_the_second_clock_waits_for_queued_work(clock):
    def settle():
        clock.now += 0.5

    meter = SpeedMeter(1, settle)
    for _ in range(3):
        meter.begin_step()
        clock.now += 0.25
        meter.end_step()
    assert meter.step_s == [0.75, 0.75]


def test_callbacks_pass_trainers_events_on(clock):
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from perfscribe.training.trainer import Meters

    busy, speed = UtilisationMeter(CPU), SpeedMeter(4)
    readings = iter([{"gpu_util_%": 40.0}, {"gpu_util_%": 60.0}, {"gpu_util_%": 50.0}])
    busy.read = lambda: next(readings)
    callback, control = Meters(speed, busy), SimpleNamespace(should_evaluate=False, should_save=False)
    for step in (1, 2, 3):
        state = SimpleNamespace(global_step=step)
        callback.on_step_begin(None, state, control)
        clock.now += 2.0
        control.should_evaluate = step == 3
        callback.on_step_end(None, state, control)
        callback.on_log(None, state, control, logs={"loss": 1.0})
    clock.now += 100.0
    callback.on_log(None, state, control, logs={"eval_loss": 1.0})
    callback.on_epoch_end(None, state, control)
    assert speed.summary()["steps/s"] == pytest.approx(0.5)
    assert speed.summary()["stepping_samples_per_second"] == pytest.approx(2.0)
    assert busy.summary()["avg_gpu_util_%"] == 50.0
