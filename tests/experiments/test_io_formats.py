"""The experiment io_formats: cells that really run on a data set of a few kilobytes, tables from records by hand."""

from dataclasses import replace

import pytest
import torch
from measured_cells import generated

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.data import page_cache
from perfscribe.data.layout import FILES
from perfscribe.experiments.polaris.io_formats import levels, measure, reading

CONFIG = {
    **{"device": ["cpu"], "format": list(FILES), "cache": ["warm", "cold"], "seed": 0},
    **{"samples": 50, "source_length": 1, "target_length": 5, "features": 16},
    **{"batch": 8, "epochs": 2, "training_samples": 20, "layers": 1, "d_ff": 16, "read_samples": 12},
}
NAME = "polaris_io_50x1x5x16"
STEPS = 3  # of 8 samples, 20 in all
COUNTS = {"constructor_s": 1, "training_s": 2, "loader_wait_s": 2, "copy_s": 2, "compute_s": 2}
COUNTS |= {"loader_wait_ms": 2 * STEPS, "copy_ms": 2 * STEPS, "compute_ms": 2 * STEPS}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other are slow on cores that are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generated(levels.datasets(CONFIG), tmp_path_factory.mktemp("data"))


def cell_of(data, name, cache="warm") -> Cell:
    (found,) = [cell for cell in levels.cells(CONFIG) if (cell["format"], cell["cache"]) == (name, cache)]
    return replace(found, data_folder=str(data))


@pytest.mark.parametrize("name", ["memory", "npz_compressed", "hdf5_gzip"])
def test_warm_cells(name, data):
    result = measure.run(cell_of(data, name))
    reads = reading.COMPRESSED_NPZ_READS if name == "npz_compressed" else 12
    counts = {sample: len(values) for sample, values in result.samples.items()}
    assert counts == COUNTS | {"open_ms": 1, "read_ms": reads}
    assert result.timers == dict.fromkeys(counts, "host clock")
    assert result.values["size_bytes"] > 0.7 * result.values["raw_bytes"]
    for epoch in range(2):
        parts = sum(result.samples[name][epoch] for name in ("loader_wait_s", "copy_s", "compute_s"))
        assert 0.2 * result.samples["training_s"][epoch] < parts <= result.samples["training_s"][epoch]
    assert sum(result.samples["compute_ms"]) == pytest.approx(1e3 * sum(result.samples["compute_s"]))


@pytest.mark.parametrize("name", ["hdf5_gzip", "npy"])
def test_cold_cells(name, data):
    try:
        page_cache.drop(list(data.rglob("*.npz")))
    except Unsupported as reason:
        pytest.skip(f"the page cache here cannot be dropped: {reason}")
    result = measure.run(cell_of(data, name, "cold"))
    assert result.values["resident_share_before"] <= page_cache.COLD_SHARE
    before = result.series["resident_share_before_read"]
    assert len(result.samples["open_ms"]) == len(before) == len(result.samples["read_ms"])
    assert max(before) <= page_cache.COLD_SHARE
    assert max(result.series["resident_share_after_read"]) > 0


def test_where_the_kernel_keeps_pages_or_does_not_tell(data, monkeypatch):
    monkeypatch.setattr(page_cache, "_advise_dont_need", lambda path: None)
    page_cache.warm(data.rglob("*.npz"))
    with pytest.raises(Unsupported, match=r"the kernel kept 100% of the files in its page cache"):
        measure.run(cell_of(data, "npz", "cold"))

    def silent(paths):
        raise Unsupported("does not tell")

    monkeypatch.setattr(page_cache, "resident_share", silent)
    assert measure.run(cell_of(data, "npy")).values["resident_share_before"] is None


def test_a_data_set_that_is_missing_or_damaged_is_one_line(data, tmp_path):
    with pytest.raises(ValueError, match=rf"^{NAME}\.digest: cannot be read[^\n]*$"):
        measure.run(cell_of(data / "nowhere", "npy"))
    with (generated(levels.datasets(CONFIG), tmp_path) / NAME / "npz.npz").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ValueError, match=rf"{NAME}/npz\.npz: damaged"):
        measure.run(cell_of(tmp_path, "npz"))


@pytest.mark.parametrize("name", ["npy", "memory"])
def test_arrays_or_samples_that_are_read_wrongly_are_found(name, tmp_path, monkeypatch):
    digest = generated(levels.datasets(CONFIG), tmp_path) / f"{NAME}.digest"
    kind = reading.Whole if name == "memory" else reading.PerSample
    read = kind.__getitem__
    with monkeypatch.context() as patched:
        patched.setattr(kind, "__getitem__", lambda self, index: read(self, (index + 1) % len(self)))
        with pytest.raises(ValueError, match=rf"{name}: sample \d+ of source is not the one generated"):
            measure.run(cell_of(tmp_path, name))
    digest.write_text(digest.read_text().replace('"arrays": "', '"arrays": "0'))
    with pytest.raises(ValueError, match=f"{name}: the arrays read are not those of {NAME}"):
        measure.run(cell_of(tmp_path, name))
