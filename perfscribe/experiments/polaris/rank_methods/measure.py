"""Measures each way to find rank, world size and local rank, under launchers that run here.

A launch starts the ranks once for all methods that it supports. For each method every rank trains the Polaris
homework's model, its epochs alternating between all cores and the cores it is bound to. Binding cells start ranks with
a binding and read back the cores that they were granted.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfscribe.base import cpu_sets
from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.distributed import binding
from perfscribe.distributed.mpi_start import METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscribe.distributed.launch import WorkerGroup

LAUNCHED, BOUND = "launched", "bound"  # parts of the experiment
LAUNCH_S, BOUND_S = 180.0, 60.0
SIZES = ("samples", "source_length", "target_length", "features", "layers", "d_ff", "batch", "epochs", "warmup_steps")
EVEN, NEAREST = "even", "nearest"
HERE, POLARIS = "this machine", "Polaris"
# A node of Polaris: the cores nearest to each of its GPUs, and the binding lists used there. Source: ALCF's guide
# (one 32-core EPYC 7543P with two threads per core, four A100); the homework's job script.
POLARIS_CORES = tuple(tuple(range(first, first + 8)) + tuple(range(first + 32, first + 40)) for first in (24, 16, 8, 0))
HOMEWORK_BINDING, GUIDE_BINDING = "list:0,1:8,9:16,17:24,25", "list:24:16:8:0"


@dataclass(frozen=True)
class Ranks:
    """Factors of a cell: method and backend of part LAUNCHED only, machine and cpu_bind of part BOUND only."""

    part: str
    launcher: str
    world_size: int
    method: str = ""
    backend: str = ""
    machine: str = ""
    cpu_bind: str = ""


@dataclass(frozen=True)
class Sizes:
    """Sizes of model, data and loop, as the homework names them; batch: samples per rank and step."""

    samples: int
    source_length: int
    target_length: int
    features: int
    layers: int
    d_ff: int
    batch: int
    epochs: int
    warmup_steps: int


def run(cell: Cell) -> Measurement:
    """Measure one launch (part LAUNCHED) or one binding of ranks to cores (part BOUND).

    LAUNCHED: samples training_s, epoch_s and bound_training_s (ranks pinned; Linux only), of the slowest rank; series
    by rank: node, host, device, mask, bound_mask, training_s_by_rank and said_<method>: [rank, world size, local rank],
    None (no answer) or why it failed. BOUND: series asked and granted, masks by rank, and gpu_cores by GPU.
    Raises Unsupported if the launcher or mpi4py is missing, or a binding's cores are not granted or not known;
    ValueError if cpu_bind has too few bindings.
    """
    of = cell.read(Ranks)
    return _launch(of, cell.read(Sizes)) if of.part == LAUNCHED else _bind(of)


def _launch(of: Ranks, sizes: Sizes) -> Measurement:
    from perfscribe.instruments.timing import HOST_CLOCK, longest

    asks_mpi = of.launcher != "perfscribe"  # our ranks start in a moment; MPI takes longer
    bound = _cores_of(of.world_size) if hasattr(os, "sched_setaffinity") else []
    asked = {"method": of.method, "sizes": vars(sizes), "asks_mpi": asks_mpi, "bound": bound}
    ranks = _workers(of).ask(asked)
    hosts, total_s = ([rank[name] for rank in ranks] for name in ("host", "training_s"))
    epochs_s = longest([rank["epochs_s"] for rank in ranks])
    values = {name: ranks[0][name] for name in ("parameters", "final_loss", "variables_left")}
    samples = {"training_s": [max(total_s)], "epoch_s": epochs_s}
    if bound:
        samples["bound_training_s"] = [max(rank["bound_training_s"] for rank in ranks)]
    return Measurement(
        samples=samples,
        timers=dict.fromkeys(samples, HOST_CLOCK),
        warmup_s=max(rank["warmup_s"] for rank in ranks),
        timed_s=max(rank["training_s"] + rank["bound_training_s"] for rank in ranks),
        values={**values, "gpus_per_node": ranks[0]["devices"]},
        series={
            **{f"said_{method}": [rank["places"][method] for rank in ranks] for method in METHODS},
            "host": hosts,
            "node": [list(dict.fromkeys(hosts)).index(host) for host in hosts],
            "device": [rank["device"] for rank in ranks],
            "mask": [cpu_sets.mask(rank["cores"]) for rank in ranks],
            "bound_mask": [cpu_sets.mask(rank["bound_cores"]) for rank in ranks] if bound else [],
            "training_s_by_rank": total_s,
        },
    )


def _cores_of(ranks: int) -> list[cpu_sets.Cores]:
    """Return the cores to bind each rank to: its part of those nearest to its GPU if they are known, else of all."""
    try:
        return _nearest(binding.gpu_cores(), ranks)
    except Unsupported:
        return cpu_sets.even(cpu_sets.granted(), ranks)


def _workers(of: Ranks) -> WorkerGroup:
    """Return the launcher's ranks, kept for its other methods; ranks of another launcher are ended first."""
    from perfscribe.distributed import launch, launchers, starting

    command = tuple(launchers.command(of.launcher, of.world_size))
    if not command:  # imports torch in parallel with this process
        starting.start_server()
    from perfscribe.experiments.polaris.rank_methods.program import on_rank

    ranks = {"world_size": of.world_size, "backend": of.backend, "launcher": command}
    return launch.waiting(on_rank, alone=True, timeout_s=LAUNCH_S, **ranks)


def _bind(of: Ranks) -> Measurement:
    here = of.machine == HERE
    nearest = binding.gpu_cores() if here else POLARIS_CORES
    asked = _asked(of.cpu_bind, of.world_size, nearest)
    masks = _granted(of.launcher, asked) if here else []
    series = {"asked": [cpu_sets.mask(cores) for cores in asked], "granted": masks}
    series["gpu_cores"] = [cpu_sets.shown(cores) for cores in nearest]
    return Measurement(values={"cpu_bind": binding.as_list(asked)}, series=series)


def _granted(launcher: str, asked: Sequence[cpu_sets.Cores]) -> list[str]:
    """Start ranks by this launcher with these cores and return the CPU mask that each one reads."""
    from perfscribe.distributed import launchers

    launchers.require(launcher)
    lacking = set().union(*asked) - set(cpu_sets.granted())
    if lacking:
        raise Unsupported(
            f"cores {cpu_sets.shown(lacking)} are not granted here: {cpu_sets.shown(cpu_sets.granted())} are"
        )
    with tempfile.TemporaryDirectory() as folder:
        command = launchers.bound(launcher, asked, folder)
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, stdin=subprocess.DEVNULL)
        files = [Path(folder, str(rank)) for rank in range(len(asked))]
        if done.returncode or not all(file.is_file() for file in files):
            said = " ".join((done.stderr or done.stdout).replace("-" * 20, "").split())
            raise RuntimeError(f"{launcher} left with exit code {done.returncode}: {said[:200]}")
        return [file.read_text() for file in files]


def _asked(text: str, ranks: int, nearest: Sequence[cpu_sets.Cores]) -> list[cpu_sets.Cores]:
    """Return each rank's cores for a cpu_bind text: "even", "nearest" or a list; ValueError if that is too short."""
    if text == EVEN:
        return cpu_sets.even(cpu_sets.granted(), ranks)
    if text == NEAREST:
        return _nearest(nearest, ranks)
    asked = binding.parse_cpu_bind(text)
    if len(asked) < ranks:
        raise ValueError(f"cpu-bind {text!r}: {len(asked)} bindings for {ranks} ranks")
    return asked[:ranks]


def _nearest(nearest: Sequence[cpu_sets.Cores], ranks: int) -> list[cpu_sets.Cores]:
    """Divide the granted cores nearest to each GPU equally among the ranks whose GPUs share them."""
    here = set(cpu_sets.granted())
    own = [tuple(core for core in cores if core in here) for cores in nearest]
    if len(own) < ranks or not all(own):
        raise Unsupported("nothing tells which cores are nearest to the GPUs")
    result = []
    for rank in range(ranks):
        alike = [other for other in range(ranks) if own[other] == own[rank]]
        result.append(cpu_sets.even(own[rank], len(alike))[alike.index(rank)])
    return result
