"""The Polaris homework on one device: tables and answers from records made by hand, and a cell that really runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from homework_cells import trained
from workspace import ROOT

from perfscribe import config, plan
from perfscribe.cells import Cell
from perfscribe.experiments.single_gpu import measure, present
from perfscribe.models import seq2seq_run, seq2seq_training
from perfscribe.records import Record

EPOCHS_S = [3.0, 1.0, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def cell(batches: str = "per_sample", epochs_s: list[float] | None = None, **changed) -> Record:
    factors = {"device": "cuda", "batches": batches, **present.HOMEWORK, **changed}
    return trained("single_gpu", factors, epochs_s or EPOCHS_S)


def homework() -> list[Record]:
    """The three ways to draw batches; the others save a tenth and a fifth of an epoch."""
    return [cell(), cell("per_batch", [3.0, *[0.9] * 9]), cell("on_device", [3.0, *[0.8] * 9])]


def made(cells: list[Record]):
    return {table.id: table for table in present.tables({"single_gpu": cells})}


def answer(finding: str, cells: list[Record]):
    return {found.id: found for found in present.findings(made(cells))}[f"polaris.single_gpu_{finding}"]


def test_the_first_epoch_stands_apart():
    (row,) = made([cell()])["polaris.single_gpu"].ok.to_dict("records")
    assert row["training_s"] == pytest.approx(12.2)
    assert row["first_epoch_s"] == 3
    assert (row["epoch_s"], row["epoch_s_n"], row["epoch_s_iqr"]) == (1, 9, 0)
    assert row["samples_per_s"] == 2048
    assert row["training_s_polaris-homework-001"] == 16.38
    assert row["homework_clock_s"] == pytest.approx(11.95)
    assert row["steps_per_epoch"] == 64
    assert row["peak_gib"] == 1


@pytest.mark.parametrize("changed", [{"samples": 64}, {"layers": 1}, {"dtype": "bf16"}, {"batch": 16}])
def test_the_published_time_stands_beside_the_homeworks_workload_alone(changed):
    table = made([cell(**changed)])["polaris.single_gpu"]
    assert list(table.ok["training_s_polaris-homework-001"]) == ["another workload"]
    assert "is not compared" in answer("time", [cell(**changed)]).text


def test_every_epoch_has_a_row_and_a_cell_without_figures_one():
    lost = replace(cell(device="cpu"), status="unsupported", reason="no CUDA device", samples={}, warmup={}, values={})
    table = made([cell(), lost])["polaris.single_gpu_epochs"]
    assert list(table.frame["epoch"]) == [*range(1, 11), "all"]
    assert list(table.ok["time_s"]) == EPOCHS_S
    assert table.ok["samples_per_s"].iloc[0] == pytest.approx(2048 / 3)
    assert list(table.ok["loss"])[:2] == [30, 29]


def test_the_time_beside_the_published_one():
    text = answer("time", homework()).text
    assert "take 12.2 s on cuda: the first 3.00 s, each later one 1.00 s" in text
    assert "2050 samples/s and 15.6 ms a step" in text
    assert "Write-up 001 took 16.4 s, 1.34 times as long; that is 25.6 ms for each of the 640 steps" in text


def test_what_is_told_of_an_epoch_is_no_finer_than_epochs_spread():
    text = answer("time", [cell(epochs_s=[3.0, 0.7, 1.234, 1.9, 1.234, 0.6, 1.234, 1.8, 1.234, 0.5])]).text
    assert "each later one 1.2 s (median" in text and "which is 1700 samples/s and 19 ms a step" in text
    wide = answer("clock", [cell(), cell("on_device", [3.0, 0.5, 1.5, 0.834, 1.4, 0.9, 0.5, 1.5, 0.6, 1.4])]).text
    assert "; 0.9 s (IQR 0.8 s) with batches drawn from samples that lie on the device" in wide.replace("0.800", "0.8")


def test_slower_than_published_is_explained_as_far_as_the_cells_go():
    slow = [cell(epochs_s=[3.0, *[2.0] * 9]), cell("on_device", [3.0, *[1.8] * 9])]
    assert "1.36 times" not in answer("time", homework()).text and "more." not in answer("time", homework()).text
    text = answer("time", slow).text
    assert "Here it takes 4.62 s more. With batches drawn from samples that lie on the device the same training" in text
    assert text.endswith("takes 1.80 s less; the other 2.82 s, no cell here says why.")
    quick = answer("time", [slow[0], cell("on_device", EPOCHS_S)]).text
    assert quick.endswith("takes 8.80 s less: the loader, which waits for the host, costs more than the difference.")
    assert answer("time", slow[:1]).text.endswith("so nothing here says why.")
    assert answer("time", [slow[0], cell("per_batch", [3.0, *[2.5] * 9])]).text.endswith("so it is not the loader.")


def test_what_trainings_differ_by_is_no_finer_than_their_epochs_stray():
    cells = [cell(epochs_s=[3.0, *[1.8, 2.0, 2.2] * 3]), cell("on_device", [3.0, *[1.7, 1.8, 1.9] * 3])]
    # IQRs of 0.4 and 0.2 s over ten epochs: 1.3 s of the one, 1.9 s of both
    assert "Here it takes 4.6 s more. With batches" in answer("time", cells).text
    assert answer("time", cells).text.endswith("takes 1.8 s less; the other 2.8 s, no cell here says why.")
    apart = [cells[0], cell("on_device", [3.0, *[1.0, 1.1, 1.2] * 3])]
    assert "Of the homework's epoch 45 % is therefore" in answer("clock", apart).text


def test_a_first_epoch_within_the_spread_of_later_ones_tells_nothing():
    noisy = answer("first_epoch", [cell(epochs_s=[1.2, 1.0, 1.5, 1.4, 1.0, 0.9, 1.0, 1.3, 1.0, 1.0])])
    assert noisy.verdict == "cannot tell" and "the first epoch takes 1.20 s, a later one 1.00 s" in noisy.text


def test_the_first_epochs_share():
    text = answer("first_epoch", homework()).text
    assert "takes 2.00 s more than a later one, 16.4 % of the training time" in text
    assert "over 3 cells it takes 3.00 to 3.75 times as long" in text


def test_the_clock_and_the_loader():
    text = answer("clock", homework()).text
    assert "11.9 s in place of 12.2 s, 250 ms less" in text or "12.0 s in place of 12.2 s, 250 ms less" in text
    assert "Of the homework's epoch 20.0 % is therefore" in text


def test_loaders_that_differ_less_than_they_spread_are_not_told_apart():
    noisy = [cell(), cell("on_device", [3.0, 0.5, 1.5, 0.8, 1.4, 0.9, 0.5, 1.5, 0.6, 1.4])]
    assert "no further apart than they spread" in answer("clock", noisy).text


def test_a_cpus_rows_are_not_mixed_with_a_gpus():
    assert "on cuda" in answer("time", [*homework(), cell(device="cpu", layers=9)]).text
    assert "on cpu" in answer("time", [cell(device="cpu")]).text


def test_the_gpu_preset_is_the_homeworks_program():
    raw = config.load(ROOT / "config.yaml")
    found = plan.planned_cells(raw, "single_gpu", "gpu")
    wanted = [c for c in found if not c.skip]
    assert [c["batches"] for c in wanted] == ["per_sample", "per_batch", "on_device"]
    assert all(c.factors.items() >= present.HOMEWORK.items() and c["device"] == "cuda" for c in wanted)


FACTORS = {
    "device": "cpu",
    "layers": 1,
    "batches": "per_sample",
    "d_model": 16,
    "d_ff": 32,
    "samples": 8,
    "source_length": 1,
    "target_length": 4,
    "batch": 4,
    "epochs": 3,
    "dtype": "fp32",
}


def test_a_cell_that_really_runs(monkeypatch):
    order = []
    for name in ("check", "epoch", "peak"):
        plain = getattr(seq2seq_training.Training, name)
        monkeypatch.setattr(
            seq2seq_training.Training, name, lambda self, plain=plain, name=name: order.append(name) or plain(self)
        )
    found = measure.run(Cell(FACTORS))
    assert order == ["epoch", "epoch", "epoch", "peak", "check"]
    assert (len(found.warmup["epoch_s"]), len(found.samples["epoch_s"]), len(found.series["loss"])) == (1, 2, 3)
    assert found.values["homework_clock_s"] < sum(found.warmup["epoch_s"] + found.samples["epoch_s"])
    assert found.values["steps_per_epoch"] == 2
    assert found.values["peak_allocated_bytes"] > 4 * 4 * found.values["parameters"]
    assert found.warmup_s == found.warmup["epoch_s"][0]


def test_a_loss_that_is_no_number_is_a_word(monkeypatch):
    lost = seq2seq_training.Epoch(1.0, 0.5, float("nan"))
    monkeypatch.setattr(seq2seq_training.Training, "epoch", lambda self: lost)
    found = measure.run(Cell(FACTORS))
    assert found.values["final_loss"] == "not finite"
    assert found.series["loss"] == ["not finite"] * 3


def test_the_loss_is_checked_before_the_first_epoch_unless_that_is_to_be_cold(monkeypatch):
    monkeypatch.setattr(seq2seq_training.Training, "epoch", lambda self: pytest.fail("trained before the check"))
    monkeypatch.setattr(seq2seq_training.Training, "_loss", lambda self, *parts: self.criterion(*parts[:1] * 2) * 7)
    names = [name for name in seq2seq_training.Job.__dataclass_fields__ if name in FACTORS]
    job = seq2seq_training.Job(**{name: FACTORS[name] for name in names}, features=16)
    with pytest.raises(ValueError, match="in float64"):
        seq2seq_run.measure(job, 2)
    with pytest.raises(ValueError, match="at least 2 epochs"):
        seq2seq_run.measure(job, 1)
