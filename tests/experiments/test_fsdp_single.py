"""The FSDP workshop on one device: cells that really run, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from measured_cells import generated
from workspace import ROOT

pytest.importorskip("transformers", reason="the package transformers is not installed")
from perfscribe import config
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.data.generate import generate
from perfscribe.experiments.baseline import measure
from perfscribe.models import bloom
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.run import child

RAW = config.load(ROOT / "config.yaml", {"chapters": ["fsdp"]})


def _section(preset: str, **changed: Any) -> dict[str, Any]:
    return plan.own_section(config.resolve(RAW, preset), "baseline") | changed


def _cells(preset: str) -> dict[tuple[str, str], Cell]:
    return {(cell["model"], cell["labels"]): cell for cell in measure.cells(_section(preset))}


Run = Callable[..., Record]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a cell of the tiny preset, with factors changed; its record."""
    folder = generated(measure.datasets(_section("tiny")), tmp_path_factory.mktemp("data"))

    @cache
    def one(model: str, labels: str, **changed: Any) -> Record:
        cell = _cells("tiny")[model, labels]
        cell = replace(cell, factors={**cell.factors, **changed}, data_folder=str(folder))
        child.reset_state(0)
        measured = measure.run(cell)
        child.check(measured)
        answer = json.loads(json.dumps(child.as_answer(measured)))
        samples, warmup = ({"step_s": [answer[part]["step_s"]]} for part in ("samples", "warmup"))
        kept = {name: answer[name] for name in ("values", "series", "timers")}
        return Record("baseline", dict(cell.factors), "ok", "", "measured", samples, warmup=warmup, **kept)

    return one


# --- cells ------------------------------------------------------------------------------------------------------


def test_knobs_that_contradict_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="fp16 and bf16: both are true"):
        measure.cells(_section("gpu", bf16=True))
    with pytest.raises(ValueError, match="num_heads: 3: expected a divisor of hidden_size"):
        measure.cells(_section("gpu", num_heads=3))


def test_what_a_cell_measures(run: Run) -> None:
    for record in (run("bloom", "answer"), run("simple_gpt", "source")):
        values = record.values
        assert values["steps"] == 6 and values["wrapped_by"] == "none"
        assert 0 < values["at_rest_bytes"] < values["peak_allocated_bytes"]
        # Weights and two moments in fp32 are all that rests.
        assert values["at_rest_bytes"] == pytest.approx(12 * values["parameters"], rel=0.3)
        assert values["identical_exact_match_percent"] == 100


def test_what_a_cell_refuses(run: Run) -> None:
    with pytest.raises(Unsupported, match="fp16 training needs a GPU"):
        run("bloom", "answer", fp16=True)
    with pytest.raises(ValueError, match="the tokenizer has 468 entries, the model 300"):
        run("simple_gpt", "answer", model_vocab_size=300)


def test_weights_of_a_folder_are_a_data_set_and_their_path_no_factor(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    bloom.build("bloom-tiny", None, 5).save_pretrained(folder)
    section = _section("tiny", workshop={"squad": None, "weights": str(folder), "tokenizer": None}, num_epochs=1)
    for name, dataset in measure.datasets(section).items():
        digest = generate({"dataset": name, "formats": [], **dataset}, tmp_path / "data" / name)
        assert str(tmp_path) not in digest.read_text()
    cell = measure.cells(section)[0]
    assert (cell["model"], cell["weights"], len(cell.data)) == ("bloom", "folder", 2)
    child.reset_state(0)
    assert measure.run(replace(cell, data_folder=str(tmp_path / "data"))).values["weights"] == "path"
    moved = folder.rename(tmp_path / "elsewhere")
    section["workshop"]["weights"] = str(moved)
    assert measure.cells(section)[0].data == cell.data
    bloom.build("bloom-tiny", None, 6).save_pretrained(moved)
    assert measure.cells(section)[0].data != cell.data
    (moved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"elsewhere: expected a folder with config\.json and model\.safetensors"):
        measure.cells(section)
