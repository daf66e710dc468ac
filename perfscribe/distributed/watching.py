"""Reads what the ranks of a launch say until all have given a result or one is to blame."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfscribe.distributed import failures
from perfscribe.distributed.channel import END_OF_LOG, Event, Hub
from perfscribe.distributed.failures import DIED, RAISED, Ending, Frame, Stack
from perfscribe.distributed.starting import EXIT_S, Job, exit_text

# Errors of a lost peer wait this long for the one that explains them.
EXPLANATION_S = 5.0
ANSWER_S = 3.0
LAST_EVENTS_S = 1.0
LOOK_S = 0.5
KEPT_LINES = 500  # of what each rank prints: a crash of CUDA prints stacks behind the line that explains it
LAST_WORDS = 20
NCCL_LINE = " NCCL INFO "  # read by the program, not by people


@dataclass
class _State:
    """What is known of a rank."""

    output: deque[str]
    started: bool = False
    logs: int = 0  # ends of logs seen in its output
    closed: bool = False
    has_result: bool = False
    result: Any = None
    ending: Ending | None = None
    exit_code: int | None = None
    gone_s: float = 0.0  # by the clock, when its end was first heard of
    stack: Stack | None = None

    @property
    def is_silent(self) -> bool:
        return not self.has_result and self.ending is None


@dataclass
class Watch:
    """One launch as its launcher sees it. timeout_s: for each result. kept_lines: of each rank's output."""

    world_size: int
    timeout_s: float
    hub: Hub
    job: Job
    kept_lines: int = KEPT_LINES
    began: float = field(default_factory=time.monotonic)
    first_ending: float = 0.0
    events: deque[Event] = field(default_factory=deque)
    work: dict[str, Any] | None = None  # what ranks are to do once they have come

    def __post_init__(self) -> None:
        self.states = {rank: _State(deque(maxlen=self.kept_lines)) for rank in range(self.world_size)}

    def give(self, arguments: Mapping[str, Any]) -> None:
        """Let all ranks run the program with these arguments; those that are not there yet, as they come."""
        self._read(0.0)
        if self.work is not None:  # the first time takes in starting
            self.began = time.monotonic()
        self.work = {"ask": "work", "arguments": arguments}
        for rank in range(self.world_size):
            state = self.states[rank]
            state.has_result, state.result, state.stack = False, None, None
            if state.closed:  # it has ended since its last result
                self._note_death(rank)
            elif state.started:
                self.hub.send(rank, self.work)

    def results(self) -> list[Any]:
        """The result of each rank; raises what failures.py makes of the first failure."""
        while not all(self.states[rank].has_result for rank in range(self.world_size)):
            self._raise_failure()
            self._read(self._patience_s())
        return [self.states[rank].result for rank in range(self.world_size)]

    def read_log(self, count: int) -> None:
        """Take in what ranks had logged before they gave their count-th result."""
        states = [self.states[rank] for rank in range(self.world_size)]
        self._read_until(LAST_EVENTS_S, lambda: all(state.logs >= count for state in states))

    def dismiss(self) -> None:
        """Let all ranks leave, and wait a while for it."""
        for rank in range(self.world_size):
            self.hub.send(rank, {"ask": "leave"})
        self._read_until(EXIT_S, lambda: all(self.states[rank].closed for rank in range(self.world_size)))

    def read_the_rest(self) -> None:
        """Take in what the ranks had still printed, once they are gone; what else they say does not count any more."""
        until = time.monotonic() + LAST_EVENTS_S
        while self.hub.connected and time.monotonic() < until:
            for event in self.hub.poll(LOOK_S):
                if event.kind == "output":
                    self._note(event)

    # --- reading

    def _patience_s(self) -> float:
        now = time.monotonic()
        left_s = self.began + self.timeout_s - now
        if self.first_ending:
            left_s = min(left_s, self.first_ending + EXPLANATION_S - now)
        return max(0.0, min(left_s, LOOK_S))

    def _read(self, timeout_s: float) -> None:
        """Note what happened. May be called while something is noted: then what came after that is noted first."""
        self.events.extend(self.hub.poll(0.0 if self.events else timeout_s))
        while self.events:
            self._note(self.events.popleft())

    def _read_until(self, timeout_s: float, done: Callable[[], bool]) -> None:
        until = time.monotonic() + timeout_s
        while not done() and time.monotonic() < until:
            self._read(min(LOOK_S, until - time.monotonic()))

    def _note(self, event: Event) -> None:
        state = self.states.setdefault(event.rank, _State(deque(maxlen=self.kept_lines)))
        if event.kind == "output" and event.data == END_OF_LOG:
            state.logs += 1
        elif event.kind == "output":
            state.output.append(event.data)
            if NCCL_LINE not in event.data:
                print(f"[rank {event.rank}] {event.data}" if event.rank >= 0 else event.data, file=sys.stderr)
        elif event.kind == "message":
            self._note_message(event.rank, state, event.data)
        else:
            state.gone_s = state.gone_s or time.time()
            if event.kind == "exit":
                state.exit_code = event.data
            else:
                state.closed = True
            self._note_death(event.rank)

    def _note_message(self, rank: int, state: _State, said: Any) -> None:
        if "hello" in said:
            state.started = True
            if self.work is not None:
                self.hub.send(rank, self.work)
        elif "result" in said:
            state.has_result, state.result = True, said["result"]
        elif "error" in said:
            state.ending = Ending(rank, RAISED, **said["error"], last_words=tuple(state.output))
        elif "stack" in said:
            frames = [Frame(*place) for place in said["stack"]["frames"]]
            state.stack = Stack(frames, said["stack"]["collectives"])

    def _note_death(self, rank: int) -> None:
        """Take in what a rank said before it ended; where it told neither result nor error, its end is one."""
        state = self.states[rank]
        if not state.is_silent:
            return
        self._read(0.0)
        if self.job.tells_exits:
            self._read_until(EXIT_S, lambda: state.exit_code is not None)
        if state.is_silent:  # nothing was noted meanwhile
            text = exit_text(state.exit_code) if self.job.tells_exits else "died"
            state.ending = Ending(rank, DIED, text, state.gone_s, last_words=tuple(state.output))

    # --- judging

    def _raise_failure(self) -> None:
        """Raise as soon as it is clear who is to blame, or when time is up."""
        endings = [state.ending for state in self.states.values() if state.ending is not None]
        silent = [rank for rank in range(self.world_size) if self.states[rank].is_silent]
        now = time.monotonic()
        if endings:
            first = failures.guilty(endings)
            self.first_ending = self.first_ending or now
            if not first.is_consequence or not silent:
                raise failures.error_of(first, self.world_size)
            if now >= self.first_ending + EXPLANATION_S:
                raise self._unexplained(first, silent)
        elif self.job.ended():
            self._raise_end_of_launcher()
        if now >= self.began + self.timeout_s:
            raise self._silence(silent, f"no result after {self.timeout_s:g} s")

    def _raise_end_of_launcher(self) -> None:
        """The launcher is gone: take in what is still on its way, then blame a rank, else the launcher."""
        self._read_until(LAST_EVENTS_S, lambda: False)
        endings = [state.ending for state in self.states.values() if state.ending is not None]
        if endings:
            raise failures.error_of(failures.guilty(endings), self.world_size)
        if any(state.is_silent for rank, state in self.states.items() if rank >= 0):
            said = list(self.states[-1].output)[-LAST_WORDS:] if -1 in self.states else []
            raise failures.error_of_launcher(self.job.ended(), said)

    def _unexplained(self, first: Ending, silent: list[int]) -> Exception:
        """A rank complains of its peers and nothing explains it: blame a silent peer for a time-out."""
        if first.speaks_of_silence:
            return self._silence(silent, f"rank {first.rank} gave up: {first.text}")
        return failures.error_of(first, self.world_size)

    def _silence(self, silent: list[int], limit: str) -> Exception:
        missing = [rank for rank in silent if not self.states[rank].started]
        for rank in silent:
            self.hub.send(rank, {"ask": "stack"})
        answering = [rank for rank in silent if rank not in missing]
        self._read_until(ANSWER_S, lambda: all(self.states[rank].stack is not None for rank in answering))
        stacks = {rank: stack for rank in silent if (stack := self.states[rank].stack) is not None}
        return failures.error_of_silence(stacks, silent, self.world_size, limit, missing)
