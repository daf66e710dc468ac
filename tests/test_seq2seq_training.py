"""The Polaris homework's training loop, on the CPU."""

from __future__ import annotations

import pytest
import torch

from perfscribe.analytic.parameters import seq2seq_parameters
from perfscribe.analytic.shapes import Seq2SeqShape
from perfscribe.models.seq2seq import make_seq2seq
from perfscribe.models.seq2seq_training import Job, Training

HOMEWORK = Seq2SeqShape()


def job(**changed) -> Job:
    levels = dict(device="cpu", d_model=16, layers=1, d_ff=32, features=16, source_length=1, target_length=5)
    return Job(**{**levels, "samples": 10, "batch": 4, **changed})


# --- the loop -----------------------------------------------------------------------------------------------------


def drawn(training: Training, monkeypatch) -> list[torch.Tensor]:
    """The source batches of one epoch, which trains nothing."""
    seen: list[torch.Tensor] = []

    def step(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert len(source) == len(target)
        seen.append(source)
        return torch.zeros(())

    monkeypatch.setattr(training, "step", step)
    training.epoch()
    return seen


@pytest.mark.parametrize("batches", ["per_sample", "per_batch", "on_device"])
def test_an_epoch_draws_every_sample_once_in_an_order_of_its_own(batches, monkeypatch):
    training = Training(job(batches=batches))
    first, second = (drawn(training, monkeypatch) for _ in range(2))
    assert [len(part) for part in first] == [4, 4, 2]
    whole = training.samples[0]
    for epoch in (first, second):
        rows = {tuple(row.flatten().tolist()) for part in epoch for row in part}
        assert rows == {tuple(row.flatten().tolist()) for row in whole}
    assert not torch.equal(torch.cat(first), torch.cat(second))


def test_an_epochs_time_ends_after_the_last_step_was_queued():
    epoch = Training(job()).epoch()
    assert 0 < epoch.queued_s <= epoch.time_s


def test_training_lowers_the_loss():
    training = Training(job(samples=32))
    losses = [training.epoch().loss for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("dtype", "weights"), [("fp32", "fp32"), ("bf16", "fp32"), ("fp16", "fp32"), ("bf16", "bf16")])
def test_the_loss_is_checked_and_weights_have_their_dtype(dtype, weights):
    training = Training(job(dtype=dtype, weights=weights))
    assert 0 <= training.check()["loss_relative_error"] < 0.01
    assert training.model.training
    training.epoch()
    expected = torch.bfloat16 if weights == "bf16" else torch.float32
    assert {p.dtype for p in training.model.parameters()} == {expected}
    assert {s["exp_avg"].dtype for s in training.optimizer.state.values()} == {expected}
    assert training.scaler.is_enabled() == (dtype == "fp16")


def test_autocast_computes_in_its_dtype(monkeypatch):
    training, seen = Training(job(dtype="bf16")), []
    training.model.encoder.layers[0].linear1.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    training.epoch()
    assert set(seen) == {torch.bfloat16}


def test_a_wrong_loss_is_refused():
    training = Training(job())
    plain = training._loss
    training._loss = lambda source, target: plain(source, target) * 1.001
    with pytest.raises(ValueError, match=r"in float64, allowed error 1e-05"):
        training.check()


def test_a_feature_number_that_is_not_d_model_is_the_models_own_error():
    with pytest.raises(RuntimeError, match="the feature number of src and tgt must be equal to d_model"):
        Training(job(features=32)).check()


def test_steps_that_the_scaler_skips_are_counted():
    training = Training(job(dtype="fp16"))
    assert training.skipped_steps() == 0
    overflowing = torch.full((4, 5, 16), 1e38)
    training.step(torch.rand(4, 1, 16), overflowing)
    assert training.skipped_steps() == 1
    assert Training(job()).skipped_steps() == 0


def test_its_parameters_are_counted():
    for shape in (HOMEWORK, Seq2SeqShape(d_model=16, encoder_layers=1, decoder_layers=2, d_ff=24)):
        assert sum(p.numel() for p in make_seq2seq(shape, device="meta").parameters()) == seq2seq_parameters(shape)
    assert seq2seq_parameters(HOMEWORK) == 44_140_544
