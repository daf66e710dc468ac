"""The sentences on chunk shapes, workers and threads."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.experiments.io_settings.columns import BASE, KIB
from perfscribe.findings import CannotTell, from_to, need, ratio_of, shown
from perfscribe.statistics import format_figure as figure

WORDS = {
    "all quicker": "all epochs are quicker",
    "all slower": "all epochs are slower",
    "overlap": "the epochs' times overlap",
}


def _row(rows: pd.DataFrame, chunk: Any, compression: str) -> Any:
    found = rows[(rows["chunk"] == chunk) & (rows["compression"] == compression)]
    return need(found, 1, f"chunk {chunk} with compression {compression}").iloc[0]


def _apart(one: Any, other: Any) -> bool:
    return bool(one["read_ms_q3"] < other["read_ms_q1"] or other["read_ms_q3"] < one["read_ms_q1"])


def _read(row: Any) -> str:
    spread = row["read_ms_iqr"] if isinstance(row["read_ms_iqr"], str) else figure(float(row["read_ms_iqr"]))
    return f"{shown(row, 'read_ms')} ms (IQR {spread}, n = {row['read_ms_n']})"


def _size(kib: float) -> str:
    return f"{figure(kib / KIB)} MiB" if kib >= KIB else f"{figure(kib)} KiB"


def _named(chunk: Any) -> str:
    words = {"guess": "chunks as h5py guesses them", "whole": "one chunk of all samples", 1: "chunks of one sample"}
    return words.get(chunk, f"chunks of {chunk} samples")


def chunks(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether gzip is slow by the chunks that a sample makes it inflate, rather than by inflating the sample itself."""
    plain, single = _row(rows, "contiguous", "none"), _row(rows, 1, "gzip")
    packed = rows[rows["compression"] == "gzip"].sort_values("chunk_kib", kind="stable")
    larger = need(packed[packed["chunk"] != 1], 1, "chunks of more than one sample with gzip")
    slow = _row(rows, "guess", "gzip") if "guess" in set(larger["chunk"]) else larger.iloc[-1]
    if not (_apart(slow, single) and _apart(single, plain)):
        raise CannotTell("the interquartile ranges of reads with and without gzip, or of two chunk shapes, overlap")
    own, chunk = float(single["read_ms"] / plain["read_ms"]), float(slow["read_ms"] / single["read_ms"])
    times = float(slow["inflated_kib"] / single["inflated_kib"])
    each = "; ".join(
        f"{_named(r['chunk'])}: {_size(r['inflated_kib'])} inflated, {_read(r)}" for _, r in packed.iterrows()
    )
    verdict = "confirmed" if chunk > own else "contradicted"
    part = "The chunks are the larger part" if chunk > own else "Inflating the sample itself is the larger part here"
    text = (
        f"A chunk is inflated whole, whatever is wanted of it. For one sample of {_size(single['sample_kib'])}, as "
        f"counted: {each}. Plain and contiguous it takes {_read(plain)}. Decompression itself, in chunks of one "
        f"sample, thus takes {ratio_of(single, plain, 'read_ms')} times as long; {_named(slow['chunk'])} take "
        f"{ratio_of(slow, single, 'read_ms')} times as long again, for {figure(times)} times the bytes. {part}. "
        f"{_zlib(packed)} {_saved(packed, single, slow)}"
    )
    return text, verdict


def _zlib(packed: pd.DataFrame) -> str:
    """How much of a read is inflating, and how quick that is."""
    return (
        f"zlib alone, given the same chunks, takes {from_to(packed['inflate_percent'])} % of these times, at "
        f"{from_to(packed['inflate_gb_per_s'])} GB/s of inflated bytes."
    )


def _saved(packed: pd.DataFrame, single: Any, slow: Any) -> str:
    """What the small chunks cost in storage."""
    return (
        f"Files: {figure(single['size_mib'])} MiB in chunks of one sample, {figure(slow['size_mib'])} MiB in "
        f"{_named(slow['chunk'])}, so that the quick shape takes "
        f"{figure(100 * float(single['size_mib'] / slow['size_mib']))} % of the other's space."
    )


def _said(rows: pd.DataFrame, factor: str, what: str) -> tuple[str, str] | None:
    """A clause on the greatest level against one process and thread, and how the epochs lie; None without one."""
    rows = rows[rows["apart"] != BASE]
    if rows.empty:
        return None
    most = rows.loc[rows[factor].astype(int).idxmax()]
    clause = (
        f"{what}: {shown(most, 'sample_ms')} ms a sample with {most[factor]} {factor}, {shown(most, 'ratio')} times "
        f"one process and thread in turn with it ({WORDS[most['apart']]}, n = {most['epoch_s_n']} each)"
    )
    return clause, most["apart"]


def _clauses(rows: pd.DataFrame, factor: str, kinds: list[tuple[str, pd.DataFrame]]) -> dict[str, tuple[str, str]]:
    need(rows, 1, "cells")
    found = {name: said for name, part in kinds if (said := _said(part, factor, name)) is not None}
    if not found:
        raise CannotTell(f"one number of {factor} was measured")
    return found


def _judged(name: str, apart: str) -> str:
    if apart == "overlap":
        return f"{name} they make no difference that these epochs could show"
    return f"{name} they help" if apart == "all quicker" else f"{name} they cost more than they save"


def workers(rows: pd.DataFrame) -> str:
    """What worker processes do to reading with gzip and to plain reading."""
    packed, plain = (rows[rows["compression"] == kind] for kind in ("gzip", "none"))
    found = _clauses(rows, "workers", [("with gzip", packed), ("plain", plain)])
    text = f"Loader wait by worker processes: {'; '.join(clause for clause, _ in found.values())}. "
    verdict = "; ".join(_judged(name, apart) for name, (_, apart) in found.items())
    most = rows[rows["workers"] == rows["workers"].max()]
    return (
        f"{text}{verdict[0].upper()}{verdict[1:]}. Each worker reads whole batches by itself and hands them "
        "over through shared memory. Starting them is in the first batch, "
        f"which takes {from_to(most['first_batch_ms'])} ms. {_remedy(packed, plain)}"
    ).strip()


def _remedy(packed: pd.DataFrame, plain: pd.DataFrame) -> str:
    """What remains between gzip with all its workers and the plain file without any."""
    alone = plain[plain["workers"] == 0]
    if alone.empty or packed.empty:
        return ""
    best = packed.loc[packed["sample_ms"].astype(float).idxmin()]
    ratio = ratio_of(best, alone.iloc[0], "sample_ms")
    return f"At its best, with {best['workers']} workers, gzip still takes {ratio} times the plain file's alone."


def threads(rows: pd.DataFrame) -> str:
    """What threads that read a batch's samples at once do, within the library and around it."""
    packed = rows[rows["compression"] == "gzip"]
    kinds = [
        ("gzip inflated by HDF5", packed[packed["reader"] == "h5py"]),
        ("gzip inflated by zlib outside it", packed[packed["reader"] == "zlib"]),
        ("plain", rows[rows["compression"] == "none"]),
    ]
    found = _clauses(rows, "threads", kinds)
    text = f"Loader wait by threads: {'; '.join(clause for clause, _ in found.values())}. "
    if len(found) < len(kinds):
        return text + "The other readers were not measured with several numbers of threads."
    inside, outside = (found[name][1] for name, _ in kinds[:2])
    return text + _lock(inside, outside)


def _lock(inside: str, outside: str) -> str:
    if inside == "all quicker":
        return "Threads help even within the library, though h5py lets one thread at a time into HDF5."
    if outside == "all quicker":
        return (
            "Threads help only outside the library: h5py lets one thread at a time into HDF5, and that inflates there, "
            "while zlib, called by itself, runs in several threads at once."
        )
    return (
        "Threads do not help here: within the library h5py lets one of them at a time into HDF5, and outside it they "
        "bring nothing that these epochs could show."
    )
