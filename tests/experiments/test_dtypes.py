"""The Polaris homework's data types: cells that really run."""

from __future__ import annotations

from workspace import ROOT

from perfscribe import config
from perfscribe.experiments.dtypes import measure
from perfscribe.plan import plan
from perfscribe.run import child

RAW = config.load(ROOT / "config.yaml")


def test_cells_that_really_run():
    for planned in plan.planned_cells(RAW, "dtypes", "tiny"):
        if planned["device"] == "cpu" and planned["d_model"] == 16 and planned["dtype"] != "bf16":
            request = {"seed": 0, "cell": {**vars(planned), "factors": dict(planned.factors)}, "data_folder": ""}
            found = child.run_cell(measure, request)
            assert (found["status"], len(found["measurement"]["samples"]["epoch_s"])) == ("ok", 1)
            assert found["measurement"]["values"]["loss_relative_error"] < 0.01
