"""GPUs leased for measuring: jobs, checkouts and users of one machine never measure on the same one at a time.

A lease is a lock of the kernel (flock) on one file a GPU, named by its UUID. The kernel frees it with the last process
that holds it, however that ends. Its holders are the worker and the child that runs its cells, and none that a cell
starts: a child that outlives its worker, while the driver still takes its memory back, keeps its GPU from others, and
a process that a cell left behind does not. Processes of a cell end with their parent by themselves.

A job waits while it holds nothing (one GPU), or takes the GPUs that it chose in the order of their UUIDs (several): who
waits for one holds only those before it, so that no two jobs wait for each other.

The files lie in /tmp, whatever TMPDIR says, since that differs between users and jobs. They are opened to read, which
a lock needs no more than, never through a link, and never written: whoever puts other things there can make others
wait or fail, and nothing else. Containers that share GPUs exclude each other where PERFSCRIBE_LEASES names a folder
that they share.
"""

from __future__ import annotations

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

from perfscribe.distributed import binding
from perfscribe.plan import cluster
from perfscribe.plan.demands import needs_one_gpu
from perfscribe.records import environment

FOLDER = Path("/tmp")
FOLDER_VARIABLE = "PERFSCRIBE_LEASES"
VISIBLE = "CUDA_VISIBLE_DEVICES"
POLL_S = 0.5
POLL_SEVERAL_S = 0.05  # shorter, so that a job that needs several gets its turn between those that need one
MOST_CORES = 4096


@dataclass(frozen=True)
class Gpu:
    """A visible GPU. position: among those that CUDA_VISIBLE_DEVICES leaves, from 0. handle: NVML's."""

    uuid: str
    position: int
    handle: Any


def visible() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; none where NVML does not tell the UUID of each."""
    handles, uuids = environment.gpus_by_uuid()
    return [Gpu(uuid, place, handle) for place, (handle, uuid) in enumerate(zip(handles, uuids, strict=True))]


def cores_by_gpu(gpus: Sequence[Gpu], granted: Sequence[int]) -> list[binding.Cores]:
    """Cores for a job on each of these GPUs: disjoint, near the GPU where NVML tells that, siblings together.

    granted: the cores to deal out. Empty where there are fewer whole cores than GPUs.
    """
    near = [_nearest(gpu, granted) or frozenset(granted) for gpu in gpus]
    apart = all(one == other or not one & other for one in near for other in near)
    shares: dict[int, binding.Cores] = {}
    for group in {cores: None for cores in near} if apart else [frozenset(granted)]:
        members = [place for place in range(len(gpus)) if not apart or near[place] == group]
        whole = _whole_cores(group)
        if len(whole) < len(members):
            return []
        # `even` deals out anything: here places in the list of whole cores.
        for place, chosen in zip(members, binding.even(range(len(whole)), len(members)), strict=True):
            shares[place] = tuple(sorted(thread for number in chosen for thread in whole[number]))
    return [shares[place] for place in range(len(gpus))]


def _nearest(gpu: Gpu, granted: Iterable[int]) -> frozenset[int]:
    words = environment.ask("nvmlDeviceGetCpuAffinity", gpu.handle, MOST_CORES // 64) or ()
    mask = sum(int(word) << 64 * place for place, word in enumerate(words))
    return frozenset(binding.cores_of_mask(hex(mask))) & frozenset(granted)


def _whole_cores(threads: Iterable[int]) -> list[binding.Cores]:
    """The hardware threads of each core, by its first; each its own core where the kernel does not tell."""
    left, whole = sorted(threads), []
    while left:
        siblings = binding.CPU_FOLDER / f"cpu{left[0]}" / "topology" / "thread_siblings_list"
        same = binding.parse_cpu_bind(f"list:{siblings.read_text().strip()}")[0] if siblings.is_file() else ()
        core = tuple(thread for thread in left if thread == left[0] or thread in same)
        whole.append(core)
        left = [thread for thread in left if thread not in core]
    return whole


# --- locks ------------------------------------------------------------------------------------------------------


def lock_file(uuid: str) -> Path:
    """The file whose lock is the lease of a GPU."""
    usual = FOLDER if os.access(FOLDER, os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(os.environ.get(FOLDER_VARIABLE) or usual)
    return folder / f"perfscribe-{re.sub('[^A-Za-z0-9-]', '_', uuid)}.lock"


def _open(path: Path) -> int:
    """A descriptor of the file, which is made where it is missing."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    umask = os.umask(0)  # all users lock what is made here
    try:
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags)
            # Made only where nothing is: the kernel may refuse O_CREAT for others' files in /tmp.
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
    finally:
        os.umask(umask)


def try_lock(path: Path) -> int | None:
    """The descriptor that holds the file's lock, or None where another process does."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):  # else somebody has cleaned up there
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


# --- a job's lease ----------------------------------------------------------------------------------------------


@dataclass
class Lease:
    """What a job holds of the machine: nothing, until take().

    need: GPUs; 0 asks for none. beside_others: whether jobs on other GPUs run meanwhile, so that it keeps to the cores
    of its own. say: is told, once, what it waits for.
    """

    need: int
    beside_others: bool = False
    say: Callable[[str], None] = print
    gpus: list[Gpu] = field(default_factory=list)
    cores: binding.Cores = ()
    _locks: dict[str, int] = field(default_factory=dict, repr=False)
    _told: bool = field(default=False, repr=False)

    def take(self, deadline: float | None = None) -> bool:
        """Wait for the GPUs; whether they are held before the deadline, in s since the epoch. Again it does nothing."""
        if self.gpus or not self.need:
            return True
        found = visible()
        wanted = min(self.need, len(found))
        if not (self._one(found, deadline) if wanted == 1 else self._several(found, wanted, deadline)):
            self.release()
            return False
        self.gpus = [gpu for gpu in found if gpu.uuid in self._locks]
        if self.beside_others:
            shares = cores_by_gpu(found, binding.granted())
            self.cores = shares[found.index(self.gpus[0])] if shares else ()
        return True

    def _lock(self, gpu: Gpu) -> bool:
        descriptor = try_lock(lock_file(gpu.uuid))
        if descriptor is not None:
            self._locks[gpu.uuid] = descriptor
        return descriptor is not None

    def _one(self, gpus: Sequence[Gpu], deadline: float | None) -> bool:
        while not any(self._lock(gpu) for gpu in gpus):
            if not self._may_wait(gpus, deadline, POLL_S):
                return False
        return True

    def _several(self, gpus: Sequence[Gpu], wanted: int, deadline: float | None) -> bool:
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
        """Sleep for a moment, after saying for what; False where the deadline has passed."""
        if not self._told:
            names = ", ".join(str(gpu.position) for gpu in gpus)
            self.say(f"waits for GPU {names}, leased by other jobs on this machine")
            self._told = True
        if deadline is not None and time.time() > deadline:
            return False
        time.sleep(seconds)
        return True

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those that hold the locks, for the child that shares them."""
        return tuple(self._locks.values())

    def variables(self) -> dict[str, str]:
        """What a process that uses the GPUs, and no other, has in its environment."""
        return {VISIBLE: ",".join(gpu.uuid for gpu in self.gpus)} if self.gpus else {}

    def provenance(self) -> dict[str, Any]:
        """For records: positions of the GPUs among the visible ones, and the cores where not all were used."""
        cores = {"cores": binding.shown(self.cores)} if self.cores else {}
        return {"gpus": [gpu.position for gpu in self.gpus], **cores} if self.gpus else {}

    def release(self) -> None:
        """Give everything back."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks, self.gpus, self.cores = {}, [], ()


def for_shard(
    plan: Mapping[str, Any], plan_folder: Path, beside_others: bool, say: Callable[[str], None] = print
) -> Lease:
    """The lease that a shard's job asks for: as many GPUs as that of its cells uses which uses most and can run here.

    None at all in a job of a cluster or of several nodes: there the GPUs are the scheduler's to give, and their UUIDs
    mean nothing on the next node. beside_others: whether jobs on one GPU each may run at a time.
    """
    if cluster.read(plan_folder) is not None or environment.nodes_granted() > 1:
        return Lease(0)
    possible = [cell["requires"] for cell in plan["cells"] if not cell["skip"]]
    counts = {requires: environment.gpus_needed(requires) for requires in map(tuple, possible)}
    need = max((count for requires, count in counts.items() if count and not environment.unmet(requires)), default=0)
    return Lease(need, beside_others and needs_one_gpu(plan["cells"]), say)
