"""Runs for a tracker, made of records: what they hold, and each tracker's runs read back by its own reader."""

import importlib.util
import socket
from pathlib import Path

import pytest

from perfscribe.records import records
from perfscribe.run import session
from perfscribe.tracking import runs, trackers

TRAINED = {"experiment": "baseline", "key": "k" * 16, "round": 1, "status": "ok", "fingerprint": "f" * 16}
TIME = {"time": "2026-01-02T03:04:05+00:00"}


def training(model: str = "bloom") -> dict:
    """A training's record: three logs, two evaluations, the callbacks' figures."""
    factors = {"model": model, "world_size": 2, "batch_size": 1, "grad_acc": 4}
    values = {"mean_train_loss": 0.7039, "gpu_utilisation_percent": 91.5, "at_rest_bytes": 2 * 2**20}
    values |= {"train/samples_per_second_mean": 12.5, "gpu_used_bytes": "no GPU: training ran on the CPU"}
    values |= {"weights": "random"}
    step_s = {"samples": {"step_s": [0.5, 0.25]}, "warmup": {"step_s": [1.0]}, "provenance": TIME}
    series = {"train_loss": [3.0, 2.0, 1.0], "train_loss_step": [10, 20, 30], "eval_loss": [1.2965, 1.581]}
    series |= {"eval_step": [15, 30], "eval_epoch": [1.0, 2.0], "eval_samples_per_s": [39.41, 39.4]}
    return records.make({**TRAINED, **step_s, "factors": factors, "values": values, "series": series})


# The last trains nothing.
OTHER = {"experiment": "attention", "factors": {}, "provenance": TIME, "samples": {"forward_ms": [1.0, 3.0, 2.0]}}
ROWS = [training(), training("simple_gpt"), records.make({**TRAINED, **OTHER})]


def test_a_training_is_a_run_with_the_workshops_keys():
    run = runs.of_records(ROWS[:1])[0]
    assert run.summary["avg_gpu_util_%"] == 91.5 and run.summary["avg_mem_alloc_MB"] == 2.0
    assert run.summary["gpu_used_bytes"].startswith("no GPU") and "avg_mem_total_MB" not in run.summary
    assert run.summary["train/samples_per_second_mean"] == 12.5 and run.summary["train/train_loss"] == 0.7039
    by_step = run.points
    assert by_step[10]["train/loss"] == 3.0 and by_step[15]["eval/loss"] == 1.2965
    assert by_step[30] == {"train/loss": 1.0, "eval/loss": 1.581, "eval/samples_per_second": 39.4}
    # rows of both ranks over the time of each step, warm-up included
    assert [by_step[step]["train/samples_per_second"] for step in (1, 2, 3)] == [8.0, 16.0, 32.0]
    assert run.config["origin"] == "measured" and run.config["model"] == "bloom"


def written(tmp_path: Path, tracker: str) -> Path:
    pytest.importorskip(tracker)
    folder = trackers.folder_of(tmp_path, tracker)
    have = trackers.write(ROWS, folder, tracker, "local")
    assert sorted(have.values()) == ["baseline model=bloom", "baseline model=simple_gpt"]
    return folder


def test_wandb_offline(tmp_path, monkeypatch):
    """A run each, without the name of this machine."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    logs = [path.read_bytes() for path in written(tmp_path, "wandb").glob("wandb/offline-run-*/*.wandb")]
    host = socket.gethostname().encode()
    whole = bytes([len(host)]) + host  # as a field of protobuf: a short name stands in other words by chance
    assert len(logs) == 2 and all(b"perfscribe" in log and whole not in log for log in logs)
    assert any(b"baseline model=bloom" in log and b"avg_gpu_util_%" in log for log in logs)


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
    assert bloom.data.params["model"] == "bloom" and bloom.data.tags["weights"] == "random"
    assert bloom.info.status == "FINISHED"


def test_a_missing_package_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert session._tracker({"tracker": "wandb"}, say=True) == "none"
    told = capsys.readouterr().err
    assert told == "tracker wandb: the package wandb is not installed (pip install wandb); no run is written\n"
    assert session._tracker({"tracker": "none"}, say=True) == "none" and session._tracker({}) == "none"
    assert capsys.readouterr().err == ""
