"""The experiment io_settings: its files, what it reads and counts in them, its tables."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import h5py
import numpy as np
import pytest

from perfscribe.base.cells import Cell
from perfscribe.data import synthetic
from perfscribe.data.generate import generate
from perfscribe.experiments.io_settings import measure, reading, show
from perfscribe.records.records import Record

KIB, MIB = 1024, 2**20
NAME = "polaris_chunks_40x1x5x16"
SAMPLE_BYTES = 4 * 16 * (1 + 5)
CONFIG = {
    **{"chunk": ["contiguous", 1, 32, "whole", "guess"], "compression": ["none", "gzip"]},
    **{"workers": [0, 2], "threads": [1, 2], "chunk_cache_kib": 0, "seed": 0},
    **{"samples": 40, "source_length": 1, "target_length": 5, "features": 16},
    **{"batch": 4, "epochs": 2, "epoch_samples": 10, "read_samples": 12, "whole_chunk_samples": 3},
}


def generated(folder):
    for name, dataset in measure.datasets(CONFIG).items():
        generate({"dataset": name, **dataset}, folder / name)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("data"))


def cell_of(data, chunk, compression, reader="h5py", workers=0, threads=1) -> Cell:
    levels = {"chunk": chunk, "compression": compression, "reader": reader, "workers": workers, "threads": threads}
    (found,) = [c for c in measure.cells(CONFIG) if all(c[factor] == level for factor, level in levels.items())]
    return replace(found, data_folder=str(data))


def source(data, name: str, cache_bytes: int = 0) -> reading.Source:
    return reading.Source(data / NAME / f"{name}.h5", data / f"{NAME}.digest", cache_bytes)


def test_the_grids_share_their_middle():
    cells = measure.cells(CONFIG)
    # 5 chunk shapes by 2 compressions without contiguous gzip; 2 files by 2 workers; 3 readers by a second thread
    assert len(cells) == 9 + 2 + 4
    assert {(c["epoch_samples"], c["read_samples"]) for c in cells if c["chunk"] == "whole"} == {(3, 3)}
    assert {(c["epoch_samples"], c["read_samples"]) for c in cells if c["chunk"] != "whole"} == {(10, 12)}


def test_files_hold_the_arrays_in_the_chunks_asked_for(data):
    digest = json.loads((data / f"{NAME}.digest").read_text())
    wanted = {"contiguous-none": None, "1-gzip": (1, 5, 16), "32-none": (32, 5, 16), "whole-gzip": (40, 5, 16)}
    for name, chunks in wanted.items():
        with h5py.File(data / NAME / f"{name}.h5") as file:
            assert file["target"].chunks == chunks
            assert file["target"].compression == ("gzip" if name.endswith("gzip") else None)
            assert synthetic.digest({array: file[array][...] for array in file}) == digest["arrays"]


FILES = [("contiguous", "none"), (1, "gzip"), (32, "none"), ("whole", "gzip"), ("guess", "gzip")]


@pytest.mark.parametrize(("chunk", "compression"), FILES)
def test_cells_of_every_file(data, chunk, compression):
    found = measure.run(cell_of(data, chunk, compression))
    reads = 3 if chunk == "whole" else 12
    packed = {"inflate_ms": reads} if compression == "gzip" else {}
    counts = {name: len(samples) for name, samples in found.samples.items()}
    assert counts == {"epoch_s": 2, "first_batch_ms": 1, "read_ms": reads, **packed}
    assert all(sample > 0 and math.isfinite(sample) for samples in found.samples.values() for sample in samples)
    assert found.timers == dict.fromkeys(counts, "host clock")
    values = found.values
    assert (values["sample_bytes"], values["raw_bytes"]) == (SAMPLE_BYTES, 40 * SAMPLE_BYTES)
    in_chunk = {"contiguous": 1, "whole": 40}.get(chunk, chunk)
    if chunk != "guess":
        assert values["chunk_bytes_per_sample"] == in_chunk * SAMPLE_BYTES
    # without a chunk cache what is counted is what the chunk's shape says
    counted = values["chunk_bytes_per_sample"] if compression == "gzip" else 0
    assert values["inflated_bytes_per_sample"] == counted
    assert values["read_bytes_per_sample"] >= (SAMPLE_BYTES if compression == "none" else 0.5 * SAMPLE_BYTES)
    json.dumps([found.samples, found.values], allow_nan=False)


@pytest.mark.parametrize("levels", [("h5py", 2, 1), ("h5py", 0, 2), ("zlib", 0, 1), ("zlib", 0, 2)])
def test_cells_of_workers_and_threads(data, levels):
    found = measure.run(cell_of(data, 32, "gzip", *levels))
    assert {name: len(samples) for name, samples in found.samples.items()} == {
        "epoch_s": 2,
        "first_batch_ms": 1,
        **({} if levels == ("zlib", 0, 1) else {"alone_epoch_s": 2}),
    }


def test_a_chunk_cache_that_holds_the_file_is_counted(data):
    cached, without = (reading.count_reads(source(data, "whole-gzip", cache), 8) for cache in (MIB, 0))
    assert without["inflated_bytes_per_sample"] == 40 * SAMPLE_BYTES
    assert cached["inflated_bytes_per_sample"] == 40 * SAMPLE_BYTES / 8  # once for 8 reads
    assert cached["counted_reads"] == 8


def test_every_reader_gives_the_generated_samples(data):
    arrays = source(data, "32-gzip").checked_arrays()
    for reader, threads in (("h5py", 1), ("h5py", 3), ("zlib", 1), ("zlib", 3)):
        samples = reading.Samples(source(data, "32-gzip"), reader, threads)
        for index, sample in zip([39, 0, 33], samples.__getitems__([39, 0, 33]), strict=True):
            for name, part in zip(arrays, sample, strict=True):
                assert np.array_equal(part, arrays[name][index])
        samples.close()


def test_a_sample_that_is_read_wrongly_is_found(data, monkeypatch):
    def off_by_one(dataset, index):
        return np.asarray(dataset[(index + 1) % len(dataset)])

    monkeypatch.setitem(reading.READERS, "h5py", off_by_one)
    with pytest.raises(ValueError, match=r"1-gzip\.h5 by h5py: the loader gives other samples of source"):
        measure.run(cell_of(data, 1, "gzip"))
    with pytest.raises(ValueError, match="the loader gives other samples"):  # the workers are forks, and read so too
        measure.run(cell_of(data, 32, "gzip", workers=2))


def test_a_damaged_file_is_named(tmp_path):
    folder = generated(tmp_path)
    path = folder / NAME / "1-gzip.h5"
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{NAME}/1-gzip\.h5: damaged"):
        measure.run(cell_of(folder, 1, "gzip"))
    with pytest.raises(ValueError, match=rf"^{NAME}\.digest: cannot be read"):
        measure.run(cell_of(tmp_path / "nowhere", 1, "gzip"))


# --- tables -----------------------------------------------------------------------------------------------------------

# One read, in ms, and what is inflated for it, in samples
READ_MS = {1: 0.2, 32: 6.0, "whole": 400.0, "guess": 25.0}
IN_CHUNK = {1: 1, 32: 32, "whole": 2048, "guess": 128}


def record(chunk=32, compression="gzip", reader="h5py", workers=0, threads=1, sample_ms=None) -> Record:
    packed = compression == "gzip"
    read_ms = READ_MS[chunk] if packed else 0.02
    each_s = (sample_ms or read_ms) * 128 / 1e3
    alone = (reader, workers, threads) == ("h5py", 0, 1)
    samples = {"epoch_s": [[each_s * f for f in (0.99, 1.0, 1.01)]], "first_batch_ms": [[30.0 + 50 * workers]]}
    values = {"size_bytes": 76 * MIB, "raw_bytes": 84 * MIB, "sample_bytes": 42 * KIB, "chunk_shape": "a × b × c"}
    values |= {"chunks_per_sample": 2, "chunk_bytes_per_sample": 42 * KIB * (IN_CHUNK[chunk] if packed else 1)}
    if not alone and (workers or threads > 1):
        samples["alone_epoch_s"] = [[(7.0 if reader == "zlib" else read_ms) * 128 / 1e3 * f for f in (0.99, 1.0, 1.01)]]
    if alone:
        samples["read_ms"] = [[read_ms * f for f in (0.9, 1.0, 1.1)]]
        values |= {"read_bytes_per_sample": 42.0 * KIB, "counted_reads": 64}
        values["inflated_bytes_per_sample"] = 42.0 * KIB * IN_CHUNK[chunk] if packed else 0.0
        if packed:
            samples["inflate_ms"] = [[read_ms * 0.8]]
    factors = {"chunk": chunk, "compression": compression, "reader": reader, "workers": workers, "threads": threads}
    factors |= {"epoch_samples": 128, "read_samples": 3, "samples": 2048, "batch": 32, "chunk_cache_kib": 1024}
    return Record("io_settings", factors, "ok", "", "measured", samples=samples, values=values, environments=["e"])


def all_cells() -> list[Record]:
    return [
        record("contiguous", "none"),
        *(record(chunk, "gzip") for chunk in (1, 32, "whole", "guess")),
        record(workers=4, sample_ms=2.0),
        record("contiguous", "none", workers=4, sample_ms=0.5),
        record(threads=4, sample_ms=6.0),
        record(reader="zlib", sample_ms=7.0),
        record(reader="zlib", threads=4, sample_ms=2.0),
        record("contiguous", "none", threads=4, sample_ms=0.02),
    ]


def made(cells):
    return {table.id: table for table in show.tables({"io_settings": cells})}


def row(table: str, cells, **levels) -> dict:
    frame = made(cells)[f"polaris.io_{table}"].frame
    for name, level in levels.items():
        frame = frame[frame[name] == level]
    (only,) = frame.to_dict("records")
    return only


def test_the_columns_of_chunks():
    guess = row("chunks", all_cells(), chunk="guess")
    assert (guess["read_ms"], guess["ratio"]) == (25, pytest.approx(1250))
    assert (guess["chunk_kib"], guess["inflated_kib"], guess["sample_kib"]) == (42 * 128, 42 * 128, 42)
    assert guess["inflate_percent"] == pytest.approx(80)
    assert guess["inflate_gb_per_s"] == pytest.approx(42 * KIB * 128 / 0.020 / 1e9)
    plain = row("chunks", all_cells(), chunk="contiguous")
    assert {plain[name] for name in ("inflated_kib", "inflate_ms", "inflate_gb_per_s")} == {"nothing is compressed"}
    assert len(made(all_cells())["polaris.io_chunks"].frame) == 5
    alone = row("chunks", [record(1)], chunk=1)
    assert {alone[name] for name in ("ratio", "ratio_spread")} == {"contiguous not measured"}
    assert (plain["ratio"], plain["ratio_spread"]) == (1, 0), "against itself it is exact"


def test_the_columns_of_workers_and_threads():
    cells = all_cells()
    assert row("workers", cells, compression="gzip", workers=4)["ratio"] == pytest.approx(2 / 6)
    assert row("workers", cells, compression="none", workers=4)["sample_ms"] == pytest.approx(0.5)
    assert row("threads", cells, reader="zlib", threads=4)["ratio"] == pytest.approx(2 / 7)
    assert row("threads", cells, reader="zlib", threads=4)["apart"] == "all quicker"
    assert row("threads", cells, reader="h5py", compression="gzip", threads=4)["apart"] == "overlap"
    assert {row("threads", cells, reader="zlib", threads=1)[name] for name in ("ratio", "alone_epoch_s")} == {"is that"}
    frame = made(cells[::-1])["polaris.io_threads"].frame
    assert list(zip(frame["reader"], frame["compression"], frame["threads"], strict=True)) == [
        ("h5py", "gzip", 1),
        ("h5py", "gzip", 4),
        ("zlib", "gzip", 1),
        ("zlib", "gzip", 4),
        ("h5py", "none", 1),
        ("h5py", "none", 4),
    ]
