"""Tables of chunk shapes, compression, workers and threads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfscribe.experiments.polaris.io_settings.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import against
from perfscribe.show import tables as t

TABLES = SHOWN.tables
# The compressed file that workers and threads read, and the plain one.
SHARED = ((32, "gzip"), ("contiguous", "none"))
CHUNKS_NOTE = (
    "Random samples, each once, by one process and thread, files in the page cache. Computed: size of all chunks that "
    "hold parts of a sample; counted: in a pass that logs the library's reads."
)
LOADER_NOTE = (
    "Whole epochs with nothing done between batches, so that all of it is waiting for the loader. Epochs of one "
    "process and thread were interleaved with those of several, and ratios are to these. Threads read the samples of a "
    "batch at once. Inflated by h5py: within HDF5; by zlib: outside of it."
)
KIB = 1024
BASE = "is that"
FILE = (t.factor("chunk", "Chunk (samples)"), t.factor("compression", "Compression"))
ORDER = ("compression", "reader", "workers", "threads")  # sorts a workload's rows
OWN = ("chunk", "compression", "reader", "workers", "threads", "epoch_samples", "read_samples")


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table of chunk shape by compression, and that of workers and threads."""
    cells = records["io_settings"]
    shared = [r for r in cells if r.levels("chunk", "compression") in SHARED]
    workloads = t.grouped(shared, lambda record: against.workload(record, OWN)).values()
    ordered = [row for rows in workloads for row in sorted(rows, key=lambda r: [r.factors[name] for name in ORDER])]
    single = t.having(cells, reader="h5py", workers=0, threads=1)
    return [
        t.make(TABLES[0], "Chunk shape and compression", single, _chunks(single), [CHUNKS_NOTE]),
        t.make(TABLES[1], "Workers of the loader, threads of a batch", ordered, LOADER, [LOADER_NOTE]),
    ]


def _chunks(cells: Sequence[Record]) -> list[t.Column]:
    """Return the columns of the table of chunk shape by compression."""
    plain = against.base_of(cells, OWN, chunk="contiguous", compression="none")
    return [
        *FILE,
        t.value("size_bytes", "File (MiB)", 1 / t.MIB, "size_mib"),
        t.value("sample_bytes", "A sample (KiB)", 1 / KIB, "sample_kib"),
        t.value("chunks_per_sample", "Chunks touched", exact=True),
        t.value("chunk_bytes_per_sample", "In them, inflated: computed (KiB)", 1 / KIB, "chunk_kib"),
        t.value("read_bytes_per_sample", "Read from the file: counted (KiB)", 1 / KIB, "read_kib"),
        *t.timed("read_ms", "A random sample (ms)", "n"),
        against.ratio("ratio", "Against contiguous (×)", plain, "contiguous not measured", sample="read_ms"),
    ]


def _single(record: Record) -> Record | None:
    """Return the cell's interleaved epochs of one process and thread; None if the cell itself is that baseline."""
    epochs = record.samples.get("alone_epoch_s")
    return replace(record, samples={"epoch_s": epochs}) if epochs else None


LOADER = [
    *FILE,
    *t.factors(reader="Inflated by", workers="Workers", threads="Threads", epoch_samples="Samples", batch="Batch"),
    *t.timed("epoch_s", "Loader wait, an epoch (s)", "n"),
    against.ratio("ratio", "Against one process and thread (×)", _single, BASE, sample="epoch_s"),
]
