"""NVIDIA's all_reduce_perf (nccl-tests): finds it, runs it and parses its output."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "all_reduce_perf"
# A launcher may put a label before each line (PALS, srun -l). OK or FAILED follows the number only if
# NCCL_TESTS_MIN_BW is set.
_BANDWIDTH = re.compile(r"# Avg bus bandwidth\s*:\s*(\S+)(?:[ \t]+(OK|FAILED))?[ \t]*$", re.MULTILINE)
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b.*?\bPid\s+\d+\s+on\s+(\S+)\s+device", re.MULTILINE)
# Size, count, type, operation, root, then numbers; possibly after a launcher's label.
_ROW = re.compile(r"^(?:\S+[ \t]+)?[ \t]*(\d+)[ \t]+\d+[ \t]+[a-z]\w*[ \t]+\w+[ \t]+-?\d+[ \t]", re.MULTILINE)
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(\d+)\s+FAILED")


class NoFigure(Exception):
    """Raised if there is no usable bandwidth; the text gives the reason in one line."""


@dataclass(frozen=True)
class Bandwidth:
    """Result of one run. ranks: 0 if the output names none; hosts: of the ranks, without repeats, in order."""

    busbw_gb_per_s: float
    ranks: int
    hosts: tuple[str, ...]


def find() -> str | None:
    """Return the program's path from PATH, or None."""
    return shutil.which(PROGRAM)


def command(program: str, size_bytes: int, gpus: int, warmup: int, timed: int) -> list[str]:
    """Return the FSDP workshop's command for a node: one size, its GPUs in one process, no checks of the results."""
    size = str(size_bytes)
    return [program, "-b", size, "-e", size, "-f", "2", "-g", str(gpus), "-c", "0", "-n", str(timed), "-w", str(warmup)]


def run(words: list[str], timeout_s: float, environment: dict[str, str]) -> str:
    """Return the program's output; raises NoFigure if it cannot start, hangs or fails."""
    try:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise NoFigure(f"{PROGRAM} did not end within {timeout_s:.0f} s") from None
    except OSError as error:
        raise NoFigure(f"{PROGRAM} cannot be started: {error.strerror}") from None
    # With NCCL_TESTS_MIN_BW it exits with 1 if the bandwidth is below its own threshold: ours decides instead.
    if done.returncode and not _BANDWIDTH.search(done.stdout):
        raise NoFigure(f"{PROGRAM} ended with {done.returncode}: {_complaint(done.stdout)}")
    return done.stdout


def _complaint(output: str) -> str:
    """Return the last line about an error if there is one, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"error|fail|invalid", line, re.IGNORECASE)]
    return " ".join((telling or lines or ["it printed nothing"])[-1].split())[:160]


def parse(output: str, expected_ranks: int = 0) -> Bandwidth:
    """Return the bandwidth of one run over all its ranks.

    expected_ranks: 0 if not known. Raises NoFigure if the output has no bandwidth, or several (a build without MPI,
    started once per rank), or one that is not a positive number; if there was a single rank or another number than
    expected; if results were wrong.
    """
    bandwidths, ranks = _BANDWIDTH.findall(output), _RANK.findall(output)
    hosts = tuple(dict.fromkeys(host for _, host in ranks))
    if not bandwidths:
        raise NoFigure(f"no line of it: {_complaint(output)}")
    if len(bandwidths) > 1:
        each = f", of {len(ranks) // len(bandwidths)} each" if ranks and len(ranks) % len(bandwidths) == 0 else ""
        raise NoFigure(f"{len(bandwidths)} runs that knew nothing of each other{each}; {PROGRAM} was built without MPI")
    busbw = _number(bandwidths[0][0])
    if wrong := _OUT_OF_BOUNDS.search(output):
        raise NoFigure(f"{wrong[1]} values of its result were wrong")
    if len(ranks) == 1 or busbw == 0:
        raise NoFigure("one rank alone has a bus bandwidth of 0 by definition")
    if expected_ranks and ranks and len(ranks) != expected_ranks:
        raise NoFigure(f"{len(ranks)} ranks took part, {expected_ranks} were expected")
    return Bandwidth(busbw, len(ranks), hosts)


def largest_size(output: str) -> int | None:
    """Return the bytes of the largest message timed; None if the output lists none."""
    return max(map(int, _ROW.findall(output)), default=None)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise NoFigure(f"its bandwidth is {text!r}, which is no number")
    return value


def read(path: Path) -> str:
    """Return a log of the program; raises NoFigure if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise NoFigure(f"{path}: {error.strerror}") from None
