"""Starts a command on behalf of srun: as often as a job has tasks, each with the number of its node.

    python -m perfscribe.experiments.launch_lines.tasks COMMAND …

It ends when as many tasks have ended as the job has nodes; what then still waits for a place is ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.05
OPTION = "--node_rank="
PATIENCE_S = 30.0


def main() -> int:
    """The tasks' own exit status, the first that is not 0."""
    command = sys.argv[1:]
    nodes, each = int(os.environ["NODES"]), int(os.environ["TASKS_PER_NODE"])
    told = next((part.removeprefix(OPTION) for part in command if part.startswith(OPTION)), None)
    tasks = []
    for node in range(nodes):
        for number in range(each):
            report = {"kind": "task", "node": node, "node_rank": told, "exported": os.environ.get("WORLD_SIZE")}
            name = f"task-{node}-{number}.json"
            Path(os.environ["REPORTS"], name).write_text(json.dumps(report), encoding="utf-8")
            tasks.append(subprocess.Popen(command, env={**os.environ, "SLURM_NODEID": str(node)}))
    return _wait(tasks, nodes)


def _wait(tasks: list[subprocess.Popen[bytes]], nodes: int) -> int:
    try:
        while sum(task.poll() == 0 for task in tasks) < nodes:
            failed = [task.returncode for task in tasks if task.returncode]
            if len(failed) > len(tasks) - nodes:
                return failed[0]
            time.sleep(POLL_S)
    finally:
        for task in tasks:
            if task.poll() is None:
                task.terminate()
        for task in tasks:
            try:
                task.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                task.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
