"""What bench/flash.py decides without a GPU: candidates, splits, and a bench whose process hangs or dies."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import flash_tune  # noqa: E402
from bench.flash_tune import Job, job_from, searches, short, tile_of, with_splits  # noqa: E402
from perfscribe.attention.triton_configs import FLOAT32, FLOAT32_LONG, HALF, HALF_MANY  # noqa: E402

JOB = Job("forward", 1, 4096, 64, "bf16", tile_of("128,64,4,3"))


def test_candidates_hold_the_defaults():
    jobs = [job for jobs in searches(quick=False) for job in jobs]
    assert all(tile_of(short(job.tile)) == job.tile and job_from(dataclasses.asdict(job)) == job for job in jobs)
    tried = {(job.products, job.d, job.kernel, job.tile) for job in jobs}
    named = [("bf16", width, tiles) for (width, _), tiles in HALF.items()]
    named += [("bf16", width, {"forward": tile}) for width, tile in HALF_MANY.items()]
    named += [(*key, tiles) for table in (FLOAT32, FLOAT32_LONG) for key, tiles in table.items()]
    for products, width, tiles in named:
        for kernel, tile in tiles.items():
            assert (products, 64 if width == "narrow" else 128, kernel, tile) in tried


def test_the_two_best_tiles_are_tried_with_splits_where_programs_are_few():
    def result(ms, **changes):
        return {"job": dataclasses.asdict(dataclasses.replace(JOB, **changes)), "ms": ms, "splits": 1}

    jobs = with_splits([result(1.0, tile=tile_of("64,64,4,3")), result(2.0, tile=tile_of("128,64,4,2")), result(3.0)])
    assert {short(job.tile) for job in jobs} == {"64,64,4,3", "128,64,4,2"}
    assert {job.splits for job in jobs} == set(flash_tune.SPLITS)
    assert not with_splits([result(1.0, heads=16, n=16384)])
    few, many = dataclasses.replace(JOB, n=16384), dataclasses.replace(JOB, heads=16, n=16384)
    cases = flash_tune.cases_to_compile([[JOB, few], [many]])
    assert [(case["heads"], case["splits"]) for case in cases] == [(1, 2), (1, 1), (16, 1)]


def hang(pipe):
    time.sleep(60)


def die(pipe):
    os._exit(1)


@pytest.mark.parametrize(("serve", "told"), [(hang, "it hangs"), (die, "died")])
def test_a_candidate_that_hangs_or_kills_its_process_is_told(monkeypatch, serve, told):
    monkeypatch.setattr(flash_tune, "START_PATIENCE_S", 1.0 if serve is hang else 60.0)
    bench = flash_tune.Bench(serve)
    try:
        assert told in bench.run(JOB)["failed"] and bench._process is None, "the next gets another"
    finally:
        bench.stop()
