"""Communication of the Polaris homework: training on two ranks of a node against one rank on each of two nodes.

The placements take turns, each by ranks of its own that stay, so that what is compared is of the same minutes, devices
and steps. On one machine the two nodes are two processes joined by TCP over the loopback interface. Two tools trace
them, each in runs of its own: the torch profiler in each rank, and Nsight Systems around all ranks. A last cell is a
single rank, profiled and not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement
from perfscribe.instruments import precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscribe.distributed.launch import WorkerGroup

TORCH_PROFILER = "torch_profiler"
DEVICES = {"gloo": "cpu", "nccl": "cuda"}
# Names of the placements: nodes and ranks of each; the transport that stands for it on one machine.
PLACEMENTS = {"intra": (1, 2), "inter": (2, 1)}
TRANSPORTS = {"intra": "default", "inter": "tcp"}
RANKS = 2
MODEL = ("features", "layers", "d_ff", "batch", "source_length", "target_length", "dtype")
SCHEDULE = ("wait", "warmup_steps", "active", "turns")
PROGRAM = "perfscribe.experiments.communication.overhead"  # imports all that ranks run
LIMIT_S, LONGEST_S = 150.0, 540.0  # of a turn, of a whole single-rank cell; below the worker's own limit
COLLECTIVE_TIMEOUT_S = 600.0  # above any cell's own: ranks stay for all cells
NO_LINKS = "not told"
_GROUPS: dict[tuple[str, str], WorkerGroup] = {}


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Both placements by backend, implementation and tool; then a single rank by backend."""
    same = {name: config[name] for name in (*MODEL, *SCHEDULE)}
    found = []
    for backend in config["backend"]:
        of_backend = {"backend": backend, "device": DEVICES[backend]}
        for implementation in config["implementation"]:
            for tool in config["tool"]:
                part = {"part": "placements", **of_backend, "world_size": RANKS, "implementation": implementation}
                found.append(_cell({**part, "tool": tool, **same, "batches": config["active"]}))
        steps = config["epochs"] * (config["samples"] // config["batch"])
        alone = {"part": "profiler", **of_backend, "world_size": 1, "implementation": "torch_ddp"}
        alone |= {"tool": TORCH_PROFILER, **same, "batches": max(1, steps // config["epochs"])}
        alone |= {"epochs": config["epochs"], "training_steps": steps, "trainings": config["trainings"]}
        found.append(_cell(alone, _too_few(config, steps)))
    return found


def _too_few(config: Mapping[str, Any], steps: int) -> str:
    needed = sum(config[name] for name in ("wait", "warmup_steps", "active"))
    return "" if steps >= needed else f"{steps} steps of a training are fewer than the {needed} of a profile"


def _cell(factors: dict[str, Any], skip: str = "") -> Cell:
    needs = precision.requires(factors["device"], factors["dtype"])
    if factors["device"] == "cuda":
        needs = (*needs, f"cuda:{factors['world_size']}")
    return Cell(factors, requires=needs, cost=float(factors["world_size"]), skip=skip)


def start_early() -> None:
    """Start the process that ranks are forked from, so that it imports torch while the measuring process does."""
    from perfscribe.distributed.fork_server import PRELOADED, SERVER

    SERVER.start((*PRELOADED, "torch.nn.parallel.distributed", "torch.profiler", PROGRAM))


def run(cell: Cell) -> Measurement:
    """Turns of both placements, by the torch profiler or by nsys, or a single rank's trainings and steps."""
    if cell["part"] == "profiler":
        return _run_alone(cell)
    return _run_placements(cell) if cell["tool"] == TORCH_PROFILER else _run_under_nsys(cell)


def order_of_turns(turns: int) -> list[tuple[int, str]]:
    """Number and placement of each turn; number -1 warms up. Which placement is first changes with each number."""
    names = list(PLACEMENTS)
    return [(turn, name) for turn in range(-1, turns) for name in (names if turn % 2 == 0 else names[::-1])]


def range_name(placement: str, turn: int, rank: int) -> str:
    """Name of the range around a rank's active steps in a turn, by which nsys's report is read."""
    return f"{placement} turn {turn} rank {rank}"


def _run_placements(cell: Cell) -> Measurement:
    import time

    from perfscribe.experiments.communication.program import on_rank

    spent = {"warmup_s": 0.0, "timed_s": 0.0}
    turns: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in PLACEMENTS}
    for turn, name in order_of_turns(cell["turns"]):
        began = time.perf_counter()
        keep = _kept(cell, name) if turn < 0 else ""  # files of the first one
        turns[name].append(_workers(cell, name, on_rank).ask({"factors": dict(cell.factors), "keep": keep}))
        spent["warmup_s" if turn < 0 else "timed_s"] += time.perf_counter() - began
    return combine(turns, str(cell["device"]), warmup_s=spent["warmup_s"], timed_s=spent["timed_s"])


def _run_under_nsys(cell: Cell) -> Measurement:
    from perfscribe.experiments.communication import under_nsys

    close()  # ranks that wait hold their GPUs' memory
    return under_nsys.run(cell)


def _kept(cell: Cell, placement: str) -> str:
    """Where files of the placement's first turn go, beside the folder of the data sets."""
    name = f"{cell['backend']}-{cell['implementation']}-{placement}"
    return str(Path(cell.data_folder).resolve().parent / "traces" / name) if cell.data_folder else ""


def _workers(cell: Cell, placement: str, program: Callable[..., Any]) -> WorkerGroup:
    """The placement's ranks, which are started where they do not wait already."""
    import random

    from perfscribe.distributed.launch import WorkerGroup

    key = (str(cell["backend"]), placement)
    workers = _GROUPS.get(key)
    if workers is None or not workers.is_open:
        workers = _GROUPS[key] = WorkerGroup(
            program,
            world_size=RANKS,
            backend=cell["backend"],
            transport=TRANSPORTS[placement],
            timeout_s=LIMIT_S,
            collective_timeout_s=COLLECTIVE_TIMEOUT_S,
            seed=random.getrandbits(31),  # of the cell's own seed
        )
    return workers


def close() -> None:
    """End all ranks that wait."""
    while _GROUPS:
        _GROUPS.popitem()[1].close()


def combine(
    turns: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
    device: str,
    warmup_s: float = 0.0,
    timed_s: float = 0.0,
    tool: str = "torch profiler",
) -> Measurement:
    """A Measurement from what each rank says in each turn of each placement; the first turn warms up.

    samples, one a turn: <placement>_transfer_ms, and of each rank <placement>_rank<r>_ with total_ms, wait_ms,
    compute_ms, slowest_ms, step_ms (mean of the active steps). series <placement>_calls: collectives in each turn.
    The first turn is the homework's own profile, of the third and fourth step, whose files are kept; it is no sample.
    """
    clock = "GPU time stamps" if device == "cuda" else "host clock"
    found = Measurement(warmup_s=warmup_s, timed_s=timed_s)
    for name, of in turns.items():
        for number, ranks in enumerate(of):
            figures, calls = _figures(ranks)
            for figure, value in figures.items():
                samples = found.warmup if number == 0 else found.samples
                samples.setdefault(f"{name}_{figure}", []).append(value)
                found.timers[f"{name}_{figure}"] = "host clock" if "step" in figure else f"{tool}, {clock}"
            if number:
                found.series.setdefault(f"{name}_calls", []).append(calls)
        found.values["gradient_bytes"] = of[0][0]["gradient_bytes"]
        found.values |= {f"{name}_{key}": value for key, value in _links(of[0][0]["links"]).items()}
        found.series[f"{name}_operators"] = [
            [rank, *row] for rank, said in enumerate(of[0]) for row in said.get("operators", [])
        ]
    return found


def _figures(ranks: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], int]:
    """Milliseconds of a turn, and its number of collectives."""
    from perfscribe.experiments.communication.waiting import Call, split

    by_rank = [[Call(**call) for call in rank["calls"]] for rank in ranks]
    parts = split(by_rank)
    if not parts.calls:
        raise ValueError(f"the traces of {len(ranks)} ranks hold no collective")
    found = {"transfer_ms": parts.transfer_ns / 1e6}
    for number, rank in enumerate(ranks):
        named = {
            "total_ms": parts.total_ns[number] / 1e6,
            "wait_ms": parts.wait_ns[number] / 1e6,
            "compute_ms": rank["compute_ms"],
            "slowest_ms": max(call.duration_ns for call in by_rank[number]) / 1e6,
            "step_ms": sum(rank["step_ms"]) / len(rank["step_ms"]),
        }
        found |= {f"rank{number}_{name}": value for name, value in named.items()}
    return found, parts.calls


def _links(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the pair of GPUs is joined, and its rate in each direction where it is known."""
    if not pairs:
        return {"link": NO_LINKS}
    rate = pairs[0]["gb_per_s"]
    rated = {} if rate is None else {"rated_gb_per_s": rate, "rated_by": pairs[0]["by"]}
    return {"link": pairs[0]["kind"] or NO_LINKS} | rated


def _run_alone(cell: Cell) -> Measurement:
    import random

    from perfscribe.distributed.launch import launch
    from perfscribe.experiments.communication.overhead import on_rank

    launched = launch(
        on_rank,
        {"factors": dict(cell.factors)},
        world_size=1,
        backend=cell["backend"],
        timeout_s=LONGEST_S,
        seed=random.getrandbits(31),  # of the cell's own seed
    )
    (said,) = launched.results
    timed_s = sum(sum(of) / (1 if name.endswith("_s") else 1e3) for name, of in said["samples"].items())
    timers = dict.fromkeys(said["samples"], "host clock")
    return Measurement(samples=said["samples"], warmup=said["warmup"], timers=timers, timed_s=timed_s)
