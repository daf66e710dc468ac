"""The Polaris homework on one device: tables from records made by hand, and a cell that really runs."""

from __future__ import annotations

import pytest
from homework_cells import trained
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell
from perfscribe.experiments.single_gpu import measure, show
from perfscribe.models import seq2seq_run, seq2seq_training
from perfscribe.plan import plan
from perfscribe.records.records import Record

EPOCHS_S = [3.0, 1.0, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def cell(batches: str = "per_sample", epochs_s: list[float] | None = None, **changed) -> Record:
    factors = {"device": "cuda", "batches": batches, **show.HOMEWORK, **changed}
    return trained("single_gpu", factors, epochs_s or EPOCHS_S)


def made(cells: list[Record]):
    return {table.id: table for table in show.tables({"single_gpu": cells})}


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


@pytest.mark.parametrize("changed", [{"samples": 64}, {"dtype": "bf16"}])
def test_the_published_time_stands_beside_the_homeworks_workload_alone(changed):
    table = made([cell(**changed)])["polaris.single_gpu"]
    assert list(table.ok["training_s_polaris-homework-001"]) == ["another workload"]


def test_the_gpu_preset_is_the_homeworks_program():
    raw = config.load(ROOT / "config.yaml")
    found = plan.planned_cells(raw, "single_gpu", "gpu")
    wanted = [c for c in found if not c.skip]
    assert [c["batches"] for c in wanted] == ["per_sample", "per_batch", "on_device"]
    assert all(c.factors.items() >= show.HOMEWORK.items() and c["device"] == "cuda" for c in wanted)


FACTORS = {
    **{"device": "cpu", "layers": 1, "batches": "per_sample", "d_model": 16, "d_ff": 32, "samples": 8},
    **{"source_length": 1, "target_length": 4, "batch": 4, "epochs": 3, "dtype": "fp32"},
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


def test_the_loss_is_checked_before_the_first_epoch_unless_that_is_to_be_cold(monkeypatch):
    monkeypatch.setattr(seq2seq_training.Training, "epoch", lambda self: pytest.fail("trained before the check"))
    monkeypatch.setattr(seq2seq_training.Training, "_loss", lambda self, *parts: self.criterion(*parts[:1] * 2) * 7)
    with pytest.raises(ValueError, match="in float64"):
        seq2seq_run.measure(Cell(FACTORS))
