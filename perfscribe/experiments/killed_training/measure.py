"""A training that is killed by SIGKILL and goes on from its last checkpoint, beside the same one that is left alone.

A cell trains three times: to the end; until it is killed, some steps behind its last checkpoint; and from there to the
end. Losses of the last are put beside those of the first. Trainer's checkpoints, and those in parts of the bare loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.cells import Cell, Measurement
from perfscribe.counters.weak_scaling import step_flop
from perfscribe.data import squad_sets
from perfscribe.models.workshop_shapes import BLOOM, SimpleGptShape
from perfscribe.training import launching, schedule
from perfscribe.training.knobs import Knobs

MODULE = "perfscribe.experiments.killed_training.program"
SHAPE = ("hidden_size", "num_layers", "num_heads", "ffn")
TRAINER, BARE = "trainer", "bare loop"
LEGS = 3
NOWHERE = "none"
NAMED = ("model_name", "loop", "world_size", "device")  # in the name of a folder that keeps a model


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows."""
    return squad_sets.datasets(config)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Trainer with BLOOM and with the tied custom model on one rank; BLOOM in parts on several."""
    dataset = squad_sets.dataset_name(config)
    bloom: dict[str, Any] = {"model_name": config["model_name"]}
    custom = {"model_name": "simple_gpt", "vocab_size": config["vocab_size"], **{n: config[n] for n in SHAPE}}
    kinds = [(TRAINER, 1, bloom), (TRAINER, 1, custom), *((BARE, ranks, bloom) for ranks in config["world_size"])]
    return [_cell(*kind, backend, config, dataset) for backend in config["backend"] for kind in kinds]


def _cell(
    loop: str, ranks: int, model: Mapping[str, Any], backend: str, config: Mapping[str, Any], dataset: str
) -> Cell:
    levels: dict[str, Any] = {"world_size": ranks, "backend": backend, "loop": loop, **model}
    levels |= {name: config[name] for name in ("save_steps", "keep_checkpoints", "killed_after")}
    levels |= {"logging_steps": 1, "output_dir": config["output_dir"] or NOWHERE}
    tokens = LEGS * config["train_size"] * config["num_epochs"] * config["max_length"]
    shape = BLOOM.get(model["model_name"]) or SimpleGptShape(config["vocab_size"], *(config[name] for name in SHAPE))
    work = float(step_flop(shape, tokens, config["max_length"]))
    return launching.cell(levels, config, dataset, work, _why_not(ranks, config))


def _why_not(ranks: int, config: Mapping[str, Any]) -> str:
    """Why a training cannot be killed behind a checkpoint and before its end; empty where it can."""
    knobs = Knobs(**{name: config[name] for name in ("num_epochs", "batch_size", "grad_acc")})
    steps = knobs.num_epochs * schedule.steps_per_epoch(knobs, config["train_size"], ranks)
    first, killed_after = config["save_steps"], config["killed_after"]
    if first < killed_after < steps:
        return ""
    return f"killed_after {killed_after}: expected more than save_steps {first} and less than all {steps} steps"


def start_early() -> None:
    """Start the process that ranks are forked from, Trainer imported."""
    from perfscribe.parallel.fork_server import PRELOADED, SERVER

    SERVER.start((*PRELOADED, MODULE))


def run(cell: Cell) -> Measurement:
    """Left alone, killed, gone on."""
    import random
    import tempfile
    from pathlib import Path

    seed = random.getrandbits(31)  # of the cell's own seed
    with tempfile.TemporaryDirectory() as place:
        whole, killed = Path(place) / "whole", Path(place) / "killed"
        for folder in (whole, killed):
            folder.mkdir()
        alone = _leg(cell, seed, whole, killed_after=0, resume=False)
        ended = _killed(cell, seed, killed)
        gone_on = _leg(cell, seed, killed, killed_after=0, resume=True)
        _keep(cell, killed / "final")
    return combine(alone, gone_on, ended)


def _leg(cell: Cell, seed: int, folder: Any, killed_after: int, resume: bool) -> Sequence[Mapping[str, Any]]:
    from perfscribe.experiments.killed_training.program import on_rank
    from perfscribe.parallel.launch import launch

    arguments: dict[str, Any] = {"factors": dict(cell.factors), "data_folder": cell.data_folder}
    arguments |= {"dataset": cell.data[0], "folder": str(folder), "order_seed": seed}
    arguments |= {"killed_after": killed_after, "resume": resume}
    launched = launch(
        on_rank,
        arguments,
        world_size=cell["world_size"],
        timeout_s=launching.LAUNCH_TIMEOUT_S / LEGS,
        backend=cell["backend"],
        device=cell["device"],
        seed=seed,
    )
    results: Sequence[Mapping[str, Any]] = launched.results
    return results


def _killed(cell: Cell, seed: int, folder: Any) -> str:
    """How the training ended that was to be killed; RuntimeError where it was not."""
    from perfscribe.parallel.failures import RankError

    try:
        _leg(cell, seed, folder, killed_after=cell["killed_after"], resume=False)
    except RankError as error:
        if "SIGKILL" not in str(error):
            raise
        return str(error)
    raise RuntimeError(f"killed_after: {cell['killed_after']}: the training has ended before that many steps")


def _keep(cell: Cell, final: Any) -> None:
    """Move the final model and tokenizer to where output_dir says."""
    import shutil

    if cell["output_dir"] == NOWHERE:
        return
    name = "-".join(str(cell[factor]).replace("/", "_").replace(" ", "_") for factor in NAMED)
    kept = squad_sets.from_checkout(cell["output_dir"]) / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(final, kept)


def combine(alone: Sequence[Mapping[str, Any]], gone_on: Sequence[Mapping[str, Any]], ended: str) -> Measurement:
    """Losses of both by step, and how far they are apart behind the checkpoint."""
    first, second = alone[0], gone_on[0]
    behind = second["behind"]
    whole, rest = first["train_loss"], second["train_loss"]
    compared = list(zip(whole[behind:], rest, strict=True))
    values = dict(second["values"]) | {"ended": ended, "steps_behind": behind, "steps_compared": len(compared)}
    values["largest_difference"] = max(abs(a - b) / abs(a) for a, b in compared)
    values |= {"eval_loss": first["eval_loss"][-1], "resumed_eval_loss": second["eval_loss"][-1]}
    return Measurement(values=values, series={"train_loss": list(whole), "resumed_train_loss": list(rest)})
