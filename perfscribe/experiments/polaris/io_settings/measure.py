"""Measures reading one data set from HDF5 files that differ in chunk shape and compression, by workers or threads.

Three overlapping grids: chunk shape by compression in one process; workers; threads. Nothing is trained: the time
measured is the wait for the loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from perfscribe.base.cells import Cell, Measurement
from perfscribe.data.chunked_files import file_name

if TYPE_CHECKING:
    from perfscribe.experiments.polaris.io_settings.reading import Source

ALONE = {"reader": "h5py", "workers": 0, "threads": 1}


@dataclass(frozen=True)
class Reading:
    """Factors of a cell."""

    chunk: str | int
    compression: str
    chunk_cache_kib: int
    reader: str
    workers: int
    threads: int
    batch: int
    epochs: int
    epoch_samples: int
    read_samples: int


def run(cell: Cell) -> Measurement:
    """Check the file and the loader's samples, then time by the host clock, with files in the page cache.

    samples: epoch_s (sum of an epoch's waits for the loader), first_batch_ms (of the first epoch, from creating the
    loader's iterator, which starts workers). With one process and thread also read_ms (per random sample) and, if the
    file is compressed, inflate_ms: the same samples' chunks, inflated by zlib only. With several workers or threads
    also alone_epoch_s: epochs of one process and thread, interleaved with the others. Raises ValueError if the data set
    is missing, damaged or read wrongly.
    """
    import torch

    from perfscribe.experiments.polaris.io_settings.reading import Source
    from perfscribe.instruments.timing import HOST_CLOCK

    level, folder = cell.read(Reading), Path(cell.data_folder)
    own_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # `threads` counts reading threads; torch's intra-op threads would only copy
    try:
        source = Source(
            folder / cell.data[0] / file_name(f"{level.chunk}-{level.compression}"),
            folder / f"{cell.data[0]}.digest",
            level.chunk_cache_kib * 1024,
        )
        result = _measured(source, level)
    finally:
        torch.set_num_threads(own_threads)
    result.timers = dict.fromkeys(result.samples, HOST_CLOCK)
    return result


def _measured(source: Source, level: Reading) -> Measurement:
    from perfscribe.experiments.polaris.io_settings.reading import Loading, count_reads, read_singly

    start = perf_counter()
    arrays = source.checked_arrays()
    loadings = {"epoch_s": Loading(source, level, level.workers, level.threads)}
    if level.workers or level.threads > 1:
        loadings["alone_epoch_s"] = Loading(source, level, 0, 1)
    try:
        first_batch_ms, *_ = [loading.check(arrays) for loading in loadings.values()]
        begun = perf_counter()
        samples: dict[str, list[float]] = {name: [] for name in loadings} | {"first_batch_ms": [first_batch_ms]}
        for _ in range(level.epochs):
            for name, loading in loadings.items():
                samples[name].append(loading.epoch_s())
    finally:
        for loading in loadings.values():
            loading.close()
    values = source.facts()
    if ALONE.items() <= vars(level).items():
        samples |= read_singly(source, arrays, level.read_samples)
        values |= count_reads(source, level.read_samples)
    return Measurement(samples, values=values, warmup_s=begun - start, timed_s=perf_counter() - begun)
