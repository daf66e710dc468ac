"""What a subject's records become: the plan, the page of subjects, the hand-in, a comparison of two."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscribe.experiments.optimizer_state_sharding import measure as m
from perfscribe.experiments.optimizer_state_sharding import show as sharding
from perfscribe.experiments.subjects import show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.report import cs336_devices, first_page
from perfscribe.report.cs336_kernels import FlashBenchmarking, FlashForward
from perfscribe.report.handin import lacking
from perfscribe.report.site import Site
from perfscribe.show import tables

ROOT = Path(__file__).resolve().parents[2]
FLASH = "flash_benchmarking"
WRONG = "WrongResult: dK off by 0.05 at causal, d 16, 64 tokens; allowed 0.01; worst element 2 in place of 1"


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
    return _record(subject, seq_len, 1.0, status="failed", reason=WRONG, samples={})


def _site(folder: Path, records: list[Record]) -> Site:
    for table in show.tables({FLASH: records}):
        tables.write(table, folder)
    return Site("local", folder, "cpu")


def test_correct_subjects_come_first_the_fastest_at_their_head(tmp_path: Path) -> None:
    records = [_record("slow", 64, 4.0), _record("fast", 64, 0.5), _record("odd", 64, 0.1), _failed("odd", 128)]
    rows = _site(tmp_path, records).table("cs336.subjects")
    assert [(row["subject"], row["correct"], row["cells"]) for row in rows] == [
        ("fast", "yes", "1 of 1"),
        ("slow", "yes", "1 of 1"),
        ("odd", "no", "1 of 2"),
    ]
    assert rows[1]["over_ours"] == "4.0"
    assert rows[2]["said"] == WRONG.removeprefix("WrongResult: ")
    late = _failed("late", 64)
    late.reason = "RankError: rank 0 of 2: ArithmeticError: late: parameters differ from a single process's"
    assert _site(tmp_path, [late]).table("cs336.subjects")[0]["correct"] == "no"


def test_the_hand_in_has_the_subjects_rows_and_says_where_it_is_wrong_or_not_written(tmp_path: Path) -> None:
    site = _site(tmp_path, [_record("yours", 64, 4.0), _failed("yours", 128)])
    ours = {"status": "ok", "reason": "none", "device": "cpu", "implementation": "tiled", "head_dim": "16"}
    site._read["cs336.flash_cells"] = [
        *({**ours, "dtype": "fp32", "batch": "1", "seq_len": n, "both_ms_n": "5"} for n in ("64", "128")),
        *site.table("cs336.subject_flash"),
    ]
    page = FlashBenchmarking(site).markdown({})
    assert "flash yours in PyTorch." in page
    assert "| 64 | 16 | fp32 | - | 4.40 | - | 4.40 | - | 4.40 |" in page
    assert "| 128 | 16 | fp32 | - | failed | - | failed | - | failed |" in page
    problem = FlashForward(site)
    assert problem.status() == "check failed"
    assert "Failed: 1 of 2 cells, the first: dK off by 0.05 at causal" in problem.markdown({})
    assert "checked too" not in problem.markdown({})  # no cell tells an error that passed
    reason = "raises NotImplementedError"
    site = _site(tmp_path, [_record("yours", 64, 1.0, status="unsupported", reason=reason, samples={})])
    ours |= {"dtype": "fp32", "largest_relative_error": "1e-7"}
    site._read["cs336.flash_cells"] = [ours, *site.table("cs336.subject_flash")]
    assert "Yours raises NotImplementedError: these rows are ours." in FlashForward(site).markdown({})


def test_a_check_that_did_not_end_is_told(tmp_path: Path) -> None:
    late = _record("yours", 128, 1.0, status="timeout", reason="longer than 8 s", samples={})
    problems = []
    for records in ([late], [late, _record("yours", 64, 4.0, values={"largest_relative_error": 1e-7})]):
        site = _site(tmp_path, records)
        site._read["cs336.flash_cells"] = site.table("cs336.subject_flash")
        problems.append(FlashForward(site))
    assert "Longer than 8 s: " in lacking(problems[:1])
    assert "Not checked, as they did not end: 1 of 2 cells." in problems[1].markdown({})
    check = {"status": "timeout", "reason": "longer than 15 s", "implementation": "overlap_individual (yours)"}
    site._read["cs336.ddp_check"] = [{**check, "device": "cpu", "size": "nano", "dtype": "fp32", "world_size": "2"}]
    problem = cs336_devices.DdpOverlapIndividualParameters(site)
    assert problem.status() == "check failed"
    assert problem.answered[0].text() == "Your code fails its check: longer than 15 s."


def test_first_page_and_answers_are_of_the_subjects_ddp(tmp_path: Path) -> None:
    site = _site(tmp_path, [_record("yours", 64, 4.0)])
    cell = {"status": "ok", "device": "cpu", "size": "nano", "dtype": "fp32", "world_size": "2", "backend": "gloo"}
    cell |= {"batch": "4", "seq_len": "16", "step_ms_n": "6", "turns": "6", "all_reduces": "3"}
    times = {("naive", "none"): 40, ("overlap_bucketed", "1"): 20, ("overlap_bucketed (yours)", "1"): 30}
    site._read["cs336.ddp_benchmark"] = [
        {**cell, "implementation": name, "bucket_mb": bucket, "step_ms": str(ms), "exposed_ms": str(ms / 10)}
        | {"step_ms_iqr": "1", "exposed_ms_spread": "0.1", "spent_ms": "3", "spent_ms_spread": "0.1"}
        for (name, bucket), ms in times.items()
    ]
    overlap = cs336_devices.NaiveDdpBenchmarking(site).findings[0].text
    assert overlap.endswith("exposes 4.00 ms of communication per step, buckets of 1 MB 3.00.")
    assert [one.value for one in first_page.headlines(site)] == ["30.0 ± 0.5 ms"]
    bucketed = cs336_devices.DdpBucketedBenchmarking(site)
    assert (
        bucketed.shown_title == "" and bucketed.answered[-1].text() == cs336_devices.DdpBucketedBenchmarking.EQUATIONS
    )
    site._read["cs336.ddp_benchmark"][-1]["exposed_ms"] = "-0.1"
    assert (
        cs336_devices.NaiveDdpBenchmarking(site)
        .findings[0]
        .text.endswith("per step, buckets of 1 MB none beyond noise.")
    )


def test_a_subjects_sharding_is_set_beside_the_unsharded_step_of_its_launch(tmp_path: Path) -> None:
    name = "optimizer_state_sharding"
    factors = {"device": "cpu", "backend": "gloo", "world_size": 2, "size": "nano", "seq_len": 16, "batch": 4}
    factors |= {"dtype": "fp32", "wrapper": "flat"}
    timed = ("step", "optimizer", "update", "exchange")

    def cell(times: dict[str, float], **more: str) -> Record:
        samples = {f"{one}_{what}_ms": [[ms] * 6] for one, ms in times.items() for what in timed}
        series = {f"{one}_{moment}_bytes": [1] * len(m.KINDS) for one in times for moment in m.MOMENTS}
        named = {"origin": "measured", "samples": samples, "series": series, "values": {"difference": 0.0}}
        return Record(name, factors | more, "ok", "", **named)  # type: ignore[arg-type]

    ours = cell({"unsharded": 70.0, "sharded": 60.0, "zero_redundancy": 50.0})
    theirs = cell({"unsharded": 20.0, "sharded": 25.0, "subject": 30.0}, subject="yours", kernel="sharded_optimizer")
    for table in (*sharding.tables({name: [ours]}), *show.tables({name: [theirs]})):
        tables.write(table, tmp_path)
    site = Site("local", tmp_path, "cpu")
    text = cs336_devices.OptimizerStateShardingAccounting(site).markdown({})
    assert "A step takes 30.0 ms sharded, 20.0 unsharded." in text
    assert [(row["cells"], row["over_ours"]) for row in site.table("cs336.subjects")] == [("1 of 1", "1.2")]
    wrong = replace(theirs, status="failed", reason=WRONG, samples={}, series={}, values={})
    for table in show.tables({name: [wrong]}):
        tables.write(table, tmp_path)
    text = cs336_devices.OptimizerStateShardingAccounting(Site("local", tmp_path, "cpu")).markdown({})
    assert f"| sharded (yours) | before optimizer step |{' failed |' * 5}" in text
    assert "| unsharded | before optimizer step | 0.00" in text


def test_a_subjects_traced_step_is_set_beside_the_naive_one_that_its_figure_draws(tmp_path: Path) -> None:
    site = _site(tmp_path, [_record("yours", 64, 4.0)])
    cell = {"status": "ok", "size": "nano", "dtype": "fp32", "world_size": "2", "backend": "gloo", "batch": "4"}
    cell |= {"seq_len": "16", "bucket_mb": "none", "all_reduces": "3", "step_ms": "30", "exposed_ms": "3"}
    yours = "overlap_individual (yours)"

    def traced(implementation: str, sent_ms: float) -> dict[str, str]:
        times = {"traced_both_ms": "0.5", "hidden_percent": "5", "traced_communication_ms": str(sent_ms)}
        return {**cell, **times, "implementation": implementation}

    site._read["cs336.ddp_benchmark"] = [{**cell, "implementation": name} for name in ("naive", "flat", yours)]
    site._read["cs336.ddp_timeline"] = [traced("naive", 18.6), traced(yours, 29.7)]
    site._read["cs336.subject_ddp_spans"] = [traced("naive", 47.7), traced(yours, 29.7)]
    problem = cs336_devices.DdpOverlapIndividualParametersBenchmarking
    text = problem(site).markdown({})
    assert "0.500 of 29.7 ms of communication run during computation, in naive DDP 0.500 of 47.7." in text
    assert "3.00 ms of communication are exposed. " in text  # naive DDP is of another launch
    site._read["cs336.ddp_benchmark"][-1]["implementation"] = "overlap_individual"
    assert "3.00 ms of communication are exposed, 100 % of naive" in problem(site).markdown({})
    site._read["cs336.ddp_benchmark"][0]["exposed_ms_spread"] = "7"  # twice what is printed
    assert "3.00 ms of communication are exposed. [" in problem(site).markdown({})
