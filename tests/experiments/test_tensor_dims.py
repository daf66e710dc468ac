"""The Polaris homework on larger tensors: tables from records made by hand, and cells that really run."""

from __future__ import annotations

from dataclasses import replace

from homework_cells import trained
from workspace import ROOT

from perfscribe import config
from perfscribe.experiments.tensor_dims import measure, show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.run import child

GB = 10**9
PARAMETERS = {512: 44_140_544, 1024: 126_005_248, 4096: 1_409_916_928}
MESSAGE = "RuntimeError: the feature number of src and tgt must be equal to d_model"
RAW = config.load(ROOT / "config.yaml")


def cell(width: int, dtype: str = "fp32", weights: str = "", samples: int = 2048, gb: float = 1.0, **changed) -> Record:
    factors = {"device": "cuda", "d_model": width, "features": width, "dtype": dtype, "weights": weights or dtype}
    factors |= {"samples": samples, "epochs": 3, "batch": 32, **show.HOMEWORK, **changed}
    held = {"parameters": PARAMETERS.get(width, 1), "peak_allocated_bytes": round(gb * GB)}
    return trained("tensor_dims", factors, [4.0, 2.0, 1.0], allocated_before_bytes=round(gb * GB / 2), **held)


def homework() -> list[Record]:
    """The gpu preset's cells with peaks near the predicted ones."""
    return [
        cell(512, gb=0.95, epochs=5),
        replace(cell(512, features=1024), status="failed", reason=MESSAGE, samples={}, warmup={}, values={}),
        cell(1024, gb=2.5),
        cell(1024, "bf16", gb=1.3),
        cell(1024, "bf16", "fp32", gb=2.5),
        cell(4096, gb=28.0),
        cell(4096, "bf16", gb=14.0),
        cell(4096, "bf16", "fp32", gb=28.0),
        cell(4096, "bf16", samples=10000, gb=14.0),
    ]


def row(table: str, cells: list[Record], **levels) -> dict:
    found = {made.id: made for made in show.tables({"tensor_dims": cells})}[table].frame
    for name, level in levels.items():
        found = found[found[name] == level]
    (only,) = found.to_dict("records")
    return only


def test_the_gpu_preset_is_the_homeworks_and_its_missing_controls():
    wanted = [c for c in plan.planned_cells(RAW, "tensor_dims", "gpu") if not c.skip]
    names = ("d_model", "features", "dtype", "weights", "samples")
    assert [tuple(c[name] for name in names) for c in wanted] == [
        tuple(r.factors[name] for name in names) for r in homework()
    ]
    assert all(c.factors.items() >= show.HOMEWORK.items() and c["batch"] == 32 for c in wanted)


def test_the_refused_row_prints_its_status_and_the_write_ups_word():
    found = row("polaris.tensor_dims", homework(), features=1024, d_model=512)
    assert (found["status"], found["reason"]) == ("failed", MESSAGE)
    assert found["training_s_published"] == "failed"
    as_it_is = row("polaris.tensor_dims", homework(), features=512)
    assert as_it_is["training_s_published"] == "2.37 (4 ranks)"
    assert as_it_is["memory_allocated_gib_published"] == 0.86
    assert (as_it_is["training_s"], as_it_is["first_epoch_s"], as_it_is["allocated_gib"]) == (7, 4, 0.5)


def test_write_up_000s_table_and_its_controls():
    low = row("polaris.tensor_dims_scale", homework(), d_model=1024, dtype="fp32")
    high = row("polaris.tensor_dims_scale", homework(), d_model=4096, weights="bf16", samples=10000)
    names = [f"{name}_published" for name in ("peak_memory_gb", "throughput_min_samples_per_s")]
    assert [low[name] for name in names] == [4.05, 200]
    assert [high[name] for name in names] == [15.78, 340]
    assert (low["lowest_per_s"], low["highest_per_s"], low["epochs_n"]) == (512, 2048, 3)
    assert (high["peak_gb"], high["throughput_max_samples_per_s_published"]) == (14, 370)
    control = row("polaris.tensor_dims_scale", homework(), d_model=4096, dtype="fp32")
    assert [control[name] for name in names] == ["none", "none"]
    cast = row("polaris.tensor_dims_scale", [cell(4096, "bf16", "fp32", 10000)])
    assert cast["peak_memory_gb_published"] == "none"
    other = row("polaris.tensor_dims_scale", [cell(1024, layers=1)])
    assert other["peak_memory_gb_published"] == "none"


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
