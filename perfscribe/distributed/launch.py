"""Starts the ranks of a program, collects their results, and reports which rank failed first.

On one machine ranks are forked, or an external launcher starts them: torchrun, mpiexec, srun; on several nodes srun
starts a torchrun on each (starting.py). In every case this process hosts the store at which the ranks meet, on a port
that the kernel chooses, so that concurrent launches cannot collide and the store outlives every rank; and the hub to
which they report (channel.py).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.base import cpu_sets
from perfscribe.base.cells import Unsupported
from perfscribe.distributed import hosts, launchers, ranks, starting
from perfscribe.distributed.channel import Hub
from perfscribe.distributed.needs import ranks_per_node
from perfscribe.distributed.transport import LOOPBACK
from perfscribe.distributed.watching import KEPT_LINES, RunningRanks

STARTING_S = 30.0
LOG_LINES = 20_000
COLLECTIVE_TIMEOUT_S = 600.0  # longer than any cell's: ranks start with their first cell's timeout


@dataclass(frozen=True)
class Ranks:
    """Factors that ranks are started by, under the names of WorkerGroup's options."""

    world_size: int
    backend: str
    nodes: int = 1
    transport: str = "default"


def launch(program: str | Callable[..., Any], arguments: Mapping[str, Any], **options: Any) -> list[Any]:
    """Run the program once on each rank; returns the results. options and exceptions: as for WorkerGroup."""
    with WorkerGroup(program, **options) as workers:
        return workers.ask(arguments)


class WorkerGroup:
    """Persistent ranks: each ask() runs the program again, in the same processes and the same process group.

    So the cost of starting and joining is paid once for many measurements. Use it as a context, or close() it.

    program: a function of arguments and a Rank (see rank.py), or its "module:name". Prefer a function: measuring code
    then imports it, so that editing it remeasures. nodes: of this Slurm job, this one first; ranks are numbered node by
    node. device: cuda (default of nccl) or cpu (of gloo). transport: see transport.py. timeout_s: for each ask(); the
    first includes starting. collective_timeout_s: time limit of a collective; by default longer than timeout_s, so that
    only timeout_s ends a hang, and the ranks' stacks then tell which one hangs; required if an ask() may last longer
    than the first. seed: by default random. launcher: command that starts the ranks instead of this process, such as
    torchrun(4); the ranks' module is appended. nccl_log: let NCCL log its choices (see nccl_log.parse_nccl_log); slows
    collectives.

    Raises ValueError for invalid arguments; Unsupported for fewer GPUs than ranks, fewer nodes than requested, a
    backend that torch lacks, or if a rank raised it. Otherwise the first failure counts and names its rank:
    RankOutOfMemory (a MemoryError), RankTimeout (a TimeoutError), RankError (it raised, died by a signal or left).
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
        device: str = "",
        transport: str = "default",
        collective_timeout_s: float | None = None,
        seed: int | None = None,
        launcher: Sequence[str] = (),
        nccl_log: bool = False,
    ) -> None:
        device = device or ("cuda" if backend == "nccl" else "cpu")
        each = ranks_per_node(world_size, nodes)
        names = launchers.nodes_of_job(nodes) if nodes > 1 else []
        _check_machine(each, backend, device)  # this node represents all: a job's nodes are alike
        address = hosts.address_towards(names[-1]) if names else LOOPBACK
        self._logs, self._asked = nccl_log, 0
        self.is_open = False
        with contextlib.ExitStack() as held:
            hub, store = held.enter_context(contextlib.closing(Hub(address))), held.enter_context(_store(address))
            order = {
                "program": program if isinstance(program, str) else _name(program),
                "world_size": world_size,
                "backend": backend,
                "device": device,
                "transport": transport,
                "collective_timeout_s": collective_timeout_s or timeout_s + STARTING_S,
                "seed": random.getrandbits(31) if seed is None else seed,
                "threads": _threads(each),
                "nccl_log": nccl_log,
                "address": hub.address,
                "token": hub.token,
                "store": f"{address}:{store}",
            }
            processes: starting.ForkedRanks | starting.LaunchedRanks
            if names or launcher:
                launcher = launcher or launchers.over_nodes(names, each, address, store)
                environment = launchers.environment_of_job() if names else os.environ
                processes = starting.LaunchedRanks(launcher, order, hub, environment)
            else:
                processes = starting.ForkedRanks(order, [_variables(rank, each, store) for rank in range(each)])
            kept_lines = LOG_LINES if nccl_log else KEPT_LINES
            self._watch = RunningRanks(world_size, timeout_s, hub, processes, kept_lines)
            held.callback(self._watch.read_the_rest)
            held.callback(processes.end)
            self._held = held.pop_all()
        self.is_open = True

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output(self) -> dict[int, list[str]]:
        """Output of each rank, as far as it was kept: with nccl_log all of it, up to the last result."""
        return {rank: list(state.output) for rank, state in self._watch.states.items() if rank >= 0}

    def ask(self, arguments: Mapping[str, Any], timeout_s: float | None = None) -> list[Any]:
        """Run the program on all ranks; returns the results in rank order. After an error the group is closed.

        timeout_s: for this and later calls; by default unchanged.
        """
        json.dumps(arguments, allow_nan=False)  # raises ValueError or TypeError if they cannot be sent
        self._asked += 1
        self._watch.timeout_s = timeout_s or self._watch.timeout_s
        try:
            self._watch.give(arguments)
            results = self._watch.results()
        except BaseException:
            self.is_open = False
            self._held.close()
            raise
        if self._logs:
            self._watch.read_log(self._asked)
        return results

    def close(self) -> None:
        """Let the ranks leave, and kill those that do not."""
        if self.is_open:
            self.is_open = False
            try:
                self._watch.dismiss()
            finally:
                self._held.close()


_WAITING: dict[tuple[Any, ...], WorkerGroup] = {}


@atexit.register  # multiprocessing, which joins its processes at exit, is imported before this module
def dismiss() -> None:
    """End all persistent ranks."""
    while _WAITING:
        _WAITING.popitem()[1].close()


def waiting(program: Callable[..., Any], *, timeout_s: float, alone: bool = False, **options: Any) -> WorkerGroup:
    """Return persistent ranks with this program and these options; started unless they exist already.

    alone: all others leave first, which frees their memory. timeout_s: for the first ask() and by default.
    """
    key = (program, *sorted(options.items()))
    workers = _WAITING.get(key)
    if workers is None or not workers.is_open:
        if alone:
            dismiss()
        options |= {"timeout_s": timeout_s, "collective_timeout_s": COLLECTIVE_TIMEOUT_S}
        workers = _WAITING[key] = WorkerGroup(program, **options)
    return workers


def _name(program: Callable[..., Any]) -> str:
    """Return a function's name as ranks import it; raises ValueError if they cannot."""
    module, name = program.__module__, program.__qualname__
    if module == "__main__" or "<" in name:
        raise ValueError(f"program {module}:{name}: expected a function of the top level of a module")
    return f"{module}:{name}"


def _check_machine(world_size: int, backend: str, device: str) -> None:
    import torch

    available = torch.distributed.is_available() and getattr(torch.distributed, f"is_{backend}_available")()
    if not available:
        raise Unsupported(f"torch is a build without {backend}")
    gpus = torch.cuda.device_count() if device == "cuda" else world_size
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
    """Return a rank's environment: ours without an outer launcher's variables, plus torchrun's variables in use."""
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    elastic = {"TORCHELASTIC_RUN_ID": f"perfscribe-{os.getpid()}", "TORCHELASTIC_USE_AGENT_STORE": True}
    rest = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": store_port, "OMP_NUM_THREADS": _threads(world_size)}
    ours = {name: str(value) for name, value in {**numbers, **elastic, **rest}.items()}
    return ranks.without_launchers(os.environ) | ours
