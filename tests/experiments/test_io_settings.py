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
from perfscribe.experiments.io_settings import measure, reading

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
