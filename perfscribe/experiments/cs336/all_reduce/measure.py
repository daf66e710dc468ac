"""CS336's problem distributed_communication_single_node: times of collectives between the processes of one machine.

Every result is checked before anything is timed. A call's time is the longest of any rank. Ranks stay between cells:
one launch per backend, transport and number of processes, and with NCCL a second one in which NCCL logs its choices,
because the log slows every call.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.traffic import size_bytes
from perfscribe.distributed import needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscribe.base.cells import Cell, Measurement
    from perfscribe.distributed.launch import WorkerGroup
    from perfscribe.distributed.rank import Rank

PRELOADED = needs.BASE
# Rates that any machine reaches, for a cell's time limit; the longest limit is below the worker's.
LEAST_BYTES_PER_S = {"gloo": 1e8, "nccl": 1e9}
STARTING_S, LONGEST_S = 90.0, 540.0
# Names in NCCL's log for channels of a forced transport.
CONNECTIONS = {"nvlink": "P2P", "shm": "SHM", "tcp": "NET/Socket"}
NOT_LOGGED, NO_LINKS = "not in NCCL's log", "not told"


@dataclass(frozen=True)
class Collective:
    """Factors of a cell."""

    operation: str
    backend: str
    transport: str
    world_size: int
    size_mb: float
    megabyte: str
    warmup_steps: int
    samples: int
    limit_s: float


def run(cell: Cell) -> Measurement:
    """Time the cell's collective; with NCCL by two timers, and read NCCL's choices from its log.

    samples: time_ms by CUDA events (NCCL) or the host clock (gloo); host_ms with NCCL, by the host clock. series:
    rank_<r>_ms. values: see collectives.combine; algorithm, protocol, channels, connections, links with NCCL.
    Raises RuntimeError if NCCL's log shows another transport than the forced one.
    """
    from perfscribe.distributed import collectives, launch

    of = cell.read(Collective)
    size = size_bytes(of.size_mb, of.megabyte)
    message = collectives.Message(of.operation, size, warmup=of.warmup_steps, timed=of.samples, limit_s=of.limit_s)
    timers = ["", collectives.HOST_CLOCK] if of.backend == "nccl" else [""]
    messages = [{**asdict(message), "timer": timer} for timer in timers]
    timeout_s = _timeout_s(of, len(timers))
    ranks = vars(cell.read(launch.Ranks))
    workers = launch.waiting(collectives.run_on_rank, timeout_s=timeout_s, **ranks)
    said = workers.ask({"messages": messages}, timeout_s)
    measurement, *by_host = [collectives.combine(message, each) for each in zip(*said, strict=True)]
    for other in by_host:
        for name in ("samples", "warmup", "timers"):
            getattr(measurement, name)["host_ms"] = getattr(other, name)["time_ms"]
        measurement.warmup_s += other.warmup_s
        measurement.timed_s += other.timed_s
    if of.backend == "nccl":
        workers = launch.waiting(send_once, timeout_s=timeout_s, nccl_log=True, **ranks)
        links = workers.ask({"message": asdict(message)}, timeout_s)[0]
        measurement.values |= _choices(of, workers, measurement.values["message_bytes"]) | {"links": links}
    return measurement


def _timeout_s(of: Collective, timers: int) -> float:
    calls = timers * (1 + of.warmup_steps + of.samples)
    moved = float(size_bytes(of.size_mb, of.megabyte) * of.world_size * calls)
    return min(LONGEST_S, STARTING_S + moved / LEAST_BYTES_PER_S[of.backend])


def _choices(of: Collective, workers: WorkerGroup, message_bytes: int) -> dict[str, Any]:
    """Return NCCL's choices for the message, from the log of these ranks; RuntimeError: another transport."""
    from perfscribe.distributed.nccl_log import parse_nccl_log

    log = parse_nccl_log(workers.nccl_log)
    forced = CONNECTIONS.get(of.transport)
    others = sorted(set(log.connections) - {forced}) if forced else []
    if others:
        raise RuntimeError(f"transport {of.transport} was asked for, NCCL joined channels by {', '.join(others)}")
    chosen = log.choice(of.operation, message_bytes, of.world_size)
    told = {name: getattr(chosen, name, NOT_LOGGED) for name in ("algorithm", "protocol", "channels")}
    return {**told, "connections": ", ".join(log.connections) or NOT_LOGGED}


def send_once(arguments: Mapping[str, Any], rank: Rank) -> str:
    """Exchange the message once, on a rank; return the kinds of links between the GPUs, on rank 0 only."""
    from perfscribe.distributed.collectives import run_once
    from perfscribe.distributed.links import visible_links

    run_once(arguments, rank)
    kinds = {link.kind for link in visible_links(rank.place.world_size)} if rank.place.rank == 0 else set()
    return ", ".join(sorted(kind for kind in kinds if kind)) or NO_LINKS
