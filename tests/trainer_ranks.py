"""Ranks that train with transformers: forked from a process that has imported it, as those of a measuring job are.

The server that ranks are forked from lives as long as the process that launches them, and the first to start it says
what it imports: in a worker of pytest that is some other file's test, and each rank imports the rest, for seconds.
"""

from typing import Any

from perfscribe.distributed.fork_server import SERVER
from perfscribe.distributed.needs import PRELOADED
from perfscribe.experiments.checkpoints import measure as checkpoints
from perfscribe.training import launching

# What PRELOADED of the experiments that train so names.
MODULES = (*PRELOADED, checkpoints.MODULE, launching.MODULE, launching.BLOOMS_CODE)
_before: list[Any] = []  # servers that import less: worker groups may live below them


def preload() -> None:
    """Fork the ranks of launches to come from such a process; those that run go on below theirs."""
    process = SERVER._process
    if process is not None and process.poll() is None and not set(MODULES) <= set(process.args):
        _before.append((process, SERVER._control))
        SERVER._process = SERVER._control = None
    SERVER.start(MODULES)
