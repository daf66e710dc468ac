"""Tables of chunk shapes, compression, workers and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perfscribe.experiments.io_settings.levels import SHOWN
from perfscribe.instruments.statistics import Summary
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.tables import MIB, Table

TABLES = SHOWN.tables
# The file that workers and threads read compressed, beside the plain one.
SHARED = ((32, "gzip"), ("contiguous", "none"))
CHUNKS_NOTE = (
    "Random samples, each once, by one process and thread, files in the page cache. Computed: size of all chunks that "
    "hold parts of a sample; counted: in a pass that logs the library's reads."
)
WORKERS_NOTE = (
    "Whole epochs with nothing done between batches, so that all of it is waiting for the loader. Epochs of one "
    "process and thread were interleaved with those of several."
)
THREADS_NOTE = (
    "As above, without workers: the threads read the samples of a batch at once. Inflated by h5py: within HDF5; by "
    "zlib: outside of it."
)
KIB = 1024
GB = 10**9
PACKED = "nothing is compressed"
BASE = "is that"
OWN = ("chunk", "compression", "reader", "workers", "threads", "epoch_samples", "read_samples")


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Chunk shape by compression; workers; threads."""
    cells = records["io_settings"]
    alone = [r for r in cells if r.has(reader="h5py", workers=0, threads=1)]
    workers = _ordered((r for r in _shared(cells) if r.has(reader="h5py", threads=1)), "workers")
    threads = _ordered((r for r in _shared(cells) if r.has(workers=0)), "threads")
    return [
        t.make(TABLES[0], "Chunk shape and compression", alone, _chunks(alone), [CHUNKS_NOTE]),
        t.make(TABLES[1], "Workers of the loader", workers, _workers(), [WORKERS_NOTE]),
        t.make(TABLES[2], "Threads that read a batch", threads, _threads(), [THREADS_NOTE]),
    ]


def _ordered(cells: Iterable[Record], factor: str) -> list[Record]:
    """Workload by workload, rows of a file and reader together, the factor ascending."""
    cells = list(cells)
    groups = list(dict.fromkeys(_group(record) for record in cells))

    def place(record: Record) -> tuple[int, int, str, int]:
        f = record.factors
        return groups.index(_group(record)), SHARED.index((f["chunk"], f["compression"])), f["reader"], f[factor]

    return sorted(cells, key=place)


def _shared(cells: list[Record]) -> list[Record]:
    return [r for r in cells if (r.factors["chunk"], r.factors["compression"]) in SHARED]


def _group(record: Record) -> tuple[Any, ...]:
    """What the rows that are to be compared have in common."""
    return tuple(level for name, level in record.factors.items() if name not in OWN)


def _read_ms(record: Record) -> float:
    """Median of single reads."""
    return t.summary(record, "read_ms").median


def _sample_ms(record: Record) -> float:
    """Of an epoch, for each of its samples."""
    return 1e3 * t.summary(record, "epoch_s").median / float(record.factors["epoch_samples"])


def _against_plain(cells: Sequence[Record]) -> t.Column:
    """A read's time over that from the file without chunks and compression."""
    base = {"chunk": "contiguous", "compression": "none"}
    found = {_group(r): r for r in cells if r.ok and r.has(**base)}

    def get(record: Record) -> float | str:
        other = found.get(_group(record))
        return "contiguous not measured" if other is None else _read_ms(record) / _read_ms(other)

    def spread(record: Record) -> float | str:
        ratio, other = get(record), found.get(_group(record))
        if isinstance(ratio, str) or other is None:
            return ratio
        return 0.0 if record is other else t.ratio_spread(ratio, *(t.summary(r, "read_ms") for r in (record, other)))

    return t.Column("ratio", "Against contiguous (×)", get, spread="ratio_spread", spread_get=spread)


def _interleaved(get: Callable[[Record, Summary], Any]) -> Callable[[Record], Any]:
    """Of cells that had epochs of one process and thread in turns with their own."""
    return lambda r: get(r, t.summary(r, "alone_epoch_s")) if "alone_epoch_s" in r.samples else BASE


def _apart(record: Record, alone: Summary) -> str:
    """Whether every epoch is on one side of every epoch of one process and thread."""
    own = t.summary(record, "epoch_s")
    if own.maximum < alone.minimum:
        return "all quicker"
    return "all slower" if own.minimum > alone.maximum else "overlap"


def _compressed(get: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """Of rows that are not compressed there is nothing to say."""
    return lambda record: get(record) if record.has(compression="gzip") else PACKED


def _kib(name: str) -> Callable[[Record], float]:
    return lambda record: float(record.values[name]) / KIB


def _file() -> list[t.Column]:
    return [t.factor("chunk", "Chunk (samples)"), t.factor("compression", "Compression")]


def _chunks(cells: Sequence[Record]) -> list[t.Column]:
    """Of the table of chunk shape by compression."""
    return [
        *_file(),
        t.value("chunk_shape", "Chunk of a target", exact=True),
        t.value("size_bytes", "File (MiB)", 1 / MIB, "size_mib"),
        t.derived("sample_kib", "A sample (KiB)", _kib("sample_bytes")),
        t.value("chunks_per_sample", "Chunks touched", exact=True),
        t.derived("chunk_kib", "In them, inflated: computed (KiB)", _kib("chunk_bytes_per_sample")),
        t.derived("inflated_kib", "Inflated: counted (KiB)", _compressed(_kib("inflated_bytes_per_sample"))),
        t.derived("read_kib", "Read from the file: counted (KiB)", _kib("read_bytes_per_sample")),
        t.value("counted_reads", "Reads counted", exact=True),
        t.median("read_ms", "A random sample (ms)"),
        t.iqr("read_ms", "IQR (ms)"),
        t.count("read_ms"),
        t.derived("read_ms_q1", "Lower quartile (ms)", lambda r: t.summary(r, "read_ms").q1),
        t.derived("read_ms_q3", "Upper quartile (ms)", lambda r: t.summary(r, "read_ms").q3),
        _against_plain(cells),
        t.derived("inflate_ms", "zlib alone for its chunks (ms)", _compressed(_inflate_ms), spread="inflate_ms_iqr"),
        t.derived("inflate_ms_iqr", "IQR (ms), zlib", _compressed(lambda r: t.iqr("inflate_ms").get(r))),
        t.derived("inflate_ms_n", "n, zlib", _compressed(lambda r: t.summary(r, "inflate_ms").n), exact=True),
        t.rate("inflate_gb_per_s", "zlib alone (GB/s)", _compressed(_inflate_gb_per_s), "inflate_ms"),
        t.derived("inflate_percent", "zlib alone of the read (%)", _compressed(_inflate_percent)),
        t.rate("sample_ms", "A sample in an epoch (ms)", _sample_ms, "epoch_s"),
    ]


def _inflate_ms(record: Record) -> float:
    return t.summary(record, "inflate_ms").median


def _inflate_gb_per_s(record: Record) -> float:
    return float(record.values["chunk_bytes_per_sample"]) / GB / (_inflate_ms(record) / 1e3)


def _inflate_percent(record: Record) -> float:
    return 100 * _inflate_ms(record) / _read_ms(record)


def _epochs() -> list[t.Column]:
    return [
        t.factor("epoch_samples", "Samples"),
        t.factor("batch", "Batch"),
        t.median("epoch_s", "Loader wait, an epoch (s)"),
        t.iqr("epoch_s", "IQR (s)"),
        t.count("epoch_s"),
        t.rate("sample_ms", "A sample (ms)", _sample_ms, "epoch_s"),
        t.derived("alone_epoch_s", "One process and thread (s)", _interleaved(lambda _, alone: alone.median)),
        _against_alone(),
        t.derived("apart", "Epochs", _interleaved(_apart), exact=True),
    ]


def _against_alone() -> t.Column:
    """The ratio of epochs to those of one process and thread."""

    def ratio(record: Record, alone: Summary) -> float:
        return t.summary(record, "epoch_s").median / alone.median

    def spread(record: Record, alone: Summary) -> float | str:
        return t.ratio_spread(ratio(record, alone), t.summary(record, "epoch_s"), alone)

    get, get_spread = _interleaved(ratio), _interleaved(spread)
    return t.Column("ratio", "Against it (×)", get, spread="ratio_spread", spread_get=get_spread)


def _workers() -> list[t.Column]:
    """Of the table of worker processes."""
    first = t.median("first_batch_ms", "First batch, workers started in it (ms)")
    return [*_file(), t.factor("workers", "Workers"), *_epochs(), first]


def _threads() -> list[t.Column]:
    """Of the table of threads."""
    return [*_file(), t.factor("reader", "Inflated by"), t.factor("threads", "Threads"), *_epochs()]
