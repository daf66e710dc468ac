"""Reading of one data set from HDF5 files that differ in chunk shape and compression, by several workers or threads.

Three grids that share their middle: chunk shape by compression in one process; workers; threads. Nothing is trained:
what is timed is the wait for the loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement
from perfscribe.data.chunked_files import CONTIGUOUS, WHOLE, file_name

if TYPE_CHECKING:
    from perfscribe.experiments.io_settings.reading import Source

# The grids of workers and threads read these two: as many samples in a chunk as the homework has in a batch, and plain.
PACKED, PLAIN = (32, "gzip"), (CONTIGUOUS, "none")
SETTINGS = ("samples", "source_length", "target_length", "features", "batch", "epochs", "chunk_cache_kib")
ALONE = {"reader": "h5py", "workers": 0, "threads": 1}


def dataset_name(config: Mapping[str, Any]) -> str:
    """The data set's name holds its shape, so that two presets never share a folder."""
    return "polaris_chunks_{samples}x{source_length}x{target_length}x{features}".format(**config)


def _layouts(config: Mapping[str, Any]) -> list[tuple[int | str, str]]:
    """Chunk shapes by compression; a contiguous array cannot be compressed."""
    wanted = [
        (chunk, compression)
        for chunk in config["chunk"]
        for compression in config["compression"]
        if chunk != CONTIGUOUS or compression == "none"
    ]
    return [*wanted, *(files for files in (PLAIN, PACKED) if files not in wanted)]


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What must be generated before: parameters, layouts and files (relative to the data set's folder) by name."""
    names = ("samples", "source_length", "target_length", "features", "seed")
    layouts = [f"{chunk}-{compression}" for chunk, compression in _layouts(config)]
    return {
        dataset_name(config): {
            "kind": "chunked",
            "parameters": {name: config[name] for name in names},
            "formats": layouts,
            "files": [file_name(name) for name in layouts],
        }
    }


def _grids(config: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Levels of the cells of all grids, some of them twice."""
    for chunk, compression in _layouts(config):
        yield {"chunk": chunk, "compression": compression, **ALONE}
    for chunk, compression in (PACKED, PLAIN):
        for workers in config["workers"]:
            yield {"chunk": chunk, "compression": compression, **ALONE, "workers": workers}
    for reader, (chunk, compression) in (("h5py", PACKED), ("zlib", PACKED), ("h5py", PLAIN)):
        for threads in config["threads"]:
            yield {"chunk": chunk, "compression": compression, "reader": reader, "workers": 0, "threads": threads}


def _sample_counts(levels: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, int]:
    """Samples of an epoch and of single reads: few where each inflates all there are."""
    few = levels["chunk"] == WHOLE
    return {name: config["whole_chunk_samples" if few else name] for name in ("epoch_samples", "read_samples")}


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """The cells of all grids, each once."""
    settings = {name: config[name] for name in SETTINGS}
    result: dict[tuple[Any, ...], Cell] = {}
    for levels in _grids(config):
        factors = {**levels, **_sample_counts(levels, config), **settings}
        in_chunk = {CONTIGUOUS: 1, "guess": 32, WHOLE: factors["samples"]}.get(factors["chunk"], factors["chunk"])
        cost = float(factors["epoch_samples"] * (in_chunk if factors["compression"] == "gzip" else 1))
        result[tuple(levels.values())] = Cell(factors, ("hdf5",), cost, (dataset_name(config),))
    return list(result.values())


def run(cell: Cell) -> Measurement:
    """Check the file and what the loader delivers from it, then time; all by the host clock, files in the page cache.

    samples: epoch_s (the sum of an epoch's waits for the loader), first_batch_ms (of the first epoch, from making the
    loader's iterator on: workers are started in it). With one process and thread also read_ms (a random sample) and,
    where the file is compressed, inflate_ms: the same samples' chunks, inflated by zlib alone. With several workers or
    threads also alone_epoch_s: epochs of one process and thread, interleaved with the others. Raises ValueError
    where the data set is missing, damaged or read wrongly.
    """
    import torch

    from perfscribe.experiments.io_settings.reading import Source
    from perfscribe.instruments.timing import HOST_CLOCK

    folder = Path(cell.data_folder)
    own_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # `threads` are those that read; torch's own would only copy
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
    from perfscribe.experiments.io_settings.reading import Loading, count_reads, read_singly

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
