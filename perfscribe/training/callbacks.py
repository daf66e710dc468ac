"""The FSDP workshop's two callbacks of transformers.Trainer, around the meters that say what they count."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from perfscribe.training.meters import SpeedMeter, UtilisationMeter


class UtilisationCallback(TrainerCallback):  # type: ignore[misc]
    """avg_gpu_util_%, std_gpu_util_%, avg_mem_alloc_MB, avg_mem_reserved_MB, avg_mem_total_MB; peaks beside them.

    summary is filled when training ends, on all ranks alike; that is a collective.
    """

    def __init__(self, meter: UtilisationMeter) -> None:
        self.meter = meter
        self.summary: dict[str, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is over: memory is at rest."""
        self.meter.sample()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Combine what the ranks have read."""
        self.summary = self.meter.summary()


class TrainSpeedCallback(TrainerCallback):  # type: ignore[misc]
    """train/samples_per_second_mean and steps/s, and the same by a clock of steps alone.

    logs holds the workshop's rates at each log. The workshop's clock begins here, in the constructor.
    """

    def __init__(self, meter: SpeedMeter) -> None:
        self.meter = meter
        self.logs: list[dict[str, float]] = []
        self.summary: dict[str, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first of a step's batches is about to be trained on."""
        self.meter.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is over; Trainer's own callback, which is first, has decided what is to follow."""
        self.meter.end_step()
        if control.should_evaluate or control.should_save:
            self.meter.pause()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluation and checkpoint of an epoch follow, and the next epoch's loader starts."""
        self.meter.pause()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Training steps are logged; the logs of an evaluation hold no loss of training."""
        if logs and "loss" in logs and (rates := self.meter.log(state.global_step)):
            self.logs.append({"step": state.global_step, **rates})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What both clocks say."""
        self.meter.pause()
        self.summary = self.meter.summary()
