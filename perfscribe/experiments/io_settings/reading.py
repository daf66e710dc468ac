"""Single random samples of one file: timed, inflated by zlib alone, and the chunks that are read for them counted."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import h5py
import numpy as np

from perfscribe.data.chunked_samples import open_file, touched_chunks
from perfscribe.data.layout import ARRAY_NAMES
from perfscribe.experiments.io_settings.source import Source

COUNTED_READS = 64  # of the timed ones, at most


def read_singly(source: Source, arrays: Mapping[str, np.ndarray], count: int) -> dict[str, list[float]]:
    """read_ms of random samples from an open reader, inflate_ms where they are compressed; ValueError if wrong."""
    dataset = source.samples()
    order, read_ms = source.indices(count), []
    for index in [*order[-1:], *order]:  # the last one first, untimed: it opens the file
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
    """What zlib takes for all chunks that hold parts of a sample; their bytes are fetched outside the timed span."""
    result = []
    with open_file(source.path, source.chunk_cache_bytes) as file:
        sets = [file[name] for name in ARRAY_NAMES]
        if not all(dataset.compression for dataset in sets):
            return []
        for index in order:
            packed = [d.id.read_direct_chunk(offset)[1] for d in sets for offset in touched_chunks(d, index)]
            start = perf_counter()
            for chunk in packed:
                zlib.decompress(chunk)
            result.append((perf_counter() - start) * 1e3)
    return result


class _Logged(io.FileIO):
    """A file that remembers where it was read and how much."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self.reads: list[tuple[int, int]] = []

    def readinto(self, buffer: Any) -> int:
        """See io.FileIO."""
        self.reads.append((self.tell(), len(buffer)))
        return super().readinto(buffer)


def _places(dataset: h5py.Dataset) -> list[tuple[int, int]]:
    """Byte at which each of the array's pieces begins in the file, and its length there."""
    if not dataset.chunks:
        return [(dataset.id.get_offset(), dataset.nbytes)]
    places: list[tuple[int, int]] = []
    dataset.id.chunk_iter(lambda chunk: places.append((chunk.byte_offset, chunk.size)))
    return places


def count_reads(source: Source, count: int) -> dict[str, float]:
    """What the library read from the file for a sample, chunk cache included, on average over random samples.

    read_bytes_per_sample: of the arrays. inflated_bytes_per_sample: of the chunks whose packed bytes it read, as they
    are inflated; 0 where nothing is compressed.
    """
    order = source.indices(count)[:COUNTED_READS]
    read_bytes = inflated_bytes = 0
    with _Logged(source.path) as stream, open_file(stream, source.chunk_cache_bytes) as file:
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
