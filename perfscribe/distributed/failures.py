"""Determines which rank caused a failed launch, and the exception that names it.

When one rank ends, the others fail on the lost connection a moment later. So an error about a lost peer is a
consequence: it is blamed only if nothing else went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfscribe.base import error_kinds
from perfscribe.base.cells import Unsupported
from perfscribe.instruments.correctness import WrongResult

# Texts of gloo, of torch's store and of NCCL in errors that torch raises.
_LOST_PEER = re.compile(
    r"(?:RuntimeError|Dist\w*Error|ConnectionError|BrokenPipeError|ConnectionResetError): .*"
    r"(?:connection (?:closed|reset|refused|was likely closed)|closed by (?:the )?(?:remote )?peer|broken pipe"
    r"|failed to recv, got 0 bytes|socket closed|remote process exited|communicator was aborted"
    r"|connectfullmesh failed|could not connect|unable to connect|not all .*joined|no route to host)",
    re.IGNORECASE,
)
SHOWN_LINES = 20  # of a launcher's output


class RankError(RuntimeError):
    """A rank failed; the text names it."""


class RankOutOfMemory(RankError, MemoryError):
    """A rank ran out of memory."""


class RankWrongResult(RankError, WrongResult):
    """A rank's result differs from its reference."""


class RankTimeout(RankError, TimeoutError):
    """A rank, or all of them, took longer than allowed."""


_ERRORS = {error_kinds.OUT_OF_MEMORY: RankOutOfMemory, error_kinds.WRONG_RESULT: RankWrongResult}
_Error = TypeVar("_Error", bound=RankError)


@dataclass(frozen=True)
class Stack:
    """Stack of a rank. frames: (file, line, function), innermost first. collectives: number begun; None: not known."""

    frames: Sequence[tuple[str, int, str]]
    collectives: int | None = None

    @property
    def waits_for_others(self) -> bool:
        """Whether the innermost frames are those of a collective or of waiting for the GPU."""
        return any(
            "/torch/distributed/" in file or (function == "synchronize" and "/torch/" in file)
            for file, _, function in self.frames[:4]
        )

    @property
    def place(self) -> str:
        """The innermost frame outside installed packages, else the innermost."""
        outside = [frame for frame in self.frames if not re.search(r"/site-packages/|/lib/python|^<", frame[0])]
        return f"at {_frame(*(outside or self.frames)[0])}" if self.frames else "at an unknown place"

    def __str__(self) -> str:
        begun = "" if self.collectives is None else f"{self.collectives} collectives begun; "
        return begun + " < ".join(_frame(*frame) for frame in self.frames)


def _frame(file: str, line: int, function: str) -> str:
    return f"{file.rpartition('/')[2]}:{line} in {function}"


@dataclass(frozen=True)
class Ending:
    """How a rank ended without a result.

    text: its error or how it died. time_s: by the rank's clock if it reported the error, else when the death was
    noticed. kind: exception, out_of_memory, unsupported or wrong_result. details: its traceback.
    """

    rank: int
    text: str
    time_s: float
    kind: str = error_kinds.EXCEPTION
    details: str = ""

    @property
    def is_consequence(self) -> bool:
        """Whether the error is about a lost peer."""
        return bool(_LOST_PEER.match(self.text))


def guilty(endings: Sequence[Ending]) -> Ending:
    """Return the ending that explains the others: the first that is not a consequence, else the first."""
    return min(endings, key=lambda ending: (ending.is_consequence, ending.time_s))


def error_of(ending: Ending, world_size: int) -> Exception:
    """Return the exception that a launch raises for an ending, with the rank's traceback as a note."""
    if ending.kind == error_kinds.UNSUPPORTED:
        return Unsupported(ending.text)
    who = f"rank {ending.rank}" if ending.rank >= 0 else "a rank"
    error = _ERRORS.get(ending.kind, RankError)(f"{who} of {world_size}: {ending.text}")
    return _with_notes(error, ending.details)


def error_of_launcher(text: str, output: Sequence[str]) -> RankError:
    """Return the exception for an external launcher that ended before all ranks had results, without a rank's error."""
    last = next((line.strip() for line in reversed(output) if line.strip()), "")
    return _with_notes(RankError(f"{text}: {last}" if last else text), *output[-SHOWN_LINES:])


def error_of_silence(
    stacks: dict[int, Stack], silent: Sequence[int], world_size: int, limit: str, never: Sequence[int] = ()
) -> RankTimeout:
    """Return the exception for ranks that gave neither result nor error in time.

    stacks: of the silent ranks that answered. Blames a rank that does not answer at all (it is stuck outside Python),
    else one that is behind the others in collectives, else one that does not wait for others; the lowest if there are
    several. If all wait, the text names them and the ranks they wait for. never: ranks that have not reported at all.
    """
    if never:
        return RankTimeout(f"{_ranks(never)} of {world_size} never started: {limit}")
    notes = [f"rank {rank}: {stack}" for rank, stack in sorted(stacks.items())]
    busy = _awaited(stacks, silent)
    if not busy:
        returned = [rank for rank in range(world_size) if rank not in silent]
        others = f"{_ranks(returned)}, which returned without them" if returned else "each other"
        who = f"{_ranks(silent)} of {world_size} {'waits' if len(silent) == 1 else 'wait'} for {others}"
        text = f"{who}: {limit}; rank {silent[0]} {stacks[silent[0]].place}"
        return _with_notes(RankTimeout(text), *notes)
    rank = busy[0]
    place = stacks[rank].place if rank in stacks else "in code that does not let Python answer"
    others = f" (so does {_ranks(busy[1:])})" if len(busy) > 1 else ""
    return _with_notes(RankTimeout(f"rank {rank} of {world_size} hangs{others}: {limit}; {place}"), *notes)


def _awaited(stacks: dict[int, Stack], silent: Sequence[int]) -> list[int]:
    """Return the silent ranks that others wait for; empty if all of them wait."""
    mute = [rank for rank in silent if rank not in stacks]
    if mute:
        return mute
    counts = {rank: stacks[rank].collectives for rank in silent}
    known = [count for count in counts.values() if count is not None]
    if len(known) == len(silent) and min(known) < max(known):
        return [rank for rank in silent if counts[rank] == min(known)]
    return [rank for rank in silent if not stacks[rank].waits_for_others]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _with_notes(error: _Error, *notes: str) -> _Error:
    for note in filter(None, notes):
        error.add_note(note)
    return error
