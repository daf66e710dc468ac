"""Tables, figures and answers of io_formats, from records made by hand and from cells that really ran."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfscribe import figures, plan, records, references, tables
from perfscribe.data.layout import FILES
from perfscribe.experiments.io_formats import measure, present
from perfscribe.markdown_tables import to_markdown
from perfscribe.records import Record

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
RAW = 84 * MIB
COMPRESSED = ("hdf5_gzip", "npz_compressed")
IDS = ["polaris.io_training", "polaris.io_gzip", "polaris.io_storage", "polaris.io_cold"]
# Of one warm read, in ms, and of the constructor, in s; cold ones take ten times as long.
READ_MS = {"memory": 1, "hdf5_gzip": 400, "hdf5": 4, "pt": 2, "npz_compressed": 8000, "npz": 3, "npy": 2.5}
CONSTRUCTOR_S = {"memory": 5, "hdf5_gzip": 0.25, "hdf5": 0.25, "pt": 3, "npz_compressed": 9, "npz": 1, "npy": 2}
LOADER_WAIT_S = {"hdf5_gzip": 30.0, "hdf5": 0.5}  # every other format: 0.1


def factors(name: str, cache: str = "warm", **others) -> dict:
    known = {key: level for key, level in present.HOMEWORK.items()}
    return {"device": "cpu", "format": name, "cache": cache, "read_samples": 3, **known, **others}


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
    return {table.id: table for table in present.tables({"io_formats": cells})}


def row(table: tables.Table, name: str, cache: str = "warm") -> dict:
    found = table.ok[(table.ok["format"] == name) & (table.ok["cache"] == cache)]
    assert len(found) == 1
    return dict(found.iloc[0])


def answer(finding: str, cells: list[Record]):
    return {found.id: found for found in present.findings(made(cells))}[finding]


def changed(name: str, cells: list[Record], cache: str = "warm", samples=None, **values) -> list[Record]:
    return [
        replace(r, samples={**r.samples, **(samples or {})}, values={**r.values, **values})
        if r.has(format=name, cache=cache)
        else r
        for r in cells
    ]


def test_it_makes_what_it_declares():
    declared = plan.read_presentation("io_formats", ROOT)
    shown = made(all_cells())
    assert list(declared.tables) == list(shown)
    assert list(declared.figures) == [figure.id for figure in present.figures(shown)]
    assert [finding.id for finding in present.findings(shown)] == IDS


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
    assert "512 of 2048 × 5, the share of one of its ranks" in " ".join(table.notes)
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
    assert answer("polaris.io_training", cells).verdict == "cannot tell"


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


def test_a_note_names_what_differs_from_the_write_up():
    def notes(cells):
        return [note for note in made(cells)["polaris.io_formats"].notes if "unlike" in note]

    assert notes(all_cells() + lost()) == []
    fewer = [replace(r, factors={**r.factors, "epochs": 1, "layers": 2}) for r in all_cells()]
    skipped = [replace(r, factors={**r.factors, "layers": 3}) for r in lost()]
    (note,) = notes([*fewer, *skipped])
    assert "Rows of cpu" in note and "layers 2 (there 6), epochs 1 (there 5)" in note and "features" not in note


def test_what_the_training_times_compare():
    found = answer("polaris.io_training", all_cells())
    assert found.verdict == "answered"
    assert "pt, npz_compressed, npz, npy are read whole in the constructor" in found.text
    assert "1.00 to 9.00 s, which is 90.9 to 98.9 %" in found.text
    assert "waits 25 ms for the loader, from memory 25 ms" in found.text
    assert "hdf5_gzip 8000 ms, 95.2 % of the epoch; hdf5 120 ms" in found.text
    assert "2.83 to 2.91 s" in found.text and "memory 3.08 s: its script has no warm-up" in found.text
    cells = changed("npy", all_cells(), samples={"copy_s": [[0.004, 0.005, 0.006]]})
    assert "of all formats, 0.00 to 5.00 ms an epoch, whatever the loader waits" in answer(found.id, cells).text


def test_waits_for_the_loader_are_no_finer_than_they_spread():
    cells = changed("npy", all_cells(), samples={"loader_wait_ms": [[20.04, 22.04, 24.04]]})
    assert "waits 22.0 to 25 ms for the loader" in answer("polaris.io_training", cells).text


def test_formats_that_read_nothing_in_the_loop_are_the_scale_for_those_that_do():
    cells = changed("pt", all_cells(), samples={"training_s": [[2.5, 2.0]]})
    found = answer("polaris.io_training", cells)
    assert (
        "Training with memory, pt, npz_compressed, npz, npy takes 3.20 to 4.50 s (epochs: n = 2 each), though nothing "
        "is read in these loops: up to 1.41 times as long as with another of them, which has other causes than the "
        "format."
    ) in found.text
    assert "hdf5 takes 1.2 times as long as memory, which within that tells nothing of the format." in found.text
    assert "s that it takes longer, " not in found.text.partition("hdf5 takes")[2]


def test_slow_compute_of_a_format_that_is_read_in_the_loop_hides_no_difference():
    cells = changed("hdf5_gzip", all_cells(), samples={"compute_s": [[9.0, 8.0]]})
    cells = changed("hdf5", cells, samples={"training_s": [[2.6, 2.4]], "loader_wait_s": [[0.15]]})
    text = answer("polaris.io_training", cells).text
    assert "takes 3.20 s (epochs: n = 2 each)" in text and "up to 1.00 times as long" in text
    assert (
        "hdf5 takes 1.6 times as long as memory. Of the 1.80 s that it takes longer, 0.250 s are waiting for the "
        "loader, by 1 epoch taken apart."
    ) in text


def test_gzip_is_slow_by_its_chunks():
    found = answer("polaris.io_gzip", all_cells())
    assert found.verdict == "contradicted"
    assert "takes 400 ms (IQR 40.0, n = 3), without 4.0 ms" in found.text
    assert ": 100 times as long" in found.text
    assert "inflated whole, 2.05 MiB for 42.0 KiB" in found.text
    assert "a factor 50.0 of the ratio is due to the chunks" in found.text and "and 2.0 to inflating" in found.text
    noisy = changed("hdf5_gzip", all_cells(), samples={"read_ms": [[40.0, 400.0, 1500.0]]})
    assert ": 100 times as long" in answer("polaris.io_gzip", noisy).text
    assert "and 2 to inflating" in answer("polaris.io_gzip", noisy).text
    assert "22.3 ms more a sample, for the 2560 reads" in found.text  # (59.90 - 2.89) s / (5 * 2048 / 4)


def test_gzip_is_slow_by_itself_where_a_chunk_is_a_sample():
    found = answer("polaris.io_gzip", changed("hdf5_gzip", all_cells(), decoded_bytes_per_sample=RAW / 2048))
    assert found.verdict == "confirmed"
    assert "a factor 1.00 of the ratio is due to the chunks" in found.text


def test_gzip_within_the_spread_of_plain_reads():
    cells = changed("hdf5_gzip", all_cells(), samples={"read_ms": [[1.0, 4.5, 10.0]]})
    assert answer("polaris.io_gzip", cells).verdict == "cannot tell"


def test_gzip_that_is_quicker():
    cells = changed("hdf5_gzip", all_cells(), samples={"read_ms": [[1.0, 1.0, 1.0]]})
    found = answer("polaris.io_gzip", cells)
    assert found.verdict == "contradicted" and found.text.endswith("0.250 times as long. It is not slow here.")


def test_gzip_where_a_side_is_missing():
    cells = [r for r in all_cells() if not r.has(format="hdf5")]
    found = answer("polaris.io_gzip", cells)
    assert found.verdict == "cannot tell" and "format hdf5 with a warm page cache" in found.text


def test_storage_agrees_with_the_published_saving():
    found = answer("polaris.io_storage", all_cells())
    assert found.verdict == "confirmed"
    assert "Of 84.0 MiB of arrays: hdf5_gzip 75.6 MiB, 10.0 % saved" in found.text
    assert "more than 25.0 %" in found.text
    # 1 - 75.5 / 83.5 and 1 - 74.5 / 84.5
    assert "between 9.58 and 11.8 % saved" in found.text


def test_storage_disagrees():
    found = answer("polaris.io_storage", changed("npz_compressed", all_cells(), size_bytes=RAW * 0.8))
    assert found.verdict == "contradicted" and "20.0 % saved" in found.text


def test_storage_of_other_arrays():
    cells = all_cells()
    for name in FILES:
        cells = changed(name, cells, raw_bytes=RAW / 2, size_bytes=RAW / 2)
    assert answer("polaris.io_storage", cells).verdict == "answered"


def test_cold_against_warm():
    cells = changed("pt", all_cells(), "cold", samples={"read_ms": [[5.0, 6.0, 7.0]]})
    found = answer("polaris.io_cold", cells)
    assert found.verdict == "answered"
    assert "3.0 (pt) to 10.0 (" in found.text
    assert "Quickest warm is pt with 2.00 ms, quickest cold pt with 6.0 ms." in found.text
    assert "its times are those of the page cache" in found.text
    assert "single cold read 25.0 %" in found.text
    assert "together take 1.07 to 9.90 times as long" in found.text  # 32.5 / 30.25 and 90.1 / 9.1


def test_the_quickest_format_is_not_told_from_those_whose_quartiles_overlap():
    cells = changed("npy", all_cells(), samples={"read_ms": [[1.9, 2.05, 2.2]]})
    found = answer("polaris.io_cold", cells)
    assert "Quickest warm is pt with 2.00 ms (npy not told from it: quartiles overlap), quickest cold" in found.text


def test_cold_where_it_cannot_be():
    why = "the kernel kept 100% of the files in its page cache"
    cells = [replace(r, status="unsupported", reason=why) if r.has(cache="cold") else r for r in all_cells()]
    found = answer("polaris.io_cold", [*cells, *lost(status="skipped", reason="preset tiny")])
    assert found.verdict == "cannot tell" and why in found.text


@pytest.mark.parametrize("cells", [[], lost(), lost(status="not_run", reason="not measured yet")])
def test_nothing_measured(cells, tmp_path):
    shown = made(cells)
    assert {finding.verdict for finding in present.findings(shown)} == {"cannot tell"}
    for table in shown.values():
        tables.write(table, tmp_path)
        assert "None" not in to_markdown(tmp_path, table.id)
    for figure in present.figures(shown):
        figures.write(figure, tmp_path, "nobody")


def test_an_accelerators_times_are_not_mixed_with_the_cpus():
    cells = all_cells()
    for name, read_ms in (("hdf5", 9.0), ("hdf5_gzip", 900.0)):
        cells = changed(name, cells, samples={"read_ms": [[read_ms]]})
    cuda = [replace(r, factors={**r.factors, "device": "cuda"}) for r in cells]
    found = answer("polaris.io_gzip", all_cells() + cuda)
    assert "takes 900 ms (IQR one sample, n = 1), without 9.00 ms" in found.text
    assert "takes 400 ms" in answer("polaris.io_gzip", all_cells() + lost()).text


def drawn(figure: figures.Figure, part: int):
    canvas = figures.plt.figure(figsize=figure.size_in)
    figure.draw(canvas)
    axes = canvas.axes[part]
    figures.plt.close(canvas)
    return axes


def test_the_figure_of_reads_labels_every_dot():
    axes = drawn(present.figures(made(all_cells()))[0], 1)
    texts = [text.get_text() for text in axes.texts]
    assert len(texts) == 13
    assert {"warm 400", "cold 4000", "warm 1.00"} <= set(texts)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(FILES)
    assert axes.get_xscale() == "log"
    assert len(axes.containers) == 13


def test_the_figure_of_parts_fills_every_bar():
    shown = made(all_cells())
    axes = drawn(present.figures(shown)[0], 0)
    assert len(axes.containers) == 4
    for place in range(13):
        bars = [container[place] for container in axes.containers]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        assert [bar.get_x() for bar in bars] == pytest.approx([0, *ends[:-1]])
        assert ends[-1] == pytest.approx(100)
    assert [text.get_text() for text in axes.texts][:2] == ["6.60 s", "31.8 s"]


def test_captions_give_n():
    (figure,) = present.figures(made(all_cells()))
    assert "Epochs a row: n = 2;" in figure.caption and "Reads a row: n = 3." in figure.caption
    one = all_cells()
    for name in FILES:
        for cache in ("warm", "cold"):
            one = changed(name, one, cache, samples={"loader_wait_s": [[0.1]]})
    assert "Epochs a row: n = 1. Below" in present.figures(made(one))[0].caption
    more = changed("npy", all_cells(), samples={"read_ms": [[1.0, 2.0, 3.0, 4.0]]})
    assert "Reads a row: n = 3 to 4." in present.figures(made(more))[0].caption


def test_the_chapter_shows_everything_and_writes_no_figure_itself():
    text = (ROOT / "report" / "templates" / "polaris.md").read_text(encoding="utf-8")
    named = {kind: re.findall(rf'{{{{ {kind}\("(.+?)"\) }}}}', text) for kind in ("table", "figure", "finding")}
    assert set(present.TABLES) <= set(named["table"])
    assert set(present.FIGURES) <= set(named["figure"])
    assert set(IDS) <= set(named["finding"])
    assert '{{ notes("polaris") }}' in text
    prose = re.sub(r"\{\{.*?\}\}|HDF5|bf16|fp32", "", text)
    assert not re.search(r"\d", prose)


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
    found = {finding.id: finding for finding in present.findings(shown)}
    assert found["polaris.io_training"].verdict == found["polaris.io_storage"].verdict == "answered"
    assert "no format was read both cold and warm" in found["polaris.io_cold"].text
    for figure in present.figures(shown):
        figures.write(figure, tmp_path, "here")
        assert (tmp_path / f"{figure.id}.png").stat().st_size > 5000
