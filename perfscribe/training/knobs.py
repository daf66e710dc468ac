"""The FSDP workshop's training knobs, under its own names in lower case. Imports nothing heavy: plans read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Knobs:
    """How to train; the defaults are the workshop's. batch_size is of one device.

    fp16, bf16: autocast with fp32 weights, fp16 with a loss scaler; both off is fp32. ValueError where both are on,
    and for a fp16 on a CPU, which Trainer does not offer.
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
        """The level that other experiments call dtype: fp32, fp16 or bf16."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    @property
    def rows_a_step(self) -> int:
        """Rows that one device takes for one optimizer step."""
        return self.batch_size * self.grad_acc


NAMES = tuple(field.name for field in fields(Knobs))


def of(levels: Mapping[str, Any], **changed: Any) -> Knobs:
    """The knobs among a cell's factors or a config section; what they lack has the workshop's value."""
    return Knobs(**{name: levels[name] for name in NAMES if name in levels} | changed)
