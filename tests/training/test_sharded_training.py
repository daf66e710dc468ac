"""Trainings that really run on two gloo ranks: divided by fully_shard, by Trainer, tuned; and what is refused."""

from typing import Any

import pytest

pytest.importorskip("transformers", reason="the package transformers is not installed")
from measured_cells import generated
from trainer_programs import overflow_on_one_rank, preload, train_as_on_gpus

from perfscribe.data import squad_sets
from perfscribe.distributed.failures import RankError
from perfscribe.distributed.launch import launch
from perfscribe.training import on_ranks

ROWS = {"train_size": 16, "eval_size": 5, "max_length": 64, "new_tokens": 8, "vocab_size": 400, "seed": 0}
CONFIG = ROWS | {"workshop": {"squad": None, "weights": None, "tokenizer": None}}
SHAPE = {"vocab_size": 512, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "ffn": 64}
BLOOM = {"model_name": "bloom-tiny", "weights": "random", "labels": "answer", "device": "cpu", "dtype": "fp32"}
BLOOM |= {"batch_size": 1, "num_epochs": 1, "logging_steps": 2, "learning_rate": 0.02, "weight_decay": 0.01}
CUSTOM = BLOOM | {"model_name": "simple_gpt", **SHAPE}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    preload()
    folder = generated(squad_sets.datasets(CONFIG), tmp_path_factory.mktemp("data"))
    return str(folder), squad_sets.dataset_name(CONFIG)


def train(data: tuple[str, str], world_size: int, factors: dict, program: Any = on_ranks.on_rank) -> list[dict]:
    arguments = {"factors": factors, "data_folder": data[0], "dataset": data[1]}
    return launch(program, arguments, world_size=world_size, timeout_s=120, seed=7)


def test_two_ranks_with_fsdp_train_what_one_does(data) -> None:
    """BLOOM has no dropout, so that the same rows a step give the same losses."""
    (alone,) = train(data, 1, BLOOM | {"loop": "bare loop", "wrap": "none", "grad_acc": 4})
    both = train(data, 2, BLOOM | {"loop": "bare loop", "wrap": "FSDP2", "grad_acc": 2})
    assert alone["values"]["wrapped_by"] == "none"
    for rank in both:
        assert rank["series"]["train_loss"] == pytest.approx(alone["series"]["train_loss"], rel=1e-4)
        assert rank["series"]["eval_loss"] == pytest.approx(alone["series"]["eval_loss"], rel=1e-4)
        assert rank["values"]["wrapped_by"] == "FSDP2"
        assert 0 < rank["values"]["evaluation_s"] < rank["values"]["train_runtime_s"]
        assert rank["values"]["units"] == 2  # one block, and the rest
        assert rank["values"]["local_share"] == pytest.approx(0.5, abs=0.01)
    losses = alone["series"]["train_loss"]
    assert len(losses) == 4 and losses[-1] < losses[0]
    (other,) = train(data, 1, BLOOM | {"loop": "bare loop", "wrap": "none", "grad_acc": 2})  # half the rows a step
    assert other["series"]["eval_loss"] != pytest.approx(alone["series"]["eval_loss"], rel=1e-4)


def test_trainer_that_takes_ddp_for_fsdp_without_a_word_fails(data) -> None:
    with pytest.raises(RankError, match="FSDP2 was asked for, the model is wrapped by DDP"):
        train(data, 2, BLOOM | {"loop": "trainer", "wrap": "FSDP2", "grad_acc": 2})


@pytest.mark.parametrize(
    ("model", "low", "wrap", "units"),
    [(BLOOM, False, "FSDP2", 5), (CUSTOM, True, "FSDP1", 1)],
)
def test_trainers_fsdp_divides_the_model_and_trains_as_ddp_does(data, model, low: bool, wrap: str, units: int) -> None:
    """By Trainer's own way for GPUs: blocks by their bare name, or one unit; fp16 as the workshop has it."""
    asked = model | {"loop": "trainer", "grad_acc": 2, "learning_rate": 1e-4}
    (ddp, _) = train(data, 2, asked | {"wrap": "DDP"})
    ranks = train(data, 2, asked | {"wrap": wrap, "low": low}, train_as_on_gpus)
    assert [(rank["values"]["wrapped_by"], rank["values"]["units"]) for rank in ranks] == [(wrap, units)] * 2
    assert ranks[0]["values"]["local_share"] == pytest.approx(0.5, abs=0.02)
    assert 0 < ranks[0]["values"]["evaluation_s"] < ranks[0]["values"]["train_runtime_s"]
    assert ranks[0]["series"]["eval_loss"] == pytest.approx(ddp["series"]["eval_loss"], rel=3e-3 if low else 1e-4)


@pytest.mark.parametrize("model", [BLOOM, CUSTOM])
def test_a_tuned_loop_trains_either_model_in_blocks(data, model) -> None:
    tuned = {"loop": "tuned", "wrap": "FSDP2", "compiled": False, "memory_percent": 80, "steps": 3, "grad_acc": 1}
    for rank in train(data, 2, model | tuned):
        values = rank["values"]
        assert values["wrapped_by"] == "FSDP2" and values["local_share"] == pytest.approx(0.5, abs=0.02)
        assert values["units"] == 1 + (1 if model is BLOOM else 2)  # blocks, and the rest
        losses = rank["series"]["train_loss"]
        assert len(losses) == 3 and losses[-1] < losses[0]


def test_a_step_that_overflows_on_one_rank_is_left_out_on_all_by_a_fused_adamw() -> None:
    """fp16's scaler with fully_shard: another rank's overflow reaches the kernel that updates the parts of this one."""
    for rank in launch(overflow_on_one_rank, {}, world_size=2, timeout_s=120, seed=7):
        assert rank["fused"] and rank["divided"]
        assert rank["scales"] == [2.0**16, 2.0**15, 2.0**15]  # before, behind the overflow, behind a step without
        assert rank["moved"] == [False, True]
        assert rank["counted"] == [0.0, 1.0]  # AdamW's own count of steps
