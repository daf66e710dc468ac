"""The Polaris homework on larger tensors: tables and answers from records made by hand, and cells that really run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from homework_cells import trained
from workspace import ROOT

from perfscribe import child, config, plan
from perfscribe import epoch_memory as predictions
from perfscribe.experiments.tensor_dims import measure, present
from perfscribe.records import Record

GB = 10**9
PARAMETERS = {512: 44_140_544, 1024: 126_005_248, 4096: 1_409_916_928}
MESSAGE = "RuntimeError: the feature number of src and tgt must be equal to d_model"
RAW = config.load(ROOT / "config.yaml")


def cell(width: int, dtype: str = "fp32", weights: str = "", samples: int = 2048, gb: float = 1.0, **changed) -> Record:
    factors = {
        "device": "cuda",
        "d_model": width,
        "features": width,
        "dtype": dtype,
        "weights": weights or dtype,
        "samples": samples,
        "epochs": 3,
        "batch": 32,
        **present.HOMEWORK,
        **changed,
    }
    held = {"parameters": PARAMETERS.get(width, 1), "peak_allocated_bytes": round(gb * GB)}
    return trained("tensor_dims", factors, [4.0, 2.0, 1.0], allocated_before_bytes=round(gb * GB / 2), **held)


def refused(status: str = "failed", reason: str = MESSAGE) -> Record:
    plain = cell(512, features=1024)
    return replace(plain, status=status, reason=reason, samples={}, warmup={}, values={})


def homework() -> list[Record]:
    """The gpu preset's cells with peaks near the predicted ones."""
    return [
        cell(512, gb=0.95, epochs=5),
        refused(),
        cell(1024, gb=2.5),
        cell(1024, "bf16", gb=1.3),
        cell(1024, "bf16", "fp32", gb=2.5),
        cell(4096, gb=28.0),
        cell(4096, "bf16", gb=14.0),
        cell(4096, "bf16", "fp32", gb=28.0),
        cell(4096, "bf16", samples=10000, gb=14.0),
    ]


def made(cells: list[Record]):
    return {table.id: table for table in present.tables({"tensor_dims": cells})}


def answer(finding: str, cells: list[Record]):
    return {found.id: found for found in present.findings(made(cells))}[f"polaris.tensor_dims_{finding}"]


def row(table: str, cells: list[Record], **levels) -> dict:
    found = made(cells)[table].frame
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
    assert all(c.factors.items() >= present.HOMEWORK.items() and c["batch"] == 32 for c in wanted)


def test_the_refused_row_prints_its_status_and_the_write_ups_word():
    found = row("polaris.tensor_dims", homework(), features=1024, d_model=512)
    assert (found["status"], found["reason"]) == ("failed", MESSAGE)
    assert found["training_s_published"] == "failed"
    as_it_is = row("polaris.tensor_dims", homework(), features=512)
    assert as_it_is["training_s_published"] == "2.37 (ranks not stated)"
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


def test_the_parts_of_a_prediction_add_up_to_it():
    in_activations = cell(64, device="cpu", samples=64)
    table = made([*homework(), in_activations])["polaris.tensor_dims_memory"]
    assert table.frame["activations_gib"].iloc[-1] > 0.5 * table.frame["predicted_gib"].iloc[-1]
    for found in table.frame.to_dict("records"):
        assert sum(found[name] for name in predictions.GROUPS) == pytest.approx(found["predicted_gib"])
        if found["d_model"] == 4096 and found["weights"] == "fp32":
            assert found["predicted_gb"] == pytest.approx(20 * PARAMETERS[4096] / GB, rel=0.01)
            assert found["temporaries_gib"] == pytest.approx(found["parameters_gib"], rel=1e-6)
            assert found["with_ddp_gib"] - found["predicted_gib"] == pytest.approx(found["parameters_gib"], rel=1e-6)


def test_predictions_need_no_measurement():
    lost = [replace(r, status="unsupported", reason="no CUDA device", samples={}, values={}) for r in homework()]
    found = row("polaris.tensor_dims_memory", lost, d_model=4096, dtype="fp32")
    assert found["predicted_gb"] > 28
    assert answer("limit", lost).verdict == "cannot tell"
    text = answer("limit", [*lost, cell(16, device="cpu")])
    assert "was not measured here; the prediction is 28.3 GB" in text.text
    assert text.verdict == "contradicted"


def test_on_a_cpu_the_samples_count():
    few, many = (predictions.items(cell(64, samples=n, device="cpu")) for n in (64, 128))
    assert many[predictions.SAMPLES] - few[predictions.SAMPLES] == 64 * 21 * 64 * 4
    assert "batch" not in few
    assert predictions.SAMPLES not in predictions.items(cell(64))


def test_the_refusal_is_no_limit_of_memory():
    found = answer("error", homework())
    assert found.verdict == "confirmed"
    assert "Samples of 1024 features and d_model 512: `failed`" in found.text
    assert MESSAGE in found.text
    assert "With d_model 1024 it trains: 1400 samples/s in fp32, peak 2.33 GiB" in found.text
    assert answer("error", [refused("oom", "out of memory"), cell(512)]).verdict == "contradicted"
    assert answer("error", [refused("unsupported"), cell(512)]).verdict == "cannot tell"
    assert answer("error", [refused()]).verdict == "cannot tell"


def test_width_dtype_and_samples_are_told_apart():
    found = answer("controls", homework())
    assert found.verdict == "contradicted"
    assert "From d_model 1024 to 4096 alone, in fp32, the peak grows 11.2 times, for 11.2 times" in found.text
    assert "a quadratic law would make it 16.0 times" in found.text
    assert "at 4096, takes 0.500 times as much, autocast 1.00 times" in found.text
    assert "10000 in place of 2048 samples change it 1.00 times. Together 5.60 times" in found.text
    assert "15.78 against 4.05 GB" in found.text
    few = [r for r in homework() if r.factors["samples"] == 2048]
    assert answer("controls", few).verdict == "cannot tell"
    no_bf16 = [r for r in homework() if r.factors["weights"] == "fp32"]
    assert answer("controls", no_bf16).verdict == "cannot tell"


def test_whether_fp32_fits():
    found = answer("limit", homework())
    assert found.verdict == "contradicted"
    assert "peaks at 28.0 GB" in found.text
    assert "so fp32 fits" in found.text
    assert "14.0 GB measured, 14.2 GB predicted, 17.0 GB (15.8 GiB) with the copy" in found.text
    larger = [r if not r.has(d_model=4096) else cell(4096, r.factors["dtype"], gb=41) for r in homework()]
    assert answer("limit", larger).verdict == "confirmed"


def test_the_prediction_is_judged_from_a_gib_on():
    far_but_small = cell(512, gb=0.5)
    assert answer("prediction", [*homework(), far_but_small]).verdict == "confirmed"
    far = [*homework()[:-1], cell(4096, "bf16", samples=10000, gb=16)]
    found = answer("prediction", far)
    assert found.verdict == "contradicted"
    assert "off by at most -11 % (d_model 4096, bf16, weights bf16, 10000 samples)" in found.text
    assert "GiB more were measured than predicted, the larger difference in what is added by the step" in found.text
    assert "None of 1 peaks" in answer("prediction", [cell(512, gb=0.5)]).text


def test_which_part_of_the_prediction_is_off():
    whole = predictions.peak(1)(cell(1024))
    before = sum(predictions.items(cell(1024)).get(item, 0) for item in predictions.BEFORE)
    known = cell(1024)
    for name, held, added in (("held before the step", 10**8, 0), ("added by the step", 0, 10**8)):
        values = {"allocated_before_bytes": before + held, "peak_allocated_bytes": whole + held + added}
        assert predictions.missing_term(replace(known, values=known.values | values)) == name


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
