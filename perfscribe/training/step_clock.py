"""A callback that reads the clock at the end of each optimizer step, and the allocator beside it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from transformers import TrainerCallback


class StepClock(TrainerCallback):
    """step_s: wall seconds of every optimizer step, the device synchronised at its end.

    A step begins where the one before it ended, or where its epoch began: fetching batches and logging are in it,
    evaluation and saving are not. at_rest_bytes: what torch's allocator has handed out on the GPU at each step's end,
    when gradients and activations are gone; empty on a CPU.
    """

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.step_s: list[float] = []
        self.at_rest_bytes: list[int] = []
        self._last = 0.0

    def _now(self) -> float:
        if self.on_gpu:
            torch.cuda.synchronize()
        return perf_counter()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the first step's clock."""
        self._last = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the step, and what is allocated once its gradients are gone."""
        now = self._now()
        self.step_s.append(now - self._last)
        if self.on_gpu:
            self.at_rest_bytes.append(torch.cuda.memory_allocated())
        self._last = now
