"""The traces of a cell: by nsys, of a program of its own, or by torch's profiler, in the cell's process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell

if TYPE_CHECKING:
    from perfscribe.instruments.profiling.trace import Trace

PROGRAM = "perfscribe.experiments.nsys_profile.program"
# Below the time that a cell may take by default, so that a program that hangs leaves time for torch's profiler.
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Traced:
    """Who traced what. kernels and ranges are of one trace, or of one each where no tool gives both.

    host_ms: what the program's host clock read, by phase, under the tool that gave the ranges. remark: why torch's
    profiler took part, or what the tool said.
    """

    kernels: Trace
    ranges: Trace
    host_ms: Mapping[str, list[float]]
    remark: str


def traced_by_any(cell: Cell, full_step: bool) -> Traced:
    """Trace the passes by nsys; where that gives no kernels, by torch's profiler too, and nsys's ranges are kept."""
    from perfscribe.instruments.profiling import nsys

    first, why = None, ""
    try:
        first, host_ms = by_nsys(cell, full_step)
        nsys.check(first, uses_cuda=cell["device"] == "cuda")
    except nsys.NsysError as error:
        why = str(error)
    if first is not None and first.kernels and not why:
        return Traced(first, first, host_ms, "; ".join(first.remarks))
    second, torch_host_ms = by_torch(cell, full_step)
    if first is None or not first.ranges:
        return Traced(second, second, torch_host_ms, why)
    return Traced(second, first, host_ms, why or f"{first.tool} saw no kernels ({first.no_kernels})")


def by_nsys(cell: Cell, full_step: bool) -> tuple[Trace, dict[str, list[float]]]:
    """Run the program under nsys; its trace, and what its host clock read. NsysError where there is no trace.

    RuntimeError where the program itself failed. The report stays below nsys/, beside the folder of the data sets.
    """
    from perfscribe.instruments.profiling import nsys

    found = nsys.find()
    if found is None:
        raise nsys.NsysError("nsys was not found")
    base = Path(cell.data_folder).resolve().parent / "nsys" / artefact_name(cell)
    base.parent.mkdir(parents=True, exist_ok=True)
    request, answer, export = (
        base.with_name(f"{base.name}.{end}") for end in ("request.json", "answer.json", "sqlite")
    )
    wanted = {
        "factors": dict(cell.factors),
        "data_folder": str(Path(cell.data_folder).resolve()),
        "full_step": full_step,
    }
    request.write_text(json.dumps(wanted), encoding="utf-8")
    answer.unlink(missing_ok=True)
    try:
        command = [sys.executable, "-m", PROGRAM, str(request), str(answer)]
        report = nsys.profile(found, command, base.with_name(f"{base.name}.nsys-rep"), TIMEOUT_S)
        told = _told(answer)
        if "host_ms" not in told:  # nsys itself may end well although the program did not
            raise nsys.NsysError("the traced program left no times")
        return nsys.read_sqlite(nsys.export_sqlite(found, report, export)), told["host_ms"]
    except nsys.NsysError:
        error = _told(answer).get("error")
        if error:  # the program's own failure, which no other profiler would mend
            raise RuntimeError(error) from None
        raise
    except ValueError as error:
        raise nsys.NsysError(str(error)) from error
    finally:
        for path in (request, answer, export):
            path.unlink(missing_ok=True)


def _told(answer: Path) -> dict[str, Any]:
    """What the program wrote before it ended; empty where it was ended before it could."""
    content: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    return content


def artefact_name(cell: Cell) -> str:
    """Name of the cell's files below nsys/."""
    return "-".join(str(cell[name]) for name in ("device", "size", "seq_len", "dtype"))


def by_torch(cell: Cell, full_step: bool) -> tuple[Trace, dict[str, list[float]]]:
    """The same passes under torch's profiler, in this process."""
    from perfscribe.experiments.nsys_profile import program
    from perfscribe.instruments.profiling import torch_profiler
    from perfscribe.models.training_step import build

    step = build(cell.factors, cell.data_folder)
    with torch_profiler.recording(cell["device"]) as recorded:
        host_ms = program.traced_passes(
            step, warmup=cell["warmup_steps"], timed=cell["traced_steps"], full_step=full_step
        )
    return recorded.trace, host_ms
