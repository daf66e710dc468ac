"""The Polaris homework's data types: tables from records made by hand, and cells that really run."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from homework_cells import trained
from workspace import ROOT

from perfscribe import config
from perfscribe.experiments.dtypes import measure, show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.run import child

GIB = 2**30
RAW = config.load(ROOT / "config.yaml")


def cell(width: int, length: int, dtype: str = "fp32", epochs_s: tuple = (2.0, 1.0, 1.0), **values) -> Record:
    factors = {"device": "cuda", "d_model": width, "target_length": length, "dtype": dtype, "samples": 256}
    known = {"peak_allocated_bytes": 2 * GIB, "allocated_before_bytes": GIB, **values}
    return trained("dtypes", factors | show.HOMEWORK, list(epochs_s), **known)


def row(table: str, cells: list[Record]) -> dict:
    """Of the last cell."""
    return {made.id: made for made in show.tables({"dtypes": cells})}[table].frame.iloc[-1].to_dict()


def test_the_gpu_preset_is_the_homeworks_grid():
    wanted = [c for c in plan.planned_cells(RAW, "dtypes", "gpu") if not c.skip]
    grid = product((512, 2048, 4096), (20, 50, 100), ("fp32", "fp16", "bf16"))
    names = ("d_model", "target_length", "dtype")
    assert [tuple(c[name] for name in names) for c in wanted] == list(grid)
    assert {(c["d_model"], c["samples"]) for c in wanted} == {(512, 256), (2048, 96), (4096, 96)}
    assert all(c.factors.items() >= show.HOMEWORK.items() for c in wanted)


@pytest.mark.parametrize(
    ("width", "length", "dtype", "other", "expected"),
    [
        (512, 20, "fp32", {}, ["3.58 (of 2048 samples, 4 ranks)", 1.02]),
        (512, 20, "fp32", {"samples": 2048}, ["3.58 (4 ranks)", 1.02]),
        (512, 20, "fp32", {"batch": 32}, ["none", "none"]),
        (512, 20, "bf16", {}, ["none", "none"]),
        (2048, 20, "fp32", {}, ["failed", "none"]),
    ],
)
def test_write_up_001s_figures_stand_beside_the_homeworks_workload(width, length, dtype, other, expected):
    found = cell(width, length, dtype)
    found = row("polaris.dtypes", [replace(found, factors={**found.factors, **other})])
    assert [found[name] for name in ("training_s_published", "peak_memory_gib_published")] == expected


def against_fp32(dtype: str, epochs_s: tuple, base_s: tuple = (2.0, 1.0, 1.0), **values) -> dict:
    cells = [cell(512, 20, epochs_s=base_s), cell(512, 20, dtype, epochs_s, **values)]
    return row("polaris.dtypes_against_fp32", cells)


def test_each_dtype_against_fp32_of_its_setting():
    found = against_fp32("bf16", (2.0, 0.5, 0.5), peak_allocated_bytes=1.5 * GIB, final_loss=28 * 1.01)
    assert (found["time_ratio"], found["memory_ratio"], found["epochs_apart"]) == (0.5, 0.75, "all quicker")
    assert found["loss_percent"] == pytest.approx(1)
    base = row("polaris.dtypes_against_fp32", [cell(512, 20)])
    assert (base["time_ratio"], base["epochs_apart"], base["loss_percent"]) == (1, "is fp32", 0)
    alone = row("polaris.dtypes_against_fp32", [cell(512, 50), cell(512, 20, "bf16")])
    assert {alone[name] for name in ("time_ratio", "epochs_apart", "memory_ratio")} == {"fp32 not measured"}
    assert against_fp32("fp16", (2.0, 0.7, 1.1))["epochs_apart"] == "overlap"
    assert against_fp32("bf16", (2.0, 1.2, 1.2))["epochs_apart"] == "all slower"
    assert against_fp32("fp16", (2.0, 1, 1), final_loss="not finite")["loss_percent"] == "not finite against 28.0"
    wide = against_fp32("bf16", (2.0, 0.78, 1.19), (2.0, 0.9, 1.1))
    assert wide["time_ratio_spread"] == pytest.approx(0.985 * (0.205 / 0.985 + 0.1))


def test_cells_that_really_run():
    for planned in plan.planned_cells(RAW, "dtypes", "tiny"):
        if planned["device"] == "cpu" and planned["d_model"] == 16 and planned["dtype"] != "bf16":
            request = {"seed": 0, "cell": {**vars(planned), "factors": dict(planned.factors)}, "data_folder": ""}
            found = child.run_cell(measure, request)
            assert (found["status"], len(found["measurement"]["samples"]["epoch_s"])) == ("ok", 1)
            assert found["measurement"]["values"]["loss_relative_error"] < 0.01
