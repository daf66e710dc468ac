"""Launch lines as the FSDP workshop's job scripts have them, run: what torchrun and its ranks are told and then have.

A shell reads the lines as on a job's first node. In place of srun a program starts the tasks of all nodes on this
machine, each with its own SLURM_NODEID; torchruns and their rendezvous are the real ones. Facts of the workshop: its
multi-node job has a task on each node, its 16-GPU job one for each GPU; both hand --node_rank=$SLURM_NODEID to srun's
command, which the batch script's own shell has expanded by then, and export the number of nodes as WORLD_SIZE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.cells import Cell, Measurement

MULTI_NODE, LARGE, OURS = "workshop, multi-node", "workshop, 16 GPUs", "here"
TIMEOUT_S = 150.0
TASKS = "perfscribe.experiments.launch_lines.tasks"
RANK = "perfscribe.experiments.launch_lines.rank"
# $0: the interpreter; Slurm gives the batch script the number of its own, the first node.
WORKSHOP = (
    "export SLURM_NODEID=0 WORLD_SIZE=$NODES CUDA_VISIBLE_DEVICES=0\n"
    'exec "$0" -m $TASKS "$0" -m torch.distributed.run --nnodes=$NODES --nproc_per_node=$WORKERS'
    " --node_rank=$SLURM_NODEID --rdzv_backend=c10d --rdzv_id=1 --rdzv_endpoint=$ENDPOINT -m $RANK"
)
HERE = (
    'exec "$0" -m $TASKS "$0" -m torch.distributed.run --nnodes=$NODES --nproc-per-node=$WORKERS'
    " --rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$ENDPOINT -m $RANK"
)


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """The workshop's two kinds of line, and ours for the same places as the second."""
    nodes, gpus = config["nodes"], config["gpus_per_node"]
    return [
        _cell(MULTI_NODE, nodes, tasks_per_node=1, workers=1),
        _cell(LARGE, nodes, tasks_per_node=gpus, workers=gpus),
        _cell(OURS, nodes, tasks_per_node=1, workers=gpus),
    ]


def _cell(lines: str, nodes: int, tasks_per_node: int, workers: int) -> Cell:
    levels: dict[str, Any] = {"lines": lines, "nodes": nodes, "tasks_per_node": tasks_per_node, "workers": workers}
    return Cell(levels, cost=nodes * tasks_per_node)


def run(cell: Cell) -> Measurement:
    """Read the lines by a shell, and see what has started."""
    import json
    import os
    import shutil
    import socket
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    from perfscribe.cells import Unsupported

    shell = shutil.which("bash")
    if shell is None:
        raise Unsupported("no bash here")
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        told = {"NODES": cell["nodes"], "TASKS_PER_NODE": cell["tasks_per_node"], "WORKERS": cell["workers"]}
        told |= {"TASKS": TASKS, "RANK": RANK, "ENDPOINT": f"127.0.0.1:{port}", "REPORTS": folder}
        told |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": 1}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "WORLD_SIZE"))}
        lines = HERE if cell["lines"] == OURS else WORKSHOP
        done = subprocess.run(
            [shell, "-c", lines, sys.executable],
            env=kept | {name: str(value) for name, value in told.items()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
            raise RuntimeError(f"{cell['lines']}: ended with {done.returncode}: {last.strip()}")
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("*.json"))]
    return combine(cell, reports)


def combine(cell: Cell, reports: Sequence[Mapping[str, Any]]) -> Measurement:
    """Counts of what was started and what of it took part; what was told and what the ranks have."""
    tasks = [report for report in reports if report["kind"] == "task"]
    ranks = [report for report in reports if report["kind"] == "rank"]
    visible = sorted({_visible(report) for report in ranks})
    values = {
        "torchruns": len(tasks),
        "torchruns_joined": len({report["agent"] for report in ranks}),
        "workers_asked": len(tasks) * cell["workers"],
        "ranks": len({report["RANK"] for report in ranks}),
        "node_ranks_told": _listed(report["node_rank"] for report in tasks),
        "node_ranks": _listed(report["GROUP_RANK"] for report in ranks),
        "world_size_exported": _listed(report["exported"] for report in tasks),
        "world_size": _listed(report["WORLD_SIZE"] for report in ranks),
        "visible": ", ".join(visible),
    }
    return Measurement(values=values)


def _visible(report: Mapping[str, Any]) -> str:
    named = report["CUDA_VISIBLE_DEVICES"]
    return "all" if named is None else f"{len(named.split(','))} of {report['LOCAL_WORLD_SIZE']}"


def _listed(found: Any) -> str:
    return ", ".join(sorted({"none" if one is None else str(one) for one in found}))
