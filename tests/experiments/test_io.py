"""io_formats: cells that really run on a few kilobytes; what is damaged or read wrongly."""

import pytest
import torch
from measured_cells import cell_with, generated

from perfscribe.base.cells import Unsupported
from perfscribe.data import page_cache
from perfscribe.data.layout import FILES
from perfscribe.experiments.polaris.io_formats import levels as formats
from perfscribe.experiments.polaris.io_formats import measure as format_cells
from perfscribe.experiments.polaris.io_formats import reading as format_reading

SAMPLE = {"source_length": 1, "target_length": 5, "features": 16, "seed": 0, "epochs": 2, "read_samples": 12}
FORMATS = SAMPLE | {"device": ["cpu"], "format": list(FILES), "cache": ["warm", "cold"], "samples": 50, "batch": 8}
FORMATS |= {"training_samples": 20, "layers": 1, "d_ff": 16}
STEPS = 3  # of 8 samples, 20 in all
FORMAT_NAME = "polaris_io_50x1x5x16"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other are slow on cores that are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generated(formats.datasets(FORMATS), tmp_path_factory.mktemp("data"))


def by_format(data, name, cache="warm"):
    return format_cells.run(cell_with(formats.cells(FORMATS), data, format=name, cache=cache))


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
    if name == "hdf5_gzip_samples":
        assert result.values["decoded_bytes_per_sample"] == 4 * 16 * (1 + 5), "one sample a chunk"
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


def test_a_data_set_that_is_missing_or_damaged_is_one_line(data, tmp_path):
    with pytest.raises(ValueError, match=rf"^{FORMAT_NAME}\.digest: cannot be read[^\n]*$"):
        by_format(data / "nowhere", "npy")
    file = generated(formats.datasets(FORMATS), tmp_path) / FORMAT_NAME / "npz.npz"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"{FORMAT_NAME}/npz\.npz: damaged"):
        by_format(tmp_path, "npz")


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
