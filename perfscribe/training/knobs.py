"""The FSDP workshop's training parameters, with its names in lower case. Imports nothing heavy: plans import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Knobs:
    """Training parameters; defaults are the workshop's. batch_size is per device.

    fp16, bf16: autocast with fp32 weights, fp16 with a loss scaler; both off is fp32. ValueError if both are on, or
    for fp16 on a CPU, which Trainer does not support.
    """

    device: str = "cpu"
    num_epochs: int = 5
    batch_size: int = 1
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    grad_acc: int = 4
    fp16: bool = False
    bf16: bool = False
    gradient_checkpointing: bool = False
    eval_strategy: str = "epoch"
    save_strategy: str = "no"
    logging_steps: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fp16 and self.bf16:
            raise ValueError("fp16 and bf16: both are true, expected one of them at most")
        if self.fp16 and self.device == "cpu":
            raise ValueError("fp16: true on a CPU, where Trainer trains in fp32 or bf16 alone")

    @property
    def dtype(self) -> str:
        """Data type as in other experiments' factor dtype: fp32, fp16 or bf16."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    @property
    def rows_a_step(self) -> int:
        """Rows per optimizer step and device."""
        return self.batch_size * self.grad_acc


NAMES = tuple(field.name for field in fields(Knobs))


def of(levels: Mapping[str, Any], **changed: Any) -> Knobs:
    """Make Knobs from a cell's factors or a config section; missing ones have the workshop's values."""
    return Knobs(**{name: levels[name] for name in NAMES if name in levels} | changed)
