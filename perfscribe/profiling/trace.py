"""A trace, whichever profiler made it: device work and the program's ranges on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kernel:
    """One piece of device work: a kernel, a copy or a memset; on a machine without a GPU an operator on the CPU.

    start_ns, end_ns: on the device. launch_start_ns, launch_end_ns: the host call that queued it, on launch_thread.
    stream: the CUDA stream, 0 on a CPU. device: index of the GPU, or of the rank's GPU in a trace of several.
    """

    name: str
    start_ns: int
    end_ns: int
    launch_start_ns: int
    launch_end_ns: int
    launch_thread: int
    stream: int = 0
    device: int = 0

    @property
    def duration_ns(self) -> int:
        """Time on the device."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Range:
    """One range that the program opened and closed on the host (NVTX push and pop, or a profiler's annotation)."""

    name: str
    start_ns: int
    end_ns: int
    thread: int

    @property
    def duration_ns(self) -> int:
        """Time on the host."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Trace:
    """Device work and ranges of one run, both in order of start.

    tool: who traced, with its version ("nsys 2025.3.1", "torch profiler 2.13.0").
    kernels is empty, and no_kernels says why, where the tool saw the host alone.
    """

    tool: str
    kernels: list[Kernel]
    ranges: list[Range]
    no_kernels: str = ""
    remarks: list[str] = field(default_factory=list)
