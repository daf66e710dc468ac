"""Trackers: each writes runs into a folder of the site, offline unless the user's settings say otherwise."""

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.records.records import is_number
from perfscribe.tracking.runs import Run, of_records

NONE = "none"
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
PROJECT = "perfscribe"
WRITTEN = "written.json"  # names of the written runs, by id

Writer = Callable[[Run, Path, str], None]


def missing(tracker: str) -> str:
    """Return one line if the tracker's package is not installed, else ""."""
    package = PACKAGES.get(tracker)
    if package is None or importlib.util.find_spec(tracker) is not None:
        return ""
    return f"tracker {tracker}: the package {package} is not installed (pip install {package}); no run is written"


def how_to_open(tracker: str, folder: str) -> str:
    """Command that shows the runs in the folder."""
    return {
        "wandb": f"wandb sync {folder}/wandb/offline-run-*",
        "mlflow": f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {folder}",
    }[tracker]


def write_wandb(run: Run, folder: Path, site: str) -> None:
    """Write an offline run of Weights & Biases; WANDB_MODE=online uploads it. Sends no data about the machine."""
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        host=PROJECT,  # instead of the host's name
    )
    folder.mkdir(parents=True, exist_ok=True)
    started = wandb.init(
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        dir=str(folder),
        project=os.environ.get("WANDB_PROJECT", f"{PROJECT}-{site}"),
        id=run.id,
        name=run.name,
        group=run.group,
        config=dict(run.config),
        settings=settings,
        reinit="finish_previous",
    )
    try:
        for step, figures in run.points.items():
            started.log(dict(figures), step=step)
        started.summary.update(dict(run.summary))
    finally:
        started.finish()


def write_mlflow(run: Run, folder: Path, site: str) -> None:
    """Write a run to MLflow's file store, or to MLFLOW_TRACKING_URI."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the file store is in maintenance mode
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    folder.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or folder.absolute().as_uri())
    name = f"{PROJECT}-{site}"
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    time_ms = round(run.time * 1000)
    tags = {"group": run.group, "record": run.id}
    mlflow_run = client.create_run(experiment_id, start_time=time_ms, tags=tags, run_name=run.name)
    points = [(key, value, step) for step, figures in run.points.items() for key, value in figures.items()]
    points += [(key, value, max(run.points, default=0)) for key, value in run.summary.items() if is_number(value)]
    metrics = [Metric(mlflow_name(key), float(value), time_ms, step) for key, value, step in points]
    texts = [RunTag(mlflow_name(key), str(value)) for key, value in run.summary.items() if not is_number(value)]
    params = [Param(key, str(value)) for key, value in run.config.items()]
    try:
        client.log_batch(mlflow_run.info.run_id, params=params, tags=texts)
        for start in range(0, len(metrics), 1000):  # limit per request
            client.log_batch(mlflow_run.info.run_id, metrics=metrics[start : start + 1000])
    except Exception:
        client.delete_run(mlflow_run.info.run_id)  # the next call writes it again
        raise
    client.set_terminated(mlflow_run.info.run_id, "FINISHED", end_time=time_ms)


def mlflow_name(key: str) -> str:
    """Make a valid MLflow name: no %, and no clash of `steps` and `steps/s`, as the file store makes folders of "/"."""
    return key.replace("%", "percent").replace("steps/s", "steps_per_second")


WRITERS: dict[str, Writer] = {"wandb": write_wandb, "mlflow": write_mlflow}


def folder_of(site_folder: Path, tracker: str) -> Path:
    """Folder of a site's runs."""
    return site_folder / "tracking" / tracker


def written(folder: Path) -> dict[str, str]:
    """Names of the tracker's runs, by id."""
    path = folder / WRITTEN
    return dict(files.read_json(path)) if path.is_file() else {}


def write(rows: Iterable[Mapping[str, Any]], folder: Path, tracker: str, site: str) -> dict[str, str]:
    """Write the runs of these records that the tracker lacks. Returns the names of all its runs, by id."""
    have = written(folder)
    for run in of_records(rows):
        if run.id not in have:
            WRITERS[tracker](run, folder, site)
            have[run.id] = run.name
            files.write_json(folder / WRITTEN, have)
    return have
