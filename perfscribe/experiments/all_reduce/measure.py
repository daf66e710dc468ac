"""CS336's problem distributed_communication_single_node: times of collectives between the processes of one machine.

Every result is checked before anything is timed. The time of a call is the longest that any rank took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.traffic import MB_MEANINGS, bus_factor, size_bytes
from perfscribe.base.cells import Cell, Measurement, grid

if TYPE_CHECKING:
    from perfscribe.distributed.nccl_log import NcclLog

DEVICES = {"gloo": "cpu", "nccl": "cuda"}
FIXED = ("megabyte", "warmup_steps", "samples", "limit_s")
# Rates that any machine reaches, for the time that a cell is given; and the longest, below the worker's own limit.
LEAST_BYTES_PER_S = {"gloo": 1e8, "nccl": 1e9}
STARTING_S, LONGEST_S = 90.0, 540.0
# What NCCL's log says of channels under a transport that was forced.
CONNECTIONS = {"nvlink": "P2P", "shm": "SHM", "tcp": "NET/Socket"}
NOT_LOGGED = "not in NCCL's log"


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """The homework's grid, the sweep over sizes for each operation, the forced transports; none of them twice."""
    wanted: dict[tuple[Any, ...], Cell] = {}
    for name, levels in _grids(config):
        for level in grid(levels):
            same = tuple(level.values())
            wanted.setdefault(same, _cell(name, level, config))
    return list(wanted.values())


def _grids(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and levels of each grid, the factors in one order."""
    sweep, forced = config["sweep"], config["transports"]
    unit = {"10^6": 1000, "2^20": 1024}[config["megabyte"]]
    swept = {backend: [size_kb / unit for size_kb in sweep[f"{backend}_size_kb"]] for backend in DEVICES}
    for name, operations, backends, transports, worlds, sizes in (
        ("sizes", ["all_reduce"], config["backend"], ["default"], config["world_size"], config["size_mb"]),
        *(("sweep", sweep["operation"], [one], ["default"], sweep["world_size"], swept[one]) for one in DEVICES),
        ("transports", ["all_reduce"], ["nccl"], forced["transport"], forced["world_size"], forced["size_mb"]),
    ):
        yield (
            name,
            {
                "operation": operations,
                "backend": backends,
                "transport": transports,
                "world_size": worlds,
                "size_mb": [_whole(size) for size in sizes],
            },
        )


def _whole(size: float) -> float:
    """1.0 as 1: a size is the same level however it was written."""
    return int(size) if size == int(size) else size


def _cell(name: str, level: Mapping[str, Any], config: Mapping[str, Any]) -> Cell:
    device = DEVICES[level["backend"]]
    factors = {"grid": name, **level, "device": device, **{key: config[key] for key in FIXED}}
    bytes_ = size_bytes(level["size_mb"], config["megabyte"])
    traffic = bytes_ * bus_factor(level["operation"], level["world_size"]) * level["world_size"]
    needs = (f"cuda:{level['world_size']}",) if device == "cuda" else ()
    return Cell(factors, needs, cost=1e6 + traffic * (0.05 if device == "cuda" else 1.0))


def start_early() -> None:
    """Start the process that ranks are forked from, so that it imports torch while the measuring process does."""
    from perfscribe.distributed.fork_server import BASE, SERVER

    SERVER.start(BASE)


def run(cell: Cell) -> Measurement:
    """Time the cell's collective; with NCCL by both timers, and ask NCCL what it chose.

    samples: time_ms by CUDA events (NCCL) or the host clock (gloo); host_ms with NCCL, by the host clock. series:
    rank_<r>_ms. values: see collectives.combine; algorithm, protocol, channels, connections, links with NCCL.
    RuntimeError: NCCL says that it took another transport than the one that was forced.
    """
    from dataclasses import asdict

    from perfscribe.distributed import collectives
    from perfscribe.experiments.all_reduce import worker_groups

    message = collectives.Message(
        cell["operation"],
        size_bytes(cell["size_mb"], cell["megabyte"]),
        warmup=cell["warmup_steps"],
        timed=cell["samples"],
        limit_s=cell["limit_s"],
    )
    way = worker_groups.Way(cell["backend"], cell["transport"], cell["world_size"])
    timers = ["", collectives.HOST_CLOCK] if cell["backend"] == "nccl" else [""]
    messages = [{**asdict(message), "timer": timer} for timer in timers]
    timeout_s = _timeout_s(cell, len(timers))
    said = worker_groups.ask(collectives.run_on_rank, way, {"messages": messages}, timeout_s)
    measurement, *by_host = [collectives.combine(message, ranks) for ranks in zip(*said, strict=True)]
    for other in by_host:
        _add_host_clock(measurement, other)
    if cell["backend"] == "nccl":
        log, links = worker_groups.log_of(message, way, timeout_s)
        measurement.values |= _choices(cell, log, measurement.values["message_bytes"]) | {"links": links}
    measurement.values["megabyte_bytes"] = MB_MEANINGS[cell["megabyte"]]
    return measurement


def _timeout_s(cell: Cell, timers: int) -> float:
    calls = timers * (1 + cell["warmup_steps"] + cell["samples"])
    moved = float(size_bytes(cell["size_mb"], cell["megabyte"]) * cell["world_size"] * calls)
    return min(LONGEST_S, STARTING_S + moved / LEAST_BYTES_PER_S[cell["backend"]])


def _add_host_clock(measurement: Measurement, other: Measurement) -> None:
    measurement.samples["host_ms"] = other.samples["time_ms"]
    measurement.warmup["host_ms"] = other.warmup["time_ms"]
    measurement.timers["host_ms"] = other.timers["time_ms"]
    measurement.warmup_s += other.warmup_s
    measurement.timed_s += other.timed_s


def _choices(cell: Cell, log: NcclLog, message_bytes: int) -> dict[str, Any]:
    """What NCCL took for the cell's calls."""
    forced = CONNECTIONS.get(cell["transport"])
    others = sorted(set(log.connections) - {forced}) if forced else []
    if others:
        raise RuntimeError(f"transport {cell['transport']} was asked for, NCCL joined channels by {', '.join(others)}")
    chosen = log.choice(cell["operation"], message_bytes, cell["world_size"])
    return {
        "algorithm": chosen.algorithm if chosen else NOT_LOGGED,
        "protocol": chosen.protocol if chosen else NOT_LOGGED,
        "channels": chosen.channels if chosen else NOT_LOGGED,
        "connections": ", ".join(log.connections) or NOT_LOGGED,
    }
