"""Tables, figures and answers of the Polaris homework's I/O formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from perfscribe import figures as f
from perfscribe import references
from perfscribe import tables as t
from perfscribe.data.layout import FILES
from perfscribe.experiments.io_formats import answers, columns, drawings
from perfscribe.findings import Finding, find
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("polaris.io_formats", "polaris.io_parts", "polaris.io_reads")
FIGURES = ("polaris.io_times",)
CACHES = ("warm", "cold")
HARDWARE = references.find(references.load("io_formats"), "training_s", format="memory")[0].hardware
# What the write-up's script trains: nn.Transformer's own sizes, and 5 epochs of a DistributedSampler's share, which is
# a quarter of the samples on each of the 4 ranks that its job script starts.
HOMEWORK = {
    "samples": answers.HOMEWORK_SAMPLES,
    "source_length": 1,
    "target_length": 20,
    "features": 512,
    "layers": 6,
    "d_ff": 2048,
    "batch": 32,
    "training_samples": answers.HOMEWORK_SAMPLES // answers.HOMEWORK_RANKS,
    "epochs": answers.HOMEWORK_EPOCHS,
}
FORMATS_NOTES = (
    "Host clock around the epochs alone, as the homework times them: the constructor, where most formats are read "
    "whole, is outside. Files warm in the page cache. Storage in MiB, which the write-up's script prints as MB; it has "
    "one figure for raw and one for compressed files.",
    "Samples × epochs: those that an epoch trains on, of all that are stored. The write-up's are "
    f"{HOMEWORK['training_samples']} of {HOMEWORK['samples']} × {HOMEWORK['epochs']}, the share of one of its ranks.",
    f"Write-up 001: {HARDWARE}. Its job script starts {answers.HOMEWORK_RANKS} ranks, so that the times hold DDP's "
    "communication, and torch's profiler runs in the loop.",
)
PARTS_NOTES = (
    "Host clock, the device synchronised after each part of each step; on a GPU, where that takes longer, in one more "
    "epoch than those of the training time. Constructor: what the homework leaves out of "
    "its training time; in memory, it generates the arrays. n: epochs, then steps. Cold: before the constructor, "
    "and for one epoch only, since from the second on the files are warm.",
    "Published: about the slowest step of the loader in the profiles of the training series, on Polaris.",
)
READS_NOTES = (
    "Host clock. Single samples in random order, each once. Warm: one reader, opened once, all files in the page "
    "cache. Cold: a reader a sample, the files dropped from the page cache before opening and again before reading; "
    "caches of disk, hypervisor or file server stay as they are. In memory, opening generates the arrays.",
    "A compressed npz inflates whole arrays for a sample, so fewer samples are read from it. In page cache before: the "
    "largest share before any read; after: the median share after single reads.",
)


def _ordered(cells: Sequence[Record]) -> list[Record]:
    """In the homework's order of formats, cold after warm, device by device."""
    groups = list(dict.fromkeys(columns.group(record) for record in cells))

    def place(record: Record) -> tuple[int, int, int]:
        f = record.factors
        return groups.index(columns.group(record)), list(FILES).index(f["format"]), CACHES.index(f["cache"])

    return sorted(cells, key=place)


def _as_in_homework(cells: Sequence[Record]) -> list[Record]:
    """Warm cells, as files are that were just written; cold ones where a configuration has no others."""
    warm = {columns.group(record) for record in cells if record.has(cache="warm")}
    return [record for record in cells if record.has(cache="warm") or columns.group(record) not in warm]


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """The homework's table; its training times taken apart; single samples read from every format."""
    cells = _ordered(records["io_formats"])
    homework = _as_in_homework(cells)
    formats_notes = [*FORMATS_NOTES, *_differences(homework)]
    return [
        t.make(TABLES[0], "Training from seven formats", homework, columns.formats(homework), formats_notes),
        t.make(TABLES[1], "Constructor, loader wait, copy and compute apart", cells, columns.parts(), PARTS_NOTES),
        t.make(TABLES[2], "Reading single random samples", cells, columns.reads(cells), READS_NOTES),
    ]


def _differences(cells: Sequence[Record]) -> list[str]:
    """One note for each measured workload that is not the write-up's."""
    notes = []
    for factors in {columns.group(record): record.factors for record in cells if record.ok}.values():
        others = [
            f"{name} {factors[name]} (there {level})" for name, level in HOMEWORK.items() if factors[name] != level
        ]
        if others:
            notes.append(
                f"Rows of {factors['device']}, unlike write-up 001: {', '.join(others)}. Their seconds cannot be "
                "compared with its, the ratios with care."
            )
    return notes


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


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Where the time of constructor and epoch goes, and what reading one sample takes."""
    parts, reads = tables[TABLES[1]].ok, tables[TABLES[2]].ok
    epochs = drawings.counts(parts, "loader_wait_s_n")
    share = (
        "Above: constructor and one epoch by format, warm and cold page cache: share of constructor, loader wait, copy "
        "and compute (medians), and their sum at the end. The homework's training time leaves out the constructor. "
        f"Epochs a row: n = {epochs}{'' if epochs == '1' else '; the table holds the interquartile ranges'}."
    )
    latency = (
        "Below: time to read one random sample by format, host clock: median and interquartile range, warm (filled), "
        f"cold (hollow) page cache, logarithmic. Reads a row: n = {drawings.counts(reads, 'read_ms_n')}."
    )
    draw = f.stacked(partial(drawings.parts, table=parts), partial(drawings.reads, table=reads), heights=(4.4, 3.6))
    return [f.Figure(FIGURES[0], f"{share} {latency}", draw, (7.0, 7.8))]
