"""Reads one format of the data set, whole or by samples, from a warm or cold page cache, and checks its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from perfscribe.base.cells import Unsupported
from perfscribe.data import page_cache, synthetic
from perfscribe.data.digest_file import load_digest, verify
from perfscribe.data.formats import FORMATS, decoded_bytes_per_sample, path_of
from perfscribe.data.layout import ARRAY_NAMES, FILES

CHECKED_SAMPLES = 4
INDEX_SEED = 1
# Each read of a compressed npz inflates a whole member, so a few reads are enough.
COMPRESSED_NPZ_READS = 8


class Whole:
    """Map-style data set over arrays in memory: index → (source, target) tensors that share the arrays' memory."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._tensors = [torch.from_numpy(arrays[name]) for name in ARRAY_NAMES]

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[index] for tensor in self._tensors)

    def close(self) -> None:
        """Do nothing: no file is open."""


class PerSample:
    """Map-style data set that reads one sample at a time; tensors are copies, so that mapped bytes are really read."""

    def __init__(self, name: str, path: Path) -> None:
        arrays, self._close = FORMATS[name].open(path)
        self._arrays = [arrays[array] for array in ARRAY_NAMES]

    def __len__(self) -> int:
        return int(self._arrays[0].shape[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(np.array(array[index])) for array in self._arrays)

    def close(self) -> None:
        """Close the files and drop their mappings, which would keep them in the page cache."""
        self._arrays = []
        self._close()


@dataclass(frozen=True)
class Source:
    """The data set in one format, in `folder`; format "memory" has no files: its arrays are generated."""

    name: str
    folder: Path
    digest_path: Path

    @property
    def digest(self) -> Mapping[str, Any]:
        """The content of the data set's digest file."""
        return load_digest(self.digest_path)

    @property
    def path(self) -> Path:
        """The format's file or folder."""
        return path_of(self.folder, self.name)

    @property
    def files(self) -> list[Path]:
        """The format's files, none for memory."""
        return [self.folder / name for name in FILES[self.name]]

    def facts(self) -> dict[str, int]:
        """Return bytes of the files (if none, the arrays), of the arrays, and decoded to read one sample."""
        raw = int(self.digest["raw_bytes"])
        if not self.files:
            each = raw // int(self.digest["parameters"]["samples"])
            return {"size_bytes": raw, "raw_bytes": raw, "decoded_bytes_per_sample": each}
        size, decoded = sum(file.stat().st_size for file in self.files), decoded_bytes_per_sample(self.name, self.path)
        return {"size_bytes": size, "raw_bytes": raw, "decoded_bytes_per_sample": decoded}

    def as_in_homework(self) -> Whole | PerSample:
        """Return the data set as the homework's constructor makes it: HDF5 sample by sample, other formats whole."""
        if not self.files or self.name.startswith("hdf5"):
            return self.per_sample()
        return Whole(FORMATS[self.name].load(self.path))

    def per_sample(self) -> Whole | PerSample:
        """Return a PerSample, or a Whole if the format has no files."""
        if not self.files:
            return Whole(synthetic.arrays(**self.digest["parameters"]))
        return PerSample(self.name, self.path)

    def set_cache(self, level: str) -> float | None:
        """Make the files cold or warm; return their share in the page cache, None if unknown or without files.

        Raises Unsupported if they cannot be made cold.
        """
        if not self.files:
            return None
        if level == "cold":
            return page_cache.drop(self.files)
        page_cache.warm(self.files)
        return self.cached_share()

    def cached_share(self) -> float | None:
        """Return the share of the files in the page cache, None if unknown."""
        try:
            return page_cache.resident_share(self.files)
        except Unsupported:
            return None

    def check(self) -> None:
        """Raise ValueError (one line) unless files and arrays match the digest and a few samples read correctly."""
        _check_once(self, tuple(path.stat().st_mtime_ns for path in (self.digest_path, *self.files) if path.exists()))


@cache
def _check_once(source: Source, stamps: tuple[int, ...]) -> None:
    """Carry out Source.check, once per process for the same modification times of the files (stamps)."""
    digest = source.digest
    if source.files:
        verify(source.folder, digest, FILES[source.name])
        arrays = FORMATS[source.name].load(source.path)
    else:
        arrays = synthetic.arrays(**digest["parameters"])
    if synthetic.digest(arrays) != digest["arrays"]:
        raise ValueError(f"{source.name}: the arrays read are not those of {source.digest_path.name}")
    # Compare a few samples bit by bit, from the loader's data set and from the reader of single samples.
    count = len(arrays[ARRAY_NAMES[0]])
    indices = np.random.default_rng(0).choice(count, min(CHECKED_SAMPLES, count), replace=False)
    for dataset in (source.as_in_homework(), source.per_sample()):
        for index in map(int, indices):
            for name, tensor in zip(ARRAY_NAMES, dataset[index], strict=True):
                if tensor.numpy().tobytes() != arrays[name][index].tobytes():
                    raise ValueError(f"{source.name}: sample {index} of {name} is not the one generated")
        dataset.close()


@dataclass
class Reads:
    """Times and cached shares of single reads; if warm, one open_ms, one share before and none after."""

    open_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    cached_share_before: list[float | None] = field(default_factory=list)
    cached_share_after: list[float | None] = field(default_factory=list)


def _indices(source: Source, read_samples: int) -> list[int]:
    count = int(source.digest["parameters"]["samples"])
    most = COMPRESSED_NPZ_READS if source.name == "npz_compressed" else count
    wanted = min(read_samples, count, most)
    return [int(index) for index in np.random.default_rng(INDEX_SEED).choice(count, wanted, replace=False)]


def read_warm(source: Source, read_samples: int) -> Reads:
    """Read random samples through one reader, with all files in the page cache."""
    reads = Reads(cached_share_before=[source.set_cache("warm")])
    start = perf_counter()
    dataset = source.per_sample()
    reads.open_ms.append((perf_counter() - start) * 1e3)
    for index in _indices(source, read_samples):
        start = perf_counter()
        dataset[index]
        reads.read_ms.append((perf_counter() - start) * 1e3)
    dataset.close()
    return reads


def read_cold(source: Source, read_samples: int) -> Reads:
    """Read random samples through a new reader each; files leave the page cache before opening and before reading.

    One drop for all reads is not enough: the kernel reads ahead, and after a few samples much of the file is cached.
    """
    reads = Reads()
    for index in _indices(source, read_samples):
        source.set_cache("cold")
        start = perf_counter()
        dataset = source.per_sample()
        reads.open_ms.append((perf_counter() - start) * 1e3)
        reads.cached_share_before.append(source.set_cache("cold"))
        start = perf_counter()
        dataset[index]
        reads.read_ms.append((perf_counter() - start) * 1e3)
        reads.cached_share_after.append(source.cached_share())
        dataset.close()
    return reads
