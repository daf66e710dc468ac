"""Processes forked from one that has imported what they need, with what is used here of subprocess.Popen's methods.

(multiprocessing's Process leaves descriptors open in what it forks, by which it knows of the end; here forks hold
nothing of their parent's but what they are given, so that a pipe closes with the process that it belongs to.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from perfscribe.lifeline import die_with_parent

_HANDLERS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGCHLD: signal.SIG_DFL,
}
# Those that this run was to ignore, as under nohup; servers ignore more.
ignored: set[int] = set()
_here = False


def is_here() -> bool:
    """Whether this process was forked by a server, so that forking it is quicker than a fresh interpreter."""
    return _here


class Forked:
    """A process that runs target(*arguments) with the memory of this one. It ends with it.

    keep: descriptors that it goes on to hold; 0, 1 and 2 stay. cores: all that it may use; none, all that this one may.
    """

    def __init__(
        self,
        target: Callable[..., object],
        arguments: Sequence[Any] = (),
        keep: Collection[int] = (),
        cores: Collection[int] = (),
    ) -> None:
        _flush()  # what is held back would be written twice
        self._code: int | None = None
        parent = os.getpid()
        # Until the fork has handlers of its own: a signal would be lost, or be answered by its parent's.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLERS)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _be(parent, before, target, arguments, keep, cores)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._watched = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """The exit status, minus the number of the signal that ended it; None while it runs."""
        return self._ended(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and give its exit status; subprocess.TimeoutExpired after so many s."""
        if timeout is not None and self.poll() is None and not select.select([self._watched], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout)
        code = self._ended(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal where it still runs; a handler may do so while another call waits for the end."""
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._watched, number)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._watched)

    def _ended(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def script(words: Sequence[str]) -> Forked:
    """A process that runs a Python script with its arguments, as the interpreter would."""
    return Forked(run_script, [list(words)])


def run_script(words: Sequence[str]) -> None:
    """Run a script in this process; its exit status is the process's."""
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")


def take_environment(variables: Mapping[str, str]) -> None:
    """Have these environment variables and no others."""
    os.environ.clear()
    os.environ.update(variables)


def _be(
    parent: int,
    mask: Collection[int],
    target: Callable[..., object],
    arguments: Sequence[Any],
    keep: Collection[int],
    cores: Collection[int],
) -> NoReturn:
    """The forked process, to its end: it never returns to what its parent was doing."""
    global _here
    code = 1
    try:
        die_with_parent(parent)
        _here = True
        for number, handler in _HANDLERS.items():
            signal.signal(number, signal.SIG_IGN if number in ignored else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _close_all_but(keep)
        if cores:
            os.sched_setaffinity(0, cores)
        target(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            _flush()
        finally:
            os._exit(code & 0xFF)


def _close_all_but(keep: Collection[int]) -> None:
    """Close what the parent had open beside the standard three and these: locks, others' pipes and sockets."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor that listed them
                os.close(int(name))


def _flush() -> None:
    """Write out what was printed, by C libraries too."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
