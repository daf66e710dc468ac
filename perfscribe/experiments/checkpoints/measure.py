"""A training that is saved in parts by some ranks, and goes on from there with others.

A cell trains to the end with the first number of ranks and saves on the way; then the second number of ranks begins
with the last checkpoint before the end, and its losses are put beside those that the first had from there on. By the
bare loop, and by Trainer, which divides a model on GPUs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfscribe.analytic.weak_scaling import step_flop
from perfscribe.analytic.workshop_shapes import BLOOM
from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.data import squad_sets
from perfscribe.training import launching

MODULE = "perfscribe.experiments.checkpoints.program"
TRAINER, BARE = "trainer", "bare loop"
ON_A_CPU = "Trainer divides a model on GPUs alone: on a CPU it takes DDP"


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows."""
    return squad_sets.datasets(config)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """One cell a loop and pair of numbers of ranks, which divide the rows of a step."""
    dataset = squad_sets.dataset_name(config)
    return [
        _cell(loop, pair, backend, config, dataset)
        for backend in config["backend"]
        for loop, pairs in ((BARE, config["ranks"]), (TRAINER, config["trainer_ranks"]))
        for pair in pairs
    ]


def _cell(loop: str, pair: Sequence[int], backend: str, config: Mapping[str, Any], dataset: str) -> Cell:
    saved_by, resumed_by = pair
    levels: dict[str, Any] = {"world_size": max(saved_by, resumed_by), "saved_by": saved_by, "resumed_by": resumed_by}
    levels |= {"backend": backend, "loop": loop, "model_name": config["model_name"]}
    levels |= {name: config[name] for name in ("rows_per_step", "save_steps", "keep_checkpoints")}
    levels |= {"grad_acc": 1, "logging_steps": 1}
    tokens = 2 * config["train_size"] * config["max_length"]
    work = float(step_flop(BLOOM[config["model_name"]], tokens, config["max_length"]))
    rows, batch = config["rows_per_step"], config["batch_size"]
    uneven = [ranks for ranks in (saved_by, resumed_by) if rows % (ranks * batch)]
    skip = f"{rows} rows a step cannot be divided among {uneven[0]} ranks with {batch} at once" if uneven else ""
    return launching.cell(levels, config, dataset, work, skip)


def start_early() -> None:
    """Start the process that ranks are forked from, Trainer imported."""
    from perfscribe.distributed.fork_server import PRELOADED, SERVER

    SERVER.start((*PRELOADED, MODULE))


def run(cell: Cell) -> Measurement:
    """Train and save; go on elsewhere. Unsupported: Trainer without GPUs."""
    from perfscribe.experiments.checkpoints.program import on_rank

    if cell["loop"] == TRAINER and cell["device"] == "cpu":
        raise Unsupported(ON_A_CPU)
    return both(cell, on_rank)


def both(cell: Cell, on_rank: Callable[..., Any]) -> Measurement:
    """The training that saves and the one that goes on, by this program of a rank."""
    import random
    import tempfile

    from perfscribe.distributed.launch import launch

    seed = random.getrandbits(31)  # of the cell's own seed
    with tempfile.TemporaryDirectory() as folder:
        common = {"data_folder": cell.data_folder, "dataset": cell.data[0], "folder": folder, "order_seed": seed}
        results = []
        for ranks, resume in ((cell["saved_by"], False), (cell["resumed_by"], True)):
            per_rank = cell["rows_per_step"] // ranks // cell["batch_size"]
            factors = {**cell.factors, "grad_acc": per_rank}
            launched = launch(
                on_rank,
                {**common, "factors": factors, "resume": resume},
                world_size=ranks,
                timeout_s=launching.LAUNCH_TIMEOUT_S / 2,
                backend=cell["backend"],
                device=cell["device"],
                seed=seed,
            )
            results.append(launched.results)
    return combine(*results)


def combine(saved: Sequence[Mapping[str, Any]], resumed: Sequence[Mapping[str, Any]]) -> Measurement:
    """Seconds of the slowest rank; the losses of both from the checkpoint on, and how far they are apart."""
    first, second = saved[0], resumed[0]
    behind = second["behind"]
    whole, rest = first["train_loss"], second["train_loss"]
    compared = list(zip(whole[behind:], rest, strict=True))
    values = first["values"] | second["values"]
    values["save_s"] = max(rank["values"]["save_s"] for rank in saved)
    values["load_s"] = max(rank["values"]["load_s"] for rank in resumed)
    values |= {"steps_behind": behind, "steps_compared": len(compared)}
    values["largest_difference"] = max(abs(a - b) / abs(a) for a, b in compared)
    ends = zip(first["eval_loss"][-1:], second["eval_loss"][-1:], strict=True)
    values |= {"eval_loss": first["eval_loss"][-1], "resumed_eval_loss": second["eval_loss"][-1]}
    values["eval_difference"] = max(abs(a - b) / abs(a) for a, b in ends)
    return Measurement(values=values, series={"train_loss": list(whole), "resumed_train_loss": list(rest)})
