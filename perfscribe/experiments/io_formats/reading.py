"""Reads of single samples, each timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from perfscribe.experiments.io_formats.source import Source

INDEX_SEED = 1
# Each read of a compressed npz inflates a whole member: a few of them say all that many would.
COMPRESSED_NPZ_READS = 8


@dataclass
class Reads:
    """What reading single samples took. cached_share_after: of the files, after each cold read."""

    open_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    cached_share_before: list[float | None] = field(default_factory=list)
    cached_share_after: list[float | None] = field(default_factory=list)


def _indices(source: Source, read_samples: int) -> list[int]:
    count = int(source.digest["parameters"]["samples"])
    wanted = min(read_samples, count)
    if source.name == "npz_compressed":
        wanted = min(wanted, COMPRESSED_NPZ_READS)
    return [int(index) for index in np.random.default_rng(INDEX_SEED).choice(count, wanted, replace=False)]


def read_warm(source: Source, read_samples: int) -> Reads:
    """Random samples from a reader opened once, all files in the page cache before."""
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
    """Random samples, each from a reader of its own, the files dropped from the page cache before opening and reading.

    One drop for all reads would not do: the kernel reads ahead, and after a few samples much of the file is cached.
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
