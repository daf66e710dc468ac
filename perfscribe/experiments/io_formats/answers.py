"""The sentences that answer the questions about I/O formats."""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfscribe.findings import CannotTell, counted, from_to, need, ratio_of, shown, shown_from_to
from perfscribe.statistics import format_figure as figure

WHOLE = ("pt", "npz_compressed", "npz", "npy")  # read whole in the constructor, as the homework does
IN_LOOP = ("hdf5_gzip", "hdf5")
HOMEWORK_SAMPLES = 2048
HOMEWORK_EPOCHS = 5
HOMEWORK_RANKS = 4  # that its job script starts
PUBLISHED_S = "training_s_polaris-homework-001"  # a column of polaris.io_formats
PRINTED_MIB = 1.0  # to which the write-up rounds its sizes
# The data's values are whole multiples of 2**-24: 24 random bits in the 32 of a float.
RANDOM_BITS, FLOAT_BITS = 24, 32


def one_device(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one device, the accelerator's where there are any: times of two do not mix."""
    return rows[rows["device"] == ("cuda" if "cuda" in set(rows["device"]) else "cpu")]


def _row(rows: pd.DataFrame, name: str, cache: str = "warm") -> Any:
    found = rows[(rows["format"] == name) & (rows["cache"] == cache)]
    return need(found, 1, f"format {name} with a {cache} page cache").iloc[0]


def training(formats: pd.DataFrame, parts: pd.DataFrame) -> str:
    """What the homework's training times compare."""
    warm = one_device(parts[parts["cache"] == "warm"])
    memory = _row(warm, "memory")
    whole = need(warm[warm["format"].isin(WHOLE)], 1, "formats that are read whole")
    in_loop = need(warm[warm["format"].isin(IN_LOOP)], 1, "formats that are read in the loop")
    outside = whole["constructor_s"] / whole["first_reading_s"]
    loops = "; ".join(
        f"{row['format']} {shown(row, 'loader_wait_ms')} ms, {figure(row['loader_share_percent'])} % of the epoch"
        for _, row in in_loop.iterrows()
    )
    return (
        f"Mostly the same in-memory loop. {', '.join(whole['format'])} are read whole in the constructor, before the "
        f"clock starts: {from_to(whole['constructor_s'])} s, which is {from_to(100 * outside)} % of what reading "
        f"costs up to the end of the first epoch. In the loop a step then waits "
        f"{shown_from_to(whole, 'loader_wait_ms')} ms for the loader, from memory "
        f"{shown(memory, 'loader_wait_ms')} ms. Only HDF5 is read in the loop: {loops}. {_copies(warm)} "
        f"{_same_loop(formats, warm)} {_write_up(formats)}"
    )


def _copies(warm: pd.DataFrame) -> str:
    """What the write-up's script times as data: the copy to the device, which no format touches."""
    return (
        "Write-up 001's script calls the copy to the device alone its data time: here, of all formats, "
        f"{from_to(1e3 * warm['copy_s'].astype(float))} ms an epoch, whatever the loader waits."
    )


def _same_loop(formats: pd.DataFrame, warm: pd.DataFrame) -> str:
    """How far training times lie apart whose loops read nothing: the scale for the formats that are read in theirs."""
    rows = one_device(formats)
    same = rows[rows["format"].isin(["memory", *WHOLE])]
    times = same["training_total_s"].astype(float)
    widest = float(times.max() / times.min())
    n = from_to(same["training_s_n"], "{:.0f}".format)
    text = (
        f"Training with {', '.join(same['format'])} takes {from_to(times)} s (epochs: n = {n} each), though nothing "
        f"is read in these loops: up to {figure(widest)} times as long as with another of them, which has other causes "
        "than the format."
    )
    in_loop = rows[rows["format"].isin(IN_LOOP)]
    told = [_beside_memory(row, widest, rows, warm) for _, row in in_loop.iterrows()]
    return " ".join([text, *told])


def _beside_memory(row: pd.Series, widest: float, rows: pd.DataFrame, warm: pd.DataFrame) -> str:
    """What the time of a format that is read in the loop tells, given how far others lie apart that are not."""
    ratio = float(row["against_memory"])
    text = f"{row['format']} takes {shown(row, 'against_memory')} times as long as memory"
    if max(ratio, 1 / ratio) <= widest:
        return f"{text}, which within that tells nothing of the format."
    return f"{text}.{_waited(str(row['format']), rows, warm)}"


def _waited(name: str, rows: pd.DataFrame, warm: pd.DataFrame) -> str:
    """How much of what it takes longer than memory is waiting for the loader, by the epochs that are taken apart."""
    totals, waits = (
        [float(_row(of, one)[column]) for one in (name, "memory")]
        for of, column in ((rows, "training_total_s"), (warm, "loader_wait_s"))
    )
    epochs = int(_row(rows, name)["training_samples"].rpartition("× ")[2])
    longer, waited = totals[0] - totals[1], epochs * (waits[0] - waits[1])
    if not 0 < waited < longer:
        return ""
    apart = counted(int(_row(warm, name)["loader_wait_s_n"]), "epoch")
    return (
        f" Of the {figure(longer)} s that it takes longer, {figure(waited)} s are waiting for the loader, by "
        f"{apart} taken apart."
    )


def _write_up(formats: pd.DataFrame) -> str:
    """The same pattern in the published figures."""
    published = formats.drop_duplicates("format").set_index("format")[PUBLISHED_S]
    known = [float(published[name]) for name in WHOLE if name in published]
    return (
        f"In write-up 001 the same rows took {from_to(known)} s, and memory {figure(float(published['memory']))} s: "
        "its script has no warm-up, so that its first row, memory, holds what each cell here does before its clock "
        "starts."
    )


def gzip(formats: pd.DataFrame, reads: pd.DataFrame) -> tuple[str, str]:
    """Whether gzip is slow by its decompression or by the chunks that one sample makes it inflate."""
    own = one_device(reads)
    packed, plain = _row(own, "hdf5_gzip"), _row(own, "hdf5")
    ratio = float(packed["against_hdf5"])
    if packed["read_ms_q1"] <= plain["read_ms_q3"] and plain["read_ms_q1"] <= packed["read_ms_q3"]:
        raise CannotTell("the interquartile ranges of reads from HDF5 with and without gzip overlap")
    longer = ratio_of(packed, plain, "read_ms")
    head = f"One sample from HDF5 with gzip takes {_read(packed)}, without {_read(plain)}: {longer} times as long."
    if ratio < 1:
        return f"{head} It is not slow here.", "contradicted"
    times = float(packed["decoded_kib"] / packed["sample_kib"])
    text = (
        f"{head} Every chunk that the sample touches is inflated whole, {_size(packed['decoded_kib'])} for "
        f"{_size(packed['sample_kib'])}. Taking the time to go with the bytes inflated, a factor {figure(times)} of "
        f"the ratio is due to the chunks, whose shape h5py guessed, and {shown(packed, 'against_hdf5', 1 / times)} to "
        "inflating the sample's own bytes."
    )
    verdict = "contradicted" if times > ratio / times else "confirmed"
    cause = {
        "contradicted": "That decompression as such makes it slow is wrong: random single reads from large chunks do.",
        "confirmed": "Decompression itself is the larger part here.",
    }
    return " ".join(filter(None, [text, cause[verdict], _inflated_whole(own), _implied(formats)])), verdict


def _read(row: Any) -> str:
    return f"{shown(row, 'read_ms')} ms (IQR {_text(row['read_ms_iqr'])}, n = {row['read_ms_n']})"


def _size(kib: float) -> str:
    return f"{figure(kib / 1024)} MiB" if kib >= 1024 else f"{figure(kib)} KiB"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else figure(float(value))


def _inflated_whole(reads: pd.DataFrame) -> str:
    """A second witness: a format that inflates much more for a sample."""
    found = reads[(reads["format"] == "npz_compressed") & (reads["cache"] == "warm")]
    if found.empty:
        return ""
    packed, npz = _row(reads, "hdf5_gzip"), found.iloc[0]
    return (
        f"The time follows the bytes inflated: the compressed npz inflates {_size(npz['decoded_kib'])} for a "
        f"sample in {shown(npz, 'read_ms')} ms, {shown(npz, 'decoded_mib_per_s')} MiB/s against HDF5's "
        f"{shown(packed, 'decoded_mib_per_s')}."
    )


def _implied(formats: pd.DataFrame) -> str:
    """What the published training times say about one read; needs the homework's number of samples."""
    published = formats.drop_duplicates("format").set_index("format")[PUBLISHED_S]
    if not {"hdf5", "hdf5_gzip"} <= set(published.index):
        return ""
    reads = HOMEWORK_EPOCHS * HOMEWORK_SAMPLES // HOMEWORK_RANKS
    extra_ms = 1e3 * (float(published["hdf5_gzip"]) - float(published["hdf5"])) / reads
    return (
        f"Write-up 001's {figure(published['hdf5_gzip'])} s against {figure(published['hdf5'])} s come to "
        f"{figure(extra_ms)} ms more a sample, for the {reads} reads that each of its {HOMEWORK_RANKS} ranks makes."
    )


def storage(formats: pd.DataFrame) -> tuple[str, str]:
    """What compression saves, against the published figure where the arrays are as large as there."""
    rows = need(one_device(formats), 1, "formats")
    packed = need(rows[rows["format"].isin(["hdf5_gzip", "npz_compressed"])], 1, "compressed formats")
    saved = "; ".join(
        f"{row['format']} {figure(row['size_mib'])} MiB, {figure(row['saved_percent'])} % saved"
        for _, row in packed.iterrows()
    )
    bound = 100 * (1 - RANDOM_BITS / FLOAT_BITS)
    text = (
        f"Of {figure(packed['raw_mib'].iloc[0])} MiB of arrays: {saved}. The data is random, {RANDOM_BITS} random bits "
        f"in each {FLOAT_BITS}-bit value, so that nothing lossless could save more than {figure(bound)} %; real data "
        "has structure and may save much more."
    )
    return _beside_published(text, rows, packed)


def _beside_published(text: str, rows: pd.DataFrame, packed: pd.DataFrame) -> tuple[str, str]:
    plain = rows[~rows["format"].isin([*packed["format"], "memory"])]
    if plain.empty or abs(packed["raw_mib"].iloc[0] - plain["size_mib_published"].iloc[0]) > PRINTED_MIB / 2:
        return f"{text} The write-up's arrays have another size, so its figures stand apart.", "answered"
    raw, small = float(plain["size_mib_published"].iloc[0]), float(packed["size_mib_published"].iloc[0])
    low = 100 * (1 - (small + PRINTED_MIB / 2) / (raw - PRINTED_MIB / 2))
    high = 100 * (1 - (small - PRINTED_MIB / 2) / (raw + PRINTED_MIB / 2))
    agree = all(low <= saved <= high for saved in packed["saved_percent"])
    text = (
        f"{text} Write-up 001 prints {small:.0f} of {raw:.0f} MB, which its rounding leaves between {figure(low)} and "
        f"{figure(high)} % saved."
    )
    return text, "confirmed" if agree else "contradicted"


def cold(parts: pd.DataFrame, reads: pd.DataFrame, all_reads: pd.DataFrame) -> str:
    """What the page cache hides."""
    rows = one_device(reads).set_index(["format", "cache"]).sort_index()
    both = [name for name in dict.fromkeys(reads["format"]) if {(name, "warm"), (name, "cold")} <= set(rows.index)]
    if not both:
        raise CannotTell(_why_none(all_reads))
    times = {name: rows.loc[name, "cold"]["read_ms"] / rows.loc[name, "warm"]["read_ms"] for name in both}
    least, most = min(both, key=times.__getitem__), max(both, key=times.__getitem__)
    ratios = {name: ratio_of(rows.loc[name, "cold"], rows.loc[name, "warm"], "read_ms") for name in (least, most)}
    told = {cache: _quickest(rows, both, cache) for cache in ("warm", "cold")}
    return (
        f"One sample from a cold file takes {ratios[least]} ({least}) to {ratios[most]} ({most}) times as long as from "
        f"the page cache. Quickest warm is {told['warm']}, quickest cold {told['cold']}. {_read_ahead(rows, both)} "
        f"{_reading(parts)} Write-up 001's script reads files that it has just written: its times are those of the "
        "page cache. Cold means this kernel's page cache only."
    )


def _quickest(rows: pd.DataFrame, names: list[str], cache: str) -> str:
    """The format with the least median read, and those whose quartiles overlap with its own."""
    own = {name: rows.loc[name, cache] for name in names}
    best = min(names, key=lambda name: own[name]["read_ms"])
    alike = [name for name in names if name != best and own[name]["read_ms_q1"] <= own[best]["read_ms_q3"]]
    text = f"{best} with {shown(own[best], 'read_ms')} ms"
    return f"{text} ({', '.join(alike)} not told from it: quartiles overlap)" if alike else text


def _why_none(frame: pd.DataFrame) -> str:
    wanted = frame[(frame["cache"] == "cold") & ~frame["status"].isin(["ok", "skipped"])]
    if wanted.empty:
        return "no format was read both cold and warm"
    return f"cold cells are {wanted['status'].iloc[0]} ({wanted['reason'].iloc[0]})"


def _read_ahead(rows: pd.DataFrame, names: list[str]) -> str:
    """How much of a file one cold read of a sample brings in."""
    shares = {name: rows.loc[name, "cold"]["resident_after_percent"] for name in names}
    known = {name: float(share) for name, share in shares.items() if not isinstance(share, str)}
    if not known:
        return ""
    least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return (
        f"After a single cold read {figure(known[least])} % ({least}) to {figure(known[most])} % ({most}) of the file "
        "lies in the page cache."
    )


def _reading(parts: pd.DataFrame) -> str:
    """Constructor and first epoch's loader wait, cold against warm."""
    rows = one_device(parts)
    reading = {cache: group.set_index("format")["first_reading_s"] for cache, group in rows.groupby("cache")}
    if "cold" not in reading or "warm" not in reading:
        return ""
    ratios = (reading["cold"] / reading["warm"]).dropna().astype(float)
    if ratios.empty:
        return ""
    return f"Constructor and first epoch's loader wait together take {from_to(ratios)} times as long cold as warm."
