"""One file of the data set as a cell reads it: checked against its digest, in the page cache, described."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from perfscribe.data import page_cache, synthetic
from perfscribe.data.chunked_samples import ChunkedSamples, open_file, touched_chunks
from perfscribe.data.digest_file import load_digest, verify
from perfscribe.data.layout import ARRAY_NAMES

INDEX_SEED = 1


@dataclass(frozen=True)
class Source:
    """A file below the data set's folder, its digest beside the folder, and how it is opened."""

    path: Path
    digest_path: Path
    chunk_cache_bytes: int

    def samples(self, reader: str = "h5py", threads: int = 1) -> ChunkedSamples:
        """The file's samples, opened at the first read."""
        return ChunkedSamples(self.path, reader, threads, self.chunk_cache_bytes)

    def checked_arrays(self) -> Mapping[str, np.ndarray]:
        """The generated arrays, once the file, read whole, is found to hold them; it is in the page cache afterwards.

        ValueError where the file is missing, damaged or holds others.
        """
        stamps = tuple(path.stat().st_mtime_ns for path in (self.path, self.digest_path) if path.exists())
        _check_once(self.path, self.digest_path, stamps)
        page_cache.warm([self.path])
        return _generated(**load_digest(self.digest_path)["parameters"])

    def indices(self, count: int) -> list[int]:
        """Samples in random order, each at most once; the same for every file."""
        available = int(load_digest(self.digest_path)["parameters"]["samples"])
        return [int(i) for i in np.random.default_rng(INDEX_SEED).choice(available, min(count, available), False)]

    def facts(self) -> dict[str, Any]:
        """Sizes that explain the times; chunk_bytes_per_sample: of all chunks that hold parts of a sample, inflated."""
        with open_file(self.path, self.chunk_cache_bytes) as file:
            sets = [file[name] for name in ARRAY_NAMES]
            chunked = [dataset for dataset in sets if dataset.chunks]
            touched = [len(list(touched_chunks(dataset, 0))) for dataset in chunked]
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
    """ValueError unless these versions of the files agree: cells that read the same file share it."""
    digest = load_digest(digest_path)
    verify(path.parent, digest, [path.name])
    with open_file(path, 0) as file:
        arrays = {name: file[name][...] for name in file}
    if synthetic.digest(arrays) != digest["arrays"]:
        raise ValueError(f"{path.name}: the arrays read are not those of {digest_path.name}")
    if synthetic.digest(_generated(**digest["parameters"])) != digest["arrays"]:
        raise ValueError(f"{digest_path.name}: its arrays are not those of its parameters")
