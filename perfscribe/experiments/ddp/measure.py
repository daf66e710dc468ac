"""naive_ddp to ddp_bucketed_benchmarking of CS336 assignment 2: training steps of one model on several ranks.

A cell is a model, a backend and a number of ranks; all implementations take turns within its one launch, each with its
communication and without, so that what is compared is of the same minutes, devices and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.data import tokens
from perfscribe.distributed import needs
from perfscribe.experiments.ddp.variants import as_level, variants
from perfscribe.instruments import precision
from perfscribe.instruments.timing import longest

PRELOADED = needs.PRELOADED
GRID = ("size", "seq_len", "batch", "world_size", "backend")
COUNTS = ("turns", "steps", "warmup_steps")
# Below the worker's own limit (timeout_s), so that the rank that hangs is named.
LAUNCH_TIMEOUT_S = 540.0


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches for every batch and context length."""
    return tokens.datasets(config["batch"], config["seq_len"], config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """One for each dtype, shape and number of ranks, with all implementations and bucket sizes."""
    chosen = as_level(variants(config["implementation"], config["bucket_mb"]))
    counts = {name: config[name] for name in COUNTS}
    return [
        _cell({**one, "device": needs.DEVICES[str(one["backend"])], "variants": chosen, "traced": True, **counts})
        for one in grid({name: config[name] for name in ("dtype", *GRID)})
    ]


def _cell(factors: dict[str, Any]) -> Cell:
    world_size, batch, device = factors["world_size"], factors["batch"], factors["device"]
    shape = SIZES[factors["size"]]
    parameters = shape.layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
    parameters += 2 * shape.vocab_size * shape.d_model
    steps = len(factors["variants"].split()) * factors["turns"] * (factors["warmup_steps"] + 2 * factors["steps"])
    # FLOP of all steps, and the elements that are sent and updated, on the scale of FLOP.
    work = steps * parameters * (6 * batch * factors["seq_len"] + 100 * world_size)
    return Cell(
        factors,
        requires=(*precision.requires(device, factors["dtype"]), *needs.of_ranks(device, world_size)),
        cost=float(work),
        data=(tokens.dataset_name(batch, factors["seq_len"]),),
        skip=f"{world_size} ranks cannot share a batch of {batch} evenly" if batch % world_size else "",
    )


def run(cell: Cell) -> Measurement:
    """One launch: every implementation is checked, then all take turns, then a step of each is traced."""
    from perfscribe.experiments.ddp.program import on_rank

    return launched(cell, on_rank)


def launched(cell: Cell, on_rank: Callable[..., Any]) -> Measurement:
    """One launch of the cell's ranks with this program."""
    from perfscribe.distributed.launch import launch

    arguments = {"factors": dict(cell.factors), "data_folder": cell.data_folder}
    ranks = {name: cell[name] for name in ("world_size", "backend")}
    measurement = combine(launch(on_rank, arguments, timeout_s=LAUNCH_TIMEOUT_S, **ranks))
    measurement.values["implementations"] = len(cell["variants"].split())
    return measurement


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """A Measurement from what each rank says.

    Of each variant (names begin with its key): samples <key>_step_ms (all with communication), _off_ms (without), and
    where they are timed _<phase>_ms and _copies_ms; a sample is the longest time of any rank. Values are the largest of
    any rank. Series: the traced step of rank 0.
    """
    first = ranks[0]
    measurement = Measurement(
        samples={name: longest([rank["samples"][name] for rank in ranks]) for name in first["samples"]},
        warmup={name: longest([rank["warmup"][name] for rank in ranks]) for name in first["warmup"]},
        values={name: max(rank["values"][name] for rank in ranks) for name in first["values"]},
        timers=dict.fromkeys(first["samples"], first["timer"]),
        warmup_s=max(rank["warmup_s"] for rank in ranks),
        timed_s=max(rank["timed_s"] for rank in ranks),
    )
    measurement.values |= first["traced_values"]
    measurement.series |= first["series"]
    return measurement
