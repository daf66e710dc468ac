"""A subject in the plan, on the page of subjects, in the hand-in, and in a comparison of two."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chapter_sites import problem
from chapter_sites import site as committed

from perfscribe.experiments.cs336.fsdp_accounting import measure as fsdp_names
from perfscribe.experiments.cs336.fsdp_accounting import show as fsdp
from perfscribe.experiments.cs336.optimizer_state_sharding import measure as m
from perfscribe.experiments.cs336.optimizer_state_sharding import show as sharding
from perfscribe.experiments.cs336.subjects import show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.report import details
from perfscribe.report.handin import lacking
from perfscribe.report.page import Problem
from perfscribe.report.rows import Site
from perfscribe.show import tables
from perfscribe.show.tables import Stored

ROOT = Path(__file__).resolve().parents[2]
FLASH = "flash_benchmarking"
WRONG = "dK off by 0.05 at causal, d 16, 64 tokens; allowed 0.01; worst element 2 in place of 1"


def test_a_subject_adds_its_cells_and_its_page_and_changes_nothing_else(subject: Callable[..., Path]) -> None:
    raw = {"only": [FLASH, "ddp"]}
    without = plan.build(raw, "tiny", ROOT)
    adapters = subject()
    beside = plan.build(raw | {"subject": str(adapters)}, "tiny", ROOT)
    assert set(without.shards) == {FLASH, "ddp"}
    assert set(beside.units) - set(without.units) == {"present-subjects"}
    for name, unit in without.units.items():
        if unit["unit"] == "measure":
            of = beside.units[name]
            ours = [cell for cell in of["cells"] if "subject" not in cell["factors"]]
            theirs = [cell for cell in of["cells"] if "subject" in cell["factors"]]
            assert {**of, "cells": ours} == unit
            assert {cell["factors"]["subject"] for cell in theirs} == {"yours"}
        elif unit["unit"] != "report":
            assert beside.units[name] == unit
    written = str(beside.units)
    assert str(adapters) not in written and adapters.parents[1].name not in written


def test_what_is_no_adapter_file_is_one_line() -> None:
    right = "tests/subjects/naive/tests/adapters.py"
    both = r"bob: .*/nowhere\.py is no file; subjects\.eve: .* is a folder; expected the course's tests/"
    for subjects, why in (
        ({"bob": "nowhere.py", "eve": "tests"}, both),
        ({"yours": right}, "yours: your own code is the key subject"),
        ({"ours": right}, "ours: ours are the implementations beside"),
        ({"bob": 3}, r"bob: .*/3 is no file; expected"),
        ({"bob": "tests/conftest.py"}, r"bob: .*/conftest\.py has none of the course's adapters"),
    ):
        with pytest.raises(ValueError, match=rf"config: subjects\.{why}"):
            plan.build({"subjects": subjects}, "tiny", ROOT)


def _record(subject: str, seq_len: int, ms: float, **more: Any) -> Record:
    factors = {"workload": "grid", "device": "cpu", "seq_len": seq_len, "head_dim": 16, "dtype": "fp32", "batch": 1}
    factors |= {"heads": 1, "causal": True, "implementation": subject, "samples": 2, "kernel": "flash_pytorch"}
    timed = {f"{who}{one}_ms": [[time, *[1.1 * time] * 4]] for who, time in (("", ms), ("ours_", 1.0))
             for one in ("forward", "backward", "both")}  # fmt: skip
    fields = {"status": "ok", "reason": "", "samples": timed} | more
    return Record(FLASH, {**factors, "subject": subject, "code": "0" * 16}, origin="measured", **fields)


def _failed(subject: str, seq_len: int) -> Record:
    return _record(subject, seq_len, 1.0, status="failed", reason=WRONG, samples={}, error={"kind": "wrong_result"})


TILED = {"device": "cpu", "implementation": "tiled", "head_dim": 16, "dtype": "fp32", "batch": 1}
RANKS = {"device": "cpu", "backend": "gloo", "world_size": 2, "size": "nano", "dtype": "fp32", "batch": 4}
RANKS |= {"seq_len": 16}


def _put(site: Site, table: str, *rows: dict[str, Any], like: str = "") -> None:
    """Rows of a table, with the columns that it, or one like it, has on a committed site; the rest is not recorded."""
    columns = committed("cpu2").table(like or table).columns
    whole = dict.fromkeys(columns, "not recorded") | {"status": "ok", "reason": "none", "flags": "none"}
    site._tables[table] = Stored(columns, [{**whole, **row} for row in rows])


def _problem(site: Site, key: str) -> Problem:
    return problem("cs336", key, site)


def _site(folder: Path, records: list[Record]) -> Site:
    for table in show.tables({FLASH: records}):
        tables.write(table, folder)
    return Site("local", folder, "cpu")


def test_correct_subjects_come_first_the_fastest_at_their_head(tmp_path: Path) -> None:
    records = [_record("slow", 64, 4.0), _record("fast", 64, 0.5), _record("odd", 64, 0.1), _failed("odd", 128)]
    rows = _site(tmp_path, records).table("cs336.subjects").rows
    assert [(row["subject"], row["correct"], row["cells"]) for row in rows] == [
        ("fast", "yes", "1 of 1"),
        ("slow", "yes", "1 of 1"),
        ("odd", "no", "1 of 2"),
    ]
    assert rows[1]["over_ours"] == 4.0
    assert rows[2]["said"] == WRONG
    late = _failed("late", 64)
    late.reason, late.error = "RankError: rank 0 of 2: died by SIGKILL", {"kind": "exception"}
    assert _site(tmp_path, [late]).table("cs336.subjects").rows[0]["correct"] == "not told"


def test_the_page_of_a_whole_course_has_every_row_and_how_far_each_ratio_goes(tmp_path: Path) -> None:
    names = [f"student{number:02}" for number in range(40)]
    passes = ("forward", "backward", "both")
    timed = {f"{who}{name}_ms": [[1.0, 1.1, 1.2]] for who in ("", "ours_") for name in passes}
    right = [_record(name, 64, 1.0, samples=timed) for name in names[:35]]
    site = _site(tmp_path, [*map(_failed, names[35:], [64] * 5), *right])
    page = details.pages({"cs336": []}, site.folder, {})["subjects"].partition("\n## Attention")[0]
    lines = [one for one in page.splitlines() if one.startswith("| flash_pytorch")]
    assert [line.split(" | ")[1] for line in lines] == names
    assert all(" ± " in line for line in lines[:35]) and "The last" not in page


def test_the_hand_in_has_the_subjects_rows_and_says_where_it_is_wrong_or_not_written(tmp_path: Path) -> None:
    site = _site(tmp_path, [_record("yours", 64, 4.0), _failed("yours", 128)])
    _put(site, "cs336.flash_cells", *({**TILED, "seq_len": n, "both_ms_n": 5} for n in (64, 128)))
    page = _problem(site, "flash_benchmarking").markdown({})
    assert "flash yours in PyTorch." in page
    assert "| 64 | 16 | fp32 | - | 4.40 | - | 4.40 | - | 4.40 |" in page
    assert "| 128 | 16 | fp32 | - | failed | - | failed | - | failed |" in page
    forward = _problem(site, "flash_forward")
    assert forward.status() == "check failed"
    assert "Failed: 1 of 2 cells, the first: dK off by 0.05 at causal" in forward.markdown({})
    assert "checked too" not in forward.markdown({})  # no cell tells an error that passed


@pytest.mark.parametrize("status", ["unsupported", "skipped", "not_run"])
def test_what_is_not_written_or_not_checked_is_told_at_its_problem_and_has_a_row(tmp_path: Path, status: str) -> None:
    reason = "not checked: einops is missing here: python -m pip install einops"
    own = _site(tmp_path, [_record("yours", 64, 1.0, status=status, reason=reason, samples={})])
    site = Site("local", committed("cpu2").folder, "cpu")  # ours are there
    site._tables |= {name: own.table(name) for name in show.SHOWN.tables}
    for key in ("flash_forward", "flash_backward", "flash_benchmarking"):
        assert f"Yours: {reason}. These rows are ours." in _problem(site, key).markdown({})
        assert _problem(site, key).status() != "check failed"
    row = site.table("cs336.subjects").rows[0]
    assert (row["subject"], row["correct"], row["cells"], row["said"]) == ("yours", "not checked", "0 of 1", reason)
    cell = {**RANKS, "status": status, "reason": reason, "subject": "yours"}
    for name, table, like, keys in (
        ("overlap_individual", "ddp", "ddp_check", ["ddp_overlap_individual_parameters"]),
        ("overlap_bucketed", "ddp", "ddp_check", ["ddp_overlap_bucketed", "ddp_bucketed_benchmarking"]),
        ("sharded", "sharding", "sharding_times", ["optimizer_state_sharding", "optimizer_state_sharding_accounting"]),
    ):
        _put(site, f"cs336.subject_{table}", {**cell, "implementation": f"{name} (yours)"}, like=f"cs336.{like}")
        for key in keys:
            assert f"Yours: {reason}. These rows are ours." in _problem(site, key).markdown({}), key


def test_a_kernel_that_ignores_is_causal_is_correct_and_its_page_says_so(tmp_path: Path) -> None:
    remark = "ignores is_causal, as the handout allows in PyTorch: its times, and ours, are not causal"
    values = {"largest_relative_error": 1e-7, "not_causal": remark}
    site = _site(tmp_path, [_record("yours", 64, 4.0, values=values)])
    _put(site, "cs336.flash_cells", {**TILED, "causal": True, "seq_len": 64, "both_ms_n": 5})
    row = site.table("cs336.subjects").rows[0]
    assert (row["correct"], row["said"]) == ("yes", remark)
    text = _problem(site, "flash_forward").markdown({})
    assert f"It {remark}." in text and "log-sum-exp, not causal, 64" in text
    text = _problem(site, "flash_benchmarking").markdown({})
    assert "one head, causal (yours not)," in text and "| 64 | 16 | fp32 | - | 4.40 |" in text


def test_a_check_that_did_not_end_is_told(tmp_path: Path) -> None:
    late = _record("yours", 128, 1.0, status="timeout", reason="longer than 8 s", samples={})
    forwards = []
    for records in ([late], [late, _record("yours", 64, 4.0, values={"largest_relative_error": 1e-7})]):
        site = _site(tmp_path, records)
        _put(site, "cs336.flash_cells")
        forwards.append(_problem(site, "flash_forward"))
    assert "Longer than 8 s: " in lacking(forwards[:1])
    assert "Not checked, as they did not end: 1 of 2 cells." in forwards[1].markdown({})
    check = {"status": "timeout", "reason": "longer than 15 s", "implementation": "overlap_individual (yours)"}
    _put(site, "cs336.ddp_check")
    _put(site, "cs336.subject_ddp", {**RANKS, **check, "subject": "yours"}, like="cs336.ddp_check")
    individual = _problem(site, "ddp_overlap_individual_parameters")
    assert individual.status() == "check failed"
    assert "Your code fails its check: longer than 15 s." in individual.markdown({})


def test_first_page_and_answers_are_of_the_subjects_ddp(tmp_path: Path) -> None:
    site = _site(tmp_path, [_record("yours", 64, 4.0)])
    cell = {**RANKS, "step_ms_n": 6, "turns": 6, "all_reduces": 3}
    cell |= {"step_ms_iqr": 1, "exposed_ms_spread": 0.1, "spent_ms": 3, "spent_ms_spread": 0.1}
    cell |= {"exposed_low_ms": 3.9, "exposed_high_ms": 4.1}
    naive = {**cell, "implementation": "naive", "bucket_mb": "none", "step_ms": 40, "exposed_ms": 4.0}
    bucketed = {**cell, "implementation": "overlap_bucketed", "bucket_mb": 1, "step_ms": 20, "exposed_ms": 2.0}
    yours = {"implementation": "overlap_bucketed (yours)", "step_ms": 30, "exposed_ms": 3.0, "exposed_high_ms": 3.1}
    _put(site, "cs336.ddp_benchmark", naive, bucketed)
    _put(site, "cs336.subject_ddp", {**bucketed, **yours, "subject": "yours"}, like="cs336.ddp_benchmark")
    problem_of_naive = _problem(site, "naive_ddp_benchmarking")
    assert "4.00 ± 0.05 ms" in problem_of_naive.finding and "3.00" in problem_of_naive.finding
    assert "| overlap_bucketed (yours) | 1 | 30.0 ± 0.5 |" in problem_of_naive.markdown({})
    assert not [picture for picture in _problem(site, "ddp_bucketed_benchmarking").pictures if picture.title]


def test_a_subjects_sharding_is_set_beside_the_unsharded_step_of_its_launch(tmp_path: Path) -> None:
    name, timed = "optimizer_state_sharding", ("step", "optimizer", "update", "exchange")

    def cell(times: dict[str, float], **more: str) -> Record:
        samples = {f"{one}_{what}_ms": [[ms] * 6] for one, ms in times.items() for what in timed}
        series = {f"{one}_{moment}_bytes": [1] * len(m.KINDS) for one in times for moment in m.MOMENTS}
        factors = {**RANKS, "wrapper": "flat", **more}
        return Record(name, factors, "ok", "", "measured", samples, series=series, values={"difference": 0.0})

    ours = cell({"unsharded": 70.0, "sharded": 60.0, "zero_redundancy": 50.0})
    theirs = cell({"unsharded": 20.0, "sharded": 25.0, "subject": 30.0}, subject="yours", kernel="sharded_optimizer")
    for table in (*sharding.tables({name: [ours]}), *show.tables({name: [theirs]})):
        tables.write(table, tmp_path)
    site = Site("local", tmp_path, "cpu")
    text = _problem(site, "optimizer_state_sharding_accounting").markdown({})
    assert "30.0" in text and "20.0" in text and "70.0" not in text
    assert [(row["cells"], row["over_ours"]) for row in site.table("cs336.subjects").rows] == [("1 of 1", 1.2)]
    wrong = replace(theirs, status="failed", reason=WRONG, samples={}, series={}, values={})
    for table in show.tables({name: [wrong]}):
        tables.write(table, tmp_path)
    text = _problem(Site("local", tmp_path, "cpu"), "optimizer_state_sharding_accounting").markdown({})
    assert f"| sharded (yours) | before optimizer step |{' failed |' * 5}" in text
    assert "| unsharded | before optimizer step | 0.00" in text


@pytest.mark.parametrize("share", [0.1, 0.98])
def test_a_subjects_fsdp_is_set_beside_unsharded_ddp_of_its_launch(tmp_path: Path, share: float) -> None:
    name, lanes = "fsdp_accounting", ("step", "compute", "communication", "both")
    traced = ("gathers_forward", "waits_forward", "gathers", "waits", *lanes)

    def cell(times: dict[str, float], **more: str) -> Record:
        samples = {f"{one}_{what}_ms": [[ms] * 6] for one, ms in times.items() for what in ("step", "tail", "wait")}
        values: dict[str, Any] = {f"{one}_{moment}_bytes": 10**6 for one in times for moment in fsdp_names.MOMENTS}
        for one, ms in times.items():
            values |= {f"{one}_error": 1e-4, f"{one}_trace_tool": "torch profiler"}
            values |= {f"{one}_traced_{what}_ms": ms for what in traced}
        values["yours.fsdp_gathered_share"] = share
        factors = {**RANKS, "turns": 6, "variants": " ".join(times), **more}
        return Record(name, factors, "ok", "", "measured", samples, values=values)

    theirs = cell({"torch_ddp": 20.0, "fsdp": 25.0, "yours.fsdp": 30.0}, subject="yours", kernel="fsdp")
    ours = cell(dict.fromkeys(fsdp_names.IMPLEMENTATIONS, 50.0))
    for table in (*fsdp.tables({name: [ours]}), *show.tables({name: [theirs]})):
        tables.write(table, tmp_path)
    site = Site("local", tmp_path, "cpu")
    text = problem("cs336-2026", "fsdp_accounting", site).markdown({})
    check = problem("cs336-2026", "fsdp", site)
    summary = site.table("cs336.subjects").rows[0]
    for row in ("FSDP (yours) | 30.0 |", "unsharded DDP | 20.0 |", "sharded optimizer | 50.0"):
        assert f"| {row}" in text
    assert (summary["cells"], summary["over_ours"], summary["correct"]) == ("1 of 1", 1.2, "yes")
    assert check.status() == "checked" and "The code is yours" in check.markdown({})
    remark = "gathered weights are not freed: a forward pass holds 98% of all of them"
    assert (summary["said"] == remark) == (f"In your code {remark}." in check.markdown({})) == (share > 0.5)
