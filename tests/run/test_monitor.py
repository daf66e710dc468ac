"""Monitor with recorded NVML values and, for the host's part, on the machine at hand."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import patch

import pynvml
import pytest
from fake_nvml import FakeNvml, Gpu

from perfscribe.records.disturbances import flags
from perfscribe.run import monitor
from perfscribe.run.monitor import Monitor


def watched(nvml, seconds=0.2, **settings):
    with patch.object(monitor, "INTERVAL_S", 0.01), patch.object(monitor.nvml, "load", lambda: nvml):
        one = Monitor(**settings)
        with one:
            time.sleep(seconds)
    return one.summary()


@pytest.fixture(autouse=True)
def all_devices(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_throttling_is_a_share_with_nvml_s_reasons():
    names = ("SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert set(monitor.THROTTLE_BITS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names}
    assert not [name for name in FakeNvml().functions if not hasattr(pynvml, name)]
    power_cap, idle, user_clocks = 0x4, 0x1, 0x2
    summary = watched(FakeNvml([Gpu("GPU-0", reasons=[power_cap | idle, idle, user_clocks, 0])]))
    assert summary["throttled_fraction"] == pytest.approx(0.25, abs=0.05)
    assert list(summary["throttle_reasons"]) == ["power cap"]
    text = flags({"throttled_fraction": 0.12, "throttle_reasons": {"power cap": 0.12}})
    assert text == ["throttled 12 % of the time (power cap)"]
    assert flags({"throttled_fraction": 0.05}) == [] and flags({"throttled_fraction": 0.051}) != []


def test_a_clock_below_the_highest_is_said_and_an_idle_one_is_not():
    seen = {"throttled_fraction": 0.0, "samples": 1}
    assert flags({**seen, "median_sm_clock_mhz": 1680}, 1980) == ["SM clock 1680 MHz of at most 1980"]
    for calm in (1980, 1905, 345, None):  # 345: the device waited for its host
        assert flags({**seen, "median_sm_clock_mhz": calm}, 1980) == []
    assert flags({**seen, "median_sm_clock_mhz": 1680}) == [], "the highest clock is not known"


def test_of_several_gpus_the_slowest_and_the_worst():
    slow = Gpu("GPU-1", clocks_mhz=[1200], reasons=[0x40])
    nvml = FakeNvml([Gpu("GPU-0", clocks_mhz=[1500, 1980, 1980]), slow, Gpu("GPU-2", clocks_mhz=[345])])
    summary = watched(nvml, gpus=2)  # the third is not used by the cell
    assert summary["median_sm_clock_mhz"] == 1200 and summary["throttled_fraction"] == 1.0
    assert watched(nvml, gpus=1)["median_sm_clock_mhz"] == 1980


def test_foreign_process_is_named_and_own_tree_is_not(monkeypatch):
    """In a container NVML may tell the host's numbers: one of nobody, or of a thread here, is not foreign."""
    threaded = "import threading as t; a = t.Thread(target=t.Event().wait); a.start(); print(a.native_id)"
    child = subprocess.Popen(["sleep", "60"])
    other = subprocess.Popen([sys.executable, "-uc", threaded], stdout=subprocess.PIPE, text=True)
    try:
        nvml = FakeNvml()
        nvml.gpus[0].processes = [SimpleNamespace(pid=pid) for pid in (child.pid, other.pid, 2**22 + 1)]
        assert watched(nvml, 0.1)["foreign_gpu_processes"] == []  # both are ours, the third cannot be told
        monkeypatch.setattr(monitor, "process_tree", lambda: {child.pid})
        summary = watched(nvml, 0.1)
        assert len(summary["foreign_gpu_processes"]) == 1
        assert "foreign process on the GPU (python" in flags(summary)[-1]
        nvml.gpus[0].processes = [SimpleNamespace(pid=int(other.stdout.readline()))]
        assert watched(nvml, 0.1)["foreign_gpu_processes"] == []
    finally:
        for one in (other, child):
            one.kill()
            one.communicate()


def test_ranks_that_a_scheduler_starts_are_not_told_as_others(monkeypatch):
    monkeypatch.setattr(monitor, "process_tree", set)  # as srun's tasks are no descendants
    nvml = FakeNvml()
    nvml.gpus[0].processes = [SimpleNamespace(pid=os.getpid())]
    assert watched(nvml, 0.6)["foreign_gpu_processes"]
    summary = watched(nvml, 0.6, ranks_are_descendants=False)
    assert (summary["foreign_gpu_processes"], summary["host_load_other"]) == ([], None)


def test_refusals_leave_none_and_the_old_name_works():
    asked = [name for name in FakeNvml().functions if name.startswith("nvmlDeviceGet")]
    refused = {name for name in asked if name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")}
    summary = watched(FakeNvml(1, refused), 0.1)
    assert (summary["samples"], summary["median_sm_clock_mhz"], summary["throttled_fraction"]) == (0, None, None)
    assert not any("GPU" in flag or "throttled" in flag for flag in flags(summary))
    old = FakeNvml(1, ["nvmlDeviceGetCurrentClocksEventReasons"])
    old.nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 0x80
    assert watched(old, 0.1)["throttle_reasons"] == {"power brake": 1.0}


def test_host_load_tells_own_from_foreign(monkeypatch):
    """A process below this one burns CPU time, which is its own also after it has ended."""
    burn = "import time; end = time.process_time() + 0.9\nwhile time.process_time() < end: pass"
    with Monitor(gpus=0) as ours, monkeypatch.context() as replaced:
        replaced.setattr(monitor, "_own_cpu_s", lambda: 0.0)  # of a watch that nothing belongs to
        with Monitor(gpus=0) as theirs:
            subprocess.run([sys.executable, "-c", burn])
    own, other = ours.summary(), theirs.summary()
    difference = other["host_load_other"] - own["host_load_other"]
    # at least the time burned; 0.8 for ticks of 10 ms and since another's load may fill the cores (capped at 1)
    burned = 0.9 / (other["window_s"] * len(os.sched_getaffinity(0)))
    assert other["host_load_other"] == 1.0 or difference >= 0.8 * burned
