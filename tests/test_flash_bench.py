"""What bench/flash.py decides without a GPU: candidates, which tuned tiles a problem takes, and a bench that fails."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import flash_tune  # noqa: E402
from bench.flash_tune import Job, job_from, searches, short, tile_of, with_splits  # noqa: E402

JOB = Job("forward", 1, 4096, 64, "bf16", tile_of("128,64,4,3"))


def result(ms, **changes):
    job = dataclasses.replace(JOB, **changes)
    return {"job": dataclasses.asdict(job), "ms": ms, "splits": 1}


def test_short_forms_of_tiles_are_read_back():
    for jobs in searches(quick=False):
        for job in jobs:
            assert tile_of(short(job.tile)) == job.tile
            assert job_from(dataclasses.asdict(job)) == job


def test_candidates_hold_the_defaults():
    from perfscribe.attention.triton_configs import FLOAT32, FLOAT32_LONG, HALF, HALF_MANY

    tried = {(job.products, job.d, job.kernel, job.tile) for jobs in searches(quick=False) for job in jobs}
    named = [("bf16", width, tiles) for (width, _), tiles in HALF.items()]
    named += [("bf16", width, {"forward": tile}) for width, tile in HALF_MANY.items()]
    named += [(*key, tiles) for table in (FLOAT32, FLOAT32_LONG) for key, tiles in table.items()]
    for products, width, tiles in named:
        for kernel, tile in tiles.items():
            assert (products, 64 if width == "narrow" else 128, kernel, tile) in tried


def test_the_two_best_tiles_are_tried_with_splits_where_programs_are_few():
    results = [result(3.0), result(1.0, tile=tile_of("64,64,4,3")), result(2.0, tile=tile_of("128,64,4,2"))]
    jobs = with_splits(sorted(results, key=lambda one: one["ms"]))
    assert {short(job.tile) for job in jobs} == {"64,64,4,3", "128,64,4,2"}
    assert {job.splits for job in jobs} == set(flash_tune.SPLITS)
    assert not with_splits([result(1.0, heads=16, n=16384)])


def test_what_jobs_compile_is_compiled_once_split_and_whole_where_programs_are_few():
    few, many = dataclasses.replace(JOB, n=16384), dataclasses.replace(JOB, heads=16, n=16384)
    cases = flash_tune.cases_to_compile([[JOB, few], [many]])
    assert [(case["heads"], case["splits"]) for case in cases] == [(1, 2), (1, 1), (16, 1)]


def test_every_kind_of_products_has_a_tolerance():
    assert {job.products for jobs in searches(quick=False) for job in jobs} <= set(flash_tune.TOLERANCE)


@pytest.mark.parametrize(
    ("served", "told"),
    [
        ("import time; time.sleep(60)", "it hangs"),
        ("raise SystemExit(1)", "died"),
        ("print('noise'); input(); print('{\"ms\": 1}', flush=True)", None),
    ],
)
def test_a_candidate_that_hangs_or_kills_its_process_is_told_and_the_next_gets_another(monkeypatch, served, told):
    patience_s = 3.0 if told == "it hangs" else 60.0  # a busy machine takes seconds to start a process
    monkeypatch.setattr(flash_tune, "PATIENCE_S", patience_s)
    monkeypatch.setattr(flash_tune, "START_PATIENCE_S", patience_s)
    real = flash_tune.subprocess.Popen
    monkeypatch.setattr(
        flash_tune.subprocess, "Popen", lambda command, **kw: real([sys.executable, "-c", served], **kw)
    )
    bench = flash_tune.Bench()
    try:
        for _ in range(2):
            answer = bench.run(JOB)
            assert told in answer["failed"] if told else answer["ms"] == 1
            if not told:
                break
    finally:
        bench.stop()
