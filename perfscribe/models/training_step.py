"""A training step of the language model, in pieces that can be timed, traced and counted separately."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from perfscribe.analytic.shapes import SIZES, LanguageModel, Steps
from perfscribe.base.cells import Measurement
from perfscribe.data import tokens
from perfscribe.instruments import precision, timing
from perfscribe.models.transformer import Model, next_token_loss

LEARNING_RATE = 1e-4


def _nothing(_: str) -> None:
    """Do nothing."""


class Step:
    """A model with its batch and optimizer.

    inputs, targets: token ids (B, S), int64. optimizer is None until make_optimizer().
    """

    def __init__(self, model: Model, token_ids: torch.Tensor, device: str, dtype: str) -> None:
        """token_ids: (B, S + 1), int64, on the device."""
        self.model, self.device, self.dtype = model, device, dtype
        self.inputs, self.targets = token_ids[:, :-1].contiguous(), token_ids[:, 1:].contiguous()
        self.optimizer: torch.optim.Optimizer | None = None
        self.scaler: Any = None

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast for fp16 and bf16, nothing for fp32 and TF32."""
        return precision.autocast(self.device, self.dtype)

    def loss(self) -> torch.Tensor:
        """Run forward, keeping the graph."""
        with self.autocast():
            return next_token_loss(self.model, self.inputs, self.targets)

    def inference(self) -> None:
        """Run forward to the logits, without a graph."""
        with torch.no_grad(), self.autocast():
            self.model(self.inputs)

    def forward_backward(self) -> None:
        """Run forward and backward without a synchronise in between."""
        self.loss().backward()

    def zero_grad(self) -> None:
        """Free the gradients, as the homework does at the start of a step."""
        self.model.zero_grad(set_to_none=True)

    def make_optimizer(self) -> None:
        """Make AdamW and, for fp16, a loss scaler, without which its gradients would underflow."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.dtype == "fp16")

    def full(self, mark: Callable[[str], object] = _nothing) -> None:
        """Run a training step; call mark with the name of each phase as it ends: forward, backward, optimizer."""
        loss = self.loss()
        mark("forward")
        self.scaler.scale(loss).backward()
        del loss
        mark("backward")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        mark("optimizer")


def build(of: LanguageModel, data_folder: str) -> Step:
    """Make the step; the optimizer is not made yet.

    Raises torch's out-of-memory errors, and ValueError if there are too few token data.
    """
    precision.set_matmul_precision(of.dtype)
    model = Model(SIZES[of.size], of.seq_len, device=of.device)
    token_ids = torch.from_numpy(tokens.read(Path(data_folder), of.batch, of.seq_len)).to(of.device)
    return Step(model, token_ids, of.device, of.dtype)


def time_full(step: Step, measurement: Measurement, counts: Steps) -> None:
    """Time full steps by phase: forward_ms, backward_ms, optimizer_ms and full_step_ms."""
    warmup, timed = counts.warmup_steps, counts.timed_steps
    phases = timing.time_phases(step.full, prepare=step.zero_grad, warmup=warmup, timed=timed, device=step.device)
    for name in ("forward", "backward", "optimizer"):
        timing.record(measurement, f"{name}_ms", phases[name])
    timing.record(measurement, "full_step_ms", phases[timing.STEP])


def peak(name: str, run_once: Callable[[], object], device: str) -> dict[str, Any]:
    """Return peak allocated and reserved bytes while run_once() runs, with `name` in their keys."""
    from perfscribe.instruments.memory import PeakMemory

    if device == "cuda":
        torch.cuda.empty_cache()
    with PeakMemory(device) as memory:
        run_once()
    values: dict[str, Any] = {f"peak_{name}_bytes": memory.peak_allocated_bytes, "memory_counter": memory.counter}
    if memory.peak_reserved_bytes is not None:
        values[f"peak_{name}_reserved_bytes"] = memory.peak_reserved_bytes
    return values
