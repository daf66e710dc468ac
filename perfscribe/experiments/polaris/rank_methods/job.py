"""Runs one rank of a job script: finds its rank, joins the others, trains the Polaris homework's model.

`python -m perfscribe.experiments.polaris.rank_methods.job`, started by torchrun, mpiexec or srun, with MASTER_ADDR and
MASTER_PORT in its environment. --profile FOLDER records two steps, after one skipped step and one warm-up step, into
FOLDER: a Chrome trace and a table of operators per rank.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from perfscribe import config
from perfscribe.base import cpu_sets
from perfscribe.base.cells import read
from perfscribe.config.keys import PRESETS
from perfscribe.distributed import ranks
from perfscribe.experiments.polaris.rank_methods.measure import Sizes
from perfscribe.experiments.polaris.rank_methods.program import train

if TYPE_CHECKING:
    import torch

    from perfscribe.distributed.rank import Rank

ROOT = Path(__file__).resolve().parents[4]
PROFILED_STEPS = (1, 1, 2)  # skipped, warm-up, recorded


def join(timeout_s: float | None = None) -> Rank:
    """Join a process group of all ranks and return this process as a Rank.

    timeout_s: limit of waiting for the others, at the start and in collectives; None: torch's default.
    Raises ValueError (one line) if launchers contradict each other or the node has fewer GPUs than ranks.
    """
    import torch
    import torch.distributed as dist

    from perfscribe.distributed.rank import Rank

    place = ranks.find(os.environ, host=platform.node())
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", ranks.device_index(place, torch.cuda.device_count())), "nccl"
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, len(cpu_sets.granted()) // (place.local_world_size or 1)))
    own_device = device if backend == "nccl" else None
    wait = None if timeout_s is None else timedelta(seconds=timeout_s)
    dist.init_process_group(backend, timeout=wait, rank=place.rank, world_size=place.world_size, device_id=own_device)
    return Rank(place, device, backend, 0)


def sizes(preset: str) -> Sizes:
    """Return the experiment's sizes of a preset from config.yaml."""
    return read(config.resolve(config.load(ROOT / "config.yaml"), preset)["experiments"]["rank_methods"], Sizes)


@contextlib.contextmanager
def profiled(folder: Path | None, rank: Rank) -> Iterator[Callable[[], object]]:
    """Context manager that yields a function to call after each step; without a folder nothing is recorded."""
    if folder is None:
        yield lambda: None
        return
    from perfscribe.experiments.polaris.communication.program import profiler_of, write_operators

    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"rank-{rank.place.rank}"

    def write(found: torch.profiler.profile) -> None:
        found.export_chrome_trace(f"{base}.json.gz")
        write_operators(found, base.with_suffix(".csv"))

    with profiler_of(PROFILED_STEPS, rank.device, write, detailed=False) as recording:
        yield recording.step


def main() -> None:
    """Run this process as one rank; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="", help="sizes; by default gpu where there are GPUs")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="record a few steps into this folder")
    asked = parser.parse_args()
    rank = join()
    import torch.distributed as dist

    place = rank.place
    cores = cpu_sets.shown(cpu_sets.granted())
    print(
        f"rank {place.rank} of {place.world_size}, local rank {place.local_rank}, host {place.host}, {rank.device}, "
        f"cores {cores}, by {place.source}",
        flush=True,
    )
    wanted = sizes(asked.preset or ("gpu" if rank.device.type == "cuda" else "cpu"))
    with profiled(asked.profile, rank) as after_step:
        found = train(wanted, rank, after_step)
    if place.rank == 0:
        trained = wanted.samples * wanted.epochs
        print(
            f"trained {wanted.epochs} epochs in {found['training_s']:.3f} s, {trained / found['training_s']:.4g} "
            f"samples/s, final loss {found['final_loss']:.6g}",
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a gloo thread that is still ending would abort the process at exit, after all work is done


if __name__ == "__main__":
    main()
