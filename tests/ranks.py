"""Run a function in several gloo ranks, fast: processes forked from a server that has imported torch already."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# torch, what its optimizers and DDP import on first use, and what each process imports as the parent's main module.
PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel.distributed", "pytest"]
GRACE_S = 3.0  # for the other ranks once one has failed

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


class RanksError(AssertionError):
    """Some ranks raised, died or were late; errors: the text by rank, the first to fail first."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__("\n\n".join(f"rank {rank}: {text}" for rank, text in errors.items()))
        self.errors = errors


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """What function(rank, *args) returned in each of world_size gloo processes, in the order of the ranks.

    function: of the top level of a module, with a default process group made for it; results are pickled.
    RanksError: a rank raised, died or took longer; by then all of them have ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_start(rank, world_size, Path(folder) / "store", function, args) for rank in range(world_size)]
        try:
            return _collect(ranks, time.monotonic() + timeout_s, timeout_s)
        finally:
            for process, connection in ranks:
                process.kill()
                process.join()
                process.close()
                connection.close()


def _start(
    rank: int, world_size: int, store: Path, function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[BaseProcess, Connection]:
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_rank, args=(rank, world_size, store, theirs, function, args), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _collect(ranks: list[tuple[BaseProcess, Connection]], deadline: float, timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    errors: dict[int, str] = {}
    waiting = {connection: rank for rank, (_, connection) in enumerate(ranks)}
    while waiting:
        answered = wait(list(waiting), max(deadline - time.monotonic(), 0))
        if not answered:
            what = "ended with the others" if errors else f"took longer than {timeout_s:g} s"
            errors |= dict.fromkeys(sorted(waiting.values()), what)
            break
        for connection in answered:
            rank = waiting.pop(connection)
            try:
                kind, content = pickle.loads(connection.recv_bytes())
            except EOFError:
                ranks[rank][0].join(GRACE_S)
                kind, content = "error", f"died with exit code {ranks[rank][0].exitcode}"
            (results if kind == "result" else errors)[rank] = content
        if errors:
            deadline = min(deadline, time.monotonic() + GRACE_S)
    if errors:
        raise RanksError(errors)
    return [results[rank] for rank in range(len(ranks))]


def _rank(
    rank: int, world_size: int, store: Path, connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        result = function(rank, *args)
        dist.barrier()  # nobody leaves while another still sends
        message = pickle.dumps(("result", result))
    except BaseException:
        message = pickle.dumps(("error", traceback.format_exc()))
    with contextlib.suppress(BrokenPipeError):
        connection.send_bytes(message)
    connection.close()
    os._exit(0)  # the sockets close at once, so that peers that wait for this rank fail at once


def _end_with_the_tests() -> None:
    """Leave once the tests' process is gone, killed perhaps; the server itself waits for its children."""
    tests = multiprocessing.parent_process()
    if tests is not None:
        wait([tests.sentinel])
        os._exit(1)
