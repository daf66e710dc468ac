"""What runs under Nsight Systems: torchrun starts the ranks of both placements, which take turns.

`python -m perfscribe.experiments.communication.traced REQUEST ANSWER` reads the JSON file REQUEST (factors, seed) and
writes what each rank says of each turn to the JSON file ANSWER: {"turns": …}, or {"error": …}. The ranks are processes
that end as programs do: nsys would lose what one holds that leaves at once, as the ranks of other experiments do.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfscribe.distributed.launchers import torchrun
from perfscribe.distributed.transport import LOOPBACK
from perfscribe.experiments.communication.measure import LIMIT_S, PLACEMENTS, RANKS, order_of_turns

POLL_S = 0.02
END_S = 30.0


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """turns: what each rank says, by placement and turn. RuntimeError: a rank failed; TimeoutError: one took too long.

    The placements' ranks wait at a store for their turn, and say there what came of it.
    """
    import torch.distributed as dist

    store = dist.TCPStore(LOOPBACK, 0, None, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    store.set("request", json.dumps(dict(request)))
    turns: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in PLACEMENTS}
    with contextlib.ExitStack() as ranks:
        started = {name: ranks.enter_context(_ranks(name, store.port)) for name in PLACEMENTS}
        for turn, name in order_of_turns(request["factors"]["turns"]):
            store.set(f"begin {name} {turn}", "")
            wanted = [f"said {name} {turn} {rank}" for rank in range(RANKS)]
            _wait(store, wanted, started[name])
            turns[name].append([json.loads(store.get(key)) for key in wanted])
        for process in started.values():
            process.wait(END_S)
    return {"turns": turns}


@contextlib.contextmanager
def _ranks(placement: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun of a placement, which is ended when left."""
    from perfscribe.experiments.communication import traced_rank

    command = [*torchrun(RANKS), traced_rank.__name__, placement, str(port)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def _wait(store: Any, keys: list[str], ranks: subprocess.Popen[bytes]) -> None:
    """Until all keys are there. An error of a rank, where one says so or torchrun ends."""
    until = time.monotonic() + LIMIT_S
    while not store.check(keys):
        if store.check(["error"]):
            raise RuntimeError(store.get("error").decode())
        if ranks.poll() is not None:
            raise RuntimeError(f"torchrun ended with exit status {ranks.returncode} before {keys[0]!r}")
        if time.monotonic() > until:
            raise TimeoutError(f"no {keys[0]!r} within {LIMIT_S:g} s")
        time.sleep(POLL_S)


def main(request_file: str, answer_file: str) -> None:
    """Read the request, run, write the answer; of a failure its text, before it ends the process."""
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"error": "stopped before it was done"}
    try:
        answer = run(request)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
