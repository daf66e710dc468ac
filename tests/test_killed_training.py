"""A training that is killed goes on from its last whole checkpoint as if nothing had happened; what is kept of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the package transformers is not installed")
import torch
import trainer_ranks

from perfscribe.cells import Cell
from perfscribe.data import squad_sets
from perfscribe.data.generate import generate
from perfscribe.experiments.killed_training import measure, present
from perfscribe.models import simple_gpt
from perfscribe.models.workshop_shapes import SimpleGptShape
from perfscribe.records import Record
from perfscribe.training import keeping

CONFIG = {"train_size": 20, "eval_size": 4, "max_length": 64, "new_tokens": 8, "vocab_size": 400, "seed": 0}
CONFIG |= {"workshop": {"squad": None, "weights": None, "tokenizer": None}}
SECTION = CONFIG | {
    "backend": ["gloo"],
    "world_size": [2],
    "save_steps": 3,
    "keep_checkpoints": 1,
    "killed_after": 8,
    "output_dir": None,
    "model_name": "bloom-tiny",
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "ffn": 32,
    "labels": "answer",
    "num_epochs": 2,
    "batch_size": 1,
    "grad_acc": 2,
    "learning_rate": 0.02,
    "weight_decay": 0.01,
    "dtype": "fp32",
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    folder = tmp_path_factory.mktemp("data")
    [(name, dataset)] = squad_sets.datasets(CONFIG).items()
    generate(json.loads(json.dumps({"dataset": name, "formats": [], **dataset})), folder / name)
    return [replace(made, data_folder=str(folder)) for made in measure.cells(SECTION)]


@pytest.fixture(scope="module")
def found(cells: list[Cell]) -> list[Any]:
    trainer_ranks.preload()
    random.seed(3)  # weights and order of rows
    return [measure.run(cell) for cell in cells]


def test_a_killed_training_goes_on_as_if_nothing_had_happened(cells: list[Cell], found: list[Any]) -> None:
    assert [(cell["loop"], cell["model_name"]) for cell in cells] == [
        ("trainer", "bloom-tiny"),
        ("trainer", "simple_gpt"),
        ("bare loop", "bloom-tiny"),
    ]
    for cell, one in zip(cells, found, strict=True):
        values = one.values
        assert values["ended"] == f"rank 0 of {cell['world_size']}: died by SIGKILL"
        steps = 20 // cell["world_size"]
        assert (values["steps_behind"], values["steps_compared"]) == (6, steps - 6)
        whole, rest = one.series["train_loss"], one.series["resumed_train_loss"]
        assert len(whole) == steps and rest == pytest.approx(whole[6:], rel=1e-6)
        assert values["resumed_eval_loss"] == pytest.approx(values["eval_loss"], rel=1e-6)
        assert max(whole) - min(whole) > 1e-2 * min(whole)  # losses that stay the same would prove nothing
        assert values["checkpoint_bytes"] > 12 * values["parameters"]


def test_model_and_tokenizer_are_kept(cells: list[Cell], found: list[Any]) -> None:
    for cell, one in zip(cells, found, strict=True):
        values = one.values
        assert (values["read_back_difference"], values["tokenizer_reads_back"]) == (0.0, "same ids")
        shape = "shape.json" if cell["model_name"] == "simple_gpt" else "config.json"
        assert {shape, "model.safetensors", "tokenizer.json"} <= set(values["final_files"].split(", "))
        assert values["final_bytes"] > 4 * values["parameters"]


def test_tables_and_sentences(cells: list[Cell], found: list[Any]) -> None:
    records = [
        Record("killed_training", dict(cell.factors), "ok", "", "measured", values=one.values, series=one.series)
        for cell, one in zip(cells, found, strict=True)
    ]
    none = replace(records[0], status="unsupported", reason="no CUDA device", values={}, series={})
    made = {table.id: table for table in present.tables({"killed_training": [*records, none]})}
    assert tuple(made) == present.TABLES
    assert list(made["fsdp.killed"].ok["made_again"]) == [2, 2, 2]
    assert len(made["fsdp.killed_losses"].frame) == 20 + 20 + 10 + 1
    gone_on, kept = present.findings(made)
    assert gone_on.text.startswith("Yes: of 3 trainings that SIGKILL ended") and "made 2 steps again" in gone_on.text
    assert kept.text.endswith("all read back as they were.")
    assert "Arithmetic misses" not in gone_on.text
    assert "behind" not in " ".join(column.title for column in made["fsdp.killed"].columns)
    larger = replace(records[2], values={**found[2].values, "parameters": 2**28, "checkpoint_bytes": 4 * 2**30})
    sized, _ = present.findings({table.id: table for table in present.tables({"killed_training": [larger]})})
    assert sized.text.endswith(
        "Arithmetic misses 1 size: bloom-tiny by the bare loop on 2 ranks takes 4.00 GiB for 3.00."
    )
    worse = replace(records[1], values={**found[1].values, "largest_difference": 0.1, "read_back_difference": 0.2})
    other, lost = present.findings({table.id: table for table in present.tables({"killed_training": [worse]})})
    assert other.text.startswith("No: ") and "1 of them read back as something else" in lost.text


def test_the_folder_that_is_named_keeps_the_model(cells: list[Cell], tmp_path: Path) -> None:
    final = tmp_path / "place" / "final"
    measure._keep(cells[0], final)  # none is named: nothing is moved, and nothing need be there
    for round_number in range(2):
        final.mkdir(parents=True)
        (final / "shape.json").write_text(str(round_number))
        named = replace(cells[1], factors={**cells[1].factors, "output_dir": str(tmp_path / "kept")})
        measure._keep(named, final)
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.name == "simple_gpt-trainer-1-cpu" and (kept / "shape.json").read_text() == "1"


@pytest.mark.parametrize("killed_after", [3, 10])
def test_a_kill_that_could_prove_nothing_is_skipped(killed_after: int) -> None:
    *_, divided = measure.cells(SECTION | {"killed_after": killed_after})
    assert divided.skip == f"killed_after {killed_after}: expected more than save_steps 3 and less than all 10 steps"


# --- by a signal from outside, at any time ------------------------------------------------------------------------

TRAINING = """import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import test_killed_training
print(json.dumps(test_killed_training.train(Path(sys.argv[3]))))
"""
STEPS = 60


def train(folder: Path) -> list[float]:
    """Losses of a tied model with dropout, saved behind every step; from the last whole checkpoint on."""
    import transformers

    from perfscribe.training import knobs, trainer

    torch.set_num_threads(1)
    chosen = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 64, (STEPS, 24), generator=chosen).numpy()
    arrays = {"input_ids": rows, "labels": rows}
    own = knobs.Knobs(num_epochs=1, grad_acc=1, logging_steps=1, save_strategy="steps", eval_strategy="no")
    shape = SimpleGptShape(vocab_size=64, hidden_size=16, num_layers=1, num_heads=2, ffn=32)
    transformers.utils.logging.set_verbosity_error()
    made = keeping.KeepingTrainer(
        model=simple_gpt.build(shape, 0),
        args=trainer.arguments(own, folder, save_steps=1, save_total_limit=3),
        train_dataset=trainer.Rows(arrays),
    )
    made.remove_callback(transformers.PrinterCallback)
    last = keeping.last_whole(folder)
    made.train(resume_from_checkpoint=str(last[1]) if last else None)
    assert made.model.lm_head.weight is made.model.token_embedding.weight
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def start(folder: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    tests = Path(__file__).resolve().parent
    command = [sys.executable, "-c", TRAINING, str(tests.parent), str(tests), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def losses(process: subprocess.Popen[str]) -> list[float]:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    found: list[float] = json.loads(said.splitlines()[-1])
    return found


def test_kill_9_at_any_time_costs_no_step_of_the_curve(tmp_path: Path) -> None:
    """From outside, the moment a checkpoint's folder is there: mostly while it is being written."""
    alone = start(tmp_path / "alone")
    folder = tmp_path / "killed"
    for seen in (5, 20):
        process = start(folder)
        until = time.monotonic() + 120
        while not (folder / f"checkpoint-{seen}").exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        step, _ = keeping.last_whole(folder)
        assert seen - 3 <= step < STEPS
    assert len(list(folder.glob("checkpoint-*"))) <= 4  # keep_checkpoints, and one that was being written
    gone_on, expected = losses(start(folder)), losses(alone)
    assert len(expected) == STEPS and gone_on == expected


def test_a_checkpoint_that_was_being_written_is_passed_over(tmp_path: Path) -> None:
    assert keeping.last_whole(tmp_path) is None
    for step, state in ((2, "{}"), (10, "{}"), (11, '{"epoch": 1.'), (12, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / keeping.STATE).write_text(state)
    (tmp_path / "checkpoint-99").write_text("no folder")
    assert keeping.last_whole(tmp_path) == (10, tmp_path / "checkpoint-10")


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_matrix_is_written_once(tied: bool, tmp_path: Path) -> None:
    shape = SimpleGptShape(vocab_size=64, hidden_size=16, num_layers=1, num_heads=2, ffn=32, tied=tied)
    ours, read = simple_gpt.build(shape, 0), simple_gpt.build(shape, 1)
    keeping.write_model(ours, tmp_path)
    keeping.read_model(read, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), read.parameters(), strict=True))
    assert (read.lm_head.weight is read.token_embedding.weight) == tied
    assert SimpleGptShape(**json.loads((tmp_path / keeping.SHAPE).read_text())) == shape
    written = (tmp_path / keeping.WEIGHTS).stat().st_size
    assert 4 * shape.parameters <= written < 4 * shape.parameters + 4 * 64 * 16
