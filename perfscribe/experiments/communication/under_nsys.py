"""Both placements' turns under Nsight Systems, and what its report says of them.

Where the torch profiler is a part of each rank, nsys stands around all of them: one report holds every process of both
placements. It starts this module as a program, which starts a torchrun for each placement, and that its ranks, this
module again, which wait for their turns at a store and say there what came of them. They are processes that end as
programs do: nsys would lose what one holds that leaves at once, as the ranks of other experiments do.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.experiments.communication.measure import (
    LIMIT_S,
    PLACEMENTS,
    RANKS,
    TRANSPORTS,
    Said,
    Turns,
    combine,
    order_of_turns,
)
from perfscribe.instruments.profiling import marked_work, nsys
from perfscribe.instruments.profiling.families import COMMUNICATION, family

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank
    from perfscribe.experiments.communication.program import Training

TIMEOUT_S = 480.0  # below the time that a cell may take
POLL_S, END_S = 0.02, 30.0
MODULE = "perfscribe.experiments.communication.under_nsys"


def range_name(placement: str, turn: int, rank: int) -> str:
    """Name of the range around a rank's active steps in a turn, by which nsys's report is read."""
    return f"{placement} turn {turn} rank {rank}"


def run(cell: Cell) -> Measurement:
    """Trace the turns and read them. Unsupported: there is no nsys that can see them. RuntimeError: a rank failed."""
    found = nsys.find()
    if found is None:
        raise Unsupported("nsys was not found")
    began = time.perf_counter()
    request = {"factors": dict(cell.factors), "seed": random.getrandbits(31)}
    # Beside the folder of the data sets; the report, which names the host, stays there.
    folder = Path(cell.data_folder).resolve().parent / "nsys"
    names = [range_name(name, turn, rank) for turn, name in order_of_turns(cell["turns"]) for rank in range(RANKS)]
    try:
        base = folder / f"communication-{cell['backend']}"
        told, export = nsys.run_module(found, [MODULE, "turns"], request, base, TIMEOUT_S, fork_before_exec=True)
        try:
            marked = marked_work.read(export, names)
        finally:
            export.unlink(missing_ok=True)
    except (nsys.NsysError, ValueError) as error:
        raise Unsupported(str(error)) from error
    _check(marked, str(cell["device"]))
    joined = {
        name: [_with_work(name, turn, said, marked) for turn, said in enumerate(of, start=-1)]
        for name, of in told["turns"].items()
    }
    return combine(joined, str(cell["device"]), timed_s=time.perf_counter() - began, tool=marked.tool)


def _check(marked: marked_work.Marked, device: str) -> None:
    """Unsupported, with what nsys does see: gloo has no kernels; an nsys too old for the driver sees none of NCCL's."""
    if marked.has_kernels:
        return
    spent = f"{median(marked.ranges_ns.values()) / 1e6:.3g}"
    steps = f"{marked.tool} sees the ranges around the ranks' steps ({len(marked.ranges_ns)}, median {spent} ms)"
    if device == "cpu":
        raise Unsupported(f"{steps}, but nothing of gloo: its collectives run on the CPU, in no kernel and no range")
    raise Unsupported(f"{steps}, but no kernel: it is too old for the driver")


def _with_work(placement: str, turn: int, said: Sequence[Said], marked: marked_work.Marked) -> list[Said]:
    """What the ranks said of a turn, with its collectives and the time of all work beside them, as of a trace."""
    found: list[Said] = []
    for rank, own in enumerate(said):
        work = marked.work[range_name(placement, turn, rank)]
        # A kernel does not tell its message: calls are matched by their order alone, which NCCL's stream keeps.
        calls = [(0, one.start_ns, one.duration_ns) for one in work if family(one.name) == COMMUNICATION]
        rest_ns = sum(one.duration_ns for one in work if family(one.name) != COMMUNICATION)
        found.append({**own, "calls": calls, "compute_ms": rest_ns / 1e6})
    return found


# --- the traced program -----------------------------------------------------------------------------------------


def answer_request(request_file: str, answer_file: str) -> None:
    """Write to the JSON file what each rank says of each turn, {"turns": …}, or {"error": …} of what is raised."""
    request, answer = json.loads(Path(request_file).read_text(encoding="utf-8")), Path(answer_file)
    try:
        turns = run_below_torchrun(request)
    except Exception as error:
        answer.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}), encoding="utf-8")
        raise
    answer.write_text(json.dumps({"turns": turns}), encoding="utf-8")


def run_below_torchrun(request: Mapping[str, Any]) -> Turns:
    """What each rank says, by placement and turn. RuntimeError: a rank failed; TimeoutError: one took too long."""
    import torch.distributed as dist

    from perfscribe.distributed.transport import LOOPBACK

    store = dist.TCPStore(LOOPBACK, 0, None, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    store.set("request", json.dumps(dict(request)))
    turns: dict[str, list[list[Said]]] = {name: [] for name in PLACEMENTS}
    with contextlib.ExitStack() as started:
        torchruns = {name: started.enter_context(_torchrun(name, store.port)) for name in PLACEMENTS}
        for turn, name in order_of_turns(request["factors"]["turns"]):
            store.set(f"begin {name} {turn}", "")
            wanted = [f"said {name} {turn} {rank}" for rank in range(RANKS)]
            _wait(store, wanted, torchruns[name])
            turns[name].append([json.loads(store.get(key)) for key in wanted])
        for process in torchruns.values():
            process.wait(END_S)
    return turns


@contextlib.contextmanager
def _torchrun(placement: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun of a placement, which is ended when left."""
    from perfscribe.distributed.launchers import torchrun

    command = [*torchrun(RANKS), MODULE, "rank", placement, str(port)]
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


# --- a rank -----------------------------------------------------------------------------------------------------


def take_turns(placement: str, port: str) -> None:
    """Take all turns of the placement; what each gave goes to the store, and a failure too, before it ends the rank."""
    import torch.distributed as dist

    from perfscribe.distributed import links
    from perfscribe.distributed.transport import LOOPBACK
    from perfscribe.experiments.communication.program import training_of

    limit = timedelta(seconds=LIMIT_S)
    store = dist.TCPStore(LOOPBACK, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]
    try:
        request = json.loads(store.get("request"))
        factors, rank = request["factors"], _join(request, placement)
        training = training_of(factors, rank)
        link = links.told(0, 1) if rank.device.type == "cuda" else {"link": links.NOT_TOLD}
        for turn in (turn for turn, name in order_of_turns(factors["turns"]) if name == placement):
            store.wait([f"begin {placement} {turn}"])
            step_ms = _take_turn(training, factors, rank, range_name(placement, turn, rank.place.rank))
            said = {"step_ms": step_ms, "gradient_bytes": training.gradient_bytes, "link": link}
            store.set(f"said {placement} {turn} {rank.place.rank}", json.dumps(said))
        training.release()
        dist.destroy_process_group()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        store.set("error", f"{placement}, rank {os.environ.get('RANK')}: {type(error).__name__}: {lines[0]}")
        raise


def _join(request: Mapping[str, Any], placement: str) -> Rank:
    """Join the placement's process group, as torchrun's variables say."""
    import torch.distributed as dist

    from perfscribe.distributed import ranks, transport
    from perfscribe.distributed.rank import Rank, settle

    factors, place = request["factors"], ranks.find(os.environ, host=platform.node())
    backend, way = factors["backend"], TRANSPORTS[placement]
    transport.set_switches(os.environ, backend, way)
    threads = max(1, len(os.sched_getaffinity(0)) // factors["world_size"])
    order = {"threads": threads, "seed": request["seed"], "device": factors["device"], "transport": way}
    device = settle(order, place)
    own = device if backend == "nccl" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=LIMIT_S), device_id=own)
    return Rank(place, device, backend, request["seed"])


def _take_turn(training: Training, factors: Mapping[str, Any], rank: Rank, name: str) -> list[float]:
    """The schedule's steps, the active ones in a range of this name; ms of these by the host clock.

    The device is waited for at the end of each step, so that the range holds them whole.
    """
    import torch.distributed as dist

    from perfscribe.instruments.profiling.ranges import annotate
    from perfscribe.instruments.timing import synchronise

    dist.barrier()
    synchronise(rank.device)
    for _ in range(factors["wait"] + factors["warmup_steps"]):
        training.step()
        synchronise(rank.device)
    spent = []
    with annotate(name):
        for _ in range(factors["active"]):
            began = time.perf_counter()
            training.step()
            synchronise(rank.device)
            spent.append((time.perf_counter() - began) * 1e3)
    return spent


if __name__ == "__main__":
    {"turns": answer_request, "rank": take_turns}[sys.argv[1]](*sys.argv[2:])
