"""Dry runs of Snakemake in processes forked from one that has imported it, which is most of a dry run's time.

The server below imports nothing of Perfscribe: each dry run reads the project tree that it is asked about.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# As `python -m snakemake` in a folder has it: that folder is where modules are looked for first.
SERVER = """
import gc, json, os, sys
import snakemake.cli

# What the Snakefile and Snakemake's own calls load on the way.
import jsonschema, numpy, psutil, smart_open, yaml
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit()
said = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for number in (1, 2):
    os.dup2(said, number)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.environ.clear()
os.environ.update(order["environment"])
os.chdir(order["root"])
sys.path[0] = order["root"]
sys.argv[:] = ["snakemake", *order["arguments"]]
snakemake.cli.main()
"""


class Server:
    """A process that makes one dry run at a time; it ends with this one."""

    def __init__(self) -> None:
        command, variables = [sys.executable, "-c", SERVER], {**os.environ, "PYTHONPATH": ""}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True)

    def run(self, order: Mapping[str, object]) -> int:
        """The exit status of Snakemake."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


_IDLE: list[Server] = []


def make(root: Path, environment: Mapping[str, str], arguments: Sequence[str]) -> tuple[int, str]:
    """Exit status of `snakemake --dry-run ...` in the project at root, and what it printed; threads may call it."""
    try:
        server = _IDLE.pop()
    except IndexError:
        server = Server()
    with tempfile.NamedTemporaryFile() as said:
        words = ["--dry-run", *arguments]
        order = {"root": str(root), "environment": dict(environment), "arguments": words, "output": said.name}
        code = server.run(order)
        _IDLE.append(server)
        return code, said.read().decode()
