"""The workshop's callback figures by its definitions, and those beside them, from readings and clocks made by hand."""

import json
import statistics
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import fake_nvml
import pytest
import torch
import torch.distributed as dist

from perfscribe.distributed import links
from perfscribe.training import meters, squad_scores
from perfscribe.training.meters import MIB, SpeedMeter, UtilisationMeter


def test_readings_by_nvml_and_their_means(monkeypatch):
    busy = [100, 50]
    nvml = fake_nvml.FakeNvml([fake_nvml.Gpu("GPU-1", utilisation=[*busy], used_bytes=[2 * MIB, 6 * MIB])])
    monkeypatch.setattr(links, "of_visible", lambda count, question: question(nvml, nvml.gpus))
    meter = UtilisationMeter(torch.device("cuda"))
    meter.sample()
    meter.sample()
    found = meter.summary()
    assert found["avg_gpu_util_%"] == 75.0 and found["std_gpu_util_%"] == pytest.approx(statistics.pstdev(busy))
    assert (found["avg_mem_total_MB"], found["peak_mem_total_MB"]) == (4.0, 6.0)


def test_peaks_are_those_of_the_fullest_rank(monkeypatch):
    def with_another_rank(there, operation):
        other = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}[operation]
        there.copy_(other(there, torch.full_like(there, 6.0)))

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_reduce", with_another_rank)
    meter = UtilisationMeter(torch.device("cpu"))
    monkeypatch.setattr(meter, "read", lambda: {"mem_alloc_MB": 2.0})
    meter.sample()
    assert meter.summary()["peak_mem_alloc_MB"] == 6.0


def test_the_workshops_clock_counts_what_is_no_training(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(meters, "time", SimpleNamespace(perf_counter=lambda: clock.now))
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


FIXTURE = Path(__file__).parents[1] / "fixtures" / "squad_scores.json"
CASES = json.loads(FIXTURE.read_text(encoding="utf-8"))["cases"]
WAYS = {"official": squad_scores.score, "workshop": squad_scores.workshop_score}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case_computed_by_hand(case: dict, way: str) -> None:
    given = WAYS[way]({"q": case["prediction"]}, {"q": case["references"]})
    expected = [100 * float(Fraction(text)) for text in case[way]]
    assert [given.exact_match_percent, given.f1_percent] == pytest.approx(expected, abs=1e-12), case["work"]
