"""The FSDP workshop on one device: cells that really run, and what they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measured_cells import generated

pytest.importorskip("transformers", reason="the package transformers is not installed")
from perfscribe import config
from perfscribe.base.cells import Unsupported
from perfscribe.data.generate import generate
from perfscribe.experiments.fsdp.baseline import levels, measure
from perfscribe.models import bloom
from perfscribe.plan import plan
from perfscribe.run import child


def _section(preset: str, **changed: Any) -> dict[str, Any]:
    return plan.own_section(config.resolve({"chapters": ["fsdp"]}, preset), "baseline") | changed


def test_knobs_that_contradict_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="fp16 and bf16: both are true"):
        levels.cells(_section("gpu", bf16=True))
    with pytest.raises(ValueError, match="num_heads: 3: expected a divisor of hidden_size"):
        levels.cells(_section("gpu", num_heads=3))


def test_what_a_cell_measures_and_refuses(tmp_path: Path) -> None:
    section = _section("tiny")
    folder, cells = generated(levels.datasets(section), tmp_path), levels.cells(section)

    def run(model: str, labels: str, **changed: Any) -> dict[str, Any]:
        cell = next(one for one in cells if (one["model"], one["labels"]) == (model, labels))
        child.reset_state(0)
        found = measure.run(replace(cell, factors={**cell.factors, **changed}, data_folder=str(folder)))
        child.check(found)
        return found.values

    for values in (run("bloom", "answer"), run("simple_gpt", "source")):
        assert values["steps"] == 6 and values["wrapped_by"] == "none"
        assert 0 < values["at_rest_bytes"] < values["peak_allocated_bytes"]
        # Weights and two moments in fp32 are all that rests.
        assert values["at_rest_bytes"] == pytest.approx(12 * values["parameters"], rel=0.3)
        assert values["identical_exact_match_percent"] == 100
    with pytest.raises(Unsupported, match="fp16 training needs a GPU"):
        run("bloom", "answer", fp16=True)
    with pytest.raises(ValueError, match="the tokenizer has 468 entries, the model 300"):
        run("simple_gpt", "answer", model_vocab_size=300)


def test_weights_of_a_folder_are_a_data_set_and_their_path_no_factor(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    bloom.build("bloom-tiny", None, 5).save_pretrained(folder)
    section = _section("tiny", workshop={"squad": None, "weights": str(folder), "tokenizer": None}, num_epochs=1)
    for name, dataset in levels.datasets(section).items():
        digest = generate({"dataset": name, "formats": [], **dataset}, tmp_path / "data" / name)
        assert str(tmp_path) not in digest.read_text()
    cell = levels.cells(section)[0]
    assert (cell["model"], cell["weights"], len(cell.data)) == ("bloom", "folder", 2)
    child.reset_state(0)
    assert measure.run(replace(cell, data_folder=str(tmp_path / "data"))).values["weights"] == "path"
    moved = folder.rename(tmp_path / "elsewhere")
    section["workshop"]["weights"] = str(moved)
    assert levels.cells(section)[0].data == cell.data
    bloom.build("bloom-tiny", None, 6).save_pretrained(moved)
    assert levels.cells(section)[0].data != cell.data
    (moved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"elsewhere: expected a folder with config\.json and model\.safetensors"):
        levels.cells(section)
