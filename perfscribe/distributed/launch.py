"""Starts the ranks of a program, collects results from each, and says which rank failed first where one did.

On one machine a fork server starts the ranks (fork_server.py), or another launcher does: torchrun, mpiexec, srun.
Everything else is the same: this process holds the store that the ranks meet at, on a port that the kernel chooses, so
that launches beside each other cannot collide, and which outlives every rank; and the hub that they report to
(channel.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.base.cells import Unsupported
from perfscribe.distributed import ranks
from perfscribe.distributed import transport as transports
from perfscribe.distributed.channel import LOOPBACK, Hub
from perfscribe.distributed.starting import DEATH_S, FORK, SPAWN, Job, OtherLauncher, OwnRanks
from perfscribe.distributed.watching import KEPT_LINES, Watch

BACKENDS = ("gloo", "nccl")
LOG_LINES = 20_000


@dataclass(frozen=True)
class Launched:
    """What the ranks gave back, in the order of ranks.

    results: of the program. output: what each rank printed, as far as it was kept (all of it with nccl_log).
    """

    results: list[Any]
    output: dict[int, list[str]]


def launch(program: str | Callable[..., Any], arguments: Mapping[str, Any], **options: Any) -> Launched:
    """Run program on several ranks at once, and end them. options: a WorkerGroup's, which says what it raises."""
    with WorkerGroup(program, **options) as workers:
        results = workers.ask(arguments)
    return Launched(results, workers.output)


class WorkerGroup:
    """Ranks that stay: each ask() runs the program once more, in the same processes and the same process group.

    So starting and joining are paid once for many measurements. Use it as a context, or close() it.

    program: a function of arguments and a Rank (see rank.py), or its "module:name". A function is better than a name:
    what measures it then imports it, so that an edit of it measures again.
    device: cuda (the default of nccl) or cpu (of gloo). transport: see transport.py. timeout_s: for each ask(), of
    which the first takes in starting. collective_timeout_s: after which a collective gives up by itself; by default
    later than timeout_s, so that only that ends it, and what the ranks' stacks say then tells who hangs; to be given
    where an ask() may last longer than the first. start: fork, or spawn for fresh interpreters, as profilers want
    them. launcher: the command that starts the ranks in place of this process, such as torchrun(4); the ranks' module
    is put behind it. nccl_log: let NCCL report its choices (see nccl_log.parse_nccl_log); slows collectives.

    ValueError: arguments that cannot be. Unsupported: fewer GPUs than ranks, a backend that torch lacks, or a rank
    raised it. Else the first failure counts and names its rank: RankOutOfMemory (a MemoryError), RankTimeout (a
    TimeoutError), RankError (it raised, died by a signal or left). When this has raised, no rank is left.
    """

    def __init__(
        self,
        program: str | Callable[..., Any],
        *,
        world_size: int,
        timeout_s: float,
        backend: str = "gloo",
        device: str = "",
        transport: str = "default",
        collective_timeout_s: float | None = None,
        seed: int = 0,
        start: str = FORK,
        launcher: Sequence[str] = (),
        nccl_log: bool = False,
    ) -> None:
        device = device or ("cuda" if backend == "nccl" else "cpu")
        check(world_size, backend, device, transport, timeout_s, start)
        self._logs, self._asked = nccl_log, 0
        self.is_open = False
        with contextlib.ExitStack() as held:
            hub, store = held.enter_context(Hub()), held.enter_context(_store())
            order = {
                "program": program if isinstance(program, str) else _name(program),
                "world_size": world_size,
                "backend": backend,
                "device": device,
                "transport": transport,
                "collective_timeout_s": collective_timeout_s or timeout_s + DEATH_S,
                "seed": seed,
                "threads": _threads(world_size),
                "nccl_log": nccl_log,
                "address": hub.address,
                "token": hub.token,
                "store": f"{LOOPBACK}:{store}",
                "fresh": start == SPAWN,
                "path": sys.path,
                "folder": os.getcwd(),
                "environment": [] if launcher else [_variables(rank, world_size, store) for rank in range(world_size)],
            }
            began = time.monotonic()
            job: Job = OtherLauncher(launcher, order, hub) if launcher else OwnRanks(order, hub, timeout_s)
            self._watch = Watch(world_size, timeout_s, hub, job, LOG_LINES if nccl_log else KEPT_LINES, began)
            held.callback(self._watch.read_the_rest)
            held.callback(job.end)
            self._held = held.pop_all()
        self.is_open = True

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output(self) -> dict[int, list[str]]:
        """What each rank has printed, as far as it was kept: with nccl_log all of it, up to the last result."""
        return {rank: list(state.output) for rank, state in self._watch.states.items() if rank >= 0}

    def ask(self, arguments: Mapping[str, Any], timeout_s: float | None = None) -> list[Any]:
        """The program's result of each rank, in their order. After an error the group is closed.

        timeout_s: for this time and those after it; by default as before.
        """
        json.dumps(arguments, allow_nan=False)  # ValueError, TypeError: they cannot be sent
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
        """Let the ranks leave, and end those that do not."""
        if self.is_open:
            self.is_open = False
            try:
                self._watch.dismiss()
            finally:
                self._held.close()


def _name(program: Callable[..., Any]) -> str:
    """A function's name as ranks import it. ValueError: they cannot."""
    module, name = program.__module__, program.__qualname__
    if module == "__main__" or "<" in name:
        raise ValueError(f"program {module}:{name}: expected a function of the top level of a module")
    return f"{module}:{name}"


def torchrun(world_size: int) -> list[str]:
    """torchrun's command line for ranks on this machine, for launch(launcher=...)."""
    module = "torch.distributed.run"
    return [sys.executable, "-m", module, "--standalone", f"--nproc-per-node={world_size}", "-m"]


def check(world_size: int, backend: str, device: str, transport_name: str, timeout_s: float, start: str) -> None:
    """Refuse what cannot run, in one line, before anything starts: ValueError or Unsupported."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r}: expected {' or '.join(BACKENDS)}")
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size {world_size!r}: expected a whole number from 1")
    if device not in ("cpu", "cuda") or (backend, device) == ("nccl", "cpu"):
        raise ValueError(f"device {device!r}: {backend} expects {'cuda' if backend == 'nccl' else 'cpu or cuda'}")
    if start not in (FORK, SPAWN):
        raise ValueError(f"start {start!r}: expected {FORK} or {SPAWN}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s {timeout_s!r}: expected seconds above 0")
    transports.check(backend, transport_name)
    _check_machine(world_size, backend, device)


def _check_machine(world_size: int, backend: str, device: str) -> None:
    import torch

    available = torch.distributed.is_available() and getattr(torch.distributed, f"is_{backend}_available")()
    if not available:
        raise Unsupported(f"torch is a build without {backend}")
    gpus = torch.cuda.device_count() if device == "cuda" else world_size
    if gpus < world_size:
        raise Unsupported(f"{world_size} processes need as many GPUs, {gpus} {'is' if gpus == 1 else 'are'} here")


def _threads(world_size: int) -> int:
    """CPU threads of each rank: the cores granted to this process, divided."""
    granted = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, granted // world_size)


@contextlib.contextmanager
def _store() -> Iterator[int]:
    """The port of a store that ranks of this machine meet at, closed when left."""
    import torch.distributed as dist

    listener = socket.create_server((LOOPBACK, 0), backlog=256)
    port = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK, port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    try:
        yield port
    finally:
        del store


def _variables(rank: int, world_size: int, store_port: int) -> dict[str, str]:
    """A rank's environment: ours without an outer launcher's variables, with those that torchrun would set."""
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    group = {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world_size}
    elastic = {"TORCHELASTIC_RUN_ID": f"perfscribe-{os.getpid()}", "TORCHELASTIC_USE_AGENT_STORE": True}
    rest = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": store_port, "OMP_NUM_THREADS": _threads(world_size)}
    ours = {name: str(value) for name, value in {**numbers, **group, **elastic, **rest}.items()}
    return ranks.without_launchers(os.environ) | ours
