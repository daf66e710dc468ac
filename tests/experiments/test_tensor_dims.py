"""The Polaris homework on larger tensors: cells that really run."""

from __future__ import annotations

from workspace import ROOT

from perfscribe import config
from perfscribe.experiments.tensor_dims import measure
from perfscribe.plan import plan
from perfscribe.run import child

MESSAGE = "RuntimeError: the feature number of src and tgt must be equal to d_model"
RAW = config.load(ROOT / "config.yaml")


def test_cells_that_really_run():
    found = {}
    for planned in plan.planned_cells(RAW, "tensor_dims", "tiny"):
        if planned["device"] == "cpu" and planned["d_model"] in (8, 32) and not planned.skip:
            key = tuple(planned[name] for name in ("features", "d_model", "dtype", "weights", "samples"))
            request = {"seed": 0, "cell": {**vars(planned), "factors": dict(planned.factors)}, "data_folder": ""}
            found[key] = child.run_cell(measure, request)
    assert {key: answer["status"] for key, answer in found.items()} == {
        (8, 8, "fp32", "fp32", 16): "ok",
        (16, 8, "fp32", "fp32", 16): "failed",
        (32, 32, "fp32", "fp32", 16): "ok",
        (32, 32, "bf16", "bf16", 16): "ok",
        (32, 32, "bf16", "fp32", 16): "ok",
        (32, 32, "bf16", "bf16", 32): "ok",
    }
    assert found[(16, 8, "fp32", "fp32", 16)]["reason"] == MESSAGE
