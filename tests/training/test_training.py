"""Training through Trainer, what it tells, what wrapped the model, answers; rows by rank as Trainer has them."""

import json

import pytest
import torch
from measured_cells import generated

pytest.importorskip("transformers", reason="the package transformers is not installed")

from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.data import squad, squad_sets
from perfscribe.data.tokenizer import from_text, texts_of
from perfscribe.experiments.fsdp.baseline import training
from perfscribe.models import bloom, simple_gpt
from perfscribe.training import bare_loop, knobs, trainer
from perfscribe.training.knobs import Knobs

SHAPE = SimpleGptShape(vocab_size=400, hidden_size=16, num_layers=1, num_heads=2, ffn=32, tied=False)
KNOBS = Knobs(num_epochs=2, batch_size=2, grad_acc=2, learning_rate=1e-2, logging_steps=1)
SECTION = {"train_size": 12, "eval_size": 4, "max_length": 64, "new_tokens": 4, "vocab_size": 400, "seed": 0}
SECTION |= {"workshop": {"squad": None, "weights": None, "tokenizer": None}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> squad_sets.TokenisedSet:
    folder = generated(squad_sets.datasets(SECTION), tmp_path_factory.mktemp("data"))
    return squad_sets.read(folder, squad_sets.dataset_name(SECTION), "answer")


def train(model, data, folder, wanted=KNOBS):
    clock = training.StepClock("cpu")
    made = trainer.make(model, data, wanted, folder, clock)
    return made, training.measurement(made, made.train().metrics, clock)


def test_what_a_training_tells(data, tmp_path) -> None:
    made, found = train(simple_gpt.build(SHAPE, 0), data, tmp_path, knobs.of(vars(KNOBS), save_strategy="epoch"))
    assert (found.values["steps_per_epoch"], found.values["parameters"]) == (3, SHAPE.parameters)
    assert found.series["train_loss_step"] == [1, 2, 3, 4, 5, 6]  # 12 rows of 2 x 2 a step, two epochs
    assert found.series["eval_epoch"] == [1, 2]
    assert len(found.samples["step_s"]) + len(found.warmup["step_s"]) == 6
    assert found.series["train_loss"][-1] == found.values["final_train_loss"] < found.series["train_loss"][0]
    rate = 12 * 2 / found.values["train_runtime_s"]
    assert found.values["train_samples_per_s"] == pytest.approx(rate, rel=0.05)
    steps_s = sum(found.samples["step_s"] + found.warmup["step_s"])
    assert sum(found.series["eval_runtime_s"]) <= made.evaluation_s and found.values["checkpoints_s"] > 0
    assert steps_s + made.evaluation_s + made.checkpoints_s < found.values["train_runtime_s"]
    json.dumps(vars(found), allow_nan=False)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-6"]
    losses = []
    with torch.no_grad():
        for start in (0, 2):
            batch = {name: torch.from_numpy(array[start : start + 2]) for name, array in data.evaluation.items()}
            losses.append(made.model.eval()(**batch)["loss"].item())
    assert found.series["eval_loss"][-1] == pytest.approx(sum(losses) / 2, rel=1e-4)


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
    _, found = train(model, data, tmp_path, once)
    assert found.series["train_loss"] == [pytest.approx(expected, rel=1e-4)]
    assert found.series["eval_loss"] == []


def test_bloom_trains_and_answers_with_and_without_gradient_checkpointing(data, tmp_path) -> None:
    """BLOOM has no dropout here, so that both trainings log the same losses."""
    losses = []
    for on in (False, True):
        model = bloom.build("bloom-tiny", None, 0)
        made, found = train(model, data, tmp_path, knobs.of(vars(KNOBS), gradient_checkpointing=on))
        losses.append(found.series["train_loss"])
        assert made.model.is_gradient_checkpointing == on
        assert found.series["eval_loss"][1] < found.series["eval_loss"][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    texts = training.generate(model, data, 4, 3, "cpu", "fp32")
    assert list(texts) == list(data.references)
    assert training.generate(model, data, 4, 1, "cpu", "fp32") == texts  # padding of others changes no answer


def test_a_model_that_answers_every_question_scores_100_percent(tmp_path) -> None:
    section = SECTION | {"eval_size": 12, "max_length": 256}  # no question is cut
    folder = generated(squad_sets.datasets(section), tmp_path)
    data = squad_sets.read(folder, squad_sets.dataset_name(section), "answer")
    rows = squad.obtain(None, 12, 12, 0).evaluation
    assert [row.id for row in rows] != sorted(row.id for row in rows)

    class Student(torch.nn.Module):
        def generate(self, input_ids: torch.Tensor, **_: object) -> torch.Tensor:
            prompts = texts_of(input_ids.tolist(), data.tokenizer, -1)
            answers = [next(row.answers[0] for row in rows if row.question in prompt) for prompt in prompts]
            ids = [torch.tensor([*from_text(data.tokenizer).encode(answer).ids, end]) for answer in answers]
            return torch.cat([input_ids, torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=end)], 1)

    end = data.facts["tokenizer"]["end_id"]
    scores = training.scored(training.generate(Student(), data, 4, 5, "cpu", "fp32"), data)
    assert (scores["exact_match_percent"], scores["f1_percent"]) == (100, 100)


def test_a_step_is_from_the_end_of_the_one_before_or_the_beginning_of_its_epoch(monkeypatch) -> None:
    times = iter([10.0, 11.0, 13.0, 100.0, 104.0])
    monkeypatch.setattr(training, "perf_counter", lambda: next(times))
    clock = training.StepClock("cpu")
    for event in ("epoch", "step", "step", "epoch", "step"):
        (clock.on_epoch_begin if event == "epoch" else clock.on_step_end)(None, None, None)
    assert clock.step_s == [1.0, 2.0, 4.0]  # the evaluation between the epochs is in none


def test_every_row_is_trained_on_once_an_epoch_and_the_first_ones_fill_up() -> None:
    own = Knobs(batch_size=2, grad_acc=2, seed=3)
    ranks = [bare_loop.epoch_steps(own, 14, 1, rank, 4) for rank in range(4)]
    seen = sorted(row for steps in ranks for step in steps for batch in step for row in batch)
    assert len(seen) == 16 and set(seen) == set(range(14))
    assert ranks[0] != bare_loop.epoch_steps(own, 14, 2, 0, 4)  # another order in the next epoch
    for world_size, steps in ((1, 125), (2, 63), (8, 16)):  # of the workshop's 500 rows
        assert bare_loop.steps_per_epoch(Knobs(), 500, world_size) == steps
        assert len(bare_loop.epoch_steps(Knobs(), 500, 0, world_size - 1, world_size)) == steps
