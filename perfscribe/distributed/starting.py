"""Starts the processes of ranks: forked on this machine, or by another program such as torchrun, mpiexec or srun.

Ranks are forked from multiprocessing's fork server, which has imported torch: two start in 0.1 s, fresh interpreters in
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
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, get_context
from typing import Any

from perfscribe.base.cells import Unsupported
from perfscribe.base.processes import exit_text
from perfscribe.distributed import failures, needs, rank

DEATH_S = 30.0  # only if the kernel cannot kill a process at once, as when a driver hangs
LEAVING_S = 10.0
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
            raise failures.RankError(f"the fork server gave no ranks: {type(error).__name__}: {error}") from error

    def exit_code(self, rank: int) -> int | None:
        """Return a rank's exit code; None while it runs."""
        return self._processes[rank].exitcode

    def failure(self) -> None:
        """Return None: exit_code() tells how each rank ended."""

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
    """Another launcher's process, which starts the ranks by running their module; its output is shown at its end."""

    know_exit_codes = False

    def __init__(self, command: Sequence[str], order: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._name = command[2] if command[0] == sys.executable else os.path.basename(command[0])
        if shutil.which(command[0]) is None:
            raise Unsupported(f"no {self._name} here")
        self._output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, rank.__name__],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**environment, rank.ORDER_VARIABLE: json.dumps(order)},
            process_group=0,
        )

    def exit_code(self, rank: int) -> None:
        """Return None: only the launcher knows."""

    def failure(self) -> failures.RankError | None:
        """Return how the launcher ended, with its last line; None while it runs."""
        if self._process.poll() is None:
            return None
        self._output.seek(0)
        return failures.error_of_launcher(
            f"{self._name} {exit_text(self._process.returncode)}", self._output.read().splitlines()
        )

    def end(self) -> None:
        """Wait for the launcher, whose ranks have lost their connections; kill it if it stays."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
        with self._output as output:
            output.seek(0)
            shutil.copyfileobj(output, sys.stderr)
