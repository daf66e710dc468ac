"""How ranks end on NCCL, from the texts that torch and NCCL leave behind; no GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from perfscribe.distributed import failures, rank, watching
from perfscribe.distributed.channel import Event
from perfscribe.distributed.failures import RankError, RankTimeout
from perfscribe.run import child

# Shapes of the texts; numbers, addresses and paths are examples.
OUT_OF_MEMORY = """NCCL error in: /src/NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""  # noqa: E501
NOT_ALLOCATED = OUT_OF_MEMORY.replace("Cuda failure 2 'out of memory'", "Failed to CUDA calloc async 1216 bytes")
WATCHDOG = "[rank0]:[E1120 15:00:00 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: "
ABORTED = [
    WATCHDOG + "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=5000) ran for 5001 milliseconds",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    *(f"frame #{n}: c10d::ProcessGroupNCCL::Watchdog::runLoop() + 0x99" for n in range(20)),
    "Fatal Python error: Aborted",
    *(f'  File "/lib/threading.py", line {n} in run' for n in range(60)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError(OUT_OF_MEMORY), "oom"),
        (RuntimeError(OUT_OF_MEMORY.replace("2 'out of memory'", "700 'an illegal memory access'")), "failed"),
        (ValueError("Cuda failure 2 'out of memory'"), "failed"),
    ],
)
def test_nccl_without_memory_for_its_buffers_is_out_of_memory(error, status):
    assert rank._as_message(error)["status"] == status


@pytest.mark.parametrize(("answers", "status"), [(True, "oom"), (False, "failed")])
def test_an_allocation_that_fails_is_out_of_memory_unless_the_device_is_broken(answers, status, monkeypatch):
    """As NCCL 2.28.9 says it; the first line says nothing of memory."""

    def mem_get_info():
        if not answers:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 2**20, 2**37

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    assert rank._as_message(RuntimeError(NOT_ALLOCATED))["status"] == status


def test_a_long_line_is_one_text_in_the_launchers_error_and_in_the_record():
    said = rank._as_message(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. " + "GPU 1 has " * 99))
    ending = failures.Ending(123, failures.RAISED, **said)
    error = failures.error_of(ending, 128)
    answer = child.failure(error)
    assert answer["status"] == "oom" and answer["reason"] == str(error) and len(str(error)) > 280


class Heard:
    """A hub that has heard these events, and a job that tells exits."""

    tells_exits, connected = True, False

    def __init__(self, *events: Event) -> None:
        self.events = list(events)

    def poll(self, timeout_s: float) -> list[Event]:
        events, self.events = self.events, []
        return events

    def send(self, number: int, message: dict) -> None:
        if message["ask"] == "stack" and number == 1:
            frames = [["/own/program.py", 7, "computes"]]
            self.events.append(Event("message", 1, {"stack": {"frames": frames, "collectives": 1}}))

    def ended(self) -> str:
        return ""


def hear(*events: Event, monkeypatch: pytest.MonkeyPatch) -> RankError:
    monkeypatch.setattr(watching, "EXPLANATION_S", 0.1)
    heard = Heard(*(Event("message", number, {"hello": {}}) for number in (0, 1)), *events)
    with pytest.raises(RankError) as caught:
        watching.Watch(2, 60, heard, heard).results()
    return caught.value


def test_the_watchdogs_words_are_found_behind_the_stacks_that_a_crash_prints(monkeypatch):
    """Else the rank that waited would be blamed for its abort."""
    printed = [Event("output", 0, line) for line in ABORTED]
    error = hear(*printed, Event("closed", 0), Event("exit", 0, -6), monkeypatch=monkeypatch)
    assert isinstance(error, RankTimeout)
    assert (error.rank, str(error)) == (
        1,
        "rank 1 of 2 hangs: rank 0 gave up: died by SIGABRT; at program.py:7 in computes",
    )


def test_an_error_shows_the_end_of_what_was_printed(monkeypatch):
    printed = [Event("output", 0, line) for line in ABORTED[1:]]
    error = hear(*printed, Event("closed", 0), Event("exit", 0, -6), monkeypatch=monkeypatch)
    assert str(error) == "rank 0 of 2: died by SIGABRT"
    assert error.__notes__ == ABORTED[-failures.SHOWN_LINES :]


def test_torchs_watchdog_waits_for_no_trace_on_ranks():
    """Unless the one who launches says otherwise."""
    assert rank.NCCL_WATCHDOG["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    code = (
        "import os\n"
        "from perfscribe.distributed.launch import launch\n"
        "os.environ['TORCH_NCCL_DUMP_ON_TIMEOUT'] = '1'\n"
        "print(launch('test_nccl_endings:watchdog', {}, world_size=1, timeout_s=60).results)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"], capture_output=True, text=True
    )
    assert told.stdout == "[['1', '250']]\n", told.stderr


def watchdog(arguments, me):
    import os

    return [os.environ.get(name) for name in rank.NCCL_WATCHDOG]
