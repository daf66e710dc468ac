"""Tables and figure of the Polaris homework's I/O formats."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from perfscribe.experiments.polaris.io_formats.levels import SHOWN
from perfscribe.instruments.statistics import format_figure
from perfscribe.records.records import Record
from perfscribe.show import against
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
KIB = 1024
OWN = ("format", "cache", "epochs")  # cold files are trained on for fewer epochs
SEED = "polaris-homework-001"
COMPRESSED = ("hdf5_gzip", "hdf5_gzip_samples", "npz_compressed")
FORMATS_NOTE = "Host clock around the epochs alone: the constructor, where most formats are read whole, is outside."
PARTS_NOTE = (
    "Host clock, the device synchronised after each part of each step. Cold: dropped from the page cache before the "
    "constructor, for one epoch only."
)
READS_NOTE = (
    "Single samples in random order, each once. Cold: a reader per sample, the files dropped from the page cache "
    "before opening and again before reading."
)
CAPTION = (
    "By format, warm and cold page cache: the loader wait per sample, and shares of the parts of constructor and one "
    "epoch of training (medians), at the end their sum."
)
BARS = {"constructor_s": "constructor", "loader_wait_s": "loader wait", "copy_s": "copy", "compute_s": "compute"}


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the homework's table, its training times by part, and single-sample reads of every format."""
    cells = records["io_formats"]
    groups = t.grouped(cells, lambda r: against.workload(r, OWN)).values()
    # warm cells, like files just written; cold cells only where a configuration has no others
    homework = [r for group in groups for r in [r for r in group if r.has(cache="warm")] or group]
    return [
        t.make(TABLES[0], "Training from eight formats", homework, _formats(homework), [FORMATS_NOTE]),
        t.make(TABLES[1], "Constructor, loader wait, copy and compute apart", cells, PARTS, [PARTS_NOTE]),
        t.make(TABLES[2], "Reading single random samples", cells, READS, [READS_NOTE]),
    ]


FILE = t.factors(format="Format", cache="Page cache", device="Device")
TRAINED = "{training_samples} of {samples} × {epochs}"
TRAINING = [*FILE, t.factor("training_samples", "Samples × epochs", lambda r: TRAINED.format(**r.factors))]


def _totals_s(record: Record) -> list[float]:
    """Return the time of all epochs together (s), by round."""
    return [sum(epochs) for epochs in record.samples["training_s"]]


def _total_s(record: Record) -> float:
    return float(median(_totals_s(record)))


def _formats(cells: Sequence[Record]) -> list[t.Column]:
    """Return the columns of the homework's table: training time and storage size; cells: the records it shows."""
    memory = against.base_of(cells, ("format", "epochs"), format="memory")

    def compressed(record: Record) -> dict[str, bool]:
        return {} if record.has(format="memory") else {"compressed": record.factors["format"] in COMPRESSED}

    return [
        *TRAINING,
        t.Column("training_total_s", "Training time (s)", _total_s, range_get=lambda r: t.range_of(_totals_s(r))),
        against.ratio("against_memory", "Against memory (×)", memory, "memory not measured", _total_s, "training_s"),
        *t.timed("training_s", "An epoch (s)", "n"),
        *t.only(
            lambda record: not record.has(format="memory"),
            "no file",
            t.value("size_bytes", "Storage size (MiB)", 1 / t.MIB, "size_mib"),
        ),
        t.published("io_formats", SEED, "size_mib", "Storage, write-up 001 (MiB)", "size_mib_published", compressed),
        *t.settings("batch"),
    ]


def _resident(shares: Callable[[Record], Sequence[float | None]]) -> t.Column:
    """Return a column with the largest share of a file in the page cache, or the reason why there is none."""

    def percent(record: Record) -> float | str:
        if record.has(format="memory"):
            return "no file"
        known = [share for share in shares(record) if share is not None]
        return 100 * max(known) if known else "the kernel does not tell"

    return t.derived("resident_before_percent", "In page cache before (%)", percent)


def _loader_share(record: Record) -> float | str:
    parts = [sum(map(sum, record.samples[f"{part}_s"])) for part in ("loader_wait", "copy", "compute")]
    return 100 * parts[0] / sum(parts) if sum(parts) else "too short to tell"


PARTS = [
    *TRAINING,
    _resident(lambda r: [r.values.get("resident_share_before")]),
    t.median("constructor_s", "Constructor (s)"),
    *t.timed("loader_wait_s", "Loader wait, an epoch (s)"),
    *t.timed("copy_s", "Copy, an epoch (s)"),
    *t.timed("compute_s", "Compute, an epoch (s)"),
    t.count("loader_wait_s"),
    t.derived("loader_share_percent", "Loader wait of the epoch (%)", _loader_share),
]
READS = [
    *FILE,
    t.factor("read_samples", "Samples read", lambda r: "{read_samples} of {samples}".format(**r.factors)),
    _resident(lambda r: r.series["resident_share_before_read"]),
    *t.timed("open_ms", "Open (ms)", "n"),
    *t.timed("read_ms", "Read (ms)"),
    t.count("read_ms"),
    t.derived("sample_kib", "A sample (KiB)", lambda r: float(r.values["raw_bytes"] / r.factors["samples"]) / KIB),
    t.value("decoded_bytes_per_sample", "Decoded for it (KiB)", 1 / KIB, "decoded_kib"),
]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure that divides the time of constructor and epoch into parts."""
    draw = f.of(tables["polaris.io_parts"].ok, _draw)
    return [f.Figure(FIGURES[0], CAPTION, draw, (7.0, 4.4))]


def _draw(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw a row per format and cache: loader wait per sample, and shares of constructor and one epoch."""
    (left, right), rows = canvas.subplots(1, 2, sharey=True), f.main_device(rows)
    times = rows[list(BARS)].astype(float)
    shares = 100 * times.div(times.sum(axis=1), axis=0)
    ends = shares.cumsum(axis=1)
    places = range(len(rows))
    wait_ms = 1e3 * times["loader_wait_s"] / rows["training_samples"].str.split().str[0].astype(int)
    left.plot(wait_ms, places, "o", color=f.COLOURS[list(BARS).index("loader_wait_s")])
    left.set_xscale("log")
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.set_xlim(wait_ms.min() / 2, wait_ms.max() * 8)  # room for the numbers
    left.set_xlabel("Loader wait per sample (ms)")
    for colour, (column, label) in zip(f.COLOURS, BARS.items(), strict=False):
        start = ends[column] - shares[column]
        right.barh(places, shares[column], left=start, color=colour, label=label, height=0.7)
    right.set_xlim(0, 100)
    right.set_xlabel("Share of constructor and one epoch (%)")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(BARS), fontsize=7, columnspacing=1)
    totals = (f"{format_figure(total)} s" for total in times.sum(axis=1))
    for axes, at, texts in ((left, wait_ms, map(format_figure, wait_ms)), (right, [100] * len(rows), totals)):
        for place, end, text in zip(places, at, texts, strict=True):
            axes.annotate(text, (end, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6.5)
        axes.set_axisbelow(True)
        axes.grid(axis="y", visible=False)
    left.set_yticks(places, rows["format"] + ", " + rows["cache"], fontsize=f.LABEL_POINTS)
    left.invert_yaxis()
