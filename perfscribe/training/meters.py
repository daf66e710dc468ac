"""Metrics of the FSDP workshop's callbacks by its definitions, with less misleading ones next to them.

The workshop's: memory of torch's allocator and of the whole GPU, and NVML's utilisation, read once after every
optimizer step; the mean over ranks and steps. Its clock starts when the callback is made and includes evaluation and
checkpoints. Ours: peaks, of the fullest rank; a clock of training steps only.

1 MB here is 2^20 bytes, as in the workshop.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

MIB = 2**20
UTILISATION, ALLOCATED, RESERVED, USED = "gpu_util_%", "mem_alloc_MB", "mem_reserved_MB", "mem_total_MB"
QUANTITIES = (UTILISATION, ALLOCATED, RESERVED, USED)


def _asker_of(device: torch.device) -> Callable[[str], Any]:
    """Return a function that calls NVML for a torch device; it returns None if NVML or the function is missing."""
    from perfscribe.distributed.links import of_visible

    if device.type != "cuda":
        return lambda function: None
    index = device.index or 0
    found = of_visible(index + 1, lambda nvml, handles: [(nvml, handles[index])])

    def ask(function: str) -> Any:
        for nvml, handle in found:
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                return getattr(nvml, function)(handle)
        return None

    return ask


def _everyone(values: torch.Tensor, device: torch.device, operation: Any) -> torch.Tensor:
    """Reduce the tensor over ranks; without a process group return it unchanged."""
    if not dist.is_initialized():
        return values
    there = values.to(device)
    dist.all_reduce(there, operation)
    return there.cpu()


class UtilisationMeter:
    """Samples a GPU after each optimizer step; unavailable quantities are left out."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._ask = device, _asker_of(device)
        self.sums = torch.zeros(len(QUANTITIES), 3, dtype=torch.float64)  # readings, their sum, sum of squares
        self.most = torch.zeros(len(QUANTITIES), dtype=torch.float64)

    def read(self) -> dict[str, float]:
        """Current QUANTITIES, as far as available."""
        found: dict[str, float] = {}
        if self.device.type == "cuda":
            found[ALLOCATED] = torch.cuda.memory_allocated(self.device) / MIB
            found[RESERVED] = torch.cuda.memory_reserved(self.device) / MIB
        rates, memory = (self._ask(f"nvmlDeviceGet{what}") for what in ("UtilizationRates", "MemoryInfo"))
        if rates is not None:
            found[UTILISATION] = float(rates.gpu)
        if memory is not None:
            found[USED] = memory.used / MIB
        return found

    def sample(self) -> None:
        """Add one reading."""
        for name, value in self.read().items():
            row = QUANTITIES.index(name)
            self.sums[row] += torch.tensor([1.0, value, value * value], dtype=torch.float64)
            self.most[row] = max(float(self.most[row]), value)

    def summary(self) -> dict[str, float]:
        """Return averages under the workshop's names, over all ranks and readings; a collective if there are ranks.

        avg_<quantity>, std_gpu_util_% (population). In addition peak_mem_alloc_MB and peak_mem_reserved_MB, of torch's
        allocator since its statistics were reset, and peak_mem_total_MB, the largest reading: maxima over ranks.
        A quantity that no rank could read is left out.
        """
        sums = _everyone(self.sums, self.device, dist.ReduceOp.SUM)
        most = _everyone(self._peaks(), self.device, dist.ReduceOp.MAX)
        found: dict[str, float] = {}
        for name, (count, total, squares), peak in zip(QUANTITIES, sums.tolist(), most.tolist(), strict=True):
            if not count:
                continue
            mean = total / count
            found[f"avg_{name}"] = mean
            if name == UTILISATION:
                found[f"std_{name}"] = math.sqrt(max(0.0, squares / count - mean * mean))
            else:
                found[f"peak_{name}"] = peak
        return found

    def _peaks(self) -> torch.Tensor:
        """Peak of each quantity; for torch's memory the allocator's, as readings are taken at rest."""
        peaks = self.most.clone()
        if self.device.type == "cuda":
            peaks[QUANTITIES.index(ALLOCATED)] = torch.cuda.max_memory_allocated(self.device) / MIB
            peaks[QUANTITIES.index(RESERVED)] = torch.cuda.max_memory_reserved(self.device) / MIB
        return peaks


class SpeedMeter:
    """The workshop's clock, and one of training steps only.

    rows_per_step: batch x accumulation x ranks, which the workshop assumes for every step. settle: waits for queued
    work, called before the second clock is read. The first step is kept apart, as it loads libraries and selects
    kernels.
    """

    def __init__(self, rows_per_step: int, settle: Callable[[], None] = lambda: None) -> None:
        self.rows_per_step, self._settle = rows_per_step, settle
        self._logged_at, self._logged_step = time.perf_counter(), 0
        self.logged_s, self.logged_steps = 0.0, 0
        self._running_since: float | None = None
        self.first_s: list[float] = []
        self.step_s: list[float] = []

    def log(self, step: int) -> None:
        """Log the optimizer step with this number; the workshop's rates are based on logs."""
        now = time.perf_counter()
        if step > self._logged_step:
            self.logged_s += now - self._logged_at
            self.logged_steps += step - self._logged_step
        self._logged_at, self._logged_step = now, step

    def begin_step(self) -> None:
        """Start the second clock at the beginning of an optimizer step, unless it is running."""
        if self._running_since is None:
            self._settle()
            self._running_since = time.perf_counter()

    def end_step(self) -> None:
        """Record the time of an optimizer step, after all its work is queued: since the last step or the clock's start.

        Work of the loop between two steps, such as loading batches and logging, counts for the second.
        """
        if self._running_since is None:
            return
        self._settle()
        now = time.perf_counter()
        spent = self.step_s if self.first_s else self.first_s
        spent.append(now - self._running_since)
        self._running_since = now

    def pause(self) -> None:
        """Stop the second clock before evaluation, a checkpoint, or the end of an epoch."""
        self._running_since = None

    def summary(self) -> dict[str, float]:
        """Return the workshop's train/samples_per_second_mean and steps/s, and rates of the second clock, if known.

        The workshop adds up steps and seconds between logs, on the first rank: steps after the last log do not count.
        stepping_samples_per_second, stepping_steps/s, stepping_steps: of the second clock.
        """
        found: dict[str, float] = {}
        if self.logged_s > 0:
            found["steps/s"] = self.logged_steps / self.logged_s
            found["train/samples_per_second_mean"] = found["steps/s"] * self.rows_per_step
        stepping_s = sum(self.step_s)
        if stepping_s > 0:
            found["stepping_steps"] = len(self.step_s)
            found["stepping_steps/s"] = len(self.step_s) / stepping_s
            found["stepping_samples_per_second"] = found["stepping_steps/s"] * self.rows_per_step
        return found
