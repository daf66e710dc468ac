"""Tables, figures and answers of the Polaris homework's I/O formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from perfscribe import tables as t
from perfscribe.data.layout import FILES
from perfscribe.experiments.io_formats import answers, drawings
from perfscribe.figures import Figure
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import MIB, Table

TABLES = ("polaris.io_formats", "polaris.io_parts", "polaris.io_reads")
FIGURES = ("polaris.io_parts", "polaris.io_reads")
KIB = 1024
CACHES = ("warm", "cold")
SEED = "polaris-homework-001"
COMPRESSED = ("hdf5_gzip", "npz_compressed")
# What the write-up's script trains: nn.Transformer's own sizes, and 5 epochs of a DistributedSampler's share, which is
# a quarter of the samples on each of the 4 ranks that its job script starts.
HOMEWORK = {
    "samples": 2048,
    "source_length": 1,
    "target_length": 20,
    "features": 512,
    "layers": 6,
    "d_ff": 2048,
    "batch": 32,
    "training_samples": 2048 // answers.HOMEWORK_RANKS,
    "epochs": answers.HOMEWORK_EPOCHS,
}
FORMATS_NOTES = (
    "Host clock around the epochs alone, as the homework times them: the constructor, where most formats are read "
    "whole, is outside. Files warm in the page cache. Storage in MiB, which the homework's script prints as MB; "
    "published storage: the write-up says 84 for raw and 75 for compressed files, not which.",
    "Write-up 001: Polaris, A100 40 GB. Its job script starts 4 ranks, so that the times hold DDP's communication, and "
    "torch's profiler runs in the loop.",
)
PARTS_NOTES = (
    "Host clock, the device synchronised after each part of each step. Constructor: what the homework leaves out of "
    "its training time; in memory, it generates the arrays. n: epochs, then steps. Cold files are cold before the "
    "constructor, so that only the first epoch reads from the disk.",
    "Published: the slowest step of the loader that the training series saw in its profiles, on Polaris; it says 'about'.",
)
READS_NOTES = (
    "Host clock. Single samples in random order, each once. Warm: one reader, opened once, all files in the page cache. "
    "Cold: a reader a sample, the files dropped from the page cache before opening and again before reading; caches of "
    "disk, hypervisor or file server stay as they are. In memory, opening generates the arrays.",
    "A compressed npz inflates whole arrays for a sample, so fewer samples are read from it. In page cache before: the "
    "largest share before any read; after: the median share after single reads.",
)


def _group(record: Record) -> tuple[tuple[str, Any], ...]:
    """What the rows that are to be compared have in common: all but format and cache."""
    return tuple((name, level) for name, level in record.factors.items() if name not in ("format", "cache"))


def _ordered(cells: Sequence[Record]) -> list[Record]:
    """In the homework's order of formats, cold after warm, device by device."""
    groups = list(dict.fromkeys(_group(record) for record in cells))

    def place(record: Record) -> tuple[int, int, int]:
        f = record.factors
        return groups.index(_group(record)), list(FILES).index(f["format"]), CACHES.index(f["cache"])

    return sorted(cells, key=place)


def _as_in_homework(cells: Sequence[Record]) -> list[Record]:
    """Warm cells, as files are that were just written; cold ones where a configuration has no others."""
    warm = {_group(record) for record in cells if record.has(cache="warm")}
    return [record for record in cells if record.has(cache="warm") or _group(record) not in warm]


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's table; its training times taken apart; single samples read from every format."""
    cells = _ordered(records["io_formats"])
    homework = _as_in_homework(cells)
    formats_notes = [*FORMATS_NOTES, *_differences(homework)]
    return [
        t.make(TABLES[0], "Training from seven formats", homework, _formats_columns(homework), formats_notes),
        t.make(TABLES[1], "Where the time goes", cells, _parts_columns(), PARTS_NOTES),
        t.make(TABLES[2], "Single random samples", cells, _reads_columns(cells), READS_NOTES),
    ]


def _differences(cells: Sequence[Record]) -> list[str]:
    """One note for each device whose workload is not the write-up's."""
    notes = []
    for group in dict.fromkeys(_group(record) for record in cells):
        factors = dict(group)
        others = [f"{name} {factors[name]} (there {level})" for name, level in HOMEWORK.items() if factors[name] != level]
        if others:
            notes.append(
                f"Rows of {factors['device']}, unlike write-up 001: {', '.join(others)}. Their seconds cannot be "
                "compared with its, the ratios with care."
            )
    return notes


def _factors(workload: str) -> list[t.Column]:
    """workload: the factor that says how many of the samples the table is about."""

    def samples(record: Record) -> str:
        f = record.factors
        times = f" × {f['epochs']} epochs" if workload == "training_samples" else ""
        return f"{f[workload]} of {f['samples']}{times}"

    return [
        t.factor("format", "Format"),
        t.factor("cache", "Page cache"),
        t.factor("device", "Device"),
        t.Column(workload, "Samples", samples, kind="factor", exact=True),
    ]


def _spread(sample: str, unit: str) -> t.Column:
    """Interquartile range; one sample has none."""

    def get(record: Record) -> float | str:
        found = t.summary(record, sample)
        return "one sample" if found.n == 1 else found.iqr

    return t.derived(f"{sample}_iqr", f"IQR ({unit})", get)


def _with_spread(sample: str, title: str) -> list[t.Column]:
    """Median and interquartile range; the sample's name ends in its unit."""
    unit = sample.rpartition("_")[2]
    return [t.median(sample, f"{title} ({unit})"), _spread(sample, unit)]


def _total_s(record: Record) -> float:
    """All epochs together; the median of that where there are several rounds."""
    return float(median(sum(epochs) for epochs in record.samples["training_s"]))


def _against(cells: Sequence[Record], base: str, figure: Any) -> Any:
    """A column's get: a figure over the same figure of the format `base`."""
    found = {(_group(r), r.factors["cache"]): r for r in cells if r.ok and r.has(format=base)}

    def get(record: Record) -> float | str:
        other = found.get((_group(record), record.factors["cache"]))
        return f"{base} not measured" if other is None else float(figure(record) / figure(other))

    return get


def _formats_columns(cells: Sequence[Record]) -> list[t.Column]:
    seconds = t.published("io_formats", "training_s", SEED, "Training time, write-up 001 (s)", ("format",))
    return [
        *_factors("training_samples"),
        t.derived("training_total_s", "Training time (s)", _total_s),
        seconds,
        t.derived("against_memory", "Against memory (×)", _against(cells, "memory", _total_s)),
        _published_ratio(seconds),
        *_with_spread("training_s", "An epoch"),
        t.count("training_s"),
        t.derived("size_mib", "Storage size (MiB)", _size_mib),
        _published_size(),
        t.derived("saved_percent", "Storage saved (%)", _saved_percent),
        t.value("raw_bytes", "Arrays (MiB)", 1 / MIB, "raw_mib"),
    ]


def _published_ratio(seconds: t.Column) -> t.Column:
    """The write-up's training times against its own in-memory row."""

    def get(record: Record) -> Any:
        figure, memory = (
            seconds.get(Record("io_formats", {"format": name}, "ok", "", "published"))
            for name in (record.factors["format"], "memory")
        )
        return figure if isinstance(figure, str) else figure / memory

    return t.Column("against_memory_published", "Against memory, write-up 001 (×)", get, kind="published")


def _published_size() -> t.Column:
    by_kind = {
        compressed: t.published("io_formats", "size_mib", SEED, "", (), compressed=compressed)
        for compressed in (True, False)
    }

    def get(record: Record) -> Any:
        if record.has(format="memory"):
            return "no file"
        return by_kind[record.factors["format"] in COMPRESSED].get(record)

    return t.Column("size_mib_published", "Storage, write-up 001 (MiB)", get, kind="published", exact=True)


def _size_mib(record: Record) -> float | str:
    return "no file" if record.has(format="memory") else record.values["size_bytes"] / MIB


def _saved_percent(record: Record) -> float | str:
    if record.has(format="memory"):
        return "no file"
    return 100 * (1 - record.values["size_bytes"] / record.values["raw_bytes"])


def _parts_columns() -> list[t.Column]:
    return [
        *_factors("training_samples"),
        t.derived("resident_before_percent", "In page cache before (%)", _resident_before),
        t.median("constructor_s", "Constructor (s)"),
        *_with_spread("loader_wait_s", "Loader wait, an epoch"),
        *_with_spread("copy_s", "Copy, an epoch"),
        *_with_spread("compute_s", "Compute, an epoch"),
        t.count("loader_wait_s"),
        t.derived("loader_share_percent", "Loader wait of the epoch (%)", _loader_share_percent),
        t.derived("first_reading_s", "Constructor and first epoch's loader wait (s)", _first_reading_s),
        *_with_spread("loader_wait_ms", "Loader wait, a step"),
        t.count("loader_wait_ms"),
        t.derived("slowest_loader_wait_ms", "Slowest (ms)", lambda r: t.summary(r, "loader_wait_ms").maximum),
        t.published("io_formats", "slowest_data_step_ms", "alcf-training-series", "Slowest, published (ms)", ("format",)),
    ]


def _resident_before(record: Record) -> float | str:
    return _percent(record, [record.values.get("resident_share_before")], max)


def _percent(record: Record, shares: Sequence[float | None], pick: Any) -> float | str:
    """One of several shares as percent, or why there is none."""
    if record.has(format="memory"):
        return "no file"
    known = [share for share in shares if share is not None]
    return 100 * float(pick(known)) if known else "the kernel does not tell"


def _loader_share_percent(record: Record) -> float | str:
    parts = [sum(map(sum, record.samples[f"{part}_s"])) for part in ("loader_wait", "copy", "compute")]
    return 100 * parts[0] / sum(parts) if sum(parts) else "too short to tell"


def _first_reading_s(record: Record) -> float:
    """All reading up to the end of the first epoch: what a format costs a job that starts with it."""
    rounds = zip(record.samples["constructor_s"], record.samples["loader_wait_s"], strict=True)
    return float(median(constructor[0] + loader_wait[0] for constructor, loader_wait in rounds))


def _reads_columns(cells: Sequence[Record]) -> list[t.Column]:
    return [
        *_factors("read_samples"),
        t.derived("resident_before_percent", "In page cache before (%)", _resident_before_reads),
        *_with_spread("open_ms", "Open"),
        t.count("open_ms"),
        *_with_spread("read_ms", "Read"),
        t.count("read_ms"),
        t.derived("slowest_read_ms", "Slowest (ms)", lambda r: t.summary(r, "read_ms").maximum),
        t.derived("against_hdf5", "Against hdf5 (×)", _against(cells, "hdf5", lambda r: t.summary(r, "read_ms").median)),
        t.derived("sample_kib", "A sample (KiB)", lambda r: _sample_bytes(r) / KIB),
        t.value("decoded_bytes_per_sample", "Decoded for it (KiB)", 1 / KIB, "decoded_kib"),
        t.derived("decoded_mib_per_s", "Decoded (MiB/s)", _decoded_mib_per_s),
        t.derived("resident_after_percent", "In page cache after (%)", _resident_after_reads),
    ]


def _sample_bytes(record: Record) -> float:
    return float(record.values["raw_bytes"] / record.factors["samples"])


def _decoded_mib_per_s(record: Record) -> float | str:
    read_s = t.summary(record, "read_ms").median / 1e3
    return record.values["decoded_bytes_per_sample"] / MIB / read_s if read_s else "too short to tell"


def _resident_before_reads(record: Record) -> float | str:
    return _percent(record, record.series["resident_share_before_read"], max)


def _resident_after_reads(record: Record) -> float | str:
    if record.has(cache="warm") and not record.has(format="memory"):
        return "as before"
    return _percent(record, record.series["resident_share_after_read"], median)


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What the training times compare, why gzip is slow, what compression saves, what the page cache hides."""
    formats, parts, reads = (tables[name].ok for name in TABLES)
    read = tables[TABLES[2]].frame
    return [
        find("polaris.io_training", TABLES[:2], lambda: answers.training(formats, parts)),
        find("polaris.io_gzip", (TABLES[0], TABLES[2]), lambda: answers.gzip(formats, reads)),
        find("polaris.io_storage", TABLES[:1], lambda: answers.storage(formats)),
        find("polaris.io_cold", TABLES[1:], lambda: answers.cold(parts, reads, read)),
    ]


def figures(tables: Mapping[str, Table]) -> list[Figure]:
    """Where the time of constructor and epoch goes, and what reading one sample takes."""
    parts, reads = tables[TABLES[1]].ok, tables[TABLES[2]].ok
    share = (
        "Constructor and one epoch by format, warm and cold page cache: share of constructor, loader wait, copy and "
        "compute (medians), and their sum at the end. The homework's training time leaves out the constructor."
    )
    latency = (
        "Time to read one random sample by format, host clock: median and interquartile range, warm (filled) and cold "
        f"(hollow) page cache, logarithmic. n = {drawings.counts(reads)} reads a row."
    )
    return [
        Figure(FIGURES[0], share, lambda canvas: drawings.parts(canvas, parts), (7.0, 4.4)),
        Figure(FIGURES[1], latency, lambda canvas: drawings.reads(canvas, reads), (7.0, 3.6)),
    ]
