"""A process that ends with the one that started it."""

from __future__ import annotations

import os
import signal
import sys


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; for preexec_fn, parent is the caller's process id.

    Linux only; elsewhere the closed pipe ends a child after its cell.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)
