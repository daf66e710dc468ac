"""Runs for a tracker, made of records: what they hold, and each tracker's runs read back by its own reader."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import Workspace

from perfscribe.records import records
from perfscribe.run import session
from perfscribe.tracking import keys, runs, trackers, writing

TRAINED = {"experiment": "baseline", "key": "k" * 16, "round": 1, "status": "ok", "fingerprint": "f" * 16}
TIME = {"time": "2026-01-02T03:04:05+00:00"}


def training(model: str = "bloom", world_size: int = 2, **more) -> dict:
    """A training's record: three logs, two evaluations, the callbacks' figures."""
    return records.make(
        {
            **TRAINED,
            "factors": {"model": model, "world_size": world_size, "batch_size": 1, "grad_acc": 4},
            "samples": {"step_s": [0.5, 0.25]},
            "warmup": {"step_s": [1.0]},
            "values": {
                "mean_train_loss": 0.7039,
                "train_runtime_s": 125.3,
                "gpu_utilisation_percent": 91.5,
                "at_rest_bytes": 2 * 2**20,
                "train/samples_per_second_mean": 12.5,
                "weights": "random",
            },
            "series": {
                "train_loss": [3.0, 2.0, 1.0],
                "train_loss_step": [10, 20, 30],
                "eval_loss": [1.2965, 1.581],
                "eval_step": [15, 30],
                "eval_epoch": [1.0, 2.0],
                "eval_samples_per_s": [39.41, 39.4],
            },
            "provenance": TIME,
            **more,
        }
    )


def cell(seq_len: int, **more) -> dict:
    """A record of an experiment that trains nothing."""
    fields = {"experiment": "attention", "factors": {"seq_len": seq_len, "dtype": "fp32"}, "provenance": TIME}
    return records.make({**TRAINED, **fields, "samples": {"forward_ms": [1.0, 3.0, 2.0]}, **more})


ROWS = [training(), training("simple_gpt"), cell(128), cell(256), cell(512, status="oom", reason="asked for much")]


# --- what runs hold --------------------------------------------------------------------------------------------------


def test_a_training_is_a_run_with_the_workshops_keys():
    run = runs.of_records([training()])[0]
    assert run.summary["avg_gpu_util_%"] == 91.5 and run.summary["avg_mem_alloc_MB"] == 2.0
    assert run.summary["train/samples_per_second_mean"] == 12.5 and run.summary["train/train_loss"] == 0.7039
    assert (run.summary["train/loss"], run.summary["eval/loss"]) == (1.0, 1.581)
    by_step = {point.step: dict(point.figures) for point in run.points}
    assert by_step[10]["train/loss"] == 3.0 and by_step[15]["eval/loss"] == 1.2965
    assert by_step[30] == {"train/loss": 1.0, "eval/loss": 1.581, "eval/samples_per_second": 39.4}
    # rows of both ranks over the time of each step, warm-up included
    assert [by_step[step]["train/samples_per_second"] for step in (1, 2, 3)] == [8.0, 16.0, 32.0]
    assert run.config["origin"] == "measured" and run.config["model"] == "bloom"


def test_curves_without_steps():
    """Losses of every step; evaluations after each half of them."""
    row = training(series={"train_loss": [4.0, 3.0, 2.0, 1.0], "eval_loss": [2.5, 1.5]}, samples={}, warmup={})
    by_step = {point.step: dict(point.figures) for point in runs.of_records([row])[0].points}
    assert by_step[2] == {"train/loss": 3.0, "eval/loss": 2.5} and by_step[4] == {"train/loss": 1.0, "eval/loss": 1.5}


def test_runs_are_named_by_what_tells_them_apart():
    names = [run.name for run in runs.of_records([training(), training("simple_gpt"), training(round=2)])]
    assert names == ["baseline model=bloom", "baseline model=simple_gpt", "baseline model=bloom round=2"]


def test_another_experiment_is_one_run_a_step_a_cell():
    (run,) = runs.of_records(ROWS[2:])
    assert (run.name, run.summary) == ("attention", {"cells": 2})  # the one out of memory has no figures
    assert [dict(point.figures) for point in run.points] == [
        {"factor/seq_len": 128.0, "forward_ms_median": 2.0},
        {"factor/seq_len": 256.0, "forward_ms_median": 2.0},
    ]
    assert run.config["dtype"] == "fp32" and run.config["cells"]["2"] == "seq_len=256 dtype=fp32"


def test_every_key_of_the_callbacks_is_there():
    keyed = {key for key, _ in keys.SUMMARY.values()} | {key for key, _ in keys.CURVES.values()}
    workshop = {"train/loss", "eval/loss", "train/samples_per_second", "avg_gpu_util_%", "std_gpu_util_%"}
    assert workshop | {"avg_mem_alloc_MB", "avg_mem_reserved_MB", "avg_mem_total_MB"} <= keyed


# --- read back -------------------------------------------------------------------------------------------------------


def written(tmp_path: Path, tracker: str) -> Path:
    pytest.importorskip(tracker)
    folder = writing.folder_of(tmp_path, tracker)
    have = writing.write(ROWS, folder, tracker, "local")
    assert sorted(have.values()) == ["attention", "baseline model=bloom", "baseline model=simple_gpt"]
    return folder


def count(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("tracker", sorted(trackers.WRITERS))
def test_what_a_tracker_has_is_not_written_again(tmp_path, tracker, monkeypatch):
    calls = []
    monkeypatch.setitem(trackers.WRITERS, tracker, lambda run, folder, site: calls.append(run.name))
    folder = writing.folder_of(tmp_path, tracker)
    writing.write(ROWS[:1], folder, tracker, "local")
    writing.write(ROWS, folder, tracker, "local")
    assert len(calls) == 3 and calls[0] == "baseline"


def wandb_records(log: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format behind a header of 7 bytes; W&B itself brings no reader."""
    block, place, parts = 32768, 7, b""
    while place + 7 <= len(log):
        if block - place % block < 7:  # too short for another part: zeros up to the next block
            place += block - place % block
            continue
        _, length, kind = struct.unpack("<IHB", log[place : place + 7])
        parts += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, last
            yield parts
            parts = b""


def test_wandb_offline(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    folder = written(tmp_path, "wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, dict] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        steps, summary, name = {}, {}, ""
        for content in wandb_records(path.read_bytes()):
            record = Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                name = name or record.run.display_name
                assert record.run.host == "perfscribe"  # not this machine's
            for item in record.history.item if record.HasField("history") else ():
                steps.setdefault(item.key or "/".join(item.nested_key), []).append(float(item.value_json))
            for item in record.summary.update if record.HasField("summary") else ():
                summary[item.key or item.nested_key[0]] = item.value_json
        found[name] = {"steps": steps, "summary": summary}
    assert set(found) == {"attention", "baseline model=bloom", "baseline model=simple_gpt"}
    bloom = found["baseline model=bloom"]
    assert bloom["steps"]["train/loss"] == [3.0, 2.0, 1.0] and bloom["steps"]["eval/loss"] == [1.2965, 1.581]
    assert float(bloom["summary"]["avg_gpu_util_%"]) == 91.5 and bloom["summary"]["weights"] == '"random"'


def test_mlflow_files(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = written(tmp_path, "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=folder.absolute().as_uri())
    experiment = client.get_experiment_by_name("perfscribe-local")
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    bloom = found["baseline model=bloom"]
    history = client.get_metric_history(bloom.info.run_id, "train/loss")
    assert sorted((one.step, one.value) for one in history) == [(10, 3.0), (20, 2.0), (30, 1.0)]
    assert bloom.data.metrics["avg_gpu_util_percent"] == 91.5  # MLflow allows no %
    assert bloom.data.metrics["eval/loss"] == 1.581 and bloom.data.params["model"] == "bloom"
    assert bloom.data.tags["weights"] == "random" and bloom.info.status == "FINISHED"


def test_mlflow_takes_a_rate_beside_its_count(tmp_path, monkeypatch):
    """Its file store makes folders of slashes."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pytest.importorskip("mlflow")
    assert trackers.mlflow_names(["steps", "steps/s", "a/b", "u_%"]) == {
        "steps": "steps",
        "steps/s": "steps_s",
        "a/b": "a/b",
        "u_%": "u_percent",
    }
    folder = writing.folder_of(tmp_path, "mlflow")
    rows = [training(values={"stepping": 3, "stepping/s": 1.5})]
    assert len(writing.write(rows, folder, "mlflow", "local")) == 1


# --- in a run --------------------------------------------------------------------------------------------------------


def test_a_missing_package_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert session._tracker({"tracker": "wandb"}, say=True) == "none"
    told = capsys.readouterr().err
    assert told == "tracker wandb: the package wandb is not installed (pip install wandb); no run is written\n"
    assert session._tracker({"tracker": "none"}, say=True) == "none" and session._tracker({}) == "none"
    assert capsys.readouterr().err == ""


MEASURE = '''"""One cell."""
from perfscribe.base.cells import Cell, Measurement


def cells(config):
    return [Cell({"n": n}) for n in (1, 2, 3)]


def run(cell):
    return Measurement(samples={"time_ms": [1.0, 2.0, 3.0]}, series={"train_loss": [3.0, 2.0]})
'''


def test_a_run_reports_to_the_tracker_once(tmp_path):
    pytest.importorskip("mlflow")
    space = Workspace(tmp_path)
    space.only()
    space.add_experiment("trained", MEASURE)
    space.set_config("preset: tiny\nchapters: [cs336]\ntracker: mlflow\n")
    done = space.run("report")
    assert done.returncode == 0, done.stdout
    assert "tracker mlflow: 3 runs; MLFLOW_ALLOW_FILE_STORE=true mlflow ui" in done.stdout
    folder = space.root / "results" / "local" / "tracking" / "mlflow"
    before = count(folder)
    assert space.planned_jobs() == set()
    # What measures knows nothing of a tracker: another one, or none, measures nothing.
    assert space.planned_jobs("--config", "tracker=none") == set()
    assert space.planned_jobs("--config", "tracker=wandb") == {"track"}
    assert space.run("report").returncode == 0 and count(folder) == before
