"""Measures training from, and reading of, one data set in eight formats.

As in the Polaris homework: time of the training loop and size on disk. In addition: the constructor, which reads most
formats whole; loader wait, copy and compute separately; single samples read from every format; files cold and warm in
the page cache.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from perfscribe.base.cells import Cell, Measurement

if TYPE_CHECKING:
    from perfscribe.experiments.polaris.io_formats.reading import Source
    from perfscribe.experiments.polaris.io_formats.training import Epoch, Trainer

WARMUP_STEPS = 3


@dataclass(frozen=True)
class Training:
    """Factors of a cell."""

    device: str
    format: str
    cache: str
    batch: int
    epochs: int
    layers: int
    d_ff: int
    features: int
    source_length: int
    target_length: int
    read_samples: int
    training_samples: int


def run(cell: Cell) -> Measurement:
    """Check, warm up, train as the homework does, read single samples; all by the host clock.

    samples: constructor_s (once); training_s, loader_wait_s, copy_s, compute_s per epoch; loader_wait_ms, copy_ms,
    compute_ms per step; open_ms per reader; read_ms per sample. In memory, constructor and reader generate the arrays.
    On a CUDA device training_s comes from the homework's loop and the parts from an extra epoch after it, because
    timing the parts synchronises in every step; on a CPU one pass gives both.
    Cold files are cold before the constructor: only the first epoch reads from the disk.
    Raises Unsupported if the files cannot be made cold, ValueError if the data set is missing, damaged or read wrongly.
    """
    from perfscribe.experiments.polaris.io_formats.reading import Source
    from perfscribe.experiments.polaris.io_formats.training import Trainer
    from perfscribe.instruments.timing import HOST_CLOCK

    level, folder = cell.read(Training), Path(cell.data_folder)
    source = Source(level.format, folder / cell.data[0], folder / f"{cell.data[0]}.digest")
    source.check()
    source.set_cache(level.cache)  # raises Unsupported before any work
    trainer = Trainer(level)
    result = Measurement(warmup_s=trainer.warm_up(WARMUP_STEPS))
    gc.collect()  # a memory map not yet freed would keep its file in the page cache
    start = perf_counter()
    _train(trainer, source, level, result)
    _read(source, level, result)
    result.timed_s = perf_counter() - start
    result.timers = dict.fromkeys(result.samples, HOST_CLOCK)
    loss = float(trainer.last_loss)
    result.values |= source.facts() | {
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "steps_per_epoch": math.ceil(level.training_samples / level.batch),
        "warmup_steps": WARMUP_STEPS,
        "final_loss": loss if math.isfinite(loss) else str(loss),
    }
    return result


def _train(trainer: Trainer, source: Source, level: Training, result: Measurement) -> None:
    """Run the homework's training; on a CUDA device then reset the page cache and time the parts in one more epoch."""
    one_pass = level.device == "cpu"  # where synchronising costs nothing
    share, constructor_s, epochs = _train_pass(trainer, source, level.cache, level.epochs, apart=one_pass)
    result.values["resident_share_before"] = share
    result.samples["constructor_s"] = [constructor_s]
    result.samples["training_s"] = [epoch.training_s for epoch in epochs]
    if not one_pass:
        _, _, epochs = _train_pass(trainer, source, level.cache, 1, apart=True)
    for part in ("loader_wait", "copy", "compute"):
        steps_ms = [getattr(epoch, f"{part}_ms") for epoch in epochs]
        result.samples[f"{part}_s"] = [sum(steps) / 1e3 for steps in steps_ms]
        result.samples[f"{part}_ms"] = [step for steps in steps_ms for step in steps]


def _train_pass(
    trainer: Trainer, source: Source, cache: str, epochs: int, apart: bool
) -> tuple[float | None, float, list[Epoch]]:
    """Return the resident share of the files before the pass, the constructor's seconds, and the epochs."""
    share = source.set_cache(cache)
    start = perf_counter()
    dataset = source.as_in_homework()
    constructor_s = perf_counter() - start
    try:
        return share, constructor_s, trainer.train(dataset, epochs, apart)
    finally:
        dataset.close()


def _read(source: Source, level: Training, result: Measurement) -> None:
    """Add times of single-sample reads from warm or cold files to the result."""
    from perfscribe.experiments.polaris.io_formats.reading import read_cold, read_warm

    read = read_cold if level.cache == "cold" else read_warm
    reads = read(source, level.read_samples)
    result.samples |= {"open_ms": reads.open_ms, "read_ms": reads.read_ms}
    result.series["resident_share_before_read"] = reads.cached_share_before
    result.series["resident_share_after_read"] = reads.cached_share_after
