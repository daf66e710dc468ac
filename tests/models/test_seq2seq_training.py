"""The Polaris homework's model and its training loop, on the CPU."""

from __future__ import annotations

import pytest
import torch

from perfscribe.analytic.shapes import Seq2SeqShape
from perfscribe.models.seq2seq import make_seq2seq
from perfscribe.models.seq2seq_training import Job, Training


def job(**changed) -> Job:
    levels = dict(device="cpu", d_model=16, layers=1, d_ff=32, features=16, source_length=1, target_length=5)
    return Job(**{**levels, "samples": 10, "batch": 4, **changed})


def test_its_parameters_are_counted():
    small = Seq2SeqShape(d_model=24, heads=4, encoder_layers=2, decoder_layers=1, d_ff=40)
    polaris = {512: 44_140_544, 1024: 126_005_248, 4096: 1_409_916_928}
    for width, parameters in polaris.items():
        model = make_seq2seq(Seq2SeqShape(d_model=width), device="meta")
        assert sum(p.numel() for p in model.parameters()) == parameters
    assert make_seq2seq(small)(torch.rand(5, 1, 24), torch.rand(5, 7, 24)).shape == (5, 7, 24)


@pytest.mark.parametrize("batches", ["per_sample", "per_batch", "on_device"])
def test_an_epoch_draws_every_sample_once_in_an_order_of_its_own(batches, monkeypatch):
    training = Training(job(batches=batches))
    epochs: list[list[torch.Tensor]] = []
    monkeypatch.setattr(training, "step", lambda source, target: epochs[-1].append(source) or torch.zeros(()))
    for _ in range(2):
        epochs.append([])
        training.epoch()
    assert [len(part) for part in epochs[0]] == [4, 4, 2]
    whole = {tuple(row.flatten().tolist()) for row in training.samples[0]}
    for epoch in epochs:
        assert {tuple(row.flatten().tolist()) for part in epoch for row in part} == whole
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


@pytest.mark.parametrize(("dtype", "weights"), [("fp32", "fp32"), ("bf16", "fp32"), ("fp16", "fp32"), ("bf16", "bf16")])
def test_training_lowers_a_loss_that_is_checked_in_its_dtypes(dtype, weights):
    training, seen = Training(job(samples=32, dtype=dtype, weights=weights)), []
    assert 0 <= training.check()["loss_relative_error"] < 0.01
    assert training.model.training
    training.model.encoder.layers[0].linear1.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    epochs = [training.epoch() for _ in range(5)]
    assert epochs[-1].loss < epochs[0].loss
    assert 0 < epochs[0].queued_s <= epochs[0].time_s
    of = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert set(seen) == {of[dtype]}
    assert {p.dtype for p in training.model.parameters()} == {of[weights]}
    assert {s["exp_avg"].dtype for s in training.optimizer.state.values()} == {of[weights]}
    assert training.scaler.is_enabled() == (dtype == "fp16")


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
    training.step(torch.rand(4, 1, 16), torch.full((4, 5, 16), 1e38))
    assert training.skipped_steps() == 1
