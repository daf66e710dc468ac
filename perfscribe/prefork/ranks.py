"""The fork server of a forked child's ranks: forked from it too, before it computes."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import cast

from perfscribe.parallel import fork_server
from perfscribe.prefork.forked import Forked


class ForkedServer(fork_server.ForkServer):
    """As ForkServer, but the first comes without a new interpreter, where it is asked for before the first cell."""

    def __init__(self) -> None:
        super().__init__()
        self._may_fork = True

    def end_forking(self) -> None:
        """From now on this process may compute, and a fork would wait for threads that it does not have (OpenMP's)."""
        self._may_fork = False

    def _running(self, preloaded: Sequence[str] = fork_server.PRELOADED) -> socket.socket:
        if not self._may_fork or self._control is not None:
            return super()._running(preloaded)
        self._control, theirs = socket.socketpair()
        with theirs:
            process = Forked(_serve, (theirs.fileno(), preloaded), keep=[theirs.fileno()])
        self._process = cast("subprocess.Popen[bytes]", process)  # which is asked for poll() alone
        return self._control


def use_forked_server() -> Callable[[], None]:
    """Have launches of this process take ranks of a ForkedServer; what is returned ends its forking."""
    server = fork_server.SERVER = ForkedServer()
    return server.end_forking


def _serve(descriptor: int, preloaded: Sequence[str]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # where requests for cells come in
    os.close(nothing)
    fork_server.serve(descriptor, preloaded)
