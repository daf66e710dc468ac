"""Measures epochs of the Polaris homework's training, with losses and peak memory; the first epoch is warm-up."""

from __future__ import annotations

import math

from perfscribe.base.cells import Cell, Measurement
from perfscribe.base.partial import kept_on_failure
from perfscribe.instruments.timing import HOST_CLOCK
from perfscribe.models.seq2seq_training import Job, Seq2SeqTraining


def measure(cell: Cell, *, cold: bool = False) -> Measurement:
    """Train for the cell's epochs (at least 2), then one more step to measure peak memory, on a GPU a few for its time.

    The first epoch is warm-up: it pays one-time costs of the process and the shape. The loss is checked before it or,
    if cold, after the last epoch, so that nothing is warm when the clock starts.
    homework_clock_s: all epochs as the homework times them, up to when the last step is queued instead of done.
    gpu_ms: time per step in which the GPU works. Its profile slows later launches of the process.
    """
    job = cell.read(Job)
    result = Measurement(timers={"epoch_s": HOST_CLOCK})
    with kept_on_failure(result):
        training = Seq2SeqTraining(job)
        result.values["parameters"] = training.parameters()
        if not cold:
            result.values |= training.check()
        done = [training.epoch() for _ in range(job.epochs)]
        result.warmup["epoch_s"], result.samples["epoch_s"] = [done[0].time_s], [epoch.time_s for epoch in done[1:]]
        result.warmup_s, result.timed_s = done[0].time_s, sum(result.samples["epoch_s"])
        result.series["loss"] = [_finite(epoch.loss) for epoch in done]
        result.values |= {
            "homework_clock_s": sum(epoch.time_s for epoch in done[:-1]) + done[-1].queued_s,
            "steps_per_epoch": math.ceil(job.samples / job.batch),
            "final_loss": _finite(done[-1].loss),
            "skipped_steps": training.skipped_steps(),
        }
        result.values |= training.peak()
        if cold:
            result.values |= training.check()
        if job.device == "cuda":
            result.values["gpu_ms"] = training.gpu_ms()
    return result


def _finite(loss: float) -> float | str:
    return loss if math.isfinite(loss) else "not finite"
