"""NVML's utilisation and used memory of one GPU while something runs, sampled by a thread.

Utilisation is the share of NVML's last period (a sixth of a second to one second) in which any kernel was resident,
whether or not it used the whole device.
"""

from __future__ import annotations

import threading
from statistics import fmean, pstdev
from types import TracebackType
from typing import Any

PERIOD_S = 0.1
ON_CPU = "no GPU: training ran on the CPU"
MUTE = "NVML does not tell it"


class GpuWatch:
    """Context; values() afterwards gives mean and spread, or says why there are none. Samples nothing on a CPU."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.utilisation_percent: list[float] = []
        self.used_bytes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        from perfscribe.distributed.transport import of_visible

        of_visible(1, self._until_stopped)

    def _until_stopped(self, nvml: Any, handles: list[Any]) -> list[Any]:
        while not self._stop.wait(PERIOD_S):
            self.utilisation_percent.append(float(nvml.nvmlDeviceGetUtilizationRates(handles[0]).gpu))
            self.used_bytes.append(int(nvml.nvmlDeviceGetMemoryInfo(handles[0]).used))
        return []

    def __enter__(self) -> GpuWatch:
        if self.on_gpu:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self.on_gpu:
            self._thread.join()

    def values(self) -> dict[str, Any]:
        """gpu_utilisation_percent and its population standard deviation, gpu_used_bytes (mean), samples; or texts."""
        if not self.utilisation_percent:
            why = MUTE if self.on_gpu else ON_CPU
            return dict.fromkeys(("gpu_utilisation_percent", "gpu_utilisation_std_percent", "gpu_used_bytes"), why)
        return {
            "gpu_utilisation_percent": fmean(self.utilisation_percent),
            "gpu_utilisation_std_percent": pstdev(self.utilisation_percent),
            "gpu_used_bytes": fmean(self.used_bytes),
            "gpu_utilisation_samples": len(self.utilisation_percent),
        }
