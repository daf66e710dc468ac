"""The Polaris homework on larger tensors: tables from records made by hand, and cells that really run."""

from __future__ import annotations

from workspace import ROOT

from perfscribe import config
from perfscribe.experiments.tensor_dims import measure, show
from perfscribe.plan import plan
from perfscribe.run import child

MESSAGE = "RuntimeError: the feature number of src and tgt must be equal to d_model"
WEIGHTS = (("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"))
RAW = config.load(ROOT / "config.yaml")


def test_the_gpu_preset_is_the_homeworks_and_its_missing_controls():
    wanted = [c for c in plan.planned_cells(RAW, "tensor_dims", "gpu") if not c.skip]
    names = ("d_model", "features", "dtype", "weights", "samples")
    assert [tuple(c[name] for name in names) for c in wanted] == [
        (512, 512, "fp32", "fp32", 2048),
        (512, 1024, "fp32", "fp32", 2048),
        *((1024, 1024, dtype, weights, 2048) for dtype, weights in WEIGHTS),
        *((4096, 4096, dtype, weights, 2048) for dtype, weights in WEIGHTS),
        (4096, 4096, "bf16", "bf16", 10000),
    ]
    assert all(c.factors.items() >= show.HOMEWORK.items() and c["batch"] == 32 for c in wanted)


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
