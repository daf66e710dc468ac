"""Processes: dying with the parent, exit statuses in words."""

import os
import signal
import sys


def die_with(parent: int = 0) -> None:
    """Let the kernel kill this process when its parent ends (on Linux).

    parent: the parent's process id; if it has ended already, exit now. 0: not known.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if parent and os.getppid() != parent:
            os._exit(1)


def exit_text(code: int | None) -> str:
    """Return an exit status in words; None: a process of another machine or launcher."""
    if code is None:
        return "died"
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"died by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"died by signal {-code}"
