"""The workshop's callback figures by its definitions, and those beside them, from readings and clocks made by hand."""

import statistics
from types import SimpleNamespace

import fake_nvml
import pytest
import torch
import torch.distributed as dist

from perfscribe.training.meters import MIB, SpeedMeter, UtilisationMeter, asker, read_gpu

CPU = torch.device("cpu")


def _gpu(**fields):
    return fake_nvml.FakeNvml([fake_nvml.Gpu("GPU-1", **fields)])


def test_readings_by_nvml_and_their_means():
    used, busy = [2 * MIB, 6 * MIB], [100, 50]
    nvml = _gpu(utilisation=busy, used_bytes=used)
    meter = UtilisationMeter(CPU, lambda: read_gpu(CPU, asker(nvml, nvml.gpus[0])))
    meter.sample()
    meter.sample()
    found = meter.summary()
    assert found == {
        "avg_gpu_util_%": 75.0,
        "std_gpu_util_%": pytest.approx(statistics.pstdev(busy)),
        "avg_mem_total_MB": 4.0,
        "peak_mem_total_MB": 6.0,
    }


def test_what_nvml_does_not_offer_is_left_out():
    nvml = fake_nvml.FakeNvml(1, lacking={"nvmlDeviceGetUtilizationRates"})
    meter = UtilisationMeter(CPU, lambda: read_gpu(CPU, asker(nvml, nvml.gpus[0])))
    meter.sample()
    assert set(meter.summary()) == {"avg_mem_total_MB", "peak_mem_total_MB"}
    assert UtilisationMeter(CPU).summary() == {}


def test_memory_at_rest_is_below_its_peak():
    """The readings are taken after the step, when activations are gone."""
    readings = iter([{"mem_alloc_MB": 100.0}, {"mem_alloc_MB": 102.0}])
    meter = UtilisationMeter(CPU, lambda: next(readings))
    meter.sample()
    meter.sample()
    assert meter.summary() == {"avg_mem_alloc_MB": 101.0, "peak_mem_alloc_MB": 102.0}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_workshops_clock_counts_what_is_no_training():
    clock = Clock()
    meter = SpeedMeter(8, clock=clock)
    clock.now = 5.0  # the model is moved, the optimizer made
    logs = []
    for step in range(1, 5):
        meter.begin_step()
        clock.now += 1.0
        meter.end_step()
        if step % 2 == 0:
            logs.append(meter.log(step))
            meter.pause()
            clock.now += 10.0  # evaluation and checkpoint
    found = meter.summary()
    assert logs[0] == {"steps/s": pytest.approx(2 / 7), "train/samples_per_second": pytest.approx(16 / 7)}
    assert found["steps/s"] == pytest.approx(4 / 19)  # the second evaluation is after the last log
    assert found["train/samples_per_second_mean"] == pytest.approx(32 / 19)
    assert meter.first_s == [1.0]
    assert found["stepping_steps"] == 3  # the first is left out
    assert found["stepping_steps/s"] == pytest.approx(1.0)
    assert found["stepping_samples_per_second"] == pytest.approx(8.0)


def test_the_second_clock_waits_for_queued_work():
    clock = Clock()

    def settle():
        clock.now += 0.5

    meter = SpeedMeter(1, uncounted=0, settle=settle, clock=clock)
    for _ in range(2):
        meter.begin_step()
        clock.now += 0.25
        meter.end_step()
    meter.pause()
    assert meter.step_s == [0.75, 0.75]
    assert meter.summary()["stepping_steps/s"] == pytest.approx(2 / 1.5)


def test_without_logs_or_steps_there_is_no_rate():
    meter = SpeedMeter(1, clock=Clock())
    assert meter.log(0) == {}
    assert meter.summary() == {}


def test_callbacks_pass_trainers_events_on():
    from perfscribe.training.callbacks import TrainSpeedCallback, UtilisationCallback

    clock = Clock()
    speed = TrainSpeedCallback(SpeedMeter(4, uncounted=0, clock=clock))
    readings = iter([{"gpu_util_%": 40.0}, {"gpu_util_%": 60.0}])
    busy = UtilisationCallback(UtilisationMeter(CPU, lambda: next(readings)))
    control = SimpleNamespace(should_evaluate=False, should_save=False)
    for step in (1, 2):
        state = SimpleNamespace(global_step=step)
        for callback in (speed, busy):
            callback.on_step_begin(None, state, control)
        clock.now += 2.0
        control.should_evaluate = step == 2
        for callback in (speed, busy):
            callback.on_step_end(None, state, control)
        speed.on_log(None, state, control, logs={"loss": 1.0})
    clock.now += 100.0
    speed.on_log(None, state, control, logs={"eval_loss": 1.0})
    for callback in (speed, busy):
        callback.on_epoch_end(None, state, control)
        callback.on_train_end(None, state, control)
    assert speed.summary["steps/s"] == pytest.approx(0.5)
    assert speed.summary["stepping_samples_per_second"] == pytest.approx(2.0)
    assert [log["step"] for log in speed.logs] == [1, 2]
    assert busy.summary == {"avg_gpu_util_%": 50.0, "std_gpu_util_%": 10.0}


def test_peaks_are_those_of_the_fullest_rank(monkeypatch):
    def with_another_rank(there, operation):
        other = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}[operation]
        there.copy_(other(there, torch.full_like(there, 6.0)))

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_reduce", with_another_rank)
    meter = UtilisationMeter(CPU, lambda: {"mem_alloc_MB": 2.0})
    meter.sample()
    assert meter.summary()["peak_mem_alloc_MB"] == 6.0
