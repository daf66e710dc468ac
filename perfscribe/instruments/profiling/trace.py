"""A trace from any profiler: device work and the program's ranges on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field

# Kinds of device work. Without a GPU, operators replace kernels.
KERNEL, COPY, MEMSET, OPERATOR = "kernel", "copy", "memset", "operator"
PUSH_POP, START_END = "PushPop", "StartEnd"
# launch_thread of work with an unrecorded launch.
UNKNOWN_THREAD = 0
_BITS_OF_THREAD = 24  # Linux's largest thread number needs 22


def thread_key(process: int, thread: int) -> int:
    """Return a thread of a process as one number, used in launch_thread and Range.thread."""
    return process << _BITS_OF_THREAD | thread


def process_and_thread(key: int) -> tuple[int, int]:
    """Return the operating system's process and thread numbers of a thread_key."""
    return key >> _BITS_OF_THREAD, key & (1 << _BITS_OF_THREAD) - 1


@dataclass(frozen=True)
class Kernel:
    """A piece of device work: a kernel, a copy or a memset; on a machine without a GPU an operator on the CPU.

    start_ns, end_ns: on the device. launch_start_ns, launch_end_ns: the host call that queued it, on launch_thread
    (a thread_key). Work without a recorded launch has its own times there, and UNKNOWN_THREAD.
    stream: the CUDA stream, 0 on a CPU. device: index of the GPU, or of the rank's GPU in a trace of several.
    kind: KERNEL, COPY, MEMSET or OPERATOR.
    """

    name: str
    start_ns: int
    end_ns: int
    launch_start_ns: int
    launch_end_ns: int
    launch_thread: int
    stream: int = 0
    device: int = 0
    kind: str = KERNEL

    @property
    def duration_ns(self) -> int:
        """Time on the device."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Range:
    """A range that the program opened and closed on the host (NVTX, or a profiler's annotation).

    thread: a thread_key. style: PUSH_POP or START_END. domain: NVTX domain, empty for the default one; libraries such
    as NCCL have their own.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    style: str = PUSH_POP
    domain: str = ""

    @property
    def duration_ns(self) -> int:
        """Time on the host."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Trace:
    """Device work and ranges of one run, both in order of start.

    tool: the profiler and its version ("nsys 2025.3.1", "torch profiler 2.13.0").
    If the tool saw only the host, kernels is empty, and no_kernels gives the reason.
    """

    tool: str
    kernels: list[Kernel]
    ranges: list[Range]
    no_kernels: str = ""
    remarks: list[str] = field(default_factory=list)
