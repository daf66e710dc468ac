"""Samples of an HDF5 file as a map-style data set, read by h5py or, around the library's filters, by zlib."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from perfscribe.data.layout import ARRAY_NAMES

Sample = tuple[torch.Tensor, ...]
Reader = str


def open_file(path: Any, chunk_cache_bytes: int) -> h5py.File:
    """The file for reading; the chunk cache is each array's own."""
    return h5py.File(path, "r", rdcc_nbytes=chunk_cache_bytes)


def touched_chunks(dataset: h5py.Dataset, index: int) -> Iterator[tuple[int, ...]]:
    """Offsets of the chunks that hold parts of one sample."""
    first, *others = dataset.chunks
    sides = zip(dataset.shape[1:], others, strict=True)
    return product([index // first * first], *(range(0, length, side) for length, side in sides))


def _by_h5py(dataset: h5py.Dataset, index: int) -> np.ndarray:
    return np.asarray(dataset[index])


def _by_zlib(dataset: h5py.Dataset, index: int) -> np.ndarray:
    """The chunk's bytes from the library, inflated outside it; each chunk holds whole samples."""
    (offset,) = touched_chunks(dataset, index)
    _, packed = dataset.id.read_direct_chunk(offset)
    chunk = np.frombuffer(zlib.decompress(packed), dtype=dataset.dtype).reshape(dataset.chunks)
    return np.array(chunk[index - offset[0]])


READERS = {"h5py": _by_h5py, "zlib": _by_zlib}


class ChunkedSamples:
    """index -> (source, target) of one sample; a batch is read by `threads` threads at once.

    The file is opened at the first read, so that a loader's worker opens its own.
    """

    def __init__(self, path: Path, reader: Reader = "h5py", threads: int = 1, chunk_cache_bytes: int = 2**20) -> None:
        self._path, self._read, self._threads, self._cache_bytes = path, READERS[reader], threads, chunk_cache_bytes
        self._file: h5py.File | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._arrays: list[h5py.Dataset] = []

    def _open(self) -> None:
        self._file = open_file(self._path, self._cache_bytes)
        self._arrays = [self._file[name] for name in ARRAY_NAMES]
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def __getitem__(self, index: int) -> Sample:
        if self._file is None:
            self._open()
        return tuple(torch.from_numpy(self._read(array, index)) for array in self._arrays)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """A batch's samples, in order; torch's loader asks for them so."""
        if self._file is None:
            self._open()
        return list(map(self.__getitem__, indices) if self._pool is None else self._pool.map(self.__getitem__, indices))

    def close(self) -> None:
        """Close the file, end the threads."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._file is not None:
            self._file.close()
        self._arrays, self._file, self._pool = [], None, None
