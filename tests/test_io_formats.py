"""The experiment io_formats from its config section to measurements, on a data set of a few kilobytes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.data import formats, page_cache, samples, synthetic
from perfscribe.data.generate import generate
from perfscribe.data.layout import FILES
from perfscribe.experiments.io_formats import measure
from perfscribe.experiments.io_formats.reading import COMPRESSED_NPZ_READS

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {
    "device": ["cpu"],
    "format": list(FILES),
    "samples": 50,
    "source_length": 1,
    "target_length": 5,
    "features": 16,
    "batch": 8,
    "epochs": 2,
    "training_samples": 20,
    "layers": 1,
    "d_ff": 16,
    "read_samples": 12,
    "cache": ["warm", "cold"],
    "seed": 0,
}
STEPS = 3  # of 8 samples, 20 in all
SAMPLES_WANTED = {"constructor_s": 1, "training_s": 2, "loader_wait_s": 2, "copy_s": 2, "compute_s": 2}
STEPS_WANTED = {"loader_wait_ms": 2 * STEPS, "copy_ms": 2 * STEPS, "compute_ms": 2 * STEPS}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other are slow on cores that are shared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, dataset in measure.datasets(CONFIG).items():
        generate({"dataset": name, **dataset}, folder / name)
    return folder


def cell_of(data, **levels) -> Cell:
    found = [cell for cell in measure.cells(CONFIG) if all(cell[factor] == level for factor, level in levels.items())]
    assert len(found) == 1
    return replace(found[0], data_folder=str(data))


def test_cells():
    cells = measure.cells(CONFIG)
    assert len(cells) == 13
    assert not [cell for cell in cells if cell["format"] == "memory" and cell["cache"] == "cold"]
    assert len({json.dumps(dict(cell.factors)) for cell in cells}) == 13
    wanted = set(CONFIG) - {"seed"}
    assert all(set(cell.factors) == wanted for cell in cells)
    assert all(cell.data == ("polaris_io_50x1x5x16",) for cell in cells)
    assert min(cells, key=lambda cell: cell.cost)["format"] == "memory"


def test_requirements():
    cells = {(c["device"], c["format"], c["cache"]): c for c in measure.cells(CONFIG | {"device": ["cpu", "cuda"]})}
    assert cells["cpu", "npy", "warm"].requires == ()
    assert cells["cpu", "npy", "cold"].requires == ("posix_fadvise",)
    assert cells["cpu", "hdf5_gzip", "warm"].requires == ("hdf5",)
    assert cells["cuda", "hdf5", "cold"].requires == ("cuda", "hdf5", "posix_fadvise")


def test_no_training_samples_means_all():
    assert {cell["training_samples"] for cell in measure.cells(CONFIG | {"training_samples": None})} == {50}


def test_datasets_are_named_by_their_shape():
    (plan,) = measure.datasets(CONFIG).values()
    assert plan["formats"] == [name for name in FILES if name != "memory"]
    assert plan["parameters"] == {"samples": 50, "source_length": 1, "target_length": 5, "features": 16, "seed": 0}
    assert "npy/source.npy" in plan["files"]
    for key in ("samples", "source_length", "target_length", "features"):
        assert measure.datasets(CONFIG).keys() != measure.datasets(CONFIG | {key: 77}).keys()


def test_planning_imports_nothing_heavy():
    code = (
        "import sys; from perfscribe.experiments.io_formats import measure;"
        f"measure.cells({CONFIG}); measure.datasets({CONFIG});"
        "print(sorted({'torch', 'numpy', 'h5py', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"


@pytest.mark.parametrize("name", FILES)
def test_warm_cells(name, data):
    result = measure.run(cell_of(data, format=name, cache="warm"))
    reads = COMPRESSED_NPZ_READS if name == "npz_compressed" else 12
    counts = {sample: len(values) for sample, values in result.samples.items()}
    assert counts == SAMPLES_WANTED | STEPS_WANTED | {"open_ms": 1, "read_ms": reads}
    assert all(value >= 0 and math.isfinite(value) for values in result.samples.values() for value in values)
    assert result.timers == dict.fromkeys(counts, "host clock")
    assert result.values["steps_per_epoch"] == STEPS
    assert result.values["size_bytes"] > 0.7 * result.values["raw_bytes"]
    assert result.warmup_s > 0 < result.timed_s
    json.dumps([result.samples, result.values, result.series], allow_nan=False)


def test_the_parts_make_up_the_training_time(data):
    result = measure.run(cell_of(data, format="npy", cache="warm"))
    for epoch in range(2):
        parts = sum(result.samples[name][epoch] for name in ("loader_wait_s", "copy_s", "compute_s"))
        assert 0.2 * result.samples["training_s"][epoch] < parts <= result.samples["training_s"][epoch]
    assert sum(result.samples["compute_ms"]) == pytest.approx(1e3 * sum(result.samples["compute_s"]))


def test_every_format_trains_the_same(data):
    losses = {
        name: measure.run(cell_of(data, format=name, cache="warm")).values["final_loss"] for name in ("memory", "hdf5")
    }
    assert losses["memory"] == losses["hdf5"] > 0


def test_on_an_accelerator_the_parts_have_a_pass_of_their_own(data, monkeypatch):
    from perfscribe.experiments.io_formats.training import Trainer

    calls = []
    train = Trainer.train
    monkeypatch.setattr(
        Trainer,
        "train",
        lambda self, dataset, epochs, apart: calls.append((epochs, apart)) or train(self, dataset, epochs, apart),
    )
    cell = cell_of(data, format="npz", cache="warm")
    # "cpu:0" is the CPU too, but not by the name that allows one pass for both
    result = measure.run(replace(cell, factors={**cell.factors, "device": "cpu:0"}))
    assert calls == [(2, False), (1, True)]
    assert len(result.samples["training_s"]) == 2
    assert len(result.samples["loader_wait_s"]) == 1


def cold_or_skip(data):
    try:
        page_cache.drop([path for path in data.rglob("*.npz")])
    except Unsupported as reason:
        pytest.skip(f"the page cache here cannot be dropped: {reason}")


@pytest.mark.parametrize("name", [name for name in FILES if name != "memory"])
def test_cold_cells(name, data):
    cold_or_skip(data)
    result = measure.run(cell_of(data, format=name, cache="cold"))
    reads = len(result.samples["read_ms"])
    assert result.values["resident_share_before"] <= page_cache.COLD_SHARE
    assert len(result.samples["open_ms"]) == len(result.series["resident_share_before_read"]) == reads
    assert max(result.series["resident_share_before_read"]) <= page_cache.COLD_SHARE
    assert max(result.series["resident_share_after_read"]) > 0


def test_cold_where_the_kernel_keeps_pages(data, monkeypatch):
    monkeypatch.setattr(page_cache, "_advise_dont_need", lambda path: None)
    with pytest.raises(Unsupported, match=r"the kernel kept 100% of the files in its page cache"):
        page_cache.warm(data.rglob("*.npz"))
        measure.run(cell_of(data, format="npz", cache="cold"))


def test_warm_where_the_kernel_does_not_tell(data, monkeypatch):
    def silent(paths):
        raise Unsupported("does not tell")

    monkeypatch.setattr(page_cache, "resident_share", silent)
    result = measure.run(cell_of(data, format="npy", cache="warm"))
    assert result.values["resident_share_before"] is None


def test_memory_is_never_cold(data):
    cell = cell_of(data, format="memory")
    with pytest.raises(Unsupported, match="no file that could be cold"):
        measure.run(replace(cell, factors={**cell.factors, "cache": "cold"}))


def test_a_missing_data_set_is_one_line(data):
    with pytest.raises(ValueError, match=r"^polaris_io_50x1x5x16\.digest: cannot be read") as caught:
        measure.run(cell_of(data / "nowhere", format="npy", cache="warm"))
    assert "\n" not in str(caught.value)


@pytest.fixture
def own_data(tmp_path):
    for name, dataset in measure.datasets(CONFIG).items():
        generate({"dataset": name, **dataset}, tmp_path / name)
    return tmp_path


def test_a_damaged_file_is_named(own_data):
    path = own_data / "polaris_io_50x1x5x16" / "npz.npz"
    measure.run(cell_of(own_data, format="npz", cache="warm"))
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"polaris_io_50x1x5x16/npz\.npz: damaged"):
        measure.run(cell_of(own_data, format="npz", cache="warm"))
    measure.run(cell_of(own_data, format="npy", cache="warm"))


def test_a_reader_that_reads_wrongly_is_found(own_data, monkeypatch):
    read = samples.PerSample.__getitem__
    monkeypatch.setattr(samples.PerSample, "__getitem__", lambda self, index: read(self, (index + 1) % len(self)))
    with pytest.raises(ValueError, match=r"npy: sample \d+ of source is not the one generated"):
        measure.run(cell_of(own_data, format="npy", cache="warm"))


def test_a_loader_that_reads_wrongly_is_found(own_data, monkeypatch):
    load = formats.NpyFolder.load
    monkeypatch.setattr(
        formats.NpyFolder,
        "load",
        lambda self, path: {name: np.flip(a, 0).copy() for name, a in load(self, path).items()},
    )
    with pytest.raises(ValueError, match="npy: the arrays read are not those of polaris_io_50x1x5x16"):
        measure.run(cell_of(own_data, format="npy", cache="warm"))


def test_memory_holds_the_data_set_of_the_digest(own_data, monkeypatch):
    path = own_data / "polaris_io_50x1x5x16.digest"
    digest = json.loads(path.read_text())
    digest["parameters"]["seed"] = 1
    path.write_text(json.dumps(digest))
    assert synthetic.digest(synthetic.arrays(**digest["parameters"])) != digest["arrays"]
    with pytest.raises(ValueError, match="memory: the arrays read are not those"):
        measure.run(cell_of(own_data, format="memory"))
