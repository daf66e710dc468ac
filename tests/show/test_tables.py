"""Tables: columns from records, CSV and JSON files, Markdown with footnotes; no cell is ever blank."""

import csv
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perfscribe.records.form import STATUSES
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.markdown_tables import to_markdown

GIB = 2**30


def record(status: str = "ok", reason: str = "why", **fields: Any) -> Record:
    """A cell of 5 samples around 12.3 ms, or one that has none."""
    fields.setdefault("factors", {"seq_len": 64, "dtype": "fp32"})
    fields.setdefault("environments", ["0123456789ab"] if status == "ok" else [])
    if status == "ok":
        fields.setdefault("samples", {"forward_ms": [[12.0, 12.1, 12.3, 12.5, 12.6]]})
        fields.setdefault("values", {"peak_bytes": 3 * GIB})
        fields.setdefault("timers", {"forward_ms": "host clock"})
    return Record("probe", fields.pop("factors"), status, reason, "measured", **fields)


def columns() -> list[t.Column]:
    return [
        t.factor("seq_len", "Length"),
        t.factor("dtype", "Dtype"),
        t.median("forward_ms", "Forward (ms)"),
        t.iqr("forward_ms", "IQR (ms)"),
        t.count("forward_ms"),
        t.value("peak_bytes", "Peak (GiB)", 1 / GIB, "peak_gib"),
        t.timer("forward_ms"),
    ]


def markdown(tmp_path: Path, table: t.Table) -> str:
    t.write(table, tmp_path)
    return to_markdown(tmp_path, table.id)


def rows(text: str) -> list[list[str]]:
    """Header and body of the Markdown table as GitHub reads it, escapes of other characters than the pipe left."""
    tokens = MarkdownIt().enable("table").parse(text)
    table = tokens[: next(at for at, token in enumerate(tokens) if token.type == "table_close")]
    found: list[list[str]] = []
    for token in table:
        if token.type == "tr_open":
            found.append([])
        elif token.type == "inline" and found:
            found[-1].append(token.content)
    return found


def test_rows_of_several_boots_say_so_and_rows_of_one_or_without_say_nothing(tmp_path: Path) -> None:
    def table(*boots: str | None) -> t.Table:
        cells = [record(factors={"seq_len": n, "dtype": "fp32"}, provenance={"boot": b}) for n, b in enumerate(boots)]
        failed = record("failed", factors={"seq_len": 99, "dtype": "fp32"}, provenance={"boot": "f" * 12})
        return t.make("probe", "Probe", [*cells, failed], columns())

    expected = "Rows ran on 2 boots or hosts, which may cause differences and ±."
    assert expected in markdown(tmp_path, table("a" * 12, "b" * 12, "a" * 12))
    assert not table("a" * 12, "a" * 12).notes and not table(None, None).notes


@pytest.mark.parametrize(
    ("largest", "shown"), [(2**20, ["Peak (MiB)", "0.500", "1.00"]), (2**30, ["Peak (GiB)", "0.000488", "1.00"])]
)
def test_a_table_whose_memory_is_small_is_in_mib(tmp_path: Path, largest: int, shown: list[str]) -> None:
    sizes = enumerate((2**19, largest))
    found = [record(factors={"seq_len": n, "dtype": "fp32"}, values={"peak_bytes": size}) for n, size in sizes]
    table = t.make("probe", "Probe", found, [columns()[0], columns()[5]])
    assert [row[1] for row in rows(markdown(tmp_path, table))] == shown
    assert list(table.frame["peak_gib"]) == [2**-11, largest / GIB]  # the CSV stays


@pytest.mark.parametrize(
    ("samples", "median"),
    [
        ([123.0, 123.4, 123.9], "123.4 ± 0.2"),
        ([80.0, 123.4, 170.0], "123 ± 22"),
        ([9.996] * 3, "10.0"),
        ([0.000012, 0.000012, 0.000012], "0.0000120"),
    ],
)
def test_a_figure_is_never_finer_than_its_spread(tmp_path: Path, samples: list[float], median: str) -> None:
    table = t.make("a.b", "Title", [record(samples={"x": [samples]})], [t.median("x", "x")])
    assert rows(markdown(tmp_path, table))[1][0] == median


def test_the_spread_of_a_rate_is_over_rounds_where_there_are_several(tmp_path: Path) -> None:
    column = t.rate("per_s", "1/s", lambda r: 100 / t.summary(r, "x").median, "x")
    one, several = ([[4.0, 5.0, 6.0]], [[4.0, 4.0], [5.0, 5.0], [10.0, 10.0]])
    for rounds, shown in ((one, "20.0 ± 2.0"), (several, "20 ± 8")):
        assert (
            rows(
                markdown(
                    tmp_path, t.make("a.b", "Title", [record(samples={"x": rounds}, rounds=len(rounds))], [column])
                )
            )[1][0]
            == shown
        )


def test_the_spread_of_a_sample_in_another_unit_is_its_own_spread_scaled(tmp_path: Path) -> None:
    column = t.scaled("step_ms", "Step (ms)", "epoch_s", lambda r: 1e3 / r.values["steps"])
    for rounds, shown in (([[4.0, 6.0]], "2500 ± 250"), ([[4.0], [5.0], [8.0]], "2500 ± 1000")):
        measured = record(samples={"epoch_s": rounds}, values={"steps": 2}, rounds=len(rounds))
        assert shown in markdown(tmp_path, t.make("a.b", "Title", [measured], [column]))


@pytest.mark.parametrize("blank", [None, "\n\t", math.nan, -math.inf, np.float32("inf")], ids=repr)
def test_a_blank_is_refused(blank: Any) -> None:
    column = t.derived("x", "X", lambda r: blank)
    with pytest.raises(ValueError, match=r"^x of .*seq_len.* is .*: a column gives a figure or says why not$"):
        t.make("a.b", "Title", [record()], [column])
    published = t.Column("x", "X", lambda r: blank, kind="published")
    with pytest.raises(ValueError, match="a figure or says why not"):
        t.make("a.b", "Title", [record("oom")], [published])


def test_a_misspelt_sample_is_named_with_those_that_there_are() -> None:
    text = r"^column forwards_ms: probe has no 'forwards_ms' among seq_len, dtype, forward_ms, peak_bytes$"
    with pytest.raises(t.Blank, match=text):
        t.make("a.b", "Title", [record()], [t.median("forwards_ms", "Forward (ms)")])


TEXT = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
LEVEL = st.one_of(TEXT, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    status = draw(st.sampled_from(STATUSES))
    fields: dict[str, Any] = {"factors": {"seq_len": draw(LEVEL), "dtype": draw(LEVEL)}}
    fields["environments"] = draw(st.lists(st.sampled_from(["a" * 12, "b" * 12]), max_size=2, unique=True))
    if status == "ok":
        sample = st.floats(0, 1e12, allow_subnormal=False)
        rounds = st.lists(st.lists(sample, min_size=1, max_size=4), min_size=1, max_size=3)
        fields["samples"] = {"forward_ms": draw(rounds)}
        fields["values"] = {"peak_bytes": draw(LEVEL)}
        fields["flags"] = draw(st.lists(TEXT, max_size=2))
    return record(status, "" if status == "ok" else draw(TEXT), **fields)


@example([record(values={"peak_bytes": "0\r1"}), record("failed", "a\u2028b\x1cc\r\n|<")])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_record(), max_size=8))
def test_any_records_give_a_whole_table(tmp_path: Path, records: list[Record]) -> None:
    text = markdown(tmp_path, t.make("a.b", "Title", records, columns()))
    got = rows(text) if records else [["none"]]
    assert all(len(row) == len(got[0]) and all(row) for row in got)
    kept = list(csv.reader((tmp_path / "a.b.csv").open(newline="", encoding="utf-8")))
    assert len(kept) == len(records) + 1 and all(cell.strip() for row in kept for cell in row)
    # Every mark in the table has its footnote, each on a line of its own.
    marks = {mark for row in got[1:] for cell in row for mark in re.findall(r" (\[\d+\])$", cell)}
    footnotes = re.findall(r"^(\[\d+\]) \S", text, flags=re.MULTILINE)
    assert marks <= set(footnotes) and len(set(footnotes)) == len(footnotes)


def test_the_spread_over_rounds_is_that_of_their_medians(tmp_path: Path) -> None:
    """Samples of one process may agree to a per mille, and the next process be ten per cent slower."""
    rounds = [[12.0, 12.01, 12.02], [13.2, 13.21, 13.22], [12.5, 12.51, 12.52]]
    measured = record(samples={"forward_ms": rounds}, rounds=3)
    table = t.make("cs336.probe", "Probe", [measured], columns())
    assert table.frame["forward_ms_spread"][0] == pytest.approx(13.21 - 12.01)
    assert "| 12.5 ± 0.6 |" in markdown(tmp_path, table)
    once = t.make("cs336.probe", "Probe", [record(samples={"forward_ms": rounds[:1]})], columns())
    assert "| 12.01 ± 0.01 |" in markdown(tmp_path, once)


def test_a_failed_cell_shows_what_it_measured_before(tmp_path: Path) -> None:
    """Forward ran, the peak was never read: the row has the one, and the status in place of the other."""
    partly = record("oom", factors={"seq_len": 128, "dtype": "fp32"}, samples={"forward_ms": [[2.0, 4.0]]})
    wholly = [record("oom", factors={"seq_len": length, "dtype": "fp32"}) for length in (256, 512, 1024)]
    got = rows(markdown(tmp_path, t.make("a.b", "T", [record(), partly, *wholly], columns())))
    assert len(got) == 4, "cells without any figure fold, the one with a figure does not"
    assert got[2] == ["128", "fp32", "3.0 ± 0.5", "2", "oom [1]", "oom [1]"]
    assert got[3][2:] == ["oom [2]"] * 4
    assert t.make("a.b", "T", [partly], columns()).ok.empty, "findings leave it out"
    early = record("unsupported", values={"before_start": True})
    computed = t.derived("double", "Double", lambda one: 2 * one.factors["seq_len"])
    assert list(t.make("a.b", "T", [record(), early], [computed]).frame["double"]) == [128, early.status]
