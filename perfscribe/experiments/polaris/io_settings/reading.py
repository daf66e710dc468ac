"""Reads one HDF5 file of the data set through torch's loader and by single samples; checks it and counts its reads."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import h5py
import numpy as np
import torch

from perfscribe.data import page_cache, synthetic
from perfscribe.data.digest_file import load_digest, verify
from perfscribe.data.layout import ARRAY_NAMES
from perfscribe.experiments.polaris.io_settings.measure import Reading

INDEX_SEED = 1
COUNTED_READS = 64  # at most, of the timed reads


def _touched_chunks(dataset: h5py.Dataset, index: int) -> Iterator[tuple[int, ...]]:
    """Return the offsets of the chunks that contain parts of one sample."""
    first, *others = dataset.chunks
    sides = zip(dataset.shape[1:], others, strict=True)
    return product([index // first * first], *(range(0, length, side) for length, side in sides))


def _by_h5py(dataset: h5py.Dataset, index: int) -> np.ndarray:
    return np.asarray(dataset[index])


def _by_zlib(dataset: h5py.Dataset, index: int) -> np.ndarray:
    """Fetch the chunk's bytes through h5py and inflate them outside it; each chunk must hold whole samples."""
    (offset,) = _touched_chunks(dataset, index)
    _, packed = dataset.id.read_direct_chunk(offset)
    chunk = np.frombuffer(zlib.decompress(packed), dtype=dataset.dtype).reshape(dataset.chunks)
    return np.array(chunk[index - offset[0]])


READERS = {"h5py": _by_h5py, "zlib": _by_zlib}


@dataclass(frozen=True)
class Source:
    """An HDF5 file of the data set, its digest file, and the size of the chunk cache it is opened with."""

    path: Path
    digest_path: Path
    chunk_cache_bytes: int

    def open(self, stream: Any = None) -> h5py.File:
        """Open the file (or a stream over it) for reading; each array has its own chunk cache."""
        return h5py.File(stream or self.path, "r", rdcc_nbytes=self.chunk_cache_bytes)

    def checked_arrays(self) -> Mapping[str, np.ndarray]:
        """Check that the file holds the generated arrays, return them, and leave the file in the page cache.

        Raises ValueError if the file is missing, damaged or holds other arrays.
        """
        stamps = tuple(path.stat().st_mtime_ns for path in (self.path, self.digest_path) if path.exists())
        _check_once(self.path, self.digest_path, stamps)
        page_cache.warm([self.path])
        return _generated(**load_digest(self.digest_path)["parameters"])

    def indices(self, count: int) -> list[int]:
        """Return samples in random order, each at most once; the same for every file."""
        available = int(load_digest(self.digest_path)["parameters"]["samples"])
        return [int(i) for i in np.random.default_rng(INDEX_SEED).choice(available, min(count, available), False)]

    def facts(self) -> dict[str, Any]:
        """Return sizes that explain the times; chunk_bytes_per_sample: inflated, all chunks with parts of a sample."""
        with self.open() as file:
            sets = [file[name] for name in ARRAY_NAMES]
            chunked = [dataset for dataset in sets if dataset.chunks]
            touched = [len(list(_touched_chunks(dataset, 0))) for dataset in chunked]
            sizes = [n * math.prod(d.chunks) * d.dtype.itemsize for n, d in zip(touched, chunked, strict=True)]
            sample_bytes = sum(math.prod(d.shape[1:]) * d.dtype.itemsize for d in sets)
            return {
                "size_bytes": self.path.stat().st_size,
                "raw_bytes": sum(dataset.nbytes for dataset in sets),
                "sample_bytes": sample_bytes,
                "chunk_shape": " × ".join(map(str, sets[-1].chunks)) if chunked else "none",
                "chunks_per_sample": sum(touched),
                "chunk_bytes_per_sample": sum(sizes) if chunked else sample_bytes,
            }


@lru_cache(maxsize=1)
def _generated(**parameters: int) -> Mapping[str, np.ndarray]:
    """The arrays that every file holds."""
    return synthetic.arrays(**parameters)


@lru_cache
def _check_once(path: Path, digest_path: Path, stamps: tuple[int, ...]) -> None:
    """Raise ValueError unless these versions of the files agree; runs once for all cells that read the same file."""
    digest = load_digest(digest_path)
    verify(path.parent, digest, [path.name])
    with h5py.File(path, "r") as file:
        arrays = {name: file[name][...] for name in file}
    for held, whose in ((arrays, path), (_generated(**digest["parameters"]), digest_path)):
        if synthetic.digest(held) != digest["arrays"]:
            raise ValueError(f"{whose.name}: the arrays read are not those of {digest_path.name}")


class Samples:
    """Map-style data set, index → (source, target) tensors; `threads` threads read a batch concurrently.

    The file is opened at the first read, so that each loader worker opens it itself.
    """

    def __init__(self, source: Source, reader: str = "h5py", threads: int = 1) -> None:
        self._source, self._read, self._threads = source, READERS[reader], threads
        self._file: h5py.File | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._arrays: list[h5py.Dataset] = []

    def _open(self) -> None:
        self._file = self._source.open()
        self._arrays = [self._file[name] for name in ARRAY_NAMES]
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if self._file is None:
            self._open()
        return tuple(torch.from_numpy(self._read(array, index)) for array in self._arrays)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
        """Return a batch's samples in order; torch's loader calls this for a batch."""
        if self._file is None:
            self._open()
        return list(map(self.__getitem__, indices) if self._pool is None else self._pool.map(self.__getitem__, indices))

    def close(self) -> None:
        """Close the file and end the threads."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._file is not None:
            self._file.close()


class Loading:
    """Epochs of torch's loader with nothing done between batches.

    Workers, if any, live as long as the loader; each opens the file itself.
    """

    def __init__(self, source: Source, level: Reading, workers: int, threads: int) -> None:
        self._order = source.indices(level.epoch_samples)
        self._samples = Samples(source, level.reader, threads)
        dataset: Any = self._samples  # torch's type requires its base class, but a map-style data set is enough
        self._name = f"{source.path.name} by {level.reader}"
        self._loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            dataset,
            batch_size=level.batch,
            sampler=self._order,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,
        )

    def check(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Compare an epoch's samples bit by bit; return ms until its first batch. ValueError names what differs."""
        start, first_ms, seen = perf_counter(), 0.0, 0
        for batch in self._loader:
            first_ms = first_ms or (perf_counter() - start) * 1e3
            wanted = self._order[seen : seen + len(batch[0])]
            for name, values in zip(ARRAY_NAMES, batch, strict=True):
                if not np.array_equal(values.numpy(), arrays[name][wanted]):
                    raise ValueError(f"{self._name}: the loader gives other samples of {name} than were generated")
            seen += len(wanted)
        if seen != len(self._order):
            raise ValueError(f"{self._name}: the loader gives {seen} samples, expected {len(self._order)}")
        return first_ms

    def epoch_s(self) -> float:
        """Return the seconds of one epoch, which consists only of waiting for batches."""
        start = perf_counter()
        for _ in self._loader:
            pass
        return perf_counter() - start

    def close(self) -> None:
        """End the workers and close the file."""
        del self._loader
        self._samples.close()


def read_singly(source: Source, arrays: Mapping[str, np.ndarray], count: int) -> dict[str, list[float]]:
    """Return read_ms of random samples from an open reader, inflate_ms if compressed; ValueError if one is wrong."""
    dataset = Samples(source)
    order, read_ms = source.indices(count), []
    for index in [*order[-1:], *order]:  # the last one first, and dropped: it opens the file
        start = perf_counter()
        sample = dataset[index]
        read_ms.append((perf_counter() - start) * 1e3)
        for name, values in zip(ARRAY_NAMES, sample, strict=True):
            if not np.array_equal(values.numpy(), arrays[name][index]):
                raise ValueError(f"{source.path.name}: sample {index} of {name} is not the one generated")
    dataset.close()
    inflate_ms = _inflated_ms(source, order[:COUNTED_READS])
    return {"read_ms": read_ms[1:]} | ({"inflate_ms": inflate_ms} if inflate_ms else {})


def _inflated_ms(source: Source, order: list[int]) -> list[float]:
    """Return zlib's time for all chunks with parts of a sample; fetching their bytes is not timed."""
    result = []
    with source.open() as file:
        sets = [file[name] for name in ARRAY_NAMES]
        if not all(dataset.compression for dataset in sets):
            return []
        for index in order:
            packed = [d.id.read_direct_chunk(offset)[1] for d in sets for offset in _touched_chunks(d, index)]
            start = perf_counter()
            for chunk in packed:
                zlib.decompress(chunk)
            result.append((perf_counter() - start) * 1e3)
    return result


class _Logged(io.FileIO):
    """A file that records the position and length of each read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self.reads: list[tuple[int, int]] = []

    def readinto(self, buffer: Any) -> int:
        """See io.FileIO."""
        self.reads.append((self.tell(), len(buffer)))
        return super().readinto(buffer)


def _places(dataset: h5py.Dataset) -> list[tuple[int, int]]:
    """Return the offset and length in the file, in bytes, of each of the array's pieces."""
    if not dataset.chunks:
        return [(dataset.id.get_offset(), dataset.nbytes)]
    places: list[tuple[int, int]] = []
    dataset.id.chunk_iter(lambda chunk: places.append((chunk.byte_offset, chunk.size)))
    return places


def count_reads(source: Source, count: int) -> dict[str, float]:
    """Return the average bytes that the library reads from the file per random sample, with its chunk cache.

    read_bytes_per_sample: of the arrays. inflated_bytes_per_sample: inflated size of the chunks whose packed bytes it
    read; 0 if nothing is compressed.
    """
    order = source.indices(count)[:COUNTED_READS]
    read_bytes = inflated_bytes = 0
    with _Logged(source.path) as stream, source.open(stream) as file:
        sets = [file[name] for name in ARRAY_NAMES]
        places = [sorted(_places(dataset)) for dataset in sets]
        stream.reads.clear()
        for index in order:
            for dataset in sets:
                dataset[index]
        for dataset, known in zip(sets, places, strict=True):
            starts = np.array([start for start, _ in known])
            ends = np.array([start + length for start, length in known])
            for at, length in stream.reads:
                piece = int(np.searchsorted(starts, at, side="right")) - 1
                if piece < 0 or at >= ends[piece]:
                    continue
                read_bytes += length
                if dataset.compression and at == starts[piece]:
                    inflated_bytes += int(np.prod(dataset.chunks)) * dataset.dtype.itemsize
    return {
        "read_bytes_per_sample": read_bytes / len(order),
        "inflated_bytes_per_sample": inflated_bytes / len(order),
        "counted_reads": len(order),
    }
