"""Both placements' turns under Nsight Systems, and what its report says of them.

Where the torch profiler is a part of each rank, nsys stands around all of them: one report holds every process of both
placements.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.experiments.communication import traced
from perfscribe.experiments.communication.measure import RANKS, combine, order_of_turns, range_name
from perfscribe.experiments.communication.waiting import Call
from perfscribe.instruments.profiling import marked_work, nsys
from perfscribe.instruments.profiling.families import COMMUNICATION, family

TIMEOUT_S = 480.0  # below the time that a cell may take
Turns = Mapping[str, list[list[dict[str, Any]]]]


def run(cell: Cell) -> Measurement:
    """Trace the turns and read them. Unsupported: there is no nsys that can see them. RuntimeError: a rank failed."""
    import random
    import time

    found = nsys.find()
    if found is None:
        raise Unsupported("nsys was not found")
    began = time.perf_counter()
    request = {"factors": dict(cell.factors), "seed": random.getrandbits(31)}
    try:
        turns, export = _trace(found, request, _folder(cell) / f"communication-{cell['backend']}")
    except nsys.NsysError as error:
        raise Unsupported(str(error)) from error
    try:
        marked = marked_work.read(export, _ranges(cell["turns"]))
    except ValueError as error:
        raise Unsupported(str(error)) from error
    finally:
        export.unlink(missing_ok=True)
    check(marked, str(cell["device"]))
    joined = {name: [_read(name, turn, said, marked) for turn, said in _numbered(of)] for name, of in turns.items()}
    return combine(joined, str(cell["device"]), timed_s=time.perf_counter() - began, tool=marked.tool)


def _folder(cell: Cell) -> Path:
    """Beside the folder of the data sets; the report, which names the host, stays there."""
    return Path(cell.data_folder).resolve().parent / "nsys"


def _trace(found: nsys.Nsys, request: Mapping[str, Any], base: Path) -> tuple[Turns, Path]:
    """What the ranks said, and the report's export. NsysError; RuntimeError: the traced program failed by itself."""
    base.parent.mkdir(parents=True, exist_ok=True)
    asked, answer = (base.with_name(f"{base.name}.{end}.json") for end in ("request", "answer"))
    asked.write_text(json.dumps(request), encoding="utf-8")
    answer.unlink(missing_ok=True)
    try:
        command = [sys.executable, "-m", traced.__name__, str(asked), str(answer)]
        report = nsys.profile(found, command, base.with_name(f"{base.name}.nsys-rep"), TIMEOUT_S, fork_before_exec=True)
        told = _told(answer)
        if "turns" not in told:  # nsys itself may end well although the program did not
            raise nsys.NsysError(f"the traced program gave nothing: {told.get('error', 'no answer')}")
        return told["turns"], nsys.export_sqlite(found, report, base.with_name(f"{base.name}.sqlite"))
    except nsys.NsysError:
        error = _told(answer).get("error")
        if error:  # the program's own failure, which no other nsys would mend
            raise RuntimeError(error) from None
        raise
    finally:
        for path in (asked, answer):
            path.unlink(missing_ok=True)


def _told(answer: Path) -> dict[str, Any]:
    """What the program wrote before it ended; empty where it was ended before it could."""
    content: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    return content


def check(marked: marked_work.Marked, device: str) -> None:
    """Unsupported, with what nsys does see: gloo has no kernels; an nsys too old for the driver sees none of NCCL's."""
    if marked.has_kernels:
        return
    spent = f"{median(marked.ranges_ns.values()) / 1e6:.3g}"
    steps = f"{marked.tool} sees the ranges around the ranks' steps ({len(marked.ranges_ns)}, median {spent} ms)"
    if device == "cpu":
        raise Unsupported(f"{steps}, but nothing of gloo: its collectives run on the CPU, in no kernel and no range")
    raise Unsupported(f"{steps}, but no kernel: it is too old for the driver")


def _numbered(of: list[list[dict[str, Any]]]) -> list[tuple[int, list[dict[str, Any]]]]:
    return list(enumerate(of, start=-1))


def _ranges(turns: int) -> list[str]:
    return [range_name(name, turn, rank) for turn, name in order_of_turns(turns) for rank in range(RANKS)]


def _read(placement: str, turn: int, said: list[dict[str, Any]], marked: marked_work.Marked) -> list[dict[str, Any]]:
    """What the ranks said of a turn, with its collectives and the time of all work beside them, as of a trace."""
    found = []
    for rank, own in enumerate(said):
        work = marked.work[range_name(placement, turn, rank)]
        sent = [one for one in work if family(one.name) == COMMUNICATION]
        rest_ns = sum(one.duration_ns for one in work) - sum(one.duration_ns for one in sent)
        # A kernel does not tell its message: calls are matched by their order alone, which NCCL's stream keeps.
        calls = [asdict(Call(0, one.start_ns, one.duration_ns)) for one in sent]
        found.append({**own, "calls": calls, "compute_ms": rest_ns / 1e6})
    return found
