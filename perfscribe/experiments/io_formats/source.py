"""One format of the data set as a cell reads it: checked against its digest, made cold or warm, opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from perfscribe.base.cells import Unsupported
from perfscribe.data import page_cache, samples, synthetic
from perfscribe.data.digest_file import load_digest, verify
from perfscribe.data.formats import FORMATS
from perfscribe.data.layout import ARRAY_NAMES, FILES, format_path, members, size_bytes

CHECKED_SAMPLES = 4


@dataclass(frozen=True)
class Source:
    """A format below the data set's folder; the format memory has no files and is generated anew."""

    name: str
    folder: Path
    digest_path: Path

    @property
    def digest(self) -> Mapping[str, Any]:
        """The content of the data set's digest file."""
        return load_digest(self.digest_path)

    @property
    def in_memory(self) -> bool:
        """Whether the format has no files."""
        return not FILES[self.name]

    @property
    def path(self) -> Path:
        """The format's file or folder."""
        return format_path(self.folder, self.name)

    def files(self) -> list[Path]:
        """The format's files, none for memory."""
        return [] if self.in_memory else members(self.path)

    def size_bytes(self) -> int:
        """Bytes of the files; of the arrays where there are none."""
        return int(self.digest["raw_bytes"]) if self.in_memory else size_bytes(self.path)

    def decoded_bytes_per_sample(self) -> int:
        """Bytes of array content that must be decoded, or just copied, to get one sample."""
        if not self.in_memory:
            return FORMATS[self.name].decoded_bytes_per_sample(self.path)
        return int(self.digest["raw_bytes"]) // int(self.digest["parameters"]["samples"])

    def as_in_homework(self) -> Any:
        """The data set whose making is the homework's constructor."""
        return self._generated() if self.in_memory else samples.as_in_homework(self.name, self.path)

    def per_sample(self) -> Any:
        """The data set that reads one sample at a time."""
        return self._generated() if self.in_memory else samples.per_sample(self.name, self.path)

    def _generated(self) -> samples.Whole:
        return samples.Whole(synthetic.arrays(**self.digest["parameters"]))

    def set_cache(self, level: str) -> float | None:
        """Make the files cold or warm; returns the share of them in the page cache, None where nobody can tell.

        Raises Unsupported where they cannot be made cold.
        """
        if self.in_memory and level == "cold":
            raise Unsupported("arrays in memory have no file that could be cold")
        if self.in_memory:
            return None
        if level == "cold":
            return page_cache.drop(self.files())
        page_cache.warm(self.files())
        return self.cached_share()

    def cached_share(self) -> float | None:
        """Share of the files in the page cache, None where nobody can tell."""
        try:
            return page_cache.resident_share(self.files())
        except Unsupported:
            return None

    def check(self) -> None:
        """ValueError with one line unless the files are whole and every way of reading gives the generated arrays."""
        stamps = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in self.files() if file.exists())
        _check_once(self, self.digest_path.stat().st_mtime_ns if self.digest_path.exists() else 0, stamps)


@cache
def _check_once(source: Source, digest_stamp_ns: int, stamps: tuple[tuple[int, int], ...]) -> None:
    """Source.check for these versions of the files: cells that differ in their cache alone share it."""
    digest = source.digest
    if source.in_memory:
        arrays = synthetic.arrays(**digest["parameters"])
    else:
        verify(source.folder, digest, FILES[source.name])
        arrays = FORMATS[source.name].load(source.path)
    if synthetic.digest(arrays) != digest["arrays"]:
        raise ValueError(f"{source.name}: the arrays read are not those of {source.digest_path.name}")
    _compare_samples(source, arrays)


def _compare_samples(source: Source, arrays: Mapping[str, np.ndarray]) -> None:
    """Bit by bit: a few samples through the loader's data set and through the reader of single samples."""
    count = len(arrays[ARRAY_NAMES[0]])
    indices = np.random.default_rng(0).choice(count, min(CHECKED_SAMPLES, count), replace=False)
    for dataset in (source.as_in_homework(), source.per_sample()):
        for index in map(int, indices):
            for name, tensor in zip(ARRAY_NAMES, dataset[index], strict=True):
                if tensor.numpy().tobytes() != arrays[name][index].tobytes():
                    raise ValueError(f"{source.name}: sample {index} of {name} is not the one generated")
        dataset.close()
