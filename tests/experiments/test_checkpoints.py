"""Checkpoints in parts: resumed by another number of ranks with the same losses; what lies on disk; room."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measured_cells import generated

pytest.importorskip("transformers", reason="the package transformers is not installed")
from torch.distributed.checkpoint import FileSystemReader
from trainer_programs import checkpoint_as_on_gpus, checkpoint_fused, preload

from perfscribe.base.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.distributed.launch import launch
from perfscribe.experiments.fsdp.checkpoints import levels, measure, program
from perfscribe.experiments.fsdp.checkpoints.measure import PIECES_BYTES, needed_bytes, predicted_bytes

SECTION: dict[str, Any] = {"train_size": 24, "eval_size": 4, "max_length": 64, "new_tokens": 8, "vocab_size": 400}
SECTION |= {"workshop": {"squad": None, "weights": None, "tokenizer": None}, "seed": 0}
SECTION |= {"backend": ["gloo"], "ranks": [[2, 1]], "trainer_ranks": [], "keep_checkpoints": 1, "batch_size": 1}
SECTION |= {"rows_per_step": 4, "save_steps": 2, "model_name": "bloom-tiny", "labels": "answer", "num_epochs": 1}
SECTION |= {"learning_rate": 0.02, "weight_decay": 0.01, "dtype": "fp32"}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    preload()
    folder = generated(squad_sets.datasets(SECTION), tmp_path_factory.mktemp("data"))
    (made,) = levels.cells(SECTION)
    return replace(made, data_folder=str(folder))


@pytest.mark.parametrize("kind", ["bare loop", "fused AdamW", "Trainer"])
def test_another_number_of_ranks_goes_on_with_the_same_losses(cell: Cell, kind: str) -> None:
    """With a fused AdamW, as on GPUs, the moments that reading makes room for are made by a step of its kernel."""
    random.seed(3)  # weights and order of rows
    if kind == "bare loop":
        found = measure.run(cell)
    elif kind == "fused AdamW":
        ranks = {"saved_by": 1, "resumed_by": 2}
        found = measure.both(replace(cell, factors={**cell.factors, **ranks}), checkpoint_fused)
    else:
        (made,) = levels.cells(SECTION | {"ranks": [], "trainer_ranks": [[1, 2]]})
        found = measure.both(replace(made, data_folder=cell.data_folder), checkpoint_as_on_gpus)
        assert found.values["wrapped_by"] == "FSDP2"
        assert found.values["local_share"] == pytest.approx(1 / 2, abs=0.02)
    values, whole = found.values, found.series["train_loss"]
    assert (values["steps_behind"], values["steps_compared"]) == (4, 2)  # none at the end, the older one is gone
    assert values["largest_difference"] < 1e-5
    assert len(whole) == 6 and max(whole) - min(whole) > 1e-3 * min(whole)  # the same ones would prove nothing
    assert values["save_s"] > 0 and values["load_s"] > 0
    # Trainer weighs rows that are evaluated at once by their tokens, on all ranks.
    assert values["resumed_eval_loss"] == pytest.approx(values["eval_loss"], rel=0.02 if kind == "Trainer" else 1e-5)


def test_the_bare_loop_writes_a_tied_matrix_once(cell: Cell, tmp_path: Path) -> None:
    arguments = {"data_folder": cell.data_folder, "dataset": cell.data[0], "folder": str(tmp_path), "order_seed": 3}
    arguments |= {"factors": {**cell.factors, "grad_acc": 2, "keep_checkpoints": 2}, "resume": False}
    values = launch(program.on_rank, arguments, world_size=2, timeout_s=120, seed=3)[0]["values"]
    (tmp_path / "step-12.part").mkdir()  # one that is not whole does not count
    _, (last, path) = program.finished(tmp_path, "step")
    tensors = FileSystemReader(path).read_metadata().state_dict_metadata
    sizes = {name: one.size for name, one in tensors.items() if len(getattr(one, "size", ()))}  # no step counts
    assert last == 4 and values["again_parameters"] == 0
    assert "model.transformer.word_embeddings.weight" in sizes and "model.lm_head.weight" not in sizes
    assert 4 * sum(size.numel() for size in sizes.values()) == predicted_bytes(values["parameters"])
    assert program.size_bytes(tmp_path) < needed_bytes(values["parameters"], 1)


def test_room_is_asked_for_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 36_000 + 3 * PIECES_BYTES
    monkeypatch.setattr(program.shutil, "disk_usage", lambda path: type("Usage", (), {"free": needed}))
    program.require_room(tmp_path, 1000, 2, 0)
    with pytest.raises(ValueError, match="keep_checkpoints: 2: they and the one being written take"):
        program.require_room(tmp_path, 1000, 2, written_again=10)
