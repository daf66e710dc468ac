"""Tables and figure of the Polaris homework's I/O formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from perfscribe.data.layout import FILES
from perfscribe.experiments.io_formats import drawings
from perfscribe.experiments.io_formats.levels import SHOWN
from perfscribe.instruments.statistics import format_figure
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.show.tables import MIB, Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
CACHES = ("warm", "cold")
KIB = 1024
SEED = "polaris-homework-001"
SERIES = "alcf-training-series"
COMPRESSED = ("hdf5_gzip", "npz_compressed")
FORMATS_NOTE = (
    "Host clock around the epochs alone: the constructor, where most formats are read whole, is outside. Write-up 001 "
    "trains the share of one of its ranks under DDP and torch's profiler."
)
PARTS_NOTE = (
    "Host clock, the device synchronised after each part of each step. Cold: dropped from the page cache before the "
    "constructor, for one epoch only."
)
READS_NOTE = (
    "Single samples in random order, each once. Cold: a reader per sample, the files dropped from the page cache "
    "before opening and again before reading."
)
CAPTION = (
    "Above: constructor and one epoch by format, warm and cold page cache: shares of the parts (medians), and at the "
    "end their sum and the loader wait in seconds. Below: time to read one random sample by format, host clock: median "
    "and interquartile range, warm (filled), cold (hollow), logarithmic."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's table; its training times taken apart; single samples read from every format."""
    cells = _ordered(records["io_formats"])
    homework = _as_in_homework(cells)
    return [
        t.make(TABLES[0], "Training from seven formats", homework, _formats(homework), [FORMATS_NOTE]),
        t.make(TABLES[1], "Constructor, loader wait, copy and compute apart", cells, _parts(), [PARTS_NOTE]),
        t.make(TABLES[2], "Reading single random samples", cells, _reads(cells), [READS_NOTE]),
    ]


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


def _group(record: Record) -> tuple[tuple[str, Any], ...]:
    """What the rows that are to be compared have in common; cold files are trained on for fewer epochs."""
    own = ("format", "cache", "epochs")
    return tuple((name, level) for name, level in record.factors.items() if name not in own)


def _factors(workload: str) -> list[t.Column]:
    """workload: the factor that says how many of the samples the table is about."""

    def samples(record: Record) -> str:
        f = record.factors
        epochs = f" × {f['epochs']}" if workload == "training_samples" else ""
        return f"{f[workload]} of {f['samples']}{epochs}"

    title = "Samples × epochs" if workload == "training_samples" else "Samples read"
    return [
        t.factor("format", "Format"),
        t.factor("cache", "Page cache"),
        t.factor("device", "Device"),
        t.Column(workload, title, samples, kind="factor", exact=True),
    ]


def _with_spread(sample: str, title: str) -> list[t.Column]:
    """Median and interquartile range; the sample's name ends in its unit."""
    unit = sample.rpartition("_")[2]
    return [t.median(sample, f"{title} ({unit})"), t.iqr(sample, f"IQR ({unit})")]


def _total_s(record: Record) -> float:
    """All epochs together; the median of that where there are several rounds."""
    return float(median(sum(epochs) for epochs in record.samples["training_s"]))


def _against(
    name: str, title: str, cells: Sequence[Record], base: str, figure: Callable[[Record], float], sample: str
) -> t.Column:
    """A figure over that of the format `base`, no finer than the samples of both spread, as shares of them."""
    bases = {(_group(r), r.factors["cache"]): r for r in cells if r.ok and r.has(format=base)}

    def ratio(record: Record) -> float | str:
        other = bases.get((_group(record), record.factors["cache"]))
        return f"{base} not measured" if other is None else float(figure(record) / figure(other))

    def spread(record: Record) -> float | str:
        found, other = ratio(record), bases.get((_group(record), record.factors["cache"]))
        if isinstance(found, str) or other is None:
            return found
        return 0.0 if record is other else t.ratio_spread(found, *(t.summary(one, sample) for one in (record, other)))

    return t.Column(name, title, ratio, spread=f"{name}_spread", spread_get=spread)


def _formats(cells: Sequence[Record]) -> list[t.Column]:
    """Of the homework's table: training time and storage size; cells: those that it shows."""
    seconds = t.published("io_formats", "training_s", SEED, "Training time, write-up 001 (s)", ("format",))
    return [
        *_factors("training_samples"),
        t.derived("training_total_s", "Training time (s)", _total_s),
        seconds,
        _against("against_memory", "Against memory (×)", cells, "memory", _total_s, "training_s"),
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
        return figure if isinstance(figure, str) else float(format_figure(figure / memory))

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
    return "no file" if record.has(format="memory") else float(record.values["size_bytes"] / MIB)


def _saved_percent(record: Record) -> float | str:
    if record.has(format="memory"):
        return "no file"
    return 100 * (1 - float(record.values["size_bytes"] / record.values["raw_bytes"]))


def _parts() -> list[t.Column]:
    """Of the table that takes the training time apart."""
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
        t.published("io_formats", "slowest_data_step_ms", SERIES, "Slowest, published (ms)", ("format",)),
    ]


def _resident_before(record: Record) -> float | str:
    return _percent(record, [record.values.get("resident_share_before")], max)


def _percent(record: Record, shares: Sequence[float | None], pick: Callable[[list[float]], float]) -> float | str:
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


def _reads(cells: Sequence[Record]) -> list[t.Column]:
    """Of the table of single samples; cells: those that it shows."""
    return [
        *_factors("read_samples"),
        t.derived("resident_before_percent", "In page cache before (%)", _resident_before_reads),
        *_with_spread("open_ms", "Open"),
        t.count("open_ms"),
        *_with_spread("read_ms", "Read"),
        t.derived("read_ms_q1", "Lower quartile (ms)", lambda r: t.summary(r, "read_ms").q1),
        t.derived("read_ms_q3", "Upper quartile (ms)", lambda r: t.summary(r, "read_ms").q3),
        t.count("read_ms"),
        t.derived("slowest_read_ms", "Slowest (ms)", lambda r: t.summary(r, "read_ms").maximum),
        _against("against_hdf5", "Against hdf5 (×)", cells, "hdf5", _read_ms, "read_ms"),
        t.derived("sample_kib", "A sample (KiB)", lambda r: _sample_bytes(r) / KIB),
        t.value("decoded_bytes_per_sample", "Decoded for it (KiB)", 1 / KIB, "decoded_kib"),
        t.rate("decoded_mib_per_s", "Decoded (MiB/s)", _decoded_mib_per_s, "read_ms"),
        t.derived("resident_after_percent", "In page cache after (%)", _resident_after_reads),
    ]


def _read_ms(record: Record) -> float:
    return t.summary(record, "read_ms").median


def _sample_bytes(record: Record) -> float:
    return float(record.values["raw_bytes"] / record.factors["samples"])


def _decoded_mib_per_s(record: Record) -> float | str:
    decoded_mib = float(record.values["decoded_bytes_per_sample"] / MIB)
    return 1e3 * decoded_mib / _read_ms(record) if _read_ms(record) else "too short to tell"


def _resident_before_reads(record: Record) -> float | str:
    return _percent(record, record.series["resident_share_before_read"], max)


def _resident_after_reads(record: Record) -> float | str:
    if record.has(cache="warm") and not record.has(format="memory"):
        return "as before"
    return _percent(record, record.series["resident_share_after_read"], median)


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Where the time of constructor and epoch goes, and what reading one sample takes."""
    parts = partial(drawings.parts, table=tables["polaris.io_parts"].ok)
    reads = partial(drawings.reads, table=tables["polaris.io_reads"].ok)
    return [f.Figure(FIGURES[0], CAPTION, f.stacked(parts, reads, heights=(4.4, 3.6)), (7.0, 7.8))]
