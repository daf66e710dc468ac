"""Tables and figure of io_formats, from records made by hand and from cells that really ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscribe.base import registry
from perfscribe.data.layout import FILES
from perfscribe.experiments.io_formats import measure, show
from perfscribe.records import records
from perfscribe.records.records import Record
from perfscribe.show import figures, references, tables
from perfscribe.show.markdown_tables import to_markdown

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
RAW = 84 * MIB
COMPRESSED = ("hdf5_gzip", "npz_compressed")
HOMEWORK = {
    **{"samples": 2048, "source_length": 1, "target_length": 20, "features": 512, "layers": 6, "d_ff": 2048},
    **{"batch": 32, "training_samples": 512, "epochs": 5},
}
# Of one warm read, in ms, and of the constructor, in s; cold ones take ten times as long.
READ_MS = {"memory": 1, "hdf5_gzip": 400, "hdf5": 4, "pt": 2, "npz_compressed": 8000, "npz": 3, "npy": 2.5}
CONSTRUCTOR_S = {"memory": 5, "hdf5_gzip": 0.25, "hdf5": 0.25, "pt": 3, "npz_compressed": 9, "npz": 1, "npy": 2}
LOADER_WAIT_S = {"hdf5_gzip": 30.0, "hdf5": 0.5}  # every other format: 0.1


def factors(name: str, cache: str = "warm", **others) -> dict:
    return {"device": "cpu", "format": name, "cache": cache, "read_samples": 3, **HOMEWORK, **others}


def record(name: str, cache: str = "warm", **others) -> Record:
    """An ok cell whose first epoch takes a second more of compute than its second."""
    scale = 10 if cache == "cold" else 1
    wait = LOADER_WAIT_S.get(name, 0.1)
    read = scale * READ_MS[name]
    size = RAW * 0.9 if name in COMPRESSED else RAW
    decoded = {"hdf5_gzip": 50 * RAW / 2048, "npz_compressed": RAW}.get(name, RAW / 2048)
    resident = {"memory": None, "cold": 0.0}.get(name if name == "memory" else cache, 1.0)
    return Record(
        "io_formats",
        factors(name, cache),
        "ok",
        "",
        "measured",
        samples={
            "constructor_s": [[scale * CONSTRUCTOR_S[name]]],
            "training_s": [[wait + 2.0, wait + 1.0]],
            "loader_wait_s": [[wait, wait]],
            "copy_s": [[0.0, 0.0]],
            "compute_s": [[2.0, 1.0]],
            "loader_wait_ms": [[wait * 100, wait * 400]],
            "open_ms": [[1.0]],
            "read_ms": [[read * 0.9, read, read * 1.1]],
        },
        values={
            "resident_share_before": resident,
            "size_bytes": size,
            "raw_bytes": RAW,
            "decoded_bytes_per_sample": decoded,
        },
        series={
            "resident_share_before_read": [resident] if cache == "warm" else [0.0, 0.02],
            "resident_share_after_read": [0.2, 0.3] if cache == "cold" else [],
        },
        timers={"training_s": "host clock"},
        environments=["e"],
        **others,
    )


def all_cells() -> list[Record]:
    """Every cell of one device, in another order than the tables'."""
    return [record(n, cache) for n in sorted(FILES) for cache in ("cold", "warm") if (n, cache) != ("memory", "cold")]


def lost(device: str = "cuda", status: str = "unsupported", reason: str = "no CUDA device") -> list[Record]:
    """Cells without figures."""
    return [
        replace(r, factors={**r.factors, "device": device}, status=status, reason=reason, samples={}, values={})
        for r in all_cells()
    ]


def made(cells: list[Record]) -> dict[str, tables.Table]:
    return {table.id: table for table in show.tables({"io_formats": cells})}


def row(table: tables.Table, name: str, cache: str = "warm") -> dict:
    found = table.ok[(table.ok["format"] == name) & (table.ok["cache"] == cache)]
    assert len(found) == 1
    return dict(found.iloc[0])


def changed(name: str, cells: list[Record], cache: str = "warm", samples=None, **values) -> list[Record]:
    return [
        replace(r, samples={**r.samples, **(samples or {})}, values={**r.values, **values})
        if r.has(format=name, cache=cache)
        else r
        for r in cells
    ]


def test_it_makes_what_it_declares():
    declared = registry.shown("io_formats", ROOT)
    shown = made(all_cells())
    assert list(declared.tables) == list(shown)
    assert list(declared.figures) == [figure.id for figure in show.figures(shown)]


def test_rows_stand_in_the_homeworks_order_and_other_devices_below():
    shown = made(lost() + all_cells())
    assert list(shown["polaris.io_formats"].frame["format"]) == 2 * list(FILES)
    assert list(made(all_cells())["polaris.io_formats"].frame["format"]) == list(FILES)
    assert list(shown["polaris.io_parts"].frame["cache"])[:5] == ["warm", "warm", "cold", "warm", "cold"]
    assert list(shown["polaris.io_parts"].frame["device"]) == 13 * ["cuda"] + 13 * ["cpu"]
    assert all(len(table.ok) >= 3 for table in shown.values())


def test_the_homeworks_table():
    table = made(all_cells())["polaris.io_formats"]
    assert set(table.frame["cache"]) == {"warm"}
    gzip, memory = row(table, "hdf5_gzip"), row(table, "memory")
    assert gzip["training_total_s"] == 63
    assert gzip["training_s"] == 31.5
    assert gzip["training_s_iqr"] == 0.5
    assert gzip["training_s_n"] == 2
    assert gzip["against_memory"] == pytest.approx(63 / 3.2)
    assert gzip["against_memory_spread"] == pytest.approx(63 / 3.2 * (0.5 / 31.5 + 0.5 / 1.6))
    assert gzip["training_s_polaris-homework-001"] == 59.9
    assert gzip["against_memory_published"] == 19.4  # 59.9 / 3.08, no finer than both are given
    assert (gzip["size_mib"], gzip["size_mib_published"]) == (pytest.approx(75.6), 75)
    assert gzip["saved_percent"] == pytest.approx(10)
    assert row(table, "npy")["size_mib_published"] == 84
    assert memory["against_memory"] == 1 and memory["against_memory_spread"] == 0
    assert memory["size_mib"] == memory["size_mib_published"] == memory["saved_percent"] == "no file"


def test_published_figures_stand_beside_cells_without_figures_too():
    table = made(lost())["polaris.io_formats"]
    known = references.load("io_formats")
    for found in table.frame.to_dict("records"):
        (wanted,) = references.find(known, "training_s", format=found["format"])
        assert found["training_s_polaris-homework-001"] == wanted.value
    assert table.ok.empty


def test_the_total_is_the_median_over_rounds():
    cells = changed("npy", all_cells(), samples={"training_s": [[1.0, 1.0], [5.0, 1.0], [2.0, 1.0]]})
    assert row(made(cells)["polaris.io_formats"], "npy")["training_total_s"] == 3


def test_one_sample_has_no_spread():
    cells = changed("npy", all_cells(), samples={"training_s": [[1.0]]})
    assert row(made(cells)["polaris.io_formats"], "npy")["training_s_iqr"] == "one sample"


def test_without_memory_no_row_is_compared_with_it():
    cells = [r for r in all_cells() if not r.has(format="memory")]
    assert row(made(cells)["polaris.io_formats"], "npy")["against_memory"] == "memory not measured"


def test_cold_cells_fill_the_homeworks_table_where_there_are_no_others():
    cells = [r for r in all_cells() if r.has(cache="cold")]
    assert list(made(cells)["polaris.io_formats"].frame["format"]) == list(FILES)[1:]


def test_cold_cells_are_compared_though_they_train_for_fewer_epochs():
    cells = [replace(r, factors={**r.factors, "epochs": 1}) if r.has(cache="cold") else r for r in all_cells()]
    shown = made(cells)
    assert set(shown["polaris.io_formats"].frame["cache"]) == {"warm"}
    assert list(shown["polaris.io_parts"].frame["cache"])[:5] == ["warm", "warm", "cold", "warm", "cold"]


def test_the_parts_of_the_time():
    table = made(all_cells())["polaris.io_parts"]
    gzip, cold = row(table, "hdf5_gzip"), row(table, "pt", "cold")
    assert gzip["loader_share_percent"] == pytest.approx(100 * 60 / 63)
    assert gzip["compute_s"] == 1.5
    assert gzip["loader_wait_ms"] == 7500
    assert gzip["slowest_loader_wait_ms"] == 12000
    assert (gzip["constructor_s"], cold["constructor_s"]) == (0.25, 30)
    assert cold["first_reading_s"] == pytest.approx(30.1)
    assert (gzip["resident_before_percent"], cold["resident_before_percent"]) == (100, 0)
    assert row(table, "memory")["resident_before_percent"] == "no file"
    assert row(table, "memory")["slowest_data_step_ms_alcf-training-series"] == 0.95
    assert row(table, "hdf5")["slowest_data_step_ms_alcf-training-series"] == 3
    assert row(table, "npz")["slowest_data_step_ms_alcf-training-series"] == "none"


def test_single_reads():
    table = made(all_cells())["polaris.io_reads"]
    gzip, cold = row(table, "hdf5_gzip"), row(table, "pt", "cold")
    assert gzip["read_ms"] == 400
    assert gzip["read_ms_iqr"] == pytest.approx(40)
    assert (gzip["read_ms_q1"], gzip["read_ms_q3"]) == (pytest.approx(380), pytest.approx(420))
    assert gzip["against_hdf5"] == 100
    assert gzip["sample_kib"] == 42
    assert gzip["decoded_kib"] == 2100
    assert gzip["decoded_mib_per_s"] == pytest.approx(2100 / 1024 / 0.4)
    assert (gzip["resident_before_percent"], gzip["resident_after_percent"]) == (100, "as before")
    assert (cold["resident_before_percent"], cold["resident_after_percent"]) == (2, 25)
    assert row(table, "memory")["resident_before_percent"] == "no file"


def test_a_kernel_that_does_not_tell():
    cells = changed("npy", all_cells(), resident_share_before=None)
    assert row(made(cells)["polaris.io_parts"], "npy")["resident_before_percent"] == "the kernel does not tell"


@pytest.mark.parametrize("cells", [[], lost(), lost(status="not_run", reason="not measured yet")])
def test_nothing_measured(cells, tmp_path):
    shown = made(cells)
    for table in shown.values():
        tables.write(table, tmp_path)
        assert "None" not in to_markdown(tmp_path, table.id)
    for figure in show.figures(shown):
        figures.write(figure, tmp_path, "nobody")


def drawn(figure: figures.Figure, part: int):
    canvas = figures.plt.figure(figsize=figure.size_in)
    figure.draw(canvas)
    axes = canvas.axes[part]
    figures.plt.close(canvas)
    return axes


def test_the_figure_of_reads_labels_every_dot():
    axes = drawn(show.figures(made(all_cells()))[0], 1)
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == 13
    assert {"warm 400", "cold 4000", "warm 1.00"} <= set(texts)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(FILES)
    assert axes.get_xscale() == "log"
    assert len(axes.containers) == 13


def test_the_figure_of_parts_fills_every_bar():
    shown = made(all_cells())
    axes = drawn(show.figures(shown)[0], 0)
    assert len(axes.containers) == 4
    for place in range(13):
        bars = [container[place] for container in axes.containers]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        assert [bar.get_x() for bar in bars] == pytest.approx([0, *ends[:-1]])
        assert ends[-1] == pytest.approx(100)
    assert [text.get_text() for text in axes.texts][:2] == ["6.60 s (wait 0.10)", "31.8 s (wait 30)"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Records of cells that really ran, on a few kilobytes."""
    import torch

    from perfscribe.data.generate import generate

    small = {"samples": 12, "features": 16, "target_length": 3, "batch": 4, "epochs": 2, "layers": 1, "d_ff": 16}
    formats = ["memory", "hdf5_gzip", "hdf5", "npz"]
    config = factors("", **small) | {"device": ["cpu"], "format": formats, "cache": ["warm"]}
    config |= {"training_samples": 8, "read_samples": 4, "seed": 0}
    folder, rows = tmp_path_factory.mktemp("io"), []
    for name, dataset in measure.datasets(config).items():
        generate({"dataset": name, **dataset}, folder / name)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for cell in measure.cells(config):
        found = measure.run(replace(cell, data_folder=str(folder)))
        fields = {name: getattr(found, name) for name in ("samples", "warmup", "values", "series", "timers")}
        more = {"experiment": "io_formats", "factors": dict(cell.factors), "status": "ok", "reason": ""}
        rows.append(records.make({**more, **fields, "fingerprint": "f", "environment": "e"}))
    torch.set_num_threads(before)
    return records.merge_rounds(rows)


def test_cells_that_ran(measured, tmp_path):
    shown = made(measured)
    for table in shown.values():
        assert list(table.ok["format"]) == ["memory", "hdf5_gzip", "hdf5", "npz"]
        tables.write(table, tmp_path)
        text = to_markdown(tmp_path, table.id)
        assert "not recorded" not in text and "nan" not in text
    parts = row(shown["polaris.io_parts"], "hdf5_gzip")
    total = row(shown["polaris.io_formats"], "hdf5_gzip")["training_total_s"]
    assert 0 < parts["loader_wait_s"] < total
    for figure in show.figures(shown):
        figures.write(figure, tmp_path, "here")
        assert (tmp_path / f"{figure.id}.png").stat().st_size > 5000
