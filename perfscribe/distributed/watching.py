"""Collects the messages of a launch's ranks until all have given a result or one is to blame (failures.py)."""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfscribe.base.processes import exit_text
from perfscribe.distributed import failures
from perfscribe.distributed.channel import END_OF_LOG, MESSAGES, OUTPUT, Event, Hub
from perfscribe.distributed.failures import Ending, Stack

if TYPE_CHECKING:
    from perfscribe.distributed.starting import ForkedRanks, LaunchedRanks

# Errors of a lost peer wait this long for the error that explains them.
EXPLANATION_S = 5.0
ANSWER_S = 3.0
EXIT_S = 10.0
LAST_EVENTS_S = 1.0
POLL_S = 0.5
KEPT_LINES = 500  # lines kept per rank: a CUDA crash prints stacks after the line that explains it
LAST_WORDS = 20
NCCL_LINE = " NCCL INFO "  # parsed by the program, not shown


@dataclass
class _State:
    """State of a rank. has_result, result: of its latest work."""

    output: deque[str]
    started: bool = False
    logs: int = 0  # ends of logs seen in its output
    closed: set[str] = field(default_factory=set)  # streams
    has_result: bool = False
    result: Any = None
    error: dict[str, Any] | None = None
    exit_code: int | None = None
    gone_s: float = 0.0  # clock time at which its end was first noticed
    stack: Stack | None = None


@dataclass
class RunningRanks:
    """One launch as seen by its launcher.

    timeout_s: per result. kept_lines: of each rank's output.
    """

    world_size: int
    timeout_s: float
    hub: Hub
    processes: ForkedRanks | LaunchedRanks
    kept_lines: int = KEPT_LINES
    began: float = field(default_factory=time.monotonic)
    first_ending: float = 0.0
    work: dict[str, Any] | None = None  # message to send to ranks once they have started

    def __post_init__(self) -> None:
        # -1: output of the launcher itself, and of a process that has not found its rank
        self.states = {rank: _State(deque(maxlen=self.kept_lines)) for rank in range(-1, self.world_size)}

    def give(self, arguments: Mapping[str, Any]) -> None:
        """Let all ranks run the program with these arguments; those not started yet get them when they report."""
        self._read(0.0)
        if self.work is not None:  # the first time includes starting
            self.began = time.monotonic()
        self.work = {"ask": "work", "arguments": arguments}
        for rank in range(self.world_size):
            state = self.states[rank]
            state.has_result, state.result, state.stack = False, None, None
            if state.started:
                self.hub.send(rank, self.work)

    def results(self) -> list[Any]:
        """Return the result of each rank; raises the exception that failures.py builds for the first failure."""
        while not all(self.states[rank].has_result for rank in range(self.world_size)):
            self._raise_failure()
            is_ending = any(state.gone_s for state in self.states.values())
            self._read(min(POLL_S / 10 if is_ending else POLL_S, self.began + self.timeout_s - time.monotonic()))
        return [self.states[rank].result for rank in range(self.world_size)]

    def read_log(self, count: int) -> None:
        """Read what ranks logged before their count-th result."""
        self._read_until(LAST_EVENTS_S, lambda: all(self.states[rank].logs >= count for rank in range(self.world_size)))

    def dismiss(self) -> None:
        """Let all ranks leave, and wait for that up to EXIT_S."""
        for rank in range(self.world_size):
            self.hub.send(rank, {"ask": "leave"})
        self._read_until(EXIT_S, lambda: all(MESSAGES in self.states[rank].closed for rank in range(self.world_size)))

    def read_the_rest(self) -> None:
        """Read the ranks' remaining output, once they are gone."""
        self.hub.wait_for_ends(LAST_EVENTS_S)
        self._read(0.0)

    # --- reading

    def _read(self, timeout_s: float) -> None:
        """Process events, waiting at most timeout_s for the first."""
        with contextlib.suppress(queue.Empty):
            self._apply(self.hub.events.get(timeout=max(0.0, timeout_s)))
            while True:
                self._apply(self.hub.events.get_nowait())
        for rank in range(self.world_size):
            state = self.states[rank]
            state.exit_code = self.processes.exit_code(rank)
            if state.exit_code is not None:
                state.gone_s = state.gone_s or time.time()

    def _read_until(self, timeout_s: float, done: Callable[[], bool]) -> None:
        until = time.monotonic() + timeout_s
        while not done() and time.monotonic() < until:
            self._read(min(POLL_S, until - time.monotonic()))

    def _apply(self, event: Event) -> None:
        state = self.states[event.rank]
        if event.kind == "message":
            self._apply_message(event.rank, state, event.data)
        elif event.kind == "closed":
            state.closed.add(event.data)
            if event.data == MESSAGES:
                state.gone_s = state.gone_s or time.time()
        elif event.kind == "output" and event.data == END_OF_LOG:
            state.logs += 1
        elif event.kind == "output":
            state.output.append(event.data)
            if NCCL_LINE not in event.data:
                print(f"[rank {event.rank}] {event.data}" if event.rank >= 0 else event.data, file=sys.stderr)

    def _apply_message(self, rank: int, state: _State, message: Mapping[str, Any]) -> None:
        if "hello" in message:
            state.started = True
            if self.work is not None:
                self.hub.send(rank, self.work)
        elif "result" in message:
            state.has_result, state.result = True, message["result"]
        elif "error" in message:
            state.error = message["error"]
        elif "stack" in message:
            state.stack = Stack(**message["stack"])

    # --- judging

    def _ending(self, rank: int) -> Ending | None:
        """Return how a rank ended without a result; None while it may still report.

        Waits for the messages and output from before its death, and for its exit code.
        """
        state = self.states[rank]
        last_words = tuple(state.output)
        if state.has_result or not (state.error or state.gone_s):
            return None
        if state.error:
            return Ending(rank, **state.error, last_words=last_words)
        waited_s = time.time() - state.gone_s
        all_heard = state.closed >= {MESSAGES, OUTPUT} or waited_s > LAST_EVENTS_S
        if not all_heard or (self.processes.know_exit_codes and state.exit_code is None and waited_s < EXIT_S):
            return None
        text = exit_text(state.exit_code) if self.processes.know_exit_codes else "died"
        return Ending(rank, text, state.gone_s, died=True, last_words=last_words)

    def _endings(self) -> list[Ending]:
        return [ending for rank in self.states if (ending := self._ending(rank)) is not None]

    def _raise_failure(self) -> None:
        """Raise as soon as it is clear which rank is to blame, or when time is up."""
        if not self._endings() and (how := self.processes.ended()):
            self._read_until(LAST_EVENTS_S, lambda: False)  # events still in transit
            if not self._endings() and not all(self.states[rank].has_result for rank in range(self.world_size)):
                raise failures.error_of_launcher(how, list(self.states[-1].output)[-LAST_WORDS:])
        endings, now = self._endings(), time.monotonic()
        ended = {ending.rank for ending in endings}
        silent = [rank for rank in range(self.world_size) if not self.states[rank].has_result and rank not in ended]
        if endings:
            first = failures.guilty(endings)
            self.first_ending = self.first_ending or now
            explained = not first.is_consequence or not silent
            waited = now >= self.first_ending + EXPLANATION_S and not any(self.states[rank].gone_s for rank in silent)
            if waited and not explained and first.is_timeout:
                raise self._silence_error(silent, f"rank {first.rank} gave up: {first.text}")
            if explained or waited:
                raise failures.error_of(first, self.world_size)
        if now >= self.began + self.timeout_s:
            raise self._silence_error(silent, f"no result after {self.timeout_s:g} s")

    def _silence_error(self, silent: list[int], limit: str) -> Exception:
        missing = [rank for rank in silent if not self.states[rank].started]
        for rank in silent:
            self.hub.send(rank, {"ask": "stack"})
        answering = [rank for rank in silent if rank not in missing]
        self._read_until(ANSWER_S, lambda: all(self.states[rank].stack is not None for rank in answering))
        stacks = {rank: stack for rank in silent if (stack := self.states[rank].stack) is not None}
        return failures.error_of_silence(stacks, silent, self.world_size, limit, missing)
