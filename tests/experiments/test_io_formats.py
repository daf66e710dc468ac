"""The experiment io_formats: cells that really run on a data set of a few kilobytes, tables from records by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from workspace import ROOT

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.data import formats, page_cache
from perfscribe.data.generate import generate
from perfscribe.data.layout import FILES
from perfscribe.experiments.io_formats import measure, reading, show
from perfscribe.experiments.io_formats.training import Trainer
from perfscribe.records.records import Record
from perfscribe.show import figures, tables

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


def generated(folder):
    for name, dataset in measure.datasets(CONFIG).items():
        generate({"dataset": name, **dataset}, folder / name)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("data"))


def cell_of(data, name, cache="warm") -> Cell:
    (found,) = [cell for cell in measure.cells(CONFIG) if (cell["format"], cell["cache"]) == (name, cache)]
    return replace(found, data_folder=str(data))


def test_cells():
    cells = measure.cells(CONFIG)
    assert len(cells) == 13
    assert not [cell for cell in cells if cell["format"] == "memory" and cell["cache"] == "cold"]
    assert all(cell.data == (NAME,) for cell in cells)
    assert min(cells, key=lambda cell: cell.cost)["format"] == "memory"
    assert {cell["training_samples"] for cell in measure.cells(CONFIG | {"training_samples": None})} == {50}
    for key in ("samples", "source_length", "target_length", "features"):
        assert measure.datasets(CONFIG).keys() != measure.datasets(CONFIG | {key: 77}).keys()
    on_cuda = {(c["format"], c["cache"]): c for c in measure.cells(CONFIG | {"device": ["cuda"]})}
    assert on_cuda["npy", "warm"].requires == ("cuda",)
    assert on_cuda["hdf5", "cold"].requires == ("cuda", "hdf5", "posix_fadvise")


def test_planning_imports_nothing_heavy():
    code = (
        "import sys; from perfscribe.experiments.io_formats import measure;"
        f"measure.cells({CONFIG}); measure.datasets({CONFIG});"
        "print(sorted({'torch', 'numpy', 'h5py', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"


@pytest.mark.parametrize("name", FILES)
def test_warm_cells(name, data):
    result = measure.run(cell_of(data, name))
    reads = reading.COMPRESSED_NPZ_READS if name == "npz_compressed" else 12
    counts = {sample: len(values) for sample, values in result.samples.items()}
    assert counts == COUNTS | {"open_ms": 1, "read_ms": reads}
    assert all(value >= 0 and math.isfinite(value) for values in result.samples.values() for value in values)
    assert result.timers == dict.fromkeys(counts, "host clock")
    assert result.values["steps_per_epoch"] == STEPS
    assert result.values["size_bytes"] > 0.7 * result.values["raw_bytes"]
    assert result.warmup_s > 0 < result.timed_s
    for epoch in range(2):
        parts = sum(result.samples[name][epoch] for name in ("loader_wait_s", "copy_s", "compute_s"))
        assert 0.2 * result.samples["training_s"][epoch] < parts <= result.samples["training_s"][epoch]
    assert sum(result.samples["compute_ms"]) == pytest.approx(1e3 * sum(result.samples["compute_s"]))


def test_on_an_accelerator_the_parts_have_a_pass_of_their_own(data, monkeypatch):
    calls = []
    train = Trainer.train
    monkeypatch.setattr(
        Trainer,
        "train",
        lambda self, dataset, epochs, apart: calls.append((epochs, apart)) or train(self, dataset, epochs, apart),
    )
    cell = cell_of(data, "npz")
    # "cpu:0" is the CPU too, but not by the name that allows one pass for both
    result = measure.run(replace(cell, factors={**cell.factors, "device": "cpu:0"}))
    assert calls == [(2, False), (1, True)]
    assert (len(result.samples["training_s"]), len(result.samples["loader_wait_s"])) == (2, 1)


@pytest.mark.parametrize("name", ["hdf5_gzip", "npz_compressed", "npy"])
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
    path = generated(tmp_path) / NAME / "npz.npz"
    measure.run(cell_of(tmp_path, "npz"))
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{NAME}/npz\.npz: damaged"):
        measure.run(cell_of(tmp_path, "npz"))


@pytest.mark.parametrize("name", ["npy", "memory"])
def test_arrays_or_samples_that_are_read_wrongly_are_found(name, tmp_path, monkeypatch):
    digest = generated(tmp_path) / f"{NAME}.digest"
    kind = reading.Whole if name == "memory" else reading.PerSample
    read = kind.__getitem__
    with monkeypatch.context() as patched:
        patched.setattr(kind, "__getitem__", lambda self, index: read(self, (index + 1) % len(self)))
        with pytest.raises(ValueError, match=rf"{name}: sample \d+ of source is not the one generated"):
            measure.run(cell_of(tmp_path, name))
    digest.write_text(digest.read_text().replace('"arrays": "', '"arrays": "0'))
    with pytest.raises(ValueError, match=f"{name}: the arrays read are not those of {NAME}"):
        measure.run(cell_of(tmp_path, name))


# --- tables and figure ------------------------------------------------------------------------------------------------

RAW = 84 * 2**20
HOMEWORK = {
    **{"samples": 2048, "source_length": 1, "target_length": 20, "features": 512, "layers": 6, "d_ff": 2048},
    **{"batch": 32, "training_samples": 512, "epochs": 5},
}
# Of one warm read, in ms, and of the constructor, in s; cold ones take ten times as long.
READ_MS = {"memory": 1, "hdf5_gzip": 400, "hdf5": 4, "pt": 2, "npz_compressed": 8000, "npz": 3, "npy": 2.5}
CONSTRUCTOR_S = {"memory": 5, "hdf5_gzip": 0.25, "hdf5": 0.25, "pt": 3, "npz_compressed": 9, "npz": 1, "npy": 2}
LOADER_WAIT_S = {"hdf5_gzip": 30.0, "hdf5": 0.5}  # every other format: 0.1


def record(name: str, cache: str = "warm") -> Record:
    """An ok cell whose first epoch takes a second more of compute than its second."""
    cold = cache == "cold"
    wait, read = LOADER_WAIT_S.get(name, 0.1), READ_MS[name] * (10 if cold else 1)
    resident = None if name == "memory" else float(not cold)
    samples = {"training_s": [[wait + 2.0, wait + 1.0]], "compute_s": [[2.0, 1.0]], "copy_s": [[0.0, 0.0]]}
    samples |= {"loader_wait_s": [[wait, wait]], "loader_wait_ms": [[wait * 100, wait * 400]]}
    samples |= {"constructor_s": [[CONSTRUCTOR_S[name] * (10 if cold else 1)]]}
    samples |= {"open_ms": [[1.0]], "read_ms": [[read * 0.9, read, read * 1.1]]}
    values = {"resident_share_before": resident, "raw_bytes": RAW}
    values["size_bytes"] = RAW * (0.9 if name in formats.COMPRESSED else 1)
    decoded = {"hdf5_gzip": 50 * RAW / 2048, "npz_compressed": RAW}
    values["decoded_bytes_per_sample"] = decoded.get(name, RAW / 2048)
    series = {"resident_share_before_read": [0.0, 0.02] if cold else [resident]}
    series["resident_share_after_read"] = [0.2, 0.3] if cold else []
    factors = {"device": "cpu", "format": name, "cache": cache, "read_samples": 3, **HOMEWORK}
    if cold:
        factors["epochs"] = 1
    more = {"samples": samples, "values": values, "series": series, "environments": ["e"]}
    return Record("io_formats", factors, "ok", "", "measured", **more)


def all_cells() -> list[Record]:
    """Every cell of one device, in another order than the tables'."""
    return [record(n, cache) for n in sorted(FILES) for cache in ("cold", "warm") if (n, cache) != ("memory", "cold")]


def lost() -> list[Record]:
    """Cells of another device without figures."""
    bare = {"status": "unsupported", "reason": "no CUDA device", "samples": {}, "values": {}}
    return [replace(r, factors={**r.factors, "device": "cuda"}, **bare) for r in all_cells()]


def made(cells: list[Record]) -> dict[str, tables.Table]:
    return {table.id: table for table in show.tables({"io_formats": cells})}


def row(cells: list[Record], table: str, name: str, cache: str = "warm") -> dict:
    frame = made(cells)[f"polaris.io_{table}"].ok
    (found,) = frame[(frame["format"] == name) & (frame["cache"] == cache)].to_dict("records")
    return found


def test_rows_stand_in_the_homeworks_order_and_other_devices_below():
    shown = made(lost() + all_cells())
    assert list(shown["polaris.io_formats"].frame["format"]) == 2 * list(FILES)
    assert set(shown["polaris.io_formats"].frame["cache"]) == {"warm"}
    assert list(shown["polaris.io_parts"].frame["cache"])[:5] == ["warm", "warm", "cold", "warm", "cold"]
    assert list(shown["polaris.io_parts"].frame["device"]) == 13 * ["cuda"] + 13 * ["cpu"]
    cold = [r for r in all_cells() if r.has(cache="cold")]
    assert list(made(cold)["polaris.io_formats"].frame["format"]) == list(FILES)[1:]


def test_the_homeworks_table():
    gzip, memory = (row(all_cells(), "formats", name) for name in ("hdf5_gzip", "memory"))
    assert gzip["training_total_s"] == 63
    assert (gzip["training_s"], gzip["training_s_iqr"], gzip["training_s_n"]) == (31.5, 0.5, 2)
    assert gzip["against_memory"] == pytest.approx(63 / 3.2)
    assert gzip["against_memory_spread"] == pytest.approx(63 / 3.2 * (0.5 / 31.5 + 0.5 / 1.6))
    assert gzip["training_s_polaris-homework-001"] == 59.9
    assert gzip["against_memory_published"] == 19.4  # 59.9 / 3.08, no finer than both are given
    rounds = {"training_s": [[1.0, 1.0], [5.0, 1.0], [2.0, 1.0]]}
    repeated = [replace(r, samples={**r.samples, **rounds}) for r in all_cells()]
    assert row(repeated, "formats", "npy")["training_total_s"] == 3, "the median over rounds"
    assert (gzip["size_mib"], gzip["size_mib_published"]) == (pytest.approx(75.6), 75)
    assert gzip["saved_percent"] == pytest.approx(10)
    assert memory["against_memory"] == 1 and memory["against_memory_spread"] == 0
    assert memory["size_mib"] == memory["size_mib_published"] == memory["saved_percent"] == "no file"
    alone = [r for r in all_cells() if not r.has(format="memory")]
    assert row(alone, "formats", "npy")["against_memory"] == "memory not measured"


def test_the_parts_of_the_time():
    gzip, cold = row(all_cells(), "parts", "hdf5_gzip"), row(all_cells(), "parts", "pt", "cold")
    assert gzip["loader_share_percent"] == pytest.approx(100 * 60 / 63)
    assert (gzip["compute_s"], gzip["loader_wait_ms"], gzip["slowest_loader_wait_ms"]) == (1.5, 7500, 12000)
    assert (gzip["constructor_s"], cold["constructor_s"]) == (0.25, 30)
    assert cold["first_reading_s"] == pytest.approx(30.1)
    assert (gzip["resident_before_percent"], cold["resident_before_percent"]) == (100, 0)
    memory = row(all_cells(), "parts", "memory")
    assert memory["resident_before_percent"] == "no file"
    assert memory["slowest_data_step_ms_alcf-training-series"] == 0.95
    untold = [replace(r, values={**r.values, "resident_share_before": None}) for r in all_cells()]
    assert row(untold, "parts", "npy")["resident_before_percent"] == "the kernel does not tell"


def test_single_reads():
    gzip, cold = row(all_cells(), "reads", "hdf5_gzip"), row(all_cells(), "reads", "pt", "cold")
    assert (gzip["read_ms"], gzip["read_ms_iqr"]) == (400, pytest.approx(40))
    assert (gzip["against_hdf5"], gzip["sample_kib"], gzip["decoded_kib"]) == (100, 42, 2100)
    assert gzip["decoded_mib_per_s"] == pytest.approx(2100 / 1024 / 0.4)
    assert (gzip["resident_before_percent"], gzip["resident_after_percent"]) == (100, "as before")
    assert (cold["resident_before_percent"], cold["resident_after_percent"]) == (2, 25)


def test_the_figure_fills_every_bar_and_labels_every_dot():
    canvas = figures.plt.figure(figsize=(7, 8))
    show.figures(made(all_cells()))[0].draw(canvas)
    parts, reads = canvas.axes
    figures.plt.close(canvas)
    for place in range(13):
        bars = [container[place] for container in parts.containers]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        assert [bar.get_x() for bar in bars] == pytest.approx([0, *ends[:-1]]) and ends[-1] == pytest.approx(100)
    assert [text.get_text() for text in parts.texts][:2] == ["6.60 s (wait 0.10)", "31.8 s (wait 30)"]
    assert {"warm 400", "cold 4000", "warm 1.00"} <= {text.get_text() for text in reads.texts}
    assert [label.get_text() for label in reads.get_yticklabels()] == list(FILES)
    assert len(reads.texts) == len(reads.containers) == 13
