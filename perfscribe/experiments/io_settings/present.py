"""Tables, figure and findings of chunk shapes, compression, workers and threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfscribe import tables as t
from perfscribe.experiments.io_settings import answers, columns, drawings
from perfscribe.figures import Figure
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("polaris.io_chunks", "polaris.io_workers", "polaris.io_threads")
FIGURES = ("polaris.io_chunks",)
# The file that workers and threads read compressed, beside the plain one.
SHARED = ((32, "gzip"), ("contiguous", "none"))
CHUNKS_NOTES = (
    "Host clock, files in the page cache, everything compared with the generated arrays before it is timed. Random "
    "samples, each once, by one process and thread. Chunk: whole is all samples, guess the shape that h5py chooses. "
    "gzip is h5py's default level.",
    "Computed: size of all chunks that hold parts of a sample. Counted: in a pass that logs the library's reads, chunk "
    "cache included; where a chunk exceeds that cache and nothing is compressed, it reads the wanted part alone. zlib "
    "alone: Python's, on the same chunks as they lie in the file.",
)
WORKERS_NOTES = (
    "Host clock over whole epochs with nothing done between batches, so that all of it is waiting for the loader. "
    "Workers live from epoch to epoch; they are forked, and each opens the file. An epoch before compares every batch "
    "with the generated arrays. Epochs of one process and thread are timed in turns with those of several.",
)
THREADS_NOTES = (
    "As above, without workers: the threads read the samples of a batch at once. Inflated by h5py: within HDF5. By "
    "zlib: h5py gives a chunk's packed bytes, and zlib inflates them outside. torch itself has one thread.",
)


def _cache(cells: list[Record]) -> list[str]:
    """How large the library's chunk cache is."""
    sizes = sorted({int(r.factors["chunk_cache_kib"]) for r in cells if r.ok})
    return [f"Chunk cache of an array: {', '.join(f'{size} KiB' for size in sizes)}."] if sizes else []


def _shared(cells: list[Record]) -> list[Record]:
    return [r for r in cells if (r.factors["chunk"], r.factors["compression"]) in SHARED]


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Chunk shape by compression; workers; threads."""
    cells = records["io_settings"]
    alone = [r for r in cells if r.has(reader="h5py", workers=0, threads=1)]
    workers = _ordered((r for r in _shared(cells) if r.has(reader="h5py", threads=1)), "workers")
    threads = _ordered((r for r in _shared(cells) if r.has(workers=0)), "threads")
    return [
        t.make(TABLES[0], "Chunk shape and compression", alone, columns.chunks(alone), [*CHUNKS_NOTES, *_cache(alone)]),
        t.make(TABLES[1], "Workers of the loader", workers, columns.workers(), WORKERS_NOTES),
        t.make(TABLES[2], "Threads that read a batch", threads, columns.threads(), THREADS_NOTES),
    ]


def _ordered(cells: Iterable[Record], factor: str) -> list[Record]:
    """Workload by workload, rows of a file and reader together, the factor ascending."""
    cells = list(cells)
    groups = list(dict.fromkeys(columns.group(record) for record in cells))

    def place(record: Record) -> tuple[int, int, str, int]:
        f = record.factors
        return groups.index(columns.group(record)), SHARED.index((f["chunk"], f["compression"])), f["reader"], f[factor]

    return sorted(cells, key=place)


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What the chunks do to gzip, what workers and threads do about it."""
    chunks, workers, threads = (tables[name].ok for name in TABLES)
    return [
        find("polaris.io_chunks", TABLES[:1], lambda: answers.chunks(chunks)),
        find("polaris.io_workers", TABLES[1:2], lambda: answers.workers(workers)),
        find("polaris.io_threads", TABLES[2:], lambda: answers.threads(threads)),
    ]


def figures(tables: Mapping[str, Table]) -> list[Figure]:
    """What a random sample takes over the bytes that are inflated, or read, for it."""
    rows = tables[TABLES[0]].ok
    counts = sorted({int(n) for n in rows["read_ms_n"]})
    shown = " to ".join(str(n) for n in dict.fromkeys(counts[:1] + counts[-1:])) or "no"
    caption = (
        "Time to read one random sample over the bytes that are inflated, or without compression read, for it, both "
        "logarithmic; points are named by their chunk. Host clock, median and interquartile range, files in the page "
        f"cache; dashed: zlib alone on the same chunks. Reads a file: n = {shown}."
    )
    return [Figure(FIGURES[0], caption, lambda canvas: drawings.reads(canvas, rows), (7.0, 3.8), "read_ms")]
