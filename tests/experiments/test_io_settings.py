"""The experiment io_settings: what it reads and counts in its files, and what is damaged."""

from dataclasses import replace

import numpy as np
import pytest
from measured_cells import generated

from perfscribe.base.cells import Cell
from perfscribe.experiments.polaris.io_settings import levels, measure, reading

NAME = "polaris_chunks_40x1x5x16"
SAMPLE_BYTES = 4 * 16 * (1 + 5)
CONFIG = {
    **{"chunk": ["contiguous", 1, 32, "whole", "guess"], "compression": ["none", "gzip"]},
    **{"workers": [0, 2], "threads": [1, 2], "chunk_cache_kib": 0, "seed": 0},
    **{"samples": 40, "source_length": 1, "target_length": 5, "features": 16},
    **{"batch": 4, "epochs": 2, "epoch_samples": 10, "read_samples": 12, "whole_chunk_samples": 3},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generated(levels.datasets(CONFIG), tmp_path_factory.mktemp("data"))


def cell_of(data, chunk, compression, reader="h5py", workers=0, threads=1) -> Cell:
    wanted = {"chunk": chunk, "compression": compression, "reader": reader, "workers": workers, "threads": threads}
    (found,) = [c for c in levels.cells(CONFIG) if all(c[factor] == level for factor, level in wanted.items())]
    return replace(found, data_folder=str(data))


@pytest.mark.parametrize(("chunk", "compression"), [("contiguous", "none"), (32, "gzip"), ("whole", "gzip")])
def test_cells_of_every_file(data, chunk, compression):
    found = measure.run(cell_of(data, chunk, compression))
    reads = 3 if chunk == "whole" else 12
    packed = {"inflate_ms": reads} if compression == "gzip" else {}
    counts = {name: len(samples) for name, samples in found.samples.items()}
    assert counts == {"epoch_s": 2, "first_batch_ms": 1, "read_ms": reads, **packed}
    assert found.timers == dict.fromkeys(counts, "host clock")
    values = found.values
    assert (values["sample_bytes"], values["raw_bytes"]) == (SAMPLE_BYTES, 40 * SAMPLE_BYTES)
    assert values["chunk_bytes_per_sample"] == {"contiguous": 1, "whole": 40}.get(chunk, chunk) * SAMPLE_BYTES
    # without a chunk cache what is counted is what the chunk's shape says
    counted = values["chunk_bytes_per_sample"] if compression == "gzip" else 0
    assert values["inflated_bytes_per_sample"] == counted
    assert values["read_bytes_per_sample"] >= (SAMPLE_BYTES if compression == "none" else 0.5 * SAMPLE_BYTES)


@pytest.mark.parametrize("chosen", [("h5py", 2, 1), ("zlib", 0, 2)])
def test_cells_of_workers_and_threads(data, chosen):
    found = measure.run(cell_of(data, 32, "gzip", *chosen))
    counts = {name: len(samples) for name, samples in found.samples.items()}
    assert counts == {"epoch_s": 2, "first_batch_ms": 1, "alone_epoch_s": 2}


def test_a_chunk_cache_that_holds_the_file_is_counted(data):
    paths = data / NAME / "whole-gzip.h5", data / f"{NAME}.digest"
    cached, without = (reading.count_reads(reading.Source(*paths, cache), 8) for cache in (2**20, 0))
    assert without["inflated_bytes_per_sample"] == 40 * SAMPLE_BYTES
    assert cached["inflated_bytes_per_sample"] == 40 * SAMPLE_BYTES / 8  # once for 8 reads
    assert cached["counted_reads"] == 8


def test_a_sample_that_is_read_wrongly_is_found(data, monkeypatch):
    def off_by_one(dataset, index):
        return np.asarray(dataset[(index + 1) % len(dataset)])

    monkeypatch.setitem(reading.READERS, "h5py", off_by_one)
    with pytest.raises(ValueError, match=r"1-gzip\.h5 by h5py: the loader gives other samples of source"):
        measure.run(cell_of(data, 1, "gzip"))
    with pytest.raises(ValueError, match="the loader gives other samples"):  # the workers are forks, and read so too
        measure.run(cell_of(data, 32, "gzip", workers=2))


def test_a_damaged_file_is_named(tmp_path):
    folder = generated(levels.datasets(CONFIG), tmp_path)
    with (folder / NAME / "1-gzip.h5").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ValueError, match=rf"{NAME}/1-gzip\.h5: damaged"):
        measure.run(cell_of(folder, 1, "gzip"))
