"""The Polaris homework on one device: a cell that really runs."""

import pytest

from perfscribe.base.cells import Cell
from perfscribe.experiments.single_gpu import measure
from perfscribe.models import seq2seq_run, seq2seq_training

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
    plain = seq2seq_training.Training._loss
    monkeypatch.setattr(seq2seq_training.Training, "_loss", lambda self, *parts: plain(self, *parts) * 1.001)
    with pytest.raises(ValueError, match="in float64, allowed error 1e-05"):
        seq2seq_run.measure(Cell(FACTORS))
