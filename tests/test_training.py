"""Training through Trainer: knobs, histories, what wrapped the model, answers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the package transformers is not installed")
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.data import squad_sets, tokenizer
from perfscribe.data.generate import generate
from perfscribe.models import bloom, simple_gpt
from perfscribe.training import answers, gpu_watch, histories, knobs, trainer
from perfscribe.training.step_clock import StepClock

ROOT = Path(__file__).resolve().parents[1]
SHAPE = SimpleGptShape(vocab_size=400, hidden_size=16, num_layers=1, num_heads=2, ffn=32)
KNOBS = knobs.Knobs(num_epochs=2, batch_size=2, grad_acc=2, learning_rate=1e-2, logging_steps=1)
SECTION = {
    "train_size": 12,
    "eval_size": 4,
    "max_length": 64,
    "new_tokens": 4,
    "vocab_size": 400,
    "seed": 0,
    "workshop": {"squad": None, "weights": None, "tokenizer": None},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> squad_sets.TokenisedSet:
    folder = tmp_path_factory.mktemp("data")
    [(name, dataset)] = squad_sets.datasets(SECTION).items()
    generate({"dataset": name, "formats": [], **dataset}, folder / name)
    return squad_sets.read(folder, name, "answer")


def _train(model, data, folder, wanted=KNOBS, **more):
    clock = StepClock("cpu")
    made = trainer.make(model, data, wanted, folder, [clock], **more)
    return made, histories.measurement(made, made.train().metrics, clock)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    return _train(simple_gpt.build(SHAPE, 0), data, tmp_path_factory.mktemp("out"))


def test_histories(trained) -> None:
    _, found = trained
    assert found.values["steps"] == 6  # 12 rows of 2 x 2 a step, two epochs
    assert found.values["steps_per_epoch"] == 3
    assert found.values["parameters"] == SHAPE.parameters
    assert found.values["wrapped_by"] == "none"
    assert found.series["train_loss_step"] == [1, 2, 3, 4, 5, 6]
    assert found.series["eval_epoch"] == [1, 2]
    assert len(found.samples["step_s"]) + len(found.warmup["step_s"]) == 6
    assert found.series["train_loss"][-1] == found.values["final_train_loss"] < found.series["train_loss"][0]
    rate = 12 * 2 / found.values["train_runtime_s"]
    assert found.values["train_samples_per_s"] == pytest.approx(rate, rel=0.05)
    assert sum(found.samples["step_s"]) < found.values["train_runtime_s"]
    json.dumps(vars(found), allow_nan=False)


def test_the_loss_is_the_mean_over_the_labels_of_all_accumulated_batches(data, tmp_path) -> None:
    model = simple_gpt.build(SHAPE, 0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.transformer.layers[0].self_attn.dropout = 0.0
    rows = [dict(row) for row in trainer.Rows(data.training)]
    whole = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        expected = model(**whole)["loss"].item()
    once = knobs.of(vars(KNOBS), num_epochs=1, batch_size=1, grad_acc=12, eval_strategy="no")
    _, found = _train(model, data, tmp_path, once)
    assert found.series["train_loss"] == [pytest.approx(expected, rel=1e-4)]
    assert found.series["eval_loss"] == []


def test_evaluation_loss_is_the_model_s_own(trained, data) -> None:
    made, found = trained
    losses = []
    with torch.no_grad():
        for start in (0, 2):
            batch = {name: torch.from_numpy(array[start : start + 2]) for name, array in data.evaluation.items()}
            losses.append(made.model.eval()(**batch)["loss"].item())
    assert found.series["eval_loss"][-1] == pytest.approx(sum(losses) / 2, rel=1e-4)


def test_bloom_trains_and_answers(data, tmp_path) -> None:
    model = bloom.build("bloom-tiny", None, 0).model
    _, found = _train(model, data, tmp_path)
    assert found.series["eval_loss"][1] < found.series["eval_loss"][0]
    texts = answers.generate(model, data, 4, 3, "cpu", "fp32")
    assert list(texts) == list(data.references)
    one_by_one = answers.generate(model, data, 4, 1, "cpu", "fp32")
    assert one_by_one == texts  # padding of others changes no answer


def test_gradient_checkpointing_changes_no_loss(data, tmp_path) -> None:
    """BLOOM has no dropout here; what both runs log is then the same."""
    found = [
        _train(
            bloom.build("bloom-tiny", None, 0).model, data, tmp_path, knobs.of(vars(KNOBS), gradient_checkpointing=on)
        )
        for on in (False, True)
    ]
    kept, recomputed = (measured.series["train_loss"] for _, measured in found)
    assert recomputed == pytest.approx(kept, rel=1e-5)
    assert [made.model.is_gradient_checkpointing for made, _ in found] == [False, True]
    small, _ = _train(simple_gpt.build(SHAPE, 0), data, tmp_path, knobs.of(vars(KNOBS), gradient_checkpointing=True))
    assert small.model.gradient_checkpointing


def test_a_single_process_keeps_to_one_gpu(tmp_path, monkeypatch) -> None:
    from transformers import TrainingArguments

    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: getattr(self, "_n_gpu", 4) or 4))
    made = trainer.arguments(KNOBS, tmp_path)
    assert made._n_gpu == 1


def test_checkpoints_are_written_where_they_are_asked_for(data, tmp_path) -> None:
    wanted = knobs.of(vars(KNOBS), save_strategy="epoch")
    for model in (bloom.build("bloom-tiny", None, 0).model, simple_gpt.build(replace(SHAPE, tied=False), 0)):
        folder = tmp_path / type(model).__name__
        _train(model, data, folder, wanted)
        assert [path.name for path in sorted(folder.iterdir())] == ["checkpoint-3", "checkpoint-6"]
    assert not list((tmp_path).rglob("events.out*"))


def test_a_step_is_from_the_end_of_the_one_before_or_the_beginning_of_its_epoch(monkeypatch) -> None:
    from perfscribe.training import step_clock

    times = iter([10.0, 11.0, 13.0, 100.0, 104.0])
    monkeypatch.setattr(step_clock, "perf_counter", lambda: next(times))
    clock = StepClock("cpu")
    for event in ("epoch", "step", "step", "epoch", "step"):
        (clock.on_epoch_begin if event == "epoch" else clock.on_step_end)(None, None, None)
    assert clock.step_s == [1.0, 2.0, 4.0]  # the evaluation between the epochs is in none
    assert clock.at_rest_bytes == []


class Parrot(torch.nn.Module):
    """Answers every prompt with the same ids."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__()
        self.ids = ids

    def generate(self, input_ids: torch.Tensor, max_new_tokens: int, **_: object) -> torch.Tensor:
        new = torch.tensor([self.ids[:max_new_tokens]] * len(input_ids))
        return torch.cat([input_ids, new], dim=1)


def test_answers_are_the_new_tokens_alone(data) -> None:
    inner = tokenizer.from_text(data.tokenizer)
    ids = inner.encode(" the river", add_special_tokens=False).ids
    end = data.facts["tokenizer"]["end_id"]
    texts = answers.generate(Parrot([*ids, end, *ids]), data, len(ids) + 2, 3, "cpu", "fp32")
    assert texts == dict.fromkeys(data.references, "the river")


def test_scores_of_answers_that_are_right(data) -> None:
    right = answers.identical(data)
    assert right["identical_exact_match_percent"] == right["identical_f1_percent"] == 100
    wrong = answers.scored(dict.fromkeys(data.references, "zzz"), data)
    assert set(wrong.values()) == {0.0}


def test_losses_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="the loss is nan at step or epoch 3"):
        histories.series([{"loss": 2.0, "step": 2}, {"loss": float("nan"), "step": 3}])


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"fp16": True, "bf16": True, "device": "cuda"}, "both are true"),
        ({"fp16": True}, "fp16: true on a CPU"),
        ({"eval_strategy": "never"}, "eval_strategy: 'never': expected one of no, steps, epoch"),
    ],
)
def test_knobs_that_contradict(wanted, told) -> None:
    with pytest.raises(ValueError, match=told):
        knobs.of(wanted)


def test_knobs_of_a_section() -> None:
    found = knobs.of({"batch_size": 3, "grad_acc": 2, "bf16": True, "vocab_size": 7})
    assert (found.rows_a_step, found.dtype, found.num_epochs) == (6, "bf16", 5)


def test_a_tokenizer_larger_than_the_model(data) -> None:
    trainer.check_vocabulary(data, 400)
    with pytest.raises(ValueError, match="the tokenizer has 400 entries, the model 399"):
        trainer.check_vocabulary(data, 399)


def test_no_gpu_is_said() -> None:
    with gpu_watch.GpuWatch("cpu") as watch:
        pass
    assert set(watch.values().values()) == {gpu_watch.ON_CPU}


def test_nvml_is_sampled_where_there_is_a_gpu(monkeypatch) -> None:
    class Nvml:
        def nvmlDeviceGetUtilizationRates(self, handle):
            return type("Rates", (), {"gpu": 40})

        def nvmlDeviceGetMemoryInfo(self, handle):
            return type("Memory", (), {"used": 5})

    from perfscribe.distributed import transport

    monkeypatch.setattr(transport, "of_visible", lambda count, question: question(Nvml(), ["gpu"] * count))
    monkeypatch.setattr(gpu_watch, "PERIOD_S", 0.01)
    with gpu_watch.GpuWatch("cuda") as watch:
        while not watch.used_bytes:
            pass
    assert watch.values()["gpu_utilisation_percent"] == 40
    assert watch.values()["gpu_used_bytes"] == 5
    monkeypatch.setattr(transport, "of_visible", lambda count, question: [])
    with gpu_watch.GpuWatch("cuda") as mute:
        pass
    assert mute.values()["gpu_utilisation_percent"] == gpu_watch.MUTE


WRAPPED = """
import tempfile, torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from perfscribe.training.wrapping import of_model, units
with tempfile.TemporaryDirectory() as folder:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    made = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    sharded = made()
    mesh = init_device_mesh("cpu", (1,))
    for block in sharded:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    models = [made(), torch.nn.DataParallel(made()), torch.nn.parallel.DistributedDataParallel(made()),
              FullyShardedDataParallel(made(), device_id=torch.device("cpu")), sharded]
    print([(of_model(model), units(model)) for model in models])
    distributed.destroy_process_group()
"""


def test_what_wraps_a_model_is_read_off_the_object() -> None:
    done = subprocess.run([sys.executable, "-c", WRAPPED], cwd=ROOT, capture_output=True, text=True)
    expected = "[('none', 0), ('DataParallel', 0), ('DDP', 0), ('FSDP1', 1), ('FSDP2', 3)]"
    assert done.stdout.strip() == expected, done.stderr
