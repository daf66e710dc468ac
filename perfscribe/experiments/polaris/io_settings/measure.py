"""Measures reading one data set from HDF5 files that differ in chunk shape and compression, by workers or threads.

Three overlapping grids: chunk shape by compression in one process; workers; threads. Nothing is trained: the time
measured is the wait for the loader.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from perfscribe.base.cells import Cell, Measurement
from perfscribe.data.chunked_files import file_name

if TYPE_CHECKING:
    from perfscribe.experiments.polaris.io_settings.reading import Source

ALONE = {"reader": "h5py", "workers": 0, "threads": 1}


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

    folder = Path(cell.data_folder)
    own_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # `threads` counts reading threads; torch's intra-op threads would only copy
    try:
        source = Source(
            folder / cell.data[0] / file_name(f"{cell['chunk']}-{cell['compression']}"),
            folder / f"{cell.data[0]}.digest",
            cell["chunk_cache_kib"] * 1024,
        )
        result = _measured(source, cell)
    finally:
        torch.set_num_threads(own_threads)
    result.timers = dict.fromkeys(result.samples, HOST_CLOCK)
    return result


def _measured(source: Source, cell: Cell) -> Measurement:
    from perfscribe.experiments.polaris.io_settings.reading import Loading, count_reads, read_singly

    start = perf_counter()
    arrays = source.checked_arrays()
    loadings = {"epoch_s": Loading(source, cell, cell["workers"], cell["threads"])}
    if cell["workers"] or cell["threads"] > 1:
        loadings["alone_epoch_s"] = Loading(source, cell, 0, 1)
    try:
        first_batch_ms, *_ = [loading.check(arrays) for loading in loadings.values()]
        begun = perf_counter()
        samples: dict[str, list[float]] = {name: [] for name in loadings} | {"first_batch_ms": [first_batch_ms]}
        for _ in range(cell["epochs"]):
            for name, loading in loadings.items():
                samples[name].append(loading.epoch_s())
    finally:
        for loading in loadings.values():
            loading.close()
    values = source.facts()
    if all(cell[name] == level for name, level in ALONE.items()):
        samples |= read_singly(source, arrays, cell["read_samples"])
        values |= count_reads(source, cell["read_samples"])
    return Measurement(samples, values=values, warmup_s=begun - start, timed_s=perf_counter() - begun)
