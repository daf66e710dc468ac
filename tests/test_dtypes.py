"""The Polaris homework's data types: tables from records made by hand, and cells that really run."""

from __future__ import annotations

from dataclasses import replace

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
LENGTHS, WIDTHS = (20, 50, 100), (512, 2048, 4096)


def cell(width: int, length: int, dtype: str = "fp32", epochs_s: tuple = (2.0, 1.0, 1.0), **values) -> Record:
    factors = {
        "device": "cuda",
        "d_model": width,
        "target_length": length,
        "dtype": dtype,
        "samples": 256 if width == 512 else 96,
        **show.HOMEWORK,
    }
    known = {"peak_allocated_bytes": 2 * GIB, "allocated_before_bytes": GIB, **values}
    return trained("dtypes", factors, list(epochs_s), **known)


def homework() -> list[Record]:
    """At width 512 half precision takes a fifth longer, at others half as long; bf16 saves memory at length 100."""
    cells = []
    for width in WIDTHS:
        for length in LENGTHS:
            cells.append(cell(width, length))
            time_s = 1.2 if width == 512 else 0.5
            for dtype in ("fp16", "bf16"):
                peak = 1.5 * GIB if length == 100 else 2 * GIB
                loss = 28.0 * (1.01 if dtype == "bf16" else 1.0)
                half = {"peak_allocated_bytes": peak, "final_loss": loss, "skipped_steps": 2 * (dtype == "fp16")}
                cells.append(cell(width, length, dtype, (2.0, time_s, time_s), **half))
    return cells


def made(cells: list[Record]):
    return {table.id: table for table in show.tables({"dtypes": cells})}


def row(table: str, cells: list[Record], width: int, length: int, dtype: str) -> dict:
    found = made(cells)[table].frame
    found = found[(found["d_model"] == width) & (found["target_length"] == length) & (found["dtype"] == dtype)]
    (only,) = found.to_dict("records")
    return only


def test_the_gpu_preset_is_the_homeworks_grid():
    wanted = [c for c in plan.planned_cells(RAW, "dtypes", "gpu") if not c.skip]
    names = ("d_model", "target_length", "dtype", "samples")
    assert [tuple(c[name] for name in names) for c in wanted] == [
        tuple(r.factors[name] for name in names) for r in homework()
    ]
    assert all(c.factors.items() >= show.HOMEWORK.items() for c in wanted)


def test_write_up_001s_figures_stand_beside_the_homeworks_workload():
    names = ("training_s_published", "peak_memory_gib_published")
    unlike = "of 2048 samples, ranks not stated"
    for width, length, dtype, expected in (
        (512, 20, "fp32", [f"3.58 ({unlike})", 1.02]),
        (512, 20, "bf16", ["none", "none"]),
        (2048, 20, "fp32", ["failed", "none"]),
    ):
        found = row("polaris.dtypes", homework(), width, length, dtype)
        assert [found[name] for name in names] == expected
    as_many = replace(cell(512, 20), factors={**cell(512, 20).factors, "samples": 2048})
    found = row("polaris.dtypes", [as_many], 512, 20, "fp32")
    assert found["training_s_published"] == "3.58 (ranks not stated)"
    other = replace(cell(512, 20), factors={**cell(512, 20).factors, "batch": 32})
    assert row("polaris.dtypes", [other], 512, 20, "fp32")["training_s_published"] == "none"


def test_each_dtype_against_fp32_of_its_setting():
    found = row("polaris.dtypes_against_fp32", homework(), 2048, 100, "bf16")
    assert (found["time_ratio"], found["memory_ratio"], found["epochs_apart"]) == (0.5, 0.75, "all quicker")
    assert found["loss_percent"] == pytest.approx(1)
    base = row("polaris.dtypes_against_fp32", homework(), 2048, 100, "fp32")
    assert (base["time_ratio"], base["epochs_apart"], base["loss_percent"]) == (1, "is fp32", 0)
    alone = row("polaris.dtypes_against_fp32", [cell(512, 20, "bf16"), cell(512, 50)], 512, 20, "bf16")
    assert {alone[name] for name in ("time_ratio", "epochs_apart", "memory_ratio")} == {"fp32 not measured"}
    mixed = [cell(512, 20), cell(512, 20, "fp16", (2.0, 0.7, 1.1))]
    assert row("polaris.dtypes_against_fp32", mixed, 512, 20, "fp16")["epochs_apart"] == "overlap"
    assert row("polaris.dtypes_against_fp32", homework(), 512, 20, "bf16")["epochs_apart"] == "all slower"
    broken = [cell(512, 20), cell(512, 20, "fp16", final_loss="not finite")]
    found = row("polaris.dtypes_against_fp32", broken, 512, 20, "fp16")
    assert (found["final_loss"], found["loss_percent"]) == ("not finite", "not finite against 28.0")
    cells = [cell(512, 20, epochs_s=(2.0, 0.9, 1.1)), cell(512, 20, "bf16", epochs_s=(2.0, 0.78, 1.19))]
    found = row("polaris.dtypes_against_fp32", cells, 512, 20, "bf16")
    assert found["time_ratio_spread"] == pytest.approx(0.985 * (0.205 / 0.985 + 0.1))


def test_cells_that_really_run():
    for planned in plan.planned_cells(RAW, "dtypes", "tiny"):
        if planned["device"] == "cpu" and planned["d_model"] == 16 and planned["dtype"] != "bf16":
            request = {"seed": 0, "cell": {**vars(planned), "factors": dict(planned.factors)}, "data_folder": ""}
            found = child.run_cell(measure, request)
            assert (found["status"], len(found["measurement"]["samples"]["epoch_s"])) == ("ok", 1)
            assert found["measurement"]["values"]["loss_relative_error"] < 0.01
