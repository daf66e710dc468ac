"""Keys of experiments.io_settings with their defaults, its cells, and what it shows."""

from collections.abc import Iterable, Mapping
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.base.registry import Shown
from perfscribe.config.keys import choices, constant, experiment, wholes
from perfscribe.data.chunked_files import CONTIGUOUS, WHOLE, file_name
from perfscribe.experiments.polaris.io_settings.measure import ALONE

LEVELS = experiment(
    "One data set in HDF5 files of several chunk shapes, with and without gzip, read by several workers and threads",
    chunk=choices(
        "samples in a chunk; whole: all of them, guess: chunks of the shape that h5py chooses, contiguous: no chunks",
        ["contiguous", 1, 32, "whole", "guess"],
    ),
    compression=choices("gzip: at h5py's default level", ["none", "gzip"]),
    workers=wholes("worker processes of the loader; 0: the process itself reads", 0, 64, [0, 2], gpu=[0, 2, 4]),
    threads=wholes("threads that read the samples of a batch", 1, 64, [1, 2], gpu=[1, 4]),
    samples=constant(128, tiny=64, gpu=2048),
    source_length=constant(1),
    target_length=constant(20),
    features=constant(512, tiny=64),
    batch=constant(4, gpu=32),
    epochs=constant(3, tiny=2, gpu=2),  # timed, after one whose samples are checked
    epoch_samples=constant(16, gpu=128),
    read_samples=constant(16, tiny=8, gpu=64),
    whole_chunk_samples=constant(4),  # of an epoch and of reads, where a chunk holds the whole data set
    chunk_cache_kib=constant(0, gpu=1024),  # of inflated chunks of an array; 1024: HDF5's default before version 2
)

SHOWN = Shown(tables=("polaris.io_chunks", "polaris.io_loader"))

# Layouts that the grids of workers and threads read: chunks of 32 samples, the homework's batch; and plain.
PACKED, PLAIN = (32, "gzip"), (CONTIGUOUS, "none")
SETTINGS = ("samples", "source_length", "target_length", "features", "batch", "epochs", "chunk_cache_kib")


def dataset_name(config: Mapping[str, Any]) -> str:
    """Return the data set's name, which contains its shape so that two presets never share a folder."""
    return "polaris_chunks_{samples}x{source_length}x{target_length}x{features}".format(**config)


def _layouts(config: Mapping[str, Any]) -> list[tuple[int | str, str]]:
    """Return pairs of chunk shape and compression; a contiguous array cannot be compressed."""
    layouts = [
        (chunk, compression)
        for chunk in config["chunk"]
        for compression in config["compression"]
        if chunk != CONTIGUOUS or compression == "none"
    ]
    return [*layouts, *(layout for layout in (PLAIN, PACKED) if layout not in layouts)]


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the data sets to generate first, by name: parameters, layouts, and files relative to its folder."""
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
    """Yield the levels of the cells of all grids, some of them twice."""
    for chunk, compression in _layouts(config):
        yield {"chunk": chunk, "compression": compression, **ALONE}
    for chunk, compression in (PACKED, PLAIN):
        for workers in config["workers"]:
            yield {"chunk": chunk, "compression": compression, **ALONE, "workers": workers}
    for reader, (chunk, compression) in (("h5py", PACKED), ("zlib", PACKED), ("h5py", PLAIN)):
        for threads in config["threads"]:
            yield {"chunk": chunk, "compression": compression, "reader": reader, "workers": 0, "threads": threads}


def _sample_counts(levels: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, int]:
    """Return the samples of an epoch and of single reads: few if each read inflates the whole data set."""
    few = levels["chunk"] == WHOLE
    return {name: config["whole_chunk_samples" if few else name] for name in ("epoch_samples", "read_samples")}


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of all grids, each once."""
    settings = {name: config[name] for name in SETTINGS}
    result: dict[tuple[Any, ...], Cell] = {}
    for levels in _grids(config):
        factors = {**levels, **_sample_counts(levels, config), **settings}
        in_chunk = {CONTIGUOUS: 1, "guess": 32, WHOLE: factors["samples"]}.get(factors["chunk"], factors["chunk"])
        cost = float(factors["epoch_samples"] * (in_chunk if factors["compression"] == "gzip" else 1))
        result[tuple(levels.values())] = Cell(factors, ("hdf5",), cost, (dataset_name(config),))
    return list(result.values())
