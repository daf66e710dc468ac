"""The Polaris homework's data types: tables from records made by hand, and cells that really run."""

from __future__ import annotations

from itertools import product

from workspace import ROOT

from perfscribe import config
from perfscribe.experiments.dtypes import measure, show
from perfscribe.plan import plan
from perfscribe.run import child

RAW = config.load(ROOT / "config.yaml")


def test_the_gpu_preset_is_the_homeworks_grid():
    wanted = [c for c in plan.planned_cells(RAW, "dtypes", "gpu") if not c.skip]
    grid = product((512, 2048, 4096), (20, 50, 100), ("fp32", "fp16", "bf16"))
    names = ("d_model", "target_length", "dtype")
    assert [tuple(c[name] for name in names) for c in wanted] == list(grid)
    assert {(c["d_model"], c["samples"]) for c in wanted} == {(512, 256), (2048, 96), (4096, 96)}
    assert all(c.factors.items() >= show.HOMEWORK.items() for c in wanted)


def test_cells_that_really_run():
    for planned in plan.planned_cells(RAW, "dtypes", "tiny"):
        if planned["device"] == "cpu" and planned["d_model"] == 16 and planned["dtype"] != "bf16":
            request = {"seed": 0, "cell": {**vars(planned), "factors": dict(planned.factors)}, "data_folder": ""}
            found = child.run_cell(measure, request)
            assert (found["status"], len(found["measurement"]["samples"]["epoch_s"])) == ("ok", 1)
            assert found["measurement"]["values"]["loss_relative_error"] < 0.01
