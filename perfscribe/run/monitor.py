"""Samples disturbances during a measurement: clocks, throttling, foreign processes, host load.

Runs as a thread of the process that starts the measuring child, never in the child. Cost on a 2-core virtual machine
(AMD EPYC, 94 processes): 4 ms of CPU time per window for the host's part, plus 3 ms per second with one GPU, without
NVML's own time (it was mocked there).
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import psutil

from perfscribe.base import cpu_sets
from perfscribe.instruments import nvml

INTERVAL_S = 0.08  # 12.5 Hz; short throttling needs at least 10 Hz
PROCESS_INTERVAL_S = 1.0

HOST_WINDOW_S = 0.5  # the kernel counts CPU time in ticks of up to 10 ms

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*) that hold the SM clock below the
# requested one. Idle, user-set clocks and display clocks do not count as throttling.
THROTTLE_BITS = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal limit",
    0x040: "hardware thermal limit",
    0x080: "power brake",
}
_ANY_THROTTLE = sum(THROTTLE_BITS)


class Monitor:
    """Context that samples the first `gpus` of the job's GPUs at 12.5 Hz and counts the host's CPU time.

    Load of this process and its descendants is not foreign.

    gpus: number of GPUs that the cell uses; with 0 only the host is monitored, without a thread.
    handles: NVML handles of the leased GPUs; default: all visible ones.
    cores: cores that the job is restricted to; default: all granted ones.
    ranks_are_descendants: False where a scheduler's daemon starts ranks: what is foreign is then not known.

    A query that the driver refuses leaves its figure None; monitoring never fails a cell.
    """

    def __init__(
        self,
        gpus: int = 1,
        handles: Sequence[Any] = (),
        cores: Sequence[int] = (),
        *,
        ranks_are_descendants: bool = True,
    ) -> None:
        self._ranks_are_descendants = ranks_are_descendants
        self._gpus = list(handles or nvml.visible_gpus())[:gpus] if gpus else []
        self._cores = tuple(cores) or cpu_sets.granted()
        self._samples: list[dict[str, list[float]]] = [defaultdict(list) for _ in self._gpus]
        self._foreign: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._begin: dict[str, float] = {}
        self._end: dict[str, float] = {}

    def __enter__(self) -> Monitor:
        self._begin = self._counters()
        if self._gpus:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._end = self._counters()

    def _counters(self) -> dict[str, float]:
        return {"time_s": time.monotonic(), "busy_s": _busy_cores_s(self._cores), "own_s": _own_cpu_s()}

    def _run(self) -> None:
        due = next_look = time.monotonic()
        while True:
            for gpu, samples in zip(self._gpus, self._samples, strict=True):
                self._sample(gpu, samples)
            if self._ranks_are_descendants and time.monotonic() >= next_look:
                self._foreign |= foreign_processes(self._gpus)
                next_look = time.monotonic() + PROCESS_INTERVAL_S
            due = max(due + INTERVAL_S, time.monotonic())  # after a late sample, do not catch up
            if self._stop.wait(due - time.monotonic()):
                return

    def _sample(self, gpu: Any, samples: dict[str, list[float]]) -> None:
        reasons = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if reasons is None:  # drivers before 535 use the old name
            reasons = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        read = {
            "sm_clock_mhz": nvml.ask("nvmlDeviceGetClockInfo", gpu, 1),  # 1: NVML_CLOCK_SM
            "reasons": reasons,
        }
        for name, value in read.items():
            if value is not None:
                samples[name].append(value)

    def summary(self) -> dict[str, Any]:
        """Figures of the window, after the context has ended.

        median_sm_clock_mhz: of the slowest GPU, since it sets the pace. throttled_fraction: share of samples with a
        bit of THROTTLE_BITS, of the most throttled GPU; throttle_reasons: share of each bit. foreign_gpu_processes:
        names, one per process. host_load_other: CPU time on the job's cores outside our process tree (including steal
        time by other virtual machines), as a share of these cores; None for windows below 0.5 s, if the own time falls
        because a process left the tree uncounted, and where ranks are no descendants. samples: of the GPU with
        fewest.
        """
        spent = {name: self._end[name] - begun for name, begun in self._begin.items()}
        throttled = [_throttle_shares(samples["reasons"]) for samples in self._samples if samples["reasons"]]
        worst = max(throttled, key=lambda shares: shares["any"], default=None)
        clocks = [statistics.median(samples["sm_clock_mhz"]) for samples in self._samples if samples["sm_clock_mhz"]]
        return {
            "window_s": round(spent["time_s"], 3),
            "samples": min((max(map(len, samples.values()), default=0) for samples in self._samples), default=0),
            "median_sm_clock_mhz": min(clocks, default=None),
            "throttled_fraction": worst["any"] if worst else None,
            "throttle_reasons": {name: share for name, share in (worst or {}).items() if name != "any" and share},
            "foreign_gpu_processes": sorted(self._foreign.values()),
            "host_load_other": self._host_load_other(spent),
        }

    def _host_load_other(self, spent: Mapping[str, float]) -> float | None:
        if not self._ranks_are_descendants or spent["time_s"] < HOST_WINDOW_S or spent["own_s"] < 0:
            return None
        share = (spent["busy_s"] - spent["own_s"]) / (spent["time_s"] * len(self._cores))
        return round(min(max(share, 0.0), 1.0), 3)


def _throttle_shares(reasons: list[float]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for bits in map(int, reasons):
        counts["any"] += bool(bits & _ANY_THROTTLE)
        counts.update(name for bit, name in THROTTLE_BITS.items() if bits & bit)
    return {name: round(count / len(reasons), 4) for name, count in counts.items()}


def _busy_cores_s(numbers: Sequence[int]) -> float:
    """CPU seconds since boot that these cores were not idle."""
    cores = psutil.cpu_times(percpu=True)
    granted = [core for core in numbers if core < len(cores)]
    # Guest time is part of user time; a core waiting for a disk is free.
    spent = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(cores[core], kind, 0.0) for core in granted for kind in spent)


def _own_cpu_s() -> float:
    """CPU seconds of this process and its descendants, ended children that were waited for included."""
    total_s = 0.0
    for pid in process_tree():
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def foreign_processes(gpus: Iterable[Any]) -> dict[int, str]:
    """Names, by pid, of compute processes on these GPUs outside this process and its descendants.

    In a container NVML may return pids of the host. One without a process here may be our own, so it is left out.
    """
    listed = [process for gpu in gpus for process in nvml.ask("nvmlDeviceGetComputeRunningProcesses", gpu) or []]
    names = {process.pid: _process_name(process.pid) for process in listed}
    process_ids = process_tree()
    return {pid: name for pid, name in names.items() if name is not None and pid not in process_ids}


def _process_name(pid: int) -> str | None:
    try:
        # A pid of the host may be that of a thread here, which psutil.Process takes for a process.
        name = psutil.Process(pid).name() if psutil.pid_exists(pid) else ""
    except psutil.Error:
        name = ""
    if not name:
        name = nvml.ask("nvmlSystemGetProcessName", pid) or ""
    return PurePath(name.split()[0]).name if name.split() else None


def process_tree() -> set[int]:
    """Pids of this process and all its descendants."""
    return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
