"""Epoch times of the Polaris homework's training runs, and the columns that its experiments share."""

from collections.abc import Callable
from operator import itemgetter
from statistics import median

from perfscribe.records.records import Record
from perfscribe.show import tables as t


def epochs_s(record: Record) -> list[list[float]]:
    """Return the times of all epochs by round (s), first epochs included."""
    rounds = zip(record.warmup["epoch_s"], record.samples["epoch_s"], strict=True)
    return [[*first, *later] for first, later in rounds]


def samples_per_s(record: Record) -> float:
    """Return the samples of an epoch divided by the median time of the later epochs."""
    return float(record.factors["samples"] / t.summary(record, "epoch_s").median)


def lowest_per_s(record: Record) -> float:
    """Return samples per second of the slowest epoch, first epochs included."""
    return float(record.factors["samples"] / max(max(epochs) for epochs in epochs_s(record)))


def highest_per_s(record: Record) -> float:
    """Return samples per second of the fastest epoch, first epochs included."""
    return float(record.factors["samples"] / min(min(epochs) for epochs in epochs_s(record)))


def _of_rounds(name: str, title: str, get: Callable[[list[float]], float]) -> t.Column:
    """Column of a time of each round's epochs (s): its median, with its range over rounds as spread."""

    def times(record: Record) -> list[float]:
        return [get(epochs) for epochs in epochs_s(record)]

    return t.Column(name, title, lambda r: float(median(times(r))), range_get=lambda r: t.range_of(times(r)))


TOTAL = _of_rounds("training_s", "Training time (s)", sum)
# Time the device needs after the last step is queued: almost none where the host sets the pace.
BEHIND = t.only(
    lambda record: record.has(device="cuda"),
    "computes as it queues",
    t.derived(
        "behind_ms",
        "Device done after the last step is queued (ms)",
        lambda record: 1000 * (TOTAL.get(record) - record.values["homework_clock_s"]),
    ),
)
LATER_EPOCHS = [
    _of_rounds("first_epoch_s", "First epoch (s)", itemgetter(0)),
    *t.timed("epoch_s", "A later epoch (s)", "n"),
    t.rate("samples_per_s", "Samples/s", samples_per_s, "epoch_s"),
    t.scaled("step_ms", "Step (ms)", "epoch_s", lambda record: 1e3 / record.values["steps_per_epoch"]),
    *t.only(lambda record: record.has(device="cuda"), "no GPU", t.value("gpu_ms", "GPU at work in a step (ms)")),
]
# Peak of allocated memory in one step.
PEAK_GIB = t.gib("peak_allocated", "Peak memory", "peak")
