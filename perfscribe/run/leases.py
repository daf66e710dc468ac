"""Leases of GPUs: jobs, checkouts and users of one machine never measure on the same GPU at the same time.

A lease is an OS file lock (flock) on one file per GPU, named by its UUID. The kernel releases it when the last process
that holds it ends. Holders are the worker and the child that runs its cells, but no process that a cell starts: a child
that outlives its worker, while the driver still frees its memory, keeps its GPU; a process left behind by a cell does
not. Processes of a cell end with their parent.

A job for one GPU waits while holding none; a job for several locks the GPUs it chose in order of UUID. A waiting job
thus holds only GPUs before the one it waits for, which excludes deadlocks.

The files are in /tmp, whatever TMPDIR is, since that differs between users and jobs. They are opened read-only, which
suffices for a lock, never through a link, and never written: files that others put there can only make jobs wait or
fail. Containers that share GPUs exclude each other if PERFSCRIBE_LEASES names a folder that they share.
"""

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscribe.base import cpu_sets
from perfscribe.instruments import nvml
from perfscribe.plan import capabilities, cluster
from perfscribe.plan.demands import needs_one_gpu

FOLDER = Path("/tmp")
FOLDER_VARIABLE = "PERFSCRIBE_LEASES"
VISIBLE = "CUDA_VISIBLE_DEVICES"
POLL_S = 0.5
POLL_SEVERAL_S = 0.05  # shorter, so that jobs for several GPUs get their turn between those for one


@dataclass(frozen=True)
class Gpu:
    """A visible GPU. position: index among the GPUs in CUDA_VISIBLE_DEVICES. handle: NVML's."""

    uuid: str
    position: int
    handle: Any


def visible() -> list[Gpu]:
    """GPUs in CUDA_VISIBLE_DEVICES, in its order; empty unless NVML knows the UUID of each."""
    handles, uuids = nvml.gpus_by_uuid()
    return [Gpu(uuid, place, handle) for place, (handle, uuid) in enumerate(zip(handles, uuids, strict=True))]


def cores_by_gpu(gpus: Sequence[Gpu], granted: Sequence[int]) -> list[cpu_sets.Cores]:
    """Assign cores to one job per GPU: disjoint, near the GPU if NVML knows that, hyperthreads kept together.

    granted: the cores to distribute. Empty if there are fewer physical cores than GPUs.
    """
    near = [frozenset(nvml.nearest_cores(gpu.handle)) & {*granted} or frozenset(granted) for gpu in gpus]
    apart = all(cores == others or not cores & others for cores in near for others in near)
    shares: dict[int, cpu_sets.Cores] = {}
    for group in {cores: None for cores in near} if apart else [frozenset(granted)]:
        members = [place for place in range(len(gpus)) if not apart or near[place] == group]
        whole = _whole_cores(group)
        if len(whole) < len(members):
            return []
        # `even` distributes any indices: here those of physical cores.
        for place, chosen in zip(members, cpu_sets.even(range(len(whole)), len(members)), strict=True):
            shares[place] = tuple(sorted(thread for number in chosen for thread in whole[number]))
    return [shares[place] for place in range(len(gpus))]


def _whole_cores(threads: Iterable[int]) -> list[cpu_sets.Cores]:
    """Group hardware threads by physical core; if siblings are unknown, each thread is a core."""
    left, whole = sorted(threads), []
    while left:
        siblings = cpu_sets.CPU_FOLDER / f"cpu{left[0]}" / "topology" / "thread_siblings_list"
        same = cpu_sets.parse(siblings.read_text().strip()) if siblings.is_file() else ()
        core = tuple(thread for thread in left if thread == left[0] or thread in same)
        whole.append(core)
        left = [thread for thread in left if thread not in core]
    return whole


# --- locks ------------------------------------------------------------------------------------------------------


def lock_file(uuid: str) -> Path:
    """File to lock for the lease of a GPU."""
    usual = FOLDER if os.access(FOLDER, os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(os.environ.get(FOLDER_VARIABLE) or usual)
    return folder / f"perfscribe-{re.sub('[^A-Za-z0-9-]', '_', uuid)}.lock"


def _open(path: Path) -> int:
    """Open the file read-only, creating it if missing; return the descriptor."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    umask = os.umask(0)  # other users lock this file, too
    try:
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags)
            # O_CREAT only for a missing file: the kernel may refuse it for others' files in /tmp.
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
    finally:
        os.umask(umask)


def try_lock(path: Path) -> int | None:
    """Lock the file and return the descriptor that holds the lock; None if another process has it."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):  # else the file was replaced meanwhile
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:  # e.g. a network file system without locks
        os.close(descriptor)
        why = f"cannot be locked ({error.strerror}); name a folder on a local disk in {FOLDER_VARIABLE}"
        raise OSError(error.errno, why, str(path)) from error
    os.close(descriptor)
    return None


# --- a job's lease ----------------------------------------------------------------------------------------------


@dataclass
class Lease:
    """GPUs and cores that a job holds; none until take().

    need: number of GPUs, may be 0. beside_others: jobs on other GPUs run at the same time, so the job is restricted to
    its share of the cores. say: called once with what the job waits for.
    """

    need: int
    beside_others: bool = False
    say: Callable[[str], None] = print
    gpus: list[Gpu] = field(default_factory=list)
    cores: cpu_sets.Cores = ()
    _locks: dict[str, int] = field(default_factory=dict, repr=False)
    _announced: bool = field(default=False, repr=False)

    def take(self, deadline: float | None = None) -> bool:
        """Wait for the GPUs; return whether held before the deadline, in s since the epoch. Idempotent."""
        if self.gpus or not self.need:
            return True
        gpus = visible()
        wanted = min(self.need, len(gpus))
        if not (self._take_any(gpus, deadline) if wanted == 1 else self._take_all(gpus, wanted, deadline)):
            self.release()
            return False
        self.gpus = [gpu for gpu in gpus if gpu.uuid in self._locks]
        if self.beside_others:
            shares = cores_by_gpu(gpus, cpu_sets.granted())
            self.cores = shares[gpus.index(self.gpus[0])] if shares else ()
        return True

    def _lock(self, gpu: Gpu) -> bool:
        descriptor = try_lock(lock_file(gpu.uuid))
        if descriptor is not None:
            self._locks[gpu.uuid] = descriptor
        return descriptor is not None

    def _take_any(self, gpus: Sequence[Gpu], deadline: float | None) -> bool:
        while not any(self._lock(gpu) for gpu in gpus):
            if not self._may_wait(gpus, deadline, POLL_S):
                return False
        return True

    def _take_all(self, gpus: Sequence[Gpu], wanted: int, deadline: float | None) -> bool:
        ordered = sorted(gpus, key=lambda gpu: gpu.uuid)
        free = [gpu for gpu in ordered if len(self._locks) < wanted and self._lock(gpu)]
        if len(free) == wanted:
            return True
        self.release()
        chosen = [*free, *(gpu for gpu in ordered if gpu not in free)][:wanted]
        for gpu in sorted(chosen, key=lambda gpu: gpu.uuid):
            while not self._lock(gpu):
                if not self._may_wait([gpu], deadline, POLL_SEVERAL_S):
                    return False
        return True

    def _may_wait(self, gpus: Sequence[Gpu], deadline: float | None, seconds: float) -> bool:
        """Sleep before the next try, announcing the wait once; False if the deadline has passed."""
        if not self._announced:
            names = ", ".join(str(gpu.position) for gpu in gpus)
            self.say(f"waits for GPU {names}, leased by other jobs on this machine")
            self._announced = True
        if deadline is not None and time.time() > deadline:
            return False
        time.sleep(seconds)
        return True

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors of the locks, to be inherited by the child."""
        return tuple(self._locks.values())

    def variables(self) -> dict[str, str]:
        """Environment variables that restrict a process to these GPUs."""
        return {VISIBLE: ",".join(gpu.uuid for gpu in self.gpus)} if self.gpus else {}

    def provenance(self) -> dict[str, Any]:
        """Provenance for records: positions of the GPUs among the visible ones, and the cores if restricted."""
        cores = {"cores": cpu_sets.shown(self.cores)} if self.cores else {}
        return {"gpus": [gpu.position for gpu in self.gpus], **cores} if self.gpus else {}

    def release(self) -> None:
        """Release all locks."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks, self.gpus, self.cores = {}, [], ()


def for_shard(
    plan: Mapping[str, Any], plan_folder: Path, beside_others: bool, say: Callable[[str], None] = print
) -> Lease:
    """Make the lease of a shard's job: the largest number of GPUs that a cell needs which can run here.

    Empty in jobs of a cluster or of several nodes: there the scheduler assigns GPUs, and UUIDs mean nothing on the next
    node. beside_others: whether one-GPU jobs may run at the same time.
    """
    if cluster.read(plan_folder) is not None or capabilities.nodes_granted() > 1:
        return Lease(0)
    possible = [cell["requires"] for cell in plan["cells"] if not cell["skip"]]
    counts = {requires: capabilities.gpus_needed(requires) for requires in map(tuple, possible)}
    need = max((count for requires, count in counts.items() if count and not capabilities.unmet(requires)), default=0)
    return Lease(need, beside_others and needs_one_gpu(plan["cells"]), say)
