"""Which rank is to blame, by what the launcher hears and by the texts that torch, gloo and NCCL leave behind."""

import queue
import time

import pytest
import torch

from perfscribe.distributed import failures, rank, watching
from perfscribe.distributed.channel import MESSAGES, OUTPUT, Event
from perfscribe.distributed.failures import RankError, RankTimeout, Stack

# Shapes of the texts; numbers, addresses and paths are examples.
NOT_ALLOCATED = (
    "NCCL error in: /src/NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version "
    "2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 1216 bytes"
)
WATCHDOG = (
    "[rank0]:[E1120 15:00:00 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=5000) ran for 5001 milliseconds"
)
ABORTED = [
    WATCHDOG,
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    *(f"frame #{n}: c10d::ProcessGroupNCCL::Watchdog::runLoop() + 0x99" for n in range(20)),
    "Fatal Python error: Aborted",
    *(f'  File "/lib/threading.py", line {n} in run' for n in range(60)),
]


@pytest.mark.parametrize(("answers", "kind"), [(True, "out_of_memory"), (False, "exception")])
def test_an_allocation_that_fails_is_out_of_memory_unless_the_device_is_broken(answers, kind, monkeypatch):
    """As NCCL 2.28.9 says it; the first line says nothing of memory."""

    def mem_get_info():
        if not answers:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 2**20, 2**37

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    assert rank._as_message(RuntimeError(NOT_ALLOCATED))["kind"] == kind


class Heard:
    """A hub that has heard these events, and processes that have ended; rank 1 answers where it is."""

    know_exit_codes = True

    def __init__(self, *events: Event) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        for event in events:
            self.events.put(event)
        self.exit_codes = {event.rank: event.data for event in events if event.kind == "exit"}

    def exit_code(self, number: int) -> int | None:
        return self.exit_codes.get(number)

    def ended(self) -> str:
        return ""

    def send(self, number: int, message: dict) -> None:
        if message["ask"] == "stack" and number == 1:
            frames = [["/own/program.py", 7, "computes"]]
            self.events.put(Event("message", 1, {"stack": {"frames": frames, "collectives": 1}}))


@pytest.fixture
def hear(monkeypatch):
    """A function that gives the error of two ranks of which these events are heard."""
    monkeypatch.setattr(watching, "EXPLANATION_S", 0.1)

    def error(*events: Event) -> RankError:
        heard = Heard(*(Event("message", number, {"hello": True}) for number in (0, 1)), *events)
        with pytest.raises(RankError) as caught:
            watching.RunningRanks(2, 60, heard, heard).results()
        return caught.value

    return error


def died(number: int, code: int) -> list[Event]:
    return [Event("closed", number, OUTPUT), Event("closed", number, MESSAGES), Event("exit", number, code)]


SAID = {"text": "ValueError: a", "kind": "exception", "details": "", "time_s": 1.0}
LOST_PEER = {**SAID, "text": "RuntimeError: Connection closed by peer [127.0.0.1]:1234"}


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([Event("exit", 1, 1), Event("closed", 1, OUTPUT), Event("message", 1, {"error": SAID})], "ValueError: a"),
        ([Event("message", 0, {"error": LOST_PEER}), *died(1, -9)], "died by SIGKILL"),
        ([*died(1, 3), *died(0, 4)], "left with exit code 3"),
        ([Event("closed", 1, MESSAGES), Event("exit", 1, -9)], "died by SIGKILL"),  # what it started prints on
    ],
)
def test_ends_are_told_right_in_whatever_order_they_are_heard(events, text, hear):
    began = time.monotonic()
    error = hear(*events)
    assert str(error) == f"rank 1 of 2: {text}"
    assert time.monotonic() - began < 5


def test_the_watchdogs_words_are_found_behind_the_stacks_that_a_crash_prints(hear):
    """Else the rank that waited would be blamed for its abort."""
    error = hear(*(Event("output", 0, line) for line in ABORTED), *died(0, -6))
    assert isinstance(error, RankTimeout)
    assert str(error) == "rank 1 of 2 hangs: rank 0 gave up: died by SIGABRT; at program.py:7 in computes"


IN_TORCH = ("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2, "all_reduce")
STEP = ("/a/b.py", 3, "step")
WAITS, WORKS = Stack([IN_TORCH, STEP]), Stack([("/a/work.py", 7, "compute"), STEP])


def test_who_is_behind_in_collectives_hangs_whatever_the_stacks_say():
    """Waiting for a GPU may look like work, and work like waiting."""
    ahead, behind = Stack([STEP], 7), Stack([IN_TORCH, STEP], 6)
    error = failures.error_of_silence({0: ahead, 1: ahead, 2: behind}, [0, 1, 2], 3, "limit")
    assert str(error) == "rank 2 of 3 hangs: limit; at b.py:3 in step"
    even = {rank: Stack(stack.frames, 7) for rank, stack in enumerate((WAITS, WORKS, WAITS))}
    error = failures.error_of_silence(even, [0, 1, 2], 3, "limit")
    assert str(error).startswith("rank 1 of 3 hangs")
    assert "rank 1: 7 collectives begun; work.py:7 in compute < b.py:3 in step" in error.__notes__
