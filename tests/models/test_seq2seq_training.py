"""The Polaris homework's model and its training loop, on the CPU."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from perfscribe.base.cells import Cell
from perfscribe.experiments.polaris.single_gpu import measure
from perfscribe.instruments.profiling import torch_profiler
from perfscribe.instruments.profiling.trace import COPY, Kernel
from perfscribe.models import seq2seq_run
from perfscribe.models.seq2seq_training import Job, Seq2SeqTraining


def job(**changed) -> Job:
    levels = dict(device="cpu", d_model=16, layers=1, d_ff=32, features=16, source_length=1, target_length=5)
    return Job(**{**levels, "samples": 10, "batch": 4, "epochs": 1, **changed})


@pytest.mark.parametrize("batches", ["per_sample", "per_batch", "on_device"])
def test_an_epoch_draws_every_sample_once_in_an_order_of_its_own(batches, monkeypatch):
    training = Seq2SeqTraining(job(batches=batches))
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
    training, seen = Seq2SeqTraining(job(samples=32, dtype=dtype, weights=weights)), []
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


def test_steps_that_the_scaler_skips_are_counted():
    training = Seq2SeqTraining(job(dtype="fp16"))
    assert training.skipped_steps() == 0
    training.step(torch.rand(4, 1, 16), torch.full((4, 5, 16), 1e38))
    assert training.skipped_steps() == 1


FACTORS = {
    **{"device": "cpu", "layers": 1, "batches": "per_sample", "d_model": 16, "d_ff": 32, "samples": 8},
    **{"source_length": 1, "target_length": 4, "batch": 4, "epochs": 3, "dtype": "fp32"},
}


def test_a_cell_that_really_runs(monkeypatch):
    order = []

    def logged(name, method):
        return lambda self: order.append(name) or method(self)

    for name in ("check", "epoch", "peak"):
        monkeypatch.setattr(Seq2SeqTraining, name, logged(name, getattr(Seq2SeqTraining, name)))
    found = measure.run(Cell(FACTORS))
    assert order == ["epoch", "epoch", "epoch", "peak", "check"]
    assert (len(found.warmup["epoch_s"]), len(found.samples["epoch_s"]), len(found.series["loss"])) == (1, 2, 3)
    assert found.values["homework_clock_s"] < sum(found.warmup["epoch_s"] + found.samples["epoch_s"])
    assert found.values["steps_per_epoch"] == 2
    assert found.values["peak_allocated_bytes"] > 4 * 4 * found.values["parameters"]
    assert found.warmup_s == found.warmup["epoch_s"][0] and "gpu_ms" not in found.values


def test_the_loss_is_checked_before_the_first_epoch_unless_that_is_to_be_cold(monkeypatch):
    monkeypatch.setattr(Seq2SeqTraining, "epoch", lambda self: pytest.fail("trained before the check"))
    plain = Seq2SeqTraining._loss
    monkeypatch.setattr(Seq2SeqTraining, "_loss", lambda self, *parts: plain(self, *parts) * 1.001)
    with pytest.raises(ValueError, match=r"loss is off by .* against float64, allowed 1e-05"):
        seq2seq_run.measure(Cell(FACTORS))


def test_on_a_gpu_a_few_more_steps_are_profiled_last(monkeypatch):
    """Profiles slow what the process does next; on a CPU there is none."""
    order, kernels = [], [Kernel("a", 0, 3_000_000, 0, 1, 1), Kernel("copy", 2_000_000, 9_000_000, 1, 2, 1, kind=COPY)]

    @contextmanager
    def recording(device):
        yield (recorded := SimpleNamespace())
        order.append(f"profile {device}")
        recorded.trace = SimpleNamespace(kernels=kernels)

    monkeypatch.setattr(torch_profiler, "recording", recording)
    training = Seq2SeqTraining(job(samples=8))
    monkeypatch.setattr(training, "step", lambda source, _: order.append(len(source)))
    assert training.gpu_ms() == pytest.approx(9 / 3)  # of three steps, whatever overlaps once
    assert order == [4, 4, 4, "profile cuda"]
    no_kernels = torch_profiler.NoKernels("recorded no kernel")
    monkeypatch.setattr(torch_profiler, "recording", mock.Mock(side_effect=no_kernels))
    assert training.gpu_ms() == "recorded no kernel"  # which costs no cell
