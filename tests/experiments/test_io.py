"""io_formats and io_settings: cells that really run on a few kilobytes; what is damaged or read wrongly."""

import re

import numpy as np
import pytest
import torch
from measured_cells import cell_with, generated

from perfscribe.base.cells import Unsupported
from perfscribe.data import page_cache
from perfscribe.data.layout import FILES
from perfscribe.experiments.polaris.io_formats import levels as formats
from perfscribe.experiments.polaris.io_formats import measure as format_cells
from perfscribe.experiments.polaris.io_formats import reading as format_reading
from perfscribe.experiments.polaris.io_settings import levels as settings
from perfscribe.experiments.polaris.io_settings import measure as setting_cells
from perfscribe.experiments.polaris.io_settings import reading as setting_reading

SAMPLE_BYTES = 4 * 16 * (1 + 5)
SAMPLE = {"source_length": 1, "target_length": 5, "features": 16, "seed": 0, "epochs": 2, "read_samples": 12}
FORMATS = SAMPLE | {"device": ["cpu"], "format": list(FILES), "cache": ["warm", "cold"], "samples": 50, "batch": 8}
FORMATS |= {"training_samples": 20, "layers": 1, "d_ff": 16}
STEPS = 3  # of 8 samples, 20 in all
SETTINGS = SAMPLE | {"chunk": ["contiguous", 1, 32, "whole", "guess"], "compression": ["none", "gzip"], "samples": 40}
SETTINGS |= {"workers": [0, 2], "threads": [1, 2], "chunk_cache_kib": 0, "batch": 4, "epoch_samples": 10}
SETTINGS |= {"whole_chunk_samples": 3}
FORMAT_NAME, SETTING_NAME = "polaris_io_50x1x5x16", "polaris_chunks_40x1x5x16"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other are slow on cores that are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(folder):
    generated(formats.datasets(FORMATS), folder)
    return generated(settings.datasets(SETTINGS), folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("data"))


def by_format(data, name, cache="warm"):
    return format_cells.run(cell_with(formats.cells(FORMATS), data, format=name, cache=cache))


def by_setting(data, chunk, compression="gzip", reader="h5py", workers=0, threads=1):
    wanted = {"chunk": chunk, "compression": compression, "reader": reader, "workers": workers, "threads": threads}
    return setting_cells.run(cell_with(settings.cells(SETTINGS), data, **wanted))


def counts(measurement):
    assert measurement.timers == dict.fromkeys(measurement.samples, "host clock")
    return {name: len(samples) for name, samples in measurement.samples.items()}


@pytest.mark.parametrize("name", FILES)
def test_warm_formats(name, data):
    result = by_format(data, name)
    reads = format_reading.COMPRESSED_NPZ_READS if name == "npz_compressed" else 12
    each_epoch = dict.fromkeys(("training_s", "loader_wait_s", "copy_s", "compute_s"), 2)
    each_step = dict.fromkeys(("loader_wait_ms", "copy_ms", "compute_ms"), 2 * STEPS)
    assert counts(result) == {"constructor_s": 1, "open_ms": 1, "read_ms": reads, **each_epoch, **each_step}
    assert result.values["size_bytes"] > 0.7 * result.values["raw_bytes"]
    for epoch in range(2):
        parts = sum(result.samples[name][epoch] for name in ("loader_wait_s", "copy_s", "compute_s"))
        assert 0.2 * result.samples["training_s"][epoch] < parts <= result.samples["training_s"][epoch]
    assert sum(result.samples["compute_ms"]) == pytest.approx(1e3 * sum(result.samples["compute_s"]))


@pytest.mark.parametrize("name", ["hdf5_gzip", "npy"])
def test_cold_formats(name, data):
    try:
        page_cache.drop(list(data.rglob("*.npz")))
    except Unsupported as reason:
        pytest.skip(f"the page cache here cannot be dropped: {reason}")
    result = by_format(data, name, "cold")
    assert result.values["resident_share_before"] <= page_cache.COLD_SHARE
    before = result.series["resident_share_before_read"]
    assert len(result.samples["open_ms"]) == len(before) == len(result.samples["read_ms"])
    assert max(before) <= page_cache.COLD_SHARE
    assert max(result.series["resident_share_after_read"]) > 0


def test_where_the_kernel_keeps_pages_or_does_not_tell(data, monkeypatch):
    monkeypatch.setattr(page_cache, "_advise_dont_need", lambda path: None)
    page_cache.warm(data.rglob("*.npz"))
    with pytest.raises(Unsupported, match=r"the kernel kept 100% of the files in its page cache"):
        by_format(data, "npz", "cold")

    def silent(paths):
        raise Unsupported("does not tell")

    monkeypatch.setattr(page_cache, "resident_share", silent)
    assert by_format(data, "npy").values["resident_share_before"] is None


@pytest.mark.parametrize(("chunk", "compression"), [("contiguous", "none"), (32, "gzip"), ("whole", "gzip")])
def test_files_of_every_setting(data, chunk, compression):
    result = by_setting(data, chunk, compression)
    reads = 3 if chunk == "whole" else 12
    packed = {"inflate_ms": reads} if compression == "gzip" else {}
    assert counts(result) == {"epoch_s": 2, "first_batch_ms": 1, "read_ms": reads, **packed}
    values = result.values
    assert (values["sample_bytes"], values["raw_bytes"]) == (SAMPLE_BYTES, 40 * SAMPLE_BYTES)
    assert values["chunk_bytes_per_sample"] == {"contiguous": 1, "whole": 40}.get(chunk, chunk) * SAMPLE_BYTES
    # without a chunk cache what is counted is what the chunk's shape says
    counted = values["chunk_bytes_per_sample"] if compression == "gzip" else 0
    assert values["inflated_bytes_per_sample"] == counted
    assert values["read_bytes_per_sample"] >= (SAMPLE_BYTES if compression == "none" else 0.5 * SAMPLE_BYTES)


@pytest.mark.parametrize("chosen", [("h5py", 2, 1), ("zlib", 0, 2)])
def test_workers_and_threads(data, chosen):
    assert counts(by_setting(data, 32, "gzip", *chosen)) == {"epoch_s": 2, "first_batch_ms": 1, "alone_epoch_s": 2}


def test_a_chunk_cache_that_holds_the_file_is_counted(data):
    paths = data / SETTING_NAME / "whole-gzip.h5", data / f"{SETTING_NAME}.digest"
    sources = (setting_reading.Source(*paths, cache) for cache in (2**20, 0))
    cached, without = (setting_reading.count_reads(source, 8) for source in sources)
    assert without["inflated_bytes_per_sample"] == 40 * SAMPLE_BYTES
    assert cached["inflated_bytes_per_sample"] == 40 * SAMPLE_BYTES / 8  # once for 8 reads
    assert cached["counted_reads"] == 8


def test_a_data_set_that_is_missing_or_damaged_is_one_line(data, tmp_path):
    with pytest.raises(ValueError, match=rf"^{FORMAT_NAME}\.digest: cannot be read[^\n]*$"):
        by_format(data / "nowhere", "npy")
    make(tmp_path)
    npz, chunked = f"{FORMAT_NAME}/npz.npz", f"{SETTING_NAME}/1-gzip.h5"
    for run, level, file in ((by_format, "npz", npz), (by_setting, 1, chunked)):
        content = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match=f"{re.escape(file)}: damaged"):
            run(tmp_path, level)


@pytest.mark.parametrize("name", ["npy", "memory"])
def test_arrays_or_samples_that_are_read_wrongly_are_found(name, tmp_path, monkeypatch):
    digest = generated(formats.datasets(FORMATS), tmp_path) / f"{FORMAT_NAME}.digest"
    kind = format_reading.Whole if name == "memory" else format_reading.PerSample
    read = kind.__getitem__
    with monkeypatch.context() as patched:
        patched.setattr(kind, "__getitem__", lambda self, index: read(self, (index + 1) % len(self)))
        with pytest.raises(ValueError, match=rf"{name}: sample \d+ of source is not the one generated"):
            by_format(tmp_path, name)
    digest.write_text(digest.read_text().replace('"arrays": "', '"arrays": "0'))
    with pytest.raises(ValueError, match=f"{name}: the arrays read are not those of {FORMAT_NAME}"):
        by_format(tmp_path, name)


def test_a_loader_that_gives_other_samples_is_found(data, monkeypatch):
    def off_by_one(dataset, index):
        return np.asarray(dataset[(index + 1) % len(dataset)])

    monkeypatch.setitem(setting_reading.READERS, "h5py", off_by_one)
    with pytest.raises(ValueError, match=r"1-gzip\.h5 by h5py: the loader gives other samples of source"):
        by_setting(data, 1)
    with pytest.raises(ValueError, match="the loader gives other samples"):  # the workers are forks, and read so too
        by_setting(data, 32, workers=2)
