"""The ranks that measure, kept between cells: one launch for each backend, transport and number of processes.

With NCCL there is a second one, in which NCCL logs what it chooses: the log costs time with each call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.distributed.collectives import Message, run_once
from perfscribe.distributed.launch import WorkerGroup
from perfscribe.distributed.nccl_log import NcclLog, parse_nccl_log
from perfscribe.distributed.transport import visible_links

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

NO_LINKS = "not told"
COLLECTIVE_TIMEOUT_S = 600.0  # above any cell's own: ranks start with the time of their first cell, and stay for all
_GROUPS: dict[tuple[Way, str], WorkerGroup] = {}


@dataclass(frozen=True)
class Way:
    """How ranks exchange messages, and how many of them."""

    backend: str
    transport: str
    world_size: int


def ask(
    program: Callable[..., Any], way: Way, arguments: Mapping[str, Any], timeout_s: float, nccl_log: bool = False
) -> list[Any]:
    """The program's result of each rank of this way, which are started where they do not wait already.

    Raises as perfscribe.distributed.launch.WorkerGroup does; the next time others are started then.
    """
    return _workers(program, way, timeout_s, nccl_log).ask(arguments, timeout_s)


def _workers(program: Callable[..., Any], way: Way, timeout_s: float, nccl_log: bool) -> WorkerGroup:
    key = (way, program.__qualname__)
    workers = _GROUPS.get(key)
    if workers is None or not workers.is_open:
        workers = _GROUPS[key] = WorkerGroup(
            program,
            **asdict(way),
            timeout_s=timeout_s,
            collective_timeout_s=COLLECTIVE_TIMEOUT_S,
            nccl_log=nccl_log,
            seed=random.getrandbits(31),  # of the cell's own seed
        )
    return workers


def log_of(message: Message, way: Way, timeout_s: float) -> tuple[NcclLog, str]:
    """What NCCL says of all messages so far and of this one, which is sent once; how the GPUs are joined."""
    said = ask(send_once, way, {"message": asdict(message)}, timeout_s, nccl_log=True)
    workers = _workers(send_once, way, timeout_s, nccl_log=True)
    return parse_nccl_log(line for lines in workers.output.values() for line in lines), said[0]


def send_once(arguments: Mapping[str, Any], rank: Rank) -> str:
    """On a rank: exchange the message once; the kinds of links between the GPUs, of rank 0 alone."""
    run_once(arguments, rank)
    kinds = {link.kind for link in visible_links(rank.place.world_size)} if rank.place.rank == 0 else set()
    return ", ".join(sorted(kind for kind in kinds if kind)) or NO_LINKS


def close() -> None:
    """End all ranks that wait."""
    while _GROUPS:
        _GROUPS.popitem()[1].close()
