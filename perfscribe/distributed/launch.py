"""Starts the ranks of a program, collects their results, and reports which rank failed first.

On one machine ranks are forked, or an external launcher starts them: torchrun, mpiexec, srun. On several nodes srun
starts a torchrun on each, unless the caller gives another launcher (starting.py, launchers.py). In every case this
process hosts the hub to which ranks report (watching.py) and the store at which they meet. The operating system chooses
the store's port, so that concurrent launches cannot collide; the store outlives every rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.base import cpu_sets
from perfscribe.base.cells import Unsupported
from perfscribe.distributed import hosts, launchers, ranks, starting
from perfscribe.distributed.needs import DEVICES, ranks_per_node
from perfscribe.distributed.transport import LOOPBACK
from perfscribe.distributed.watching import RunningRanks


@dataclass(frozen=True)
class Ranks:
    """WorkerGroup's options that may be factors of a cell: vars(cell.read(Ranks)) gives them as keywords."""

    world_size: int
    backend: str
    nodes: int = 1
    transport: str = "default"


def launch(program: str | Callable[..., Any], arguments: Mapping[str, Any], **options: Any) -> list[Any]:
    """Run the program once on each rank; returns the results. options and exceptions: as for WorkerGroup."""
    with WorkerGroup(program, **options) as workers:
        return workers.ask(arguments)


class WorkerGroup:
    """Ranks that stay: each ask() runs the program again, in the same processes and the same process group.

    So the cost of starting and joining is paid once for many measurements. Use it in a with statement, or close() it.

    program: a function of arguments and a Rank (see rank.py), or its "module:name". Prefer a function: measuring code
    then imports it, so that editing it remeasures. world_size: ranks on all nodes together. nodes: number of this Slurm
    job's nodes to use, this one among them. backend: gloo or nccl. transport: a name in transport.TRANSPORTS.
    timeout_s: for each ask(); the first includes starting. seed: rank r is seeded with seed + r; None: random.
    launcher: command that starts the ranks instead of this process, such as launchers.torchrun(4); the ranks' module is
    appended. nccl_log: let NCCL log its choices (see nccl_log.parse_nccl_log); slows collectives.

    Raises ValueError if ranks do not divide evenly among the nodes or cannot import the program; Unsupported for
    fewer GPUs than ranks, fewer nodes than requested, a backend that torch lacks, or if a rank raised it. Otherwise the
    first failure counts, and the text names its rank if it is known: RankOutOfMemory (a MemoryError), RankWrongResult
    (a WrongResult), RankTimeout (a TimeoutError), RankError (it raised, died by a signal or left).
    After an exception no rank is left.
    """

    def __init__(
        self,
        program: str | Callable[..., Any],
        *,
        world_size: int,
        timeout_s: float,
        nodes: int = 1,
        backend: str = "gloo",
        transport: str = "default",
        seed: int | None = None,
        launcher: Sequence[str] = (),
        nccl_log: bool = False,
    ) -> None:
        each = ranks_per_node(world_size, nodes)
        names = launchers.nodes_of_job(nodes) if nodes > 1 else []
        _check_machine(each, backend)  # this node represents all: a job's nodes are alike
        address = hosts.address_towards(names[-1]) if names else LOOPBACK
        self.is_open = False
        with contextlib.ExitStack() as held:
            store = held.enter_context(_store(address))
            self._ranks = RunningRanks(world_size, timeout_s, address)
            held.callback(self._ranks.close)
            order = {
                "program": program if isinstance(program, str) else _name(program),
                "world_size": world_size,
                "backend": backend,
                "device": DEVICES[backend],
                "transport": transport,
                "seed": random.getrandbits(31) if seed is None else seed,
                "threads": _threads(each),
                "nccl_log": nccl_log,
                "address": self._ranks.address,
                "token": self._ranks.token,
                "store": f"{address}:{store}",
            }
            processes: starting.ForkedRanks | starting.LaunchedRanks
            if names or launcher:
                launcher = launcher or launchers.over_nodes(names, each, address, store)
                environment = launchers.environment_of_job() if names else os.environ
                processes = starting.LaunchedRanks(launcher, order, environment)
            else:
                variables = [_variables(rank, each, store) for rank in range(each)]
                processes = starting.ForkedRanks(order, variables)
            self._ranks.processes = processes
            held.callback(processes.end)
            held.callback(self._ranks.close)  # before that: ranks end without connections
            self._end = weakref.finalize(self, held.pop_all().close)  # also at exit
        self.is_open = True

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nccl_log(self) -> list[str]:
        """Lines that NCCL logged on all ranks up to the last result, if asked for."""
        return self._ranks.log

    def ask(self, arguments: Mapping[str, Any], timeout_s: float | None = None) -> list[Any]:
        """Run the program on all ranks and return the results, JSON values, in rank order.

        timeout_s: for this and later calls; None: unchanged. Raises ValueError or TypeError if arguments are not JSON
        values; other exceptions are those of WorkerGroup, and close the group.
        """
        json.dumps(arguments, allow_nan=False)  # raises ValueError or TypeError if they cannot be sent
        self._ranks.timeout_s = timeout_s or self._ranks.timeout_s
        try:
            return self._ranks.ask(arguments)
        except BaseException:
            self.is_open = False
            self._end()
            raise

    def close(self) -> None:
        """Let the ranks leave, and kill those that do not."""
        if self.is_open:
            self.is_open = False
            try:
                self._ranks.dismiss()
            finally:
                self._end()


_WAITING: dict[tuple[Any, ...], WorkerGroup] = {}


def dismiss() -> None:
    """Close all groups that waiting() has started."""
    while _WAITING:
        _WAITING.popitem()[1].close()


def waiting(program: Callable[..., Any], *, timeout_s: float, alone: bool = False, **options: Any) -> WorkerGroup:
    """Return the open WorkerGroup of an earlier call with this program and these options, else start one.

    alone: before a start, close all other groups of waiting(), which frees their memory. timeout_s: of a new group; one
    that exists keeps its own. dismiss(), or the end of this process, closes the group.
    """
    key = (program, *sorted(options.items()))
    workers = _WAITING.get(key)
    if workers is None or not workers.is_open:
        if alone:
            dismiss()
        workers = _WAITING[key] = WorkerGroup(program, timeout_s=timeout_s, **options)
    return workers


def _name(program: Callable[..., Any]) -> str:
    """Return a function's name as ranks import it; raises ValueError if they cannot."""
    module, name = program.__module__, program.__qualname__
    if module == "__main__" or "<" in name:
        raise ValueError(f"program {module}:{name}: expected a function of the top level of a module")
    return f"{module}:{name}"


def _check_machine(world_size: int, backend: str) -> None:
    import torch

    available = torch.distributed.is_available() and getattr(torch.distributed, f"is_{backend}_available")()
    if not available:
        raise Unsupported(f"torch is a build without {backend}")
    gpus = torch.cuda.device_count() if DEVICES[backend] == "cuda" else world_size
    if gpus < world_size:
        raise Unsupported(f"{world_size} processes need as many GPUs, {gpus} {'is' if gpus == 1 else 'are'} here")


def _threads(world_size: int) -> int:
    """Return the CPU threads per rank: the cores granted to this process, divided."""
    return max(1, len(cpu_sets.granted()) // world_size)


@contextlib.contextmanager
def _store(address: str) -> Iterator[int]:
    """Host the store at which ranks meet, until exit; yields its port."""
    import torch.distributed as dist

    listener = socket.create_server((address, 0), backlog=256)
    port = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    try:
        yield port
    finally:
        del store


def _variables(rank: int, world_size: int, store_port: int) -> dict[str, str]:
    """Return the environment of a forked rank: this process's without any launcher's variables, plus torchrun's.

    world_size: ranks on this machine. OMP_NUM_THREADS is the rank's share of the cores.
    """
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    elastic = {"TORCHELASTIC_RUN_ID": f"perfscribe-{os.getpid()}", "TORCHELASTIC_USE_AGENT_STORE": True}
    rest = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": store_port, "OMP_NUM_THREADS": _threads(world_size)}
    ours = {name: str(value) for name, value in {**numbers, **elastic, **rest}.items()}
    return ranks.without_launchers(os.environ) | ours
