"""Ranks on several nodes of a Slurm job: srun starts one torchrun a node, and that its ranks.

The rest is as on one machine (launch.py): this process holds the store at which torchruns and ranks meet, on a port
that the kernel chooses, and the hub that ranks report to.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfscribe.base.cells import Unsupported
from perfscribe.distributed import hosts, launchers, on_node
from perfscribe.distributed.channel import Hub
from perfscribe.distributed.launch import WorkerGroup, _check_machine, _name, _threads
from perfscribe.distributed.starting import DEATH_S, OtherLauncher
from perfscribe.distributed.watching import KEPT_LINES, Watch

# Of Slurm's variables, those that say which job and which cluster.
KEPT = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME")


def nodes_of_job(count: int) -> list[str]:
    """So many nodes of this job, the one that this process runs on first. Unsupported: it has fewer, or is none."""
    launchers.require("slurm")
    names = hosts.of_job(os.environ)
    here = socket.gethostname().split(".")[0]
    names.sort(key=lambda name: name.split(".")[0] != here)
    if len(names) < count:
        raise Unsupported(f"{len(names)} node{'' if len(names) == 1 else 's'}")
    return names[:count]


class NodeWorkerGroup(WorkerGroup):
    """A WorkerGroup with ranks_per_node ranks on each of the first `nodes` nodes of this Slurm job.

    Ranks are numbered node by node. Arguments and errors are those of WorkerGroup, Unsupported outside of a job too.
    """

    def __init__(
        self,
        program: str | Callable[..., Any],
        *,
        nodes: int,
        ranks_per_node: int,
        timeout_s: float,
        backend: str = "gloo",
        device: str = "",
        collective_timeout_s: float | None = None,
        seed: int = 0,
    ) -> None:
        names = nodes_of_job(nodes)
        device = device or ("cuda" if backend == "nccl" else "cpu")
        _check_machine(ranks_per_node, backend, device)  # this node stands for all: a job's nodes are alike
        self._logs, self._asked = False, 0
        self.is_open = False
        address = on_node.address_towards(names[-1])
        world_size = nodes * ranks_per_node
        with contextlib.ExitStack() as held:
            hub, port = held.enter_context(Hub(address)), held.enter_context(_store(address))
            order = {
                "program": program if isinstance(program, str) else _name(program),
                "world_size": world_size,
                "backend": backend,
                "device": device,
                "transport": "default",
                "collective_timeout_s": collective_timeout_s or timeout_s + DEATH_S,
                "seed": seed,
                "threads": _threads(ranks_per_node),
                "nccl_log": False,
                "address": hub.address,
                "token": hub.token,
                "store": f"{address}:{port}",
            }
            with _outside_of_steps():
                job = OtherLauncher(command(names, ranks_per_node, address, port), order, hub)
            self._watch = Watch(world_size, timeout_s, hub, job, KEPT_LINES, time.monotonic())
            held.callback(self._watch.read_the_rest)
            held.callback(job.end)
            self._held = held.pop_all()
        self.is_open = True


def command(names: Sequence[str], ranks_per_node: int, address: str, port: int) -> list[str]:
    """The command that starts ranks on these nodes; the ranks' module is put behind it.

    The step shares what the job's other steps have. The store is this process's, so that no torchrun is to be its host.
    """
    count = str(len(names))
    # torchrun needs no MPI, whose plug-in may want more of a cluster than there is.
    srun = ["srun", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", f"--nodelist={','.join(names)}"]
    srun += [f"--jobid={os.environ['SLURM_JOB_ID']}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}"]
    torchrun += [f"--nproc-per-node={ranks_per_node}", f"--rdzv-id={secrets.token_hex(8)}", "--rdzv-backend=c10d"]
    torchrun += [f"--rdzv-endpoint={address}:{port}", "--rdzv-conf=is_host=false"]
    return [*srun, *torchrun, "-m", on_node.__name__, address]


@contextlib.contextmanager
def _outside_of_steps() -> Iterator[None]:
    """Without the variables of the step that this process is in: srun would take its one node for all of the job."""
    step = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SLURM_") and name not in KEPT}
    try:
        yield
    finally:
        os.environ.update(step)


@contextlib.contextmanager
def _store(address: str) -> Iterator[int]:
    """The port of a store at this address, closed when left."""
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
