"""The FSDP workshop on one device: cells, tables from records made by hand, and cells that really run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.experiments.baseline import measure, show
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.run import child

RAW = config.load(ROOT / "config.yaml", {"chapters": ["fsdp"]})


def _section(preset: str = "gpu", **changed: Any) -> dict[str, Any]:
    return plan.own_section(config.resolve(RAW, preset), "baseline") | changed


CELLS = {(cell["model"], cell["labels"]): cell for cell in measure.cells(_section())}


def _values(cell: Cell) -> dict[str, Any]:
    shape = measure.shape_of(cell.factors) if cell["model"] == "simple_gpt" else None
    facts = {
        f"{way}_{name}": count
        for way, counts in {
            "answer": (2_000, 2_000, 500, 500),
            "source": (1_900, 3, 480, 0),
            "source_prompt": (90_000, 90_000, 480, 0),
        }.items()
        for name, count in zip(("targets", "targets_read", "rows_with_marker", "rows_asked"), counts, strict=True)
    }
    facts |= {
        f"{way}_{name}": n for way in show.WAYS for name, n in (("rows", 500), ("tokens", 64_000), ("longest", 400))
    }
    scores = {
        f"{when}_{way}{name}": 1.0
        for when in ("before", "after")
        for way in ("", "workshop_")
        for name in ("exact_match_percent", "f1_percent")
    }
    return {
        **facts,
        **scores,
        "after_f1_percent": 12.5,
        "identical_exact_match_percent": 100.0,
        "identical_f1_percent": 100.0,
        "identical_workshop_f1_percent": 98.5,
        "parameters": shape.parameters if shape else 559_214_592,
        "weights": "random",
        "wrapped_by": "none",
        "steps": 625,
        "steps_per_epoch": 125.0,
        "train_runtime_s": 100.0,
        "train_samples_per_s": 25.0,
        "mean_train_loss": 3.0,
        "final_train_loss": 2.5,
        "peak_allocated_bytes": 16 * 2**30,
        "at_rest_bytes": 8 * 2**30,
        "gpu_used_bytes": 20 * 2**30,
        "gpu_utilisation_percent": 90.0,
        "data_origin": "file",
        "data_names": "train.json; dev.json",
        "tokenizer": "trained",
        "vocabulary_asked": 50_000,
        "vocabulary_reached": 9_000,
    }


def _record(model: str = "bloom", labels: str = "answer", losses: tuple[float, ...] = (3.0, 2.5, 2.75), **values: Any):
    cell = CELLS[model, labels]
    epochs = range(1, len(losses) + 1)
    return Record(
        "baseline",
        dict(cell.factors),
        "ok",
        "",
        "measured",
        samples={"step_s": [[0.1, 0.1, 0.1, 0.2]]},
        warmup={"step_s": [[1.0]]},
        values=_values(cell) | values,
        series={
            "train_loss_step": [step for epoch in epochs for step in (125 * epoch - 60, 125 * epoch)],
            "train_loss": [loss + part for loss in losses for part in (0.0, 1.0)],
            "eval_epoch": [float(epoch) for epoch in epochs],
            "eval_step": [125 * epoch for epoch in epochs],
            "eval_loss": list(losses),
            "eval_runtime_s": [2.0] * len(losses),
            "eval_samples_per_s": [50.0] * len(losses),
        },
        timers={"step_s": "host clock"},
        environments=["e"],
    )


def _all(**values: Any) -> list[Record]:
    falling = (6.0, 3.0, 0.3)
    return [
        _record(**values),
        _record(labels="source", losses=(4.0, 4.5, 5.0), **values),
        _record("simple_gpt", **values),
        _record("simple_gpt", "source", losses=falling, **values),
    ]


def _tables(cells: list[Record]) -> dict[str, Any]:
    return {table.id: table for table in show.tables({"baseline": cells})}


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_gpu_preset_is_the_workshops() -> None:
    knobs = {"num_epochs": 5, "batch_size": 1, "grad_acc": 4, "learning_rate": 5e-5, "weight_decay": 0.01}
    sizes = {"train_size": 500, "eval_size": 100, "max_length": 512, "new_tokens": 50, "vocab_size": 50_000}
    for cell in CELLS.values():
        assert cell.factors.items() >= (knobs | sizes | {"fp16": True, "bf16": False, "device": "cuda"}).items()
        assert cell.requires == ("transformers", "cuda")
    assert {cell.data for cell in CELLS.values()} == {CELLS["bloom", "answer"].data}
    assert measure.labels_of(CELLS["bloom", "source"].factors) == "source"
    assert measure.labels_of(CELLS["simple_gpt", "source"].factors) == "source_prompt"
    assert measure.shape_of(CELLS["simple_gpt", "answer"].factors) == show.WORKSHOP[show.SCRIPT]
    assert CELLS["bloom", "answer"]["rows"] == CELLS["simple_gpt", "source"]["rows"] == 500
    assert CELLS["bloom", "source"]["rows"] == 100


def test_knobs_that_contradict_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="fp16 and bf16: both are true"):
        measure.cells(_section(bf16=True))
    with pytest.raises(ValueError, match="num_heads: 3: expected a divisor of hidden_size"):
        measure.cells(_section(num_heads=3))


def test_without_its_packages_the_data_set_is_not_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(plan.environment, "missing", lambda requires: "transformers is missing" if requires else None)
    found = plan.build(RAW, "tiny", ROOT)
    assert found.experiment_datasets["baseline"] == []
    assert not [name for name in found.datasets if name.startswith("squad_")]


# --- tables -----------------------------------------------------------------------------------------------------


def test_the_workshops_rows_with_its_own_labels_beside_ours() -> None:
    table = _tables(_all())["fsdp.baseline"]
    shown = table.ok.set_index("metric")
    assert list(shown.index) == [metric for metric, _, _ in show.METRICS]
    assert (shown.loc["Eval Loss (Epoch 2)", "answer"], shown.loc["Eval Loss (Epoch 2)", "source"]) == (2.5, 4.5)
    assert shown.loc["Steps per Epoch", "answer"] == 125
    assert shown.loc["Memory Allocated (MB), peak", "answer"] == pytest.approx(16 * 2**10)
    assert shown.loc["Train Loss (Final)", "answer"] == 3.0  # the summary's mean, as the workshop says where to look
    assert shown.loc["Train Loss (last logged)", "answer"] == 2.5
    assert shown.loc["GPU Utilization (%)", "answer"] == 90
    assert set(shown["model_name"]) == {"bigscience/bloom-560m"}
    own = _tables(_all())["fsdp.custom_single_node"].ok.set_index("metric")
    assert own.loc["Eval Loss (Epoch 3)", "source"] == 0.3


def test_what_was_trained_on_fewer_rows_is_no_effect_of_labels() -> None:
    table = _tables(_all())["fsdp.baseline"].ok.set_index("metric")
    assert list(table.loc["Rows trained", ["answer", "source"]]) == [500, 100]
    told = "of 500 rows, and of 100 with the workshop's labels: not of labels alone"
    for metric in ("Train Loss (Final)", "Eval Loss (Epoch 2)", "Training Speed (samples/sec)", "Steps per Epoch"):
        assert table.loc[metric, "flags"] == told
    assert table.loc["Memory Allocated (MB), peak", "flags"] == ""
    assert not any(_tables(_all())["fsdp.custom_single_node"].ok["flags"])


def test_a_way_to_label_that_failed_says_so_in_its_column() -> None:
    lost = replace(_record(labels="source"), status="oom", reason="asked for 1 GiB", samples={}, values={}, series={})
    table = _tables([_record(losses=(3.0, 2.0)), lost])["fsdp.baseline"]
    assert set(table.ok["source"]) == {"oom (asked for 1 GiB)"}
    assert table.ok.set_index("metric").loc["Eval Loss (Epoch 3)", "answer"] == "no evaluation at epoch 3"
    alone = _tables([_record()])["fsdp.baseline"]
    assert set(alone.ok["source"]) == {"not among the labels measured"}
    none = _tables([lost])["fsdp.baseline"]
    assert none.ok.empty
    assert len(none.frame) == len(show.METRICS)


def test_each_evaluation_has_the_mean_training_loss_before_it() -> None:
    table = _tables([_record()])["fsdp.baseline_losses"].ok
    assert list(table["epoch"]) == [1, 2, 3]
    assert list(table["train_loss"]) == [3.5, 3.0, 3.25]
    assert list(table["eval_loss"]) == [3.0, 2.5, 2.75]


def test_samples_a_second_of_the_steps_since_the_evaluation_before() -> None:
    whole = replace(_record(), warmup={"step_s": [[1.0] * 25]}, samples={"step_s": [[0.5] * 225]})
    table = _tables([whole])["fsdp.baseline_losses"].ok
    assert list(table["trained_per_s"]) == [4 * 125 / (25 * 1.0 + 100 * 0.5), 8.0, "not each step kept"]
    assert list(table["evaluated_per_s"]) == [50.0] * 3


def test_answers_and_labels() -> None:
    made = _tables(_all())
    answers, labels = made["fsdp.baseline_answers"].ok, made["fsdp.labels"].ok.set_index("way")
    assert list(answers["training"]) == ["before", "after"] * 2
    assert list(answers["f1_percent"]) == [1.0, 12.5] * 2
    assert list(labels["targets"]) == [2_000, 1_900, 90_000] and list(labels["targets_read"]) == [2_000, 3, 90_000]
    assert list(labels["rows_asked"]) == [500, 0, 0]
    assert set(labels["filled_percent"]) == {25.0}


def test_shapes_beside_what_was_trained() -> None:
    table = _tables(_all())["fsdp.custom_shapes"].ok
    assert list(table["parameters"]) == [534_632_248, 664_718_136, 253_524_816, 534_632_248]
    with pytest.raises(ValueError, match="7 parameters, by formula 534632248"):
        _tables([_record("simple_gpt", parameters=7)])


# --- cells that really run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """Runs a cell of the tiny preset, with factors changed."""
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from perfscribe.data.generate import generate

    folder, section = tmp_path_factory.mktemp("data"), _section("tiny")
    for name, dataset in measure.datasets(section).items():
        generate(json.loads(json.dumps({"dataset": name, "formats": [], **dataset})), folder / name)
    found = {(cell["model"], cell["labels"]): cell for cell in measure.cells(section)}

    def one(model: str, labels: str, **changed: Any) -> Any:
        cell = found[model, labels]
        child.reset_state(0)
        measured = measure.run(replace(cell, factors={**cell.factors, **changed}, data_folder=str(folder)))
        child.check(measured)
        return measured

    return one


@pytest.mark.parametrize(("model", "labels"), [("bloom", "answer"), ("simple_gpt", "source")])
def test_a_cell_runs_and_its_tables_stand(run, model: str, labels: str) -> None:
    found = run(model, labels)
    assert run(model, labels, rows=4).values["steps"] == 3  # of one batch each
    assert found.values["steps"] == 6
    assert found.series["eval_epoch"] == [1, 2, 3]
    assert found.values["wrapped_by"] == "none"
    assert 0 < found.values["at_rest_bytes"] < found.values["peak_allocated_bytes"]
    # Weights and two moments in fp32 are all that rests.
    assert found.values["at_rest_bytes"] == pytest.approx(12 * found.values["parameters"], rel=0.3)
    assert found.values["identical_exact_match_percent"] == 100
    cell = next(c for c in measure.cells(_section("tiny")) if (c["model"], c["labels"]) == (model, labels))
    answer = json.loads(json.dumps(child.as_answer(found)))
    record = Record("baseline", dict(cell.factors), "ok", "", "measured", values=answer["values"])
    record.series, record.samples = answer["series"], {"step_s": [answer["samples"]["step_s"]]}
    record.warmup, record.timers = {"step_s": [answer["warmup"]["step_s"]]}, answer["timers"]
    own = show.MODELS[model][0]
    assert all(len(table.ok) for name, table in _tables([record]).items() if name.startswith(own))


def test_what_a_cell_refuses(run) -> None:
    with pytest.raises(Unsupported, match="fp16 training needs a GPU"):
        run("bloom", "answer", fp16=True)
    with pytest.raises(ValueError, match="the tokenizer has 468 entries, the model 300"):
        run("simple_gpt", "answer", model_vocab_size=300)


def test_weights_of_a_folder_are_a_data_set_and_their_path_no_factor(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from perfscribe.data.generate import generate
    from perfscribe.models import bloom

    folder = tmp_path / "weights"
    bloom.build("bloom-tiny", None, 5).model.save_pretrained(folder)
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
    bloom.build("bloom-tiny", None, 6).model.save_pretrained(moved)
    assert measure.cells(section)[0].data != cell.data
    (moved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"elsewhere: expected a folder with config\.json and model\.safetensors"):
        measure.cells(section)
