"""A thread that starts collectives, so that the thread which launches the backward pass is not held up by them.

Starting one costs the host tens of microseconds, most of them in torch's C++ and NCCL, where Python's lock is free; it
is free too while autograd launches kernels. The thread has a process group of its own: collectives match by their
order, and what others start meanwhile on the group that it stands for must not come between.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from perfscribe.distributed.process_group import backends

NAME = "starts collectives"
END_S = 5.0  # until a thread that does not end is left to itself
Task = Callable[[], None]  # raises nothing

_thread_of: weakref.WeakKeyDictionary[dist.ProcessGroup, LaunchingThread] = weakref.WeakKeyDictionary()


class LaunchingThread:
    """Runs tasks one after the other; they start collectives on .group, a process group of the same ranks.

    The thread ends when nobody holds this object any more; it does not keep the process from ending.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = twin_of(group)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._sides: dict[torch.device, SideStream | None] = {}
        thread = threading.Thread(target=_run, args=(self._tasks,), name=NAME, daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._tasks, thread)

    def submit(self, task: Task) -> None:
        """Let the thread run it, after all before."""
        self._tasks.put(task)

    def settle(self) -> None:
        """Wait until all that was submitted has run."""
        done = threading.Lock()
        done.acquire()
        self._tasks.put(done.release)
        done.acquire()

    def side(self, device: torch.device) -> SideStream | None:
        """The stream on which collectives run, where NCCL serves the device; None elsewhere: others have their own."""
        if device not in self._sides:
            on_nccl = device.type == "cuda" and backends(self.group).get("cuda") == "nccl"
            self._sides[device] = SideStream(device) if on_nccl else None
        return self._sides[device]

    def join(self) -> None:
        """Let the current streams wait for what ran on the side streams."""
        for side in self._sides.values():
            if side is not None:
                side.join()


def launching_thread(group: dist.ProcessGroup) -> LaunchingThread:
    """The thread of a process group, made with its group when first asked for: a collective then."""
    found = _thread_of.get(group)
    if found is None:
        found = _thread_of[group] = LaunchingThread(group)
    return found


def twin_of(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new process group of the same ranks, backend and time-out; a collective of the group."""
    ranks = dist.get_process_group_ranks(group)
    everyone = len(ranks) == dist.get_world_size()
    limit = _timeout(group)
    if not everyone and _splits(group):  # NCCL makes a communicator from one that all of its ranks take part in
        twin: Any = dist.split_group(group, [list(range(len(ranks)))], timeout=limit, group_desc="overlap")
    else:
        local = not everyone  # ranks outside of the group do not call
        twin = dist.new_group(ranks, limit, dist.get_backend(group), use_local_synchronization=local)
    assert twin is not None
    return twin  # type: ignore[no-any-return]


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """None where the backend does not tell."""
    device = next(iter(backends(group)))
    options = getattr(group._get_backend(torch.device(device)), "options", None)
    limit: timedelta | None = getattr(options, "_timeout", None)
    return limit


def _splits(group: dist.ProcessGroup) -> bool:
    device = getattr(group, "bound_device_id", None)
    return device is not None and "nccl" in backends(group).values()


class SideStream:
    """A stream for collectives beside those of the computation, of one thread, whose current stream it stays.

    Its priority is high: where the device has room for a part of the waiting kernels only, those go first that others
    wait for, on other devices too.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._ready = torch.cuda.Event()
        self._is_current = False

    def take_over(self, stream: torch.cuda.Stream) -> None:
        """Become the calling thread's current stream, behind what the other one has been given so far."""
        self._ready.record(stream)
        self._stream.wait_event(self._ready)
        if not self._is_current:
            torch.cuda.set_stream(self._stream)
            self._is_current = True

    def join(self) -> None:
        """Let the device's current stream wait for this one."""
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Streams:
    """The current stream of a device, fast: as an object made once for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[torch.device, int], torch.cuda.Stream] = {}

    def current(self, device: torch.device) -> torch.cuda.Stream | None:
        """None for other devices than CUDA's."""
        if device.type != "cuda":
            return None
        handle = torch._C._cuda_getCurrentRawStream(device.index)
        found = self._known.get((device, handle))
        if found is None:
            found = self._known[device, handle] = torch.cuda.current_stream(device)
        return found


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Context in which the stream is the current one; None: nothing."""
    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        yield


def _end(tasks: queue.SimpleQueue[Task | None], thread: threading.Thread) -> None:
    """Let the thread end, also as the interpreter does, which would break it off in the middle of a call."""
    tasks.put(None)
    if thread is not threading.current_thread():
        thread.join(END_S)


def _run(tasks: queue.SimpleQueue[Task | None]) -> None:
    torch.set_grad_enabled(False)  # of this thread
    while (task := tasks.get()) is not None:
        task()
        del task  # what it holds may be the last reference to a gradient
