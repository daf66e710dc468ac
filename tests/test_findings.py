"""Findings: sentences with a verdict, and what stands where tables cannot answer."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import unmeasured

from perfscribe import findings
from perfscribe.findings import CannotTell, Finding, find, from_to, need, one_setting, ratio_of, shown, spread_of


def test_a_sentence_is_an_answer() -> None:
    found = find("cs336.a", ["cs336.t"], lambda: "Twice as fast.")
    assert found == Finding("cs336.a", "Twice as fast.", "answered", ("cs336.t",))


@pytest.mark.parametrize("verdict", findings.VERDICTS)
def test_a_sentence_may_bring_its_verdict(verdict: str) -> None:
    assert find("cs336.a", [], lambda: ("As published.", verdict)).verdict == verdict


def test_a_verdict_is_one_of_four() -> None:
    with pytest.raises(ValueError, match=r"^cs336\.a: verdict 'maybe' is none of answered, confirmed, contradicted"):
        find("cs336.a", [], lambda: ("Perhaps.", "maybe"))


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_blank_sentence_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^cs336\.a: the sentence is blank$"):
        find("cs336.a", [], lambda: text)


def test_what_cannot_be_told_says_what_it_lacks() -> None:
    def compute() -> str:
        raise CannotTell("two sizes at one context are needed")

    found = find("cs336.a", ["cs336.t"], compute)
    assert found == Finding("cs336.a", "two sizes at one context are needed.", "cannot tell", ("cs336.t",))


def test_a_sentence_that_fails_costs_itself_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = find("cs336.a", [], lambda: str({}["no such\ncolumn"]))
    assert found.verdict == "cannot tell"
    assert found.text == r"The sentence could not be computed (KeyError: 'no such\ncolumn')."
    assert "Traceback" in capsys.readouterr().err  # in the job's log


def test_rows_of_one_setting_are_told_by_name() -> None:
    rows = pd.DataFrame({"dtype": ["fp32", "bf16", "bf16"], "device": ["cpu"] * 3, "x": [1, 2, 3]})
    chosen, name = one_setting(rows, ["dtype", "device", "batch"])
    assert list(chosen["x"]) == [2, 3] and name == "dtype bf16, device cpu"
    with pytest.raises(CannotTell, match=r"^cells: 0 measured, 1 needed$"):
        one_setting(rows[:0], ["dtype"])


@pytest.mark.parametrize(
    ("values", "text"),
    [([1.4], "1.40"), ([2.0, 1.0, 3.0], "1.00 to 3.00"), ([1.4001, 1.3999], "1.40"), ([2.0, float("nan")], "2.00")],
)
def test_a_range_whose_ends_print_alike_is_one_figure(values: list[float], text: str) -> None:
    assert from_to(values) == text


def test_a_figure_is_no_finer_than_its_rows_spread() -> None:
    row = pd.Series(
        {"a_ms": 8.86, "a_ms_iqr": 9.11, "b": 1603.0, "b_spread": 40.0, "c": 1.234, "d": 5.0, "d_iqr": "one"}
    )
    assert [shown(row, name) for name in ("a_ms", "b", "c", "d")] == ["9", "1600", "1.23", "5.00"]
    assert shown(row, "a_ms", 1e3) == "9000" and shown(row, "b", 1e-3) == "1.60"
    assert [spread_of(row, name) for name in ("a_ms", "c", "d")] == [9.11, None, None]


def test_ends_of_a_range_are_no_finer_than_their_own_rows_spread() -> None:
    rows = pd.DataFrame({"time_ms": [4.321, 1.234, "not timed"], "time_ms_iqr": [1.0, 0.01, "not timed"]})
    assert findings.shown_from_to(rows, "time_ms") == "1.23 to 4.3"
    assert findings.shown_from_to(rows, "time_ms", 1e3) == "1230 to 4300"
    assert findings.shown_from_to(rows.iloc[1:], "time_ms") == "1.23"


def test_a_ratio_is_no_finer_than_both_rows_spread() -> None:
    sharp, blurred = (pd.Series({"a_ms": 3.0, "a_ms_iqr": iqr}) for iqr in (0.0, 1.2))
    assert ratio_of(sharp, sharp, "a_ms") == "1.00" and ratio_of(sharp, blurred, "a_ms") == "1.0"
    assert ratio_of(blurred, pd.Series({"a_ms": 7.0, "a_ms_iqr": 7.0}), "a_ms") == "0.4"


def test_a_range_is_printed_as_asked() -> None:
    assert from_to(pd.Series([0.123, 0.126, 0.5]), "{:.0%}".format) == "12% to 50%"
    assert from_to(pd.Series([0.123, 0.124]), "{:.0%}".format) == "12%"


def test_need_counts_rows() -> None:
    rows = pd.DataFrame({"x": [1, 2]})
    assert need(rows, 2, "cells") is rows
    with pytest.raises(CannotTell, match=r"^cells: 2 measured, 3 needed$"):
        need(rows, 3, "cells")


def test_written_and_read_again(tmp_path: Path) -> None:
    told = [Finding("cs336.a", "≥ 2 × “quoted”", "contradicted", ("t", "u")), Finding("cs336.b", "Yes.")]
    findings.write(told, tmp_path / "x.findings.json")
    assert findings.load(tmp_path / "x.findings.json") == told
    findings.write([], tmp_path / "none.json")
    assert json.loads((tmp_path / "none.json").read_text()) == [] == findings.load(tmp_path / "none.json")


@pytest.mark.parametrize("experiment", unmeasured.EXPERIMENTS)
@pytest.mark.parametrize("status", ["skipped", "failed", "oom", "not_run"])
def test_every_experiment_answers_without_figures(experiment: str, status: str) -> None:
    """Nothing measured: no finding fails, and none claims anything of figures (those of what ran out of memory may)."""
    told = unmeasured.present(experiment).findings(unmeasured.tables(experiment, status))
    assert told and len({finding.id for finding in told}) == len(told)
    if status != "oom":
        measured = [finding for finding in told if not set(finding.tables) <= unmeasured.COUNTED]
        assert {finding.verdict for finding in measured} == {"cannot tell"}
    for finding in told:
        assert "could not be computed" not in finding.text
        assert finding.tables and set(finding.tables) <= set(unmeasured.tables(experiment, status))
