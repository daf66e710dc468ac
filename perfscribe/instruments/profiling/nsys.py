"""Nsight Systems: finds it, profiles a command with it, exports and checks the recording."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfscribe.base import causes
from perfscribe.base.atomic import replacing
from perfscribe.instruments.profiling import guard
from perfscribe.instruments.profiling.trace import KERNEL, Trace
from perfscribe.instruments.tools import NSYS_LIBRARIES_VARIABLE, NSYS_VARIABLE, find_tool

EXPORT_TIMEOUT_S = 600.0
VERSION_TIMEOUT_S = 60.0
# No call-stack sampling, no scheduler events: they are large (gigabytes for a few kernels) and unused. Kernels in CUDA
# graphs are traced one by one, because a graph traced as a whole names none.
SETTINGS = ("-s", "none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true")
# Lines that nsys prints after a program's output: progress, names of files.
NSYS_SAYS = re.compile(r"\s*(\[\d+/\d+\]|Generat(ing|ed)\b|.*\.(nsys-rep|qdstrm)'?$)")
KERNEL_SUMMARY = "NVTX Range,"  # beginning of its header; nsys may print lines above it
NO_RANGES = (
    "holds no range that the program marked: the nvtx package is missing, or too new for this nsys"
    " (2023.4 records no ranges of nvtx 0.2.12 and newer, 2025.3 does)"
)


class NsysError(RuntimeError):
    """nsys failed, or its trace is unusable; one line."""


@dataclass(frozen=True)
class Nsys:
    """An installed nsys. version: "2025.3.1"."""

    path: Path
    version: str


def find() -> Nsys:
    """Return this machine's nsys, found by tools.find_tool; raises NsysError if there is none, or it does not run."""
    path = find_tool("nsys")
    if path is None:
        configured = os.environ.get(NSYS_VARIABLE)
        lacking = "nsys was not found on PATH or where NVIDIA puts it; tools.nsys in the config may name it"
        raise NsysError(f"tools.nsys: {configured} is no program" if configured else lacking)
    version, why = _version(path)
    if not version:
        raise NsysError(f"{path} does not run: {why}")
    return Nsys(path, version)


@cache
def _version(path: Path) -> tuple[str, str]:
    """Return its version and "", or "" and why there is none."""
    try:
        text = _run([str(path), "--version"], VERSION_TIMEOUT_S)
    except NsysError as error:
        return "", str(error)
    match = re.search(r"version (\d+\.\d+(?:\.\d+)?)", text)
    return (match[1], "") if match else ("", "it tells no version")


@cache
def _traces(path: Path) -> str:
    """Return the value of --trace: includes cuBLAS calls only if this nsys supports them."""
    help_text = _run([str(path), "profile", "--help"], VERSION_TIMEOUT_S)
    return "cuda,nvtx,cublas" if "'cublas'" in help_text else "cuda,nvtx"


def profile(nsys: Nsys, command: Sequence[str], output: Path, timeout_s: float) -> Path:
    """Run the command under nsys and return the report's path, `output` with the suffix .nsys-rep.

    No process or temporary file is left behind, however this ends.
    Raises NsysError if the command takes too long, fails (its exit status is in the text) or leaves no report.
    The report contains all environment variables and the host's name: do not publish it.
    """
    report = output.with_name(output.name.removesuffix(".nsys-rep") + ".nsys-rep")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    name = str(report.with_name(report.name.removesuffix(".nsys-rep"))).replace("%", "%%")
    settings = [*SETTINGS, "-t", _traces(nsys.path), f"--output={name}"]
    _run([str(nsys.path), "profile", *settings, *command], timeout_s)
    if not report.is_file():
        raise NsysError(f"nsys {nsys.version} ended without a report")
    return report


def run_module(nsys: Nsys, module: str, request: object, base: Path, timeout_s: float) -> tuple[dict[str, Any], Path]:
    """Run `python -m MODULE REQUEST ANSWER` under nsys; returns its answer and the path of the report's export.

    The module reads a request and writes an object, both temporary JSON files next to the report. base: the report's
    path without its suffix. Raises RuntimeError if the answer has an "error", which another nsys would not fix;
    NsysError as profile and export_sqlite.
    """
    base.parent.mkdir(parents=True, exist_ok=True)
    asked, answer = (base.with_name(f"{base.name}.{end}.json") for end in ("request", "answer"))
    asked.write_text(json.dumps(request), encoding="utf-8")
    answer.unlink(missing_ok=True)
    command, failure = [sys.executable, "-m", module, str(asked), str(answer)], None
    report = base.with_name(f"{base.name}.nsys-rep")
    try:
        profile(nsys, command, report, timeout_s)
    except NsysError as error:
        failure = error
    result = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    for path in (asked, answer):
        path.unlink(missing_ok=True)
    if "error" in result:
        raise RuntimeError(result["error"])
    if failure or not result:  # nsys itself may succeed although the program did not
        raise failure or NsysError("the traced program gave nothing")
    return result, export_sqlite(nsys, report, base.with_name(f"{base.name}.sqlite"))


def export_sqlite(nsys: Nsys, report: Path, output: Path) -> Path:
    """Export a .nsys-rep to SQLite, atomically; raises NsysError."""
    if not report.is_file():
        raise NsysError(f"{report}: no such file")
    with replacing(output) as temporary:
        options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={temporary}"]
        _run([str(nsys.path), "export", *options, str(report)], EXPORT_TIMEOUT_S)
        if not temporary.is_file():
            raise NsysError(f"{report}: nsys {nsys.version} made no SQLite file of it")
    return output


def kernel_summary(nsys: Nsys, export: Path) -> str:
    """Return nsys's table of kernels by NVTX range, as CSV, from an export; raises NsysError."""
    text = _run(
        [str(nsys.path), "stats", "--report=nvtx_kern_sum", "--format=csv", "--quiet", str(export)], EXPORT_TIMEOUT_S
    )
    if (start := text.find(KERNEL_SUMMARY)) < 0:  # nsys succeeds, too, where it has nothing to tell
        raise NsysError(f"{export}: nsys {nsys.version} makes no summary of it: {' '.join(text.split())[:300]}")
    return text[start:].rstrip() + "\n"


def check(trace: Trace, uses_cuda: bool) -> None:
    """Raise NsysError if a trace is implausible: without the program's ranges, or without kernels despite CUDA."""
    if not any(not time_range.domain for time_range in trace.ranges):
        raise NsysError(f"the trace of {trace.tool} {NO_RANGES}")
    if uses_cuda and not any(kernel.kind == KERNEL for kernel in trace.kernels):  # only copies are not a pass
        more = "".join(f"; {remark}" for remark in trace.remarks)
        raise NsysError(f"{trace.tool} recorded no kernel of a program that used CUDA: too old for the driver{more}")


def _run(command: list[str], timeout_s: float) -> str:
    """Return the command's output; raises NsysError if it fails or takes too long."""
    libraries = [os.environ.get(name, "") for name in (NSYS_LIBRARIES_VARIABLE, "LD_LIBRARY_PATH")]
    process = subprocess.Popen(
        [sys.executable, "-P", str(guard.__file__), str(timeout_s), *command],
        stdin=subprocess.PIPE,  # closes when this process ends, in whatever way; the guard then ends everything
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))} if libraries[0] else None,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        output = process.stdout.read()
    finally:
        process.stdin.close()
        code = process.wait()
        process.stdout.close()
    verb = " ".join(["nsys", *command[1:2]])
    if code == guard.TIMED_OUT:
        raise NsysError(f"{verb}: longer than {timeout_s:g} s")
    if code:
        cause = causes.of_output(line for line in output.splitlines() if not NSYS_SAYS.match(line))
        raise NsysError(f"{verb}: exit status {code}" + (f": {cause[:300]}" if cause else ""))
    return output
