"""Which rank is to blame, by what the launcher hears and by the texts that torch, gloo and NCCL leave behind."""

import contextlib
import json
import time
from multiprocessing.connection import Client

import pytest
import torch

from perfscribe.distributed import failures, rank, watching
from perfscribe.distributed.failures import RankError, Stack
from perfscribe.distributed.transport import LOOPBACK

# Shapes of the texts; numbers, addresses and paths are examples.
NOT_ALLOCATED = (
    "NCCL error in: /src/NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version "
    "2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 1216 bytes"
)


@pytest.mark.parametrize(("answers", "kind"), [(True, "out_of_memory"), (False, "exception")])
def test_an_allocation_that_fails_is_out_of_memory_unless_the_device_is_broken(answers, kind, monkeypatch):
    """As NCCL 2.28.9 says it; the first line says nothing of memory."""

    def mem_get_info():
        if not answers:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 2**20, 2**37

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    assert rank._as_message(RuntimeError(NOT_ALLOCATED))["kind"] == kind


class Played(watching.RunningRanks):
    """Two ranks that do these steps, one each time that their launcher looks."""

    know_exit_codes = True

    def __init__(self, steps: list[tuple]) -> None:
        super().__init__(2, 60, LOOPBACK)
        self.processes = self
        host, port = self.address.split(":")
        self.clients = [Client((host, int(port))) for _ in range(2)]
        self.exit_codes: dict[int, int] = {}
        self.steps = [(number, "say", f"{self.token} {number}") for number in (0, 1)] + steps

    def _read(self, timeout_s: float) -> None:
        if self.steps:
            number, what, value = self.steps.pop(0)
            if what == "say":
                text = value if isinstance(value, str) else json.dumps(value)
                self.clients[number].send_bytes(text.encode())
            elif what == "close":
                self.clients[number].close()
            else:
                self.exit_codes[number] = value
        super()._read(timeout_s)

    def exit_code(self, number: int) -> int | None:
        return self.exit_codes.get(number)

    def failure(self) -> None:
        pass


def died(number: int, code: int) -> list[tuple]:
    return [(number, "close", None), (number, "exit", code)]


SAID = {"text": "ValueError: a", "kind": "exception", "details": "", "time_s": 1.0}
LOST_PEER = {**SAID, "text": "RuntimeError: Connection closed by peer [127.0.0.1]:1234"}


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([(1, "exit", 1), (1, "say", {"error": SAID}), (1, "close", None)], "ValueError: a"),
        ([(0, "say", {"error": LOST_PEER}), *died(1, -9)], "died by SIGKILL"),
        ([*died(1, 3), *died(0, 4)], "left with exit code 3"),
        ([(1, "exit", -9)], "died by SIGKILL"),  # what it started holds the connection
    ],
)
def test_ends_are_told_right_in_whatever_order_they_are_heard(steps, text, monkeypatch):
    monkeypatch.setattr(watching, "POLL_S", 0.05)
    began = time.monotonic()
    with contextlib.closing(Played(steps)) as played, pytest.raises(RankError, match=rf"^rank 1 of 2: {text}$"):
        played.ask({})
    assert time.monotonic() - began < 4


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
