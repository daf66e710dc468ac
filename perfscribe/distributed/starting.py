"""Starts the processes of ranks: forked on this machine, or by another program such as torchrun, mpiexec or srun.

Ranks are forked from multiprocessing's fork server, which has imported torch: two start in 0.2 s, fresh interpreters in
5 s and more. The server must never touch CUDA, which does not survive a fork: torch is set to count GPUs through NVML.
It ends when its launcher has, and with it the kernel kills its ranks (on Linux), even if no Python can run in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, get_context
from typing import IO, Any, cast

from perfscribe.base.cells import Unsupported
from perfscribe.base.processes import exit_text
from perfscribe.distributed import needs, rank
from perfscribe.distributed.channel import Hub
from perfscribe.distributed.failures import RankError
from perfscribe.distributed.watching import EXIT_S

DEATH_S = 30.0  # only if the kernel cannot kill a process at once, as when a driver hangs
NVML_COUNTS = "PYTORCH_NVML_BASED_CUDA_CHECK"
_FORKING = get_context("forkserver")


def start_server(modules: Sequence[str] = needs.PRELOADED) -> None:
    """Start the fork server, which imports these modules while the caller goes on; ignored if it runs."""
    _FORKING.set_forkserver_preload([*modules, rank.__name__])
    before = os.environ.get(NVML_COUNTS)
    os.environ[NVML_COUNTS] = "1"
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(NVML_COUNTS) if before is None else os.environ.update({NVML_COUNTS: before})


class ForkedRanks:
    """Ranks on this machine. Each leads a process group, so that its children end too.

    environments: variables of each rank. Raises RankError if the server dies while it starts them.
    """

    know_exit_codes = True

    def __init__(self, order: Mapping[str, Any], environments: Sequence[Mapping[str, str]]) -> None:
        start_server()
        self._processes = [_FORKING.Process(target=rank.begin, args=(order, own)) for own in environments]
        try:
            for process in self._processes:
                process.start()
        except (EOFError, OSError) as error:
            self.end()
            raise RankError(f"the fork server gave no ranks: {type(error).__name__}: {error}") from error

    def exit_code(self, rank: int) -> int | None:
        """Return a rank's exit code; None while it runs."""
        return self._processes[rank].exitcode

    def ended(self) -> str:
        """Return why no rank can report any more: empty, because exit_code() tells it of each rank."""
        return ""

    def end(self) -> None:
        """Kill the ranks and their children, and wait until they are gone."""
        started = [process for process in self._processes if process.pid]
        for process in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()  # if it does not lead its group yet
        for process in started:
            process.join(DEATH_S)


class LaunchedRanks:
    """Another launcher's process, which starts the ranks by running their module."""

    know_exit_codes = False

    def __init__(
        self, command: Sequence[str], order: Mapping[str, Any], hub: Hub, environment: Mapping[str, str]
    ) -> None:
        self._name = command[2] if command[0] == sys.executable else os.path.basename(command[0])
        self._ranks, self._hub = range(order["world_size"]), hub
        if shutil.which(command[0]) is None:
            raise Unsupported(f"no {self._name} here")
        self._process = subprocess.Popen(
            [*command, rank.__name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, rank.ORDER_VARIABLE: json.dumps(order)},
            process_group=0,
        )
        hub.hear(hub.read_output, cast(IO[bytes], self._process.stdout), -1)

    def exit_code(self, rank: int) -> None:
        """Return None: only the launcher knows."""

    def ended(self) -> str:
        """Return how the launcher ended; empty while it runs."""
        code = self._process.poll()
        return "" if code is None else f"{self._name} {exit_text(code)}"

    def end(self) -> None:
        """Ask the ranks to end, then kill the launcher."""
        for number in self._ranks:
            self._hub.send(number, {"ask": "die"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
