"""A reader's first minute: headlines read from tables, totals, what was unusual; the page of all committed sites."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import broken_links
from workspace import ROOT

from perfscribe import files, headlines, minute, plan, sites, tables
from perfscribe.records import Record

COMMITTED = sorted(path.parent.name for path in ROOT.glob("results/*/published.json"))


def record(n: int, dtype: str, times: list[float], **more: Any) -> Record:
    fields = {"status": "ok", "reason": "", "origin": "measured", "environments": ["a" * 12], **more}
    measured = {"samples": {"time_ms": [times]}, "values": {"top": 4.0}} if times else {}
    return Record("probe", {"n": n, "dtype": dtype}, **measured, **fields)


def wanted(root: Path, **keys: Any) -> None:
    """Declare one headline of the table demo.times."""
    item = {"title": "Time", "table": "demo.times", "column": "time_ms", **keys}
    files.write_text(root / headlines.FILE, yaml.safe_dump([item]))


def written(root: Path, *records: Record, **columns: tables.Column) -> Path:
    """The table, in a folder of its own."""
    shown = [
        tables.factor("n", "Size"),
        tables.factor("dtype", "Dtype"),
        tables.median("time_ms", "Time (ms)"),
        tables.count("time_ms"),
        tables.value("top", "Predicted (ms)"),
        *columns.values(),
    ]
    tables.write(tables.make("demo.times", "Times", records, shown), root / "tables")
    return root / "tables"


# --- which row ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "cell"),
    [
        ({}, {"Size": "1", "Dtype": "fp32"}),
        ({"largest": ["n"]}, {"Size": "16", "Dtype": "bf16"}),
        ({"where": {"dtype": "fp32"}, "largest": ["n"]}, {"Size": "9", "Dtype": "fp32"}),
        ({"where": {"dtype": ["fp8", "fp32"]}, "largest": ["n"]}, {"Size": "9", "Dtype": "fp32"}),
        ({"where": {"n": 16}}, {"Size": "16", "Dtype": "bf16"}),
    ],
)
def test_the_row_that_is_asked_for(tmp_path: Path, keys: dict[str, Any], cell: dict[str, str]) -> None:
    """Of rows that have figures alone: the largest of all ran out of memory. 16 is more than 9."""
    wanted(tmp_path, **keys)
    failed = record(64, "fp32", [], status="oom", reason="too large")
    cells = [record(1, "fp32", [1.0]), record(9, "fp32", [9.0]), record(16, "bf16", [16.0]), failed]
    [found], lacking = headlines.find(tmp_path, written(tmp_path, *cells))
    assert (found.cell, lacking) == (cell, [])
    assert found.value == float(found.cell["Size"]) and found.environments == ["a" * 12]


@pytest.mark.parametrize(
    "keys",
    [{"where": {"dtype": "fp8"}}, {"where": {"n": []}}, {"table": "demo.none"}, {"column": "none"}, {"largest": ["x"]}],
)
def test_what_a_site_lacks_is_named(tmp_path: Path, keys: dict[str, Any]) -> None:
    wanted(tmp_path, **keys)
    assert headlines.find(tmp_path, written(tmp_path, record(1, "fp32", [1.0]))) == ([], ["Time"])


def test_figure_spread_n_and_bound(tmp_path: Path) -> None:
    wanted(tmp_path, n="time_ms_n", bound=["nothing", "top"], kind="prediction")
    [found], _ = headlines.find(tmp_path, written(tmp_path, record(1, "fp32", [1.0, 2.0, 3.0, 4.0, 5.0])))
    assert (found.shown, found.spread, found.spread_is, found.n) == ("3.0 ms", 2.0, "IQR", "5") or found.shown == "3 ms"
    assert (found.bound, found.kind) == (4.0, "prediction")


def test_a_bound_of_another_workload_is_none(tmp_path: Path) -> None:
    folder = written(tmp_path, record(1, "fp32", [1.0]))
    for level, bound, kind in (("fp32", 4.0, "prediction"), ("bf16", None, headlines.NO_BOUND)):
        wanted(tmp_path, bound="top", kind="prediction", bound_where={"dtype": level})
        [found], _ = headlines.find(tmp_path, folder)
        assert (found.bound, found.kind, found.n) == (bound, kind, headlines.ONE_VALUE)


def test_a_prediction_is_not_called_a_bound(tmp_path: Path) -> None:
    shown = {"prediction": "4.00 ms (predicted)", "measured link": "4.00 ms (bound, measured link)"}
    for kind, text in shown.items():
        wanted(tmp_path, bound="top", kind=kind)
        written(tmp_path, cell := record(1, "fp32", [1.0]))
        table = minute.headline_table(opened(tmp_path, cell))
        assert "| Bound or reference |" in table and f"| {text} |" in table


def test_a_published_bound_names_its_source(tmp_path: Path) -> None:
    wanted(tmp_path, bound="printed", kind="published")
    column = tables.Column("printed", "Time, write-up 007 (ms)", lambda r: 2.5, kind="published", exact=True)
    [found], _ = headlines.find(tmp_path, written(tmp_path, record(1, "fp32", [1.0]), printed=column))
    assert (found.bound, found.kind) == (2.5, "published, write-up 007")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- {title: a, table: b}\n", r"entry 1: expected title, table and column, .*"),
        ("- {title: a, table: b, column: c, colour: d}\n", r"entry 1: expected title, table and column, .*"),
        ("- {title: a, table: b, column: c, bound: d}\n", r"entry 1: a bound has a kind, .*"),
        ("- {title: a, table: b, column: c, bound: d, kind: guess}\n", r"entry 1: a bound has a kind, .*"),
        ("title: a\n", r"got dict, expected a list"),
        (
            "- {title: a, table: b, column: c, where: [a]}\n",
            r"entry 1: where: got \[.a.\], expected columns with levels",
        ),
        (
            "- {title: a, table: b, column: c, bound: d, kind: published, bound_where: 4}\n",
            r"entry 1: bound_where: got 4, .*",
        ),
        ("- [\n", r"while parsing .*"),
    ],
)
def test_a_bad_declaration_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    files.write_text(tmp_path / headlines.FILE, text)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(headlines.FILE))}: {line}$"):
        headlines.declared(tmp_path)


def test_declared_headlines_name_tables_that_exist() -> None:
    declared = headlines.declared(ROOT)
    assert len({one.title for one in declared}) == 10
    assert len({(one.title, one.table) for one in declared}) == len(declared)
    known = {t: name for name in plan.known_experiments(ROOT) for t in plan.read_presentation(name, ROOT).tables}
    assert {one.table for one in declared} <= set(known)


def test_declared_columns_are_those_of_a_table() -> None:
    """As far as a committed site has the table."""
    seen = set()
    for one in headlines.declared(ROOT):
        for path in ROOT.glob(f"results/*/tables/{one.table}.json"):
            names = {column["name"] for column in files.read_json(path)["columns"]}
            asked = {one.column, *one.where, *one.largest, *one.bound, *one.bound_where} | ({one.n} - {""})
            assert asked <= names, f"{one.title}: {asked - names}"
            seen.add(one.title)
    assert len(seen) == 10 or not COMMITTED


def test_preflights_rate_opens_a_report_without_the_experiment_all_reduce(tmp_path: Path) -> None:
    columns = ("busbw_gb_per_s", "calls")
    cells = [
        Record(
            "preflight",
            {"backend": backend, "world_size": ranks, "size_mib": 4096},
            "ok",
            "",
            "measured",
            values={"busbw_gb_per_s": rate, "calls": 50},
        )
        for backend, ranks, rate in (("gloo", 8, 2.0), ("nccl", 2, 346.0))
    ]
    shown = [tables.factor(name, name) for name in ("backend", "world_size", "size_mib")]
    shown += [tables.value(columns[0], "busbw (GB/s)"), tables.value(columns[1], "Timed calls", exact=True)]
    tables.write(tables.make("fsdp.preflight", "Preflight", cells, shown), tmp_path / "tables")
    files.write_text(tmp_path / headlines.FILE, (ROOT / headlines.FILE).read_text(encoding="utf-8"))
    [found], lacking = headlines.find(tmp_path, tmp_path / "tables")
    assert (found.title, found.shown, found.n) == ("All-reduce, bus bandwidth", "346 GB/s", "50")
    assert found.cell["backend"] == "nccl" and found.title not in lacking


def test_of_entries_with_one_title_the_first_that_a_site_has_counts(tmp_path: Path) -> None:
    items = [
        {"title": "Time", "table": table, "column": "time_ms"} for table in ("demo.other", "demo.times", "demo.no")
    ]
    files.write_text(tmp_path / headlines.FILE, yaml.safe_dump([*items, items[0] | {"title": "Rate"}]))
    found, lacking = headlines.find(tmp_path, written(tmp_path, record(1, "fp32", [1.0])))
    assert [(one.title, one.table) for one in found] == [("Time", "demo.times")] and lacking == ["Rate"]


# --- as Markdown ------------------------------------------------------------------------------------------------


def opened(root: Path, *records: Record) -> dict[str, Any]:
    """The summary of a site of these cells."""
    files.write_json(root / "environments" / f"{'a' * 12}.json", identity("cpu a"))
    files.write_json(root / "environments" / f"{'b' * 12}.json", identity("cpu b"))
    made = {"site": "demo", "preset": "cpu", "current_fingerprints": {"probe": "1"}}
    return minute.summary(root, made, {"probe": list(records)}, root)


def identity(cpu: str) -> dict[str, Any]:
    return {"cpu_model": cpu, "cpu_cores": 2, "python": "3.11", "libraries": {"torch": "2.13.0"}, "gpu_count": 0}


def test_a_figure_of_several_environments_says_so(tmp_path: Path) -> None:
    wanted(tmp_path)
    both = record(1, "fp32", [1.0], environments=["a" * 12, "b" * 12], fingerprint="1")
    written(tmp_path, both)
    found = opened(tmp_path, both)
    text = minute.headline_table(found)
    assert "| Time, `demo.times` | 1.00 ms [1] |" in text and f"| Size 1, Dtype fp32 | {'a' * 12}, {'b' * 12} |" in text
    assert "[1] rounds of 2 environments" in text
    assert "unlike machines: cpu a, 2 cores, no GPU; cpu b, 2 cores, no GPU" in minute.unusual(found)


def test_the_words_for_spread_are_explained_where_they_stand(tmp_path: Path) -> None:
    wanted(tmp_path)
    cell = record(1, "fp32", [1.0, 2.0, 3.0], environments=["a" * 12])
    written(tmp_path, cell)
    found = opened(tmp_path, cell)
    text = minute.headline_table(found)
    assert "| IQR 1.00 |" in text
    assert text.endswith(
        "\n\nIQR: the interquartile range of the n samples. No value is shown finer than its spread allows."
    )
    found["headlines"][0]["spread_is"] = "spread"
    text = minute.headline_table(found)
    assert (
        "\n\nSpread: the interquartile range of the n times, carried through the division" in text and "IQR" not in text
    )
    found["headlines"][0] |= {"spread_is": "", "spread": None}
    assert minute.headline_table(found).endswith("|")


def test_published_references_are_said_to_be_anothers(tmp_path: Path) -> None:
    wanted(tmp_path)
    cell = record(1, "fp32", [1.0, 2.0, 3.0], environments=["a" * 12])
    written(tmp_path, cell)
    found = opened(tmp_path, cell)
    assert "Published:" not in minute.headline_table(found)
    found["headlines"][0] |= {"bound": 2.0, "kind": "published, write-up 001"}
    text = minute.headline_table(found)
    assert "2.00 ms (published, write-up 001)" in text and "by another's program on another machine" in text


def test_those_are_named_that_were_disturbed_most(tmp_path: Path) -> None:
    many = {name: [record(1, "fp32", [1.0], flags=["throttled 7 % of the time"])] * n for n, name in enumerate("abcde")}
    made = {"site": "demo", "preset": "cpu", "current_fingerprints": {}}
    [said, *_] = minute._unusual(made, many, [])
    assert said.startswith("Of 10 cells that ran: 10 throttled (e 4, d 3, c 2, 1 in 1 other experiment); see ")


def test_the_line_of_what_is_lacking(tmp_path: Path) -> None:
    wanted(tmp_path, where={"dtype": "fp8"})
    cell = record(1, "fp32", [1.0])
    written(tmp_path, cell)
    assert minute.headline_table(opened(tmp_path, cell)) == "Not measured at this site: Time."


def test_totals_and_what_was_unusual(tmp_path: Path) -> None:
    flags = [
        "throttled 7 % of the time (power cap)",
        "throttled 9 % of the time",
        "host busy (31 % of the cores with what is not counted as the cell's)",
    ]
    cells = [
        record(1, "fp32", [1.0], flags=flags, fingerprint="1"),
        record(
            2,
            "fp32",
            [1.0],
            flags=["something new"],
            fingerprint="0",
            provenance={"dirty": True, "time": "2026-01-02T"},
        ),
        record(3, "fp32", [], status="skipped", provenance={"dirty": True}),
    ]
    found = opened(tmp_path, *cells)
    assert minute.totals(found) == "3 cells planned, all of them shown: 2 ok, 1 skipped."
    assert minute.unusual(found) == (
        "Of 2 cells that ran: 1 throttled (probe 1), 1 while the host seemed busy with something else (probe 1), "
        "1 flagged for another reason (probe 1); see "
        "[What was unusual](#what-was-unusual). 1 cell was measured with uncommitted changes in the code. "
        "1 cell was measured by older code than this report's."
    )
    assert minute.software(found) == "Torch 2.13.0; Python 3.11."
    assert found["first_day"] == "2026-01-02" and json.loads(json.dumps(found)) == found
    plain = opened(tmp_path, record(1, "fp32", [1.0], fingerprint="1"))
    assert minute.unusual(plain) == "No cell was disturbed, all on one kind of machine, by this report's code."


def test_nothing_measured_has_a_summary(tmp_path: Path) -> None:
    found = opened(tmp_path)
    assert minute.totals(found) == "0 cells planned, all of them shown: none."
    assert (minute.software(found), minute.headline_table(found)) == ("", "")


# --- the page of the committed sites --------------------------------------------------------------------------------


def site(root: Path, name: str, value: float, code: str = "1", cell: str = "1") -> None:
    """A published site with one headline."""
    one = headlines.Headline(
        "Time", "demo.times", "probe", {"Size": cell}, value, "ms", None, "", "1", None, "", [], ""
    )
    found = {"site": name, "preset": "gpu", "machines": [f"1 × {name.upper()}"], "software": {"torch": ["2.11"]}}
    found |= {"first_day": "2026-01-02", "last_day": "2026-01-03", "cells": {"ok": 3, "oom": 1}, "lacking": []}
    found |= {"headlines": [one.as_json()], "unusual": [], "code": {"probe": [code]}}
    files.write_json(root / "results" / name / "summary.json", found)
    files.write_json(root / "results" / name / "published.json", {})


def test_sites_stand_side_by_side(tmp_path: Path) -> None:
    wanted(tmp_path)
    for name, value, more in (("a", 2.0, {}), ("b", 4.0, {}), ("c", 5.0, {"code": "2"}), ("d", 6.0, {"cell": "2"})):
        site(tmp_path, name, value, **more)
    files.write_json(tmp_path / "results" / "e" / "published.json", {})
    text = sites.text(tmp_path)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert rows[1] == ["[a](a/report.md)", "1 × A", "Torch 2.11", "2026-01-02 to 2026-01-03", "4", "3", "1"]
    assert "## Experiments by site\n" in text and ["`probe`", *["measured"] * 4] in rows
    assert rows[5][:2] == ["[e](e/report.md)", "not drawn by this version yet"]
    assert rows[-1] == [
        "Time",
        "2.00 ms (Size 1)",
        "4.00 ms (Size 1); 2.00 × a",
        "5.00 ms (Size 1)",  # by other code
        "6.00 ms (Size 2)",  # another cell
    ]


def test_a_figure_that_is_declared_twice_is_one_row_of_the_page(tmp_path: Path) -> None:
    items = [{"title": "Time", "table": table, "column": "time_ms"} for table in ("demo.times", "demo.other")]
    files.write_text(tmp_path / headlines.FILE, yaml.safe_dump(items))
    site(tmp_path, "a", 2.0)
    assert sites.text(tmp_path).count("| Time ") == 1


def test_the_page_is_written_where_it_changes(tmp_path: Path) -> None:
    wanted(tmp_path)
    site(tmp_path, "a", 2.0)
    sites.refresh(tmp_path)
    page = tmp_path / sites.PAGE
    before = page.stat().st_mtime_ns
    sites.refresh(tmp_path)
    assert page.read_text() == sites.text(tmp_path) and page.stat().st_mtime_ns == before
    site(tmp_path, "a", 3.0)
    sites.refresh(tmp_path)
    assert "3.00 ms" in page.read_text()


@pytest.mark.skipif(not COMMITTED, reason="no site is committed: results/*/published.json")
def test_the_page_is_as_the_sites_are() -> None:
    page = ROOT / sites.PAGE
    text = page.read_text(encoding="utf-8")
    assert text == sites.text(ROOT), "python -m perfscribe.sites > report/README.md"
    assert broken_links(page, text) == [] and all(f"]({name}/report.md)" in text for name in COMMITTED)
