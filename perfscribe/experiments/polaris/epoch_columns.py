"""What the epochs of a training run of the Polaris homework say, and the columns that its tasks share."""

from __future__ import annotations

from statistics import median

from perfscribe.records.records import Record
from perfscribe.show import tables as t


def epochs_s(record: Record) -> list[list[float]]:
    """Times of all epochs of each round, the first ones included."""
    rounds = zip(record.warmup["epoch_s"], record.samples["epoch_s"], strict=True)
    return [[*first, *later] for first, later in rounds]


def total_s(record: Record) -> float:
    """All epochs together; the median of that where there are several rounds."""
    return float(median(sum(epochs) for epochs in epochs_s(record)))


def first_s(record: Record) -> float:
    """The first epoch; the median where there are several rounds."""
    return float(median(first[0] for first in record.warmup["epoch_s"]))


def samples_per_s(record: Record) -> float:
    """Samples of an epoch over the median time of the later ones."""
    return float(record.factors["samples"] / t.summary(record, "epoch_s").median)


def lowest_per_s(record: Record) -> float:
    """Of the slowest epoch, the first ones included."""
    return float(record.factors["samples"] / max(max(epochs) for epochs in epochs_s(record)))


def highest_per_s(record: Record) -> float:
    """Of the quickest epoch."""
    return float(record.factors["samples"] / min(min(epochs) for epochs in epochs_s(record)))


def _behind_ms(record: Record) -> float:
    return 1000 * (total_s(record) - float(record.values["homework_clock_s"]))


TOTAL = t.derived("training_s", "Training time (s)", total_s)
# How long the device went on after the last step was queued: next to nothing where the host sets the pace.
BEHIND = t.only(
    lambda record: record.has(device="cuda"),
    "computes as it queues",
    t.derived("behind_ms", "Device done after the last step is queued (ms)", _behind_ms),
)
LATER_EPOCHS = [
    t.derived("first_epoch_s", "First epoch (s)", first_s),
    *t.timed("epoch_s", "A later epoch (s)", "n"),
    t.rate("samples_per_s", "Samples/s", samples_per_s, "epoch_s"),
]
# Of allocated memory in one step.
PEAK_GIB = t.gib("peak_allocated", "Peak memory", "peak")
