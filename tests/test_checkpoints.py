"""Checkpoints in parts: resumed by another number of ranks with the same losses; whole ones alone count; room."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

pytest.importorskip("transformers", reason="the package transformers is not installed")
from perfscribe.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.data.generate import generate
from perfscribe.experiments.checkpoints import measure, present
from perfscribe.records import Record
from perfscribe.training import checkpoints
from perfscribe.training.checkpoint_size import needed_bytes

CONFIG = {"train_size": 24, "eval_size": 4, "max_length": 64, "new_tokens": 8, "vocab_size": 400, "seed": 0}
CONFIG |= {"workshop": {"squad": None, "weights": None, "tokenizer": None}}
SECTION = CONFIG | {
    "backend": ["gloo"],
    "ranks": [[2, 1]],
    "rows_per_step": 4,
    "save_steps": 2,
    "keep_checkpoints": 1,
    "model_name": "bloom-tiny",
    "labels": "answer",
    "num_epochs": 1,
    "batch_size": 1,
    "learning_rate": 0.02,
    "weight_decay": 0.01,
    "dtype": "fp32",
}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    folder = tmp_path_factory.mktemp("data")
    [(name, dataset)] = squad_sets.datasets(CONFIG).items()
    generate(json.loads(json.dumps({"dataset": name, "formats": [], **dataset})), folder / name)
    (made,) = measure.cells(SECTION)
    return replace(made, data_folder=str(folder))


@pytest.fixture(scope="module")
def found(cell: Cell) -> Any:
    random.seed(3)  # weights and order of rows
    return measure.run(cell)


def test_another_number_of_ranks_goes_on_with_the_same_losses(found: Any) -> None:
    values = found.values
    assert (values["steps_behind"], values["steps_compared"]) == (4, 2)  # none at the end, the older one is gone
    assert values["largest_difference"] < 1e-5 and values["eval_difference"] < 1e-5
    assert values["checkpoint_bytes"] > needed_bytes(values["parameters"], 0)
    whole, rest = found.series["train_loss"], found.series["resumed_train_loss"]
    assert len(whole) == 6 and len(rest) == 2
    assert max(whole) - min(whole) > 1e-3 * min(whole)  # losses that stay the same would prove nothing


def test_table_figure_and_sentence(cell: Cell, found: Any) -> None:
    record = Record("checkpoints", dict(cell.factors), "ok", "", "measured", values=found.values, series=found.series)
    none = Record("checkpoints", {**cell.factors, "saved_by": 4}, "unsupported", "no CUDA device", "measured")
    made = {table.id: table for table in present.tables({"checkpoints": [record, none]})}
    assert tuple(made) == present.TABLES
    assert len(made["fsdp.checkpoint_losses"].frame) == 7
    (sentence,) = present.findings(made)
    assert sentence.text.startswith("Yes: ")
    worse = replace(record, values={**found.values, "largest_difference": 0.1})
    (other,) = present.findings({table.id: table for table in present.tables({"checkpoints": [worse]})})
    assert other.text.startswith("No: ")
    for figure in present.figures(made):
        canvas = plt.figure()
        figure.draw(canvas)
        plt.close(canvas)


def test_a_checkpoint_that_is_not_whole_does_not_count(tmp_path: Path) -> None:
    for name in ("step-2", "step-10", "step-12.part", "other"):
        (tmp_path / name).mkdir()
    assert [step for step, _ in checkpoints.finished(tmp_path)] == [2, 10]


def test_room_is_asked_for_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert needed_bytes(1000, 2) == 36_000
    checkpoints.require_room(tmp_path, 1000, 2)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 35_999}))
    with pytest.raises(ValueError, match="keep_checkpoints: 2: they and the one being written take"):
        checkpoints.require_room(tmp_path, 1000, 2)


def test_rows_that_cannot_be_divided_are_skipped() -> None:
    (made,) = measure.cells(SECTION | {"ranks": [[2, 3]]})
    assert made.skip == "4 rows a step cannot be divided among 3 ranks with 1 at once"
