"""Table and answers of launch_lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfscribe import figures as f
from perfscribe import tables as t
from perfscribe.experiments.launch_lines.measure import LARGE, MULTI_NODE, OURS
from perfscribe.findings import Finding, counted, find, need
from perfscribe.records import Record
from perfscribe.tables import Table

TABLES = ("fsdp.launch_lines",)
FIGURES = ()
NODES_OF_16, GPUS_OF_16 = 2, 8  # of the workshop's largest job
NOTE = (
    "The lines are read by a shell as on a job's first node; a program in srun's place starts the tasks of all nodes "
    "on this machine, each with its own SLURM_NODEID. torchrun, its rendezvous (c10d) and its ranks are real. Joined: "
    "torchruns that have started ranks. WORLD_SIZE exported: by the batch script, as the workshop's. GPUs visible: of "
    "those that a node's ranks need, as CUDA_VISIBLE_DEVICES names them in one version of the workshop's scripts."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """What was told and what came of it."""
    return [t.make(TABLES[0], "Launch lines, read and run", records["launch_lines"], columns(), [NOTE])]


def columns() -> list[t.Column]:
    """Processes, then variables."""
    return [
        t.factor("lines", "Lines"),
        t.factor("nodes", "Nodes"),
        t.factor("tasks_per_node", "Tasks a node"),
        t.factor("workers", "Ranks a torchrun"),
        t.value("torchruns", "torchruns started", exact=True),
        t.value("torchruns_joined", "joined", exact=True),
        t.value("workers_asked", "Ranks asked for", exact=True),
        t.value("ranks", "Ranks there", exact=True),
        t.value("node_ranks_told", "--node_rank told", exact=True),
        t.value("node_ranks", "Node ranks given", exact=True),
        t.value("world_size_exported", "WORLD_SIZE exported", exact=True),
        t.value("world_size", "WORLD_SIZE of the ranks", exact=True),
        t.value("visible", "GPUs visible", exact=True),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """None: counts."""
    return []


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """The workshop's defects in its launch lines, each with what came of it here."""
    rows = tables[TABLES[0]].ok
    return [
        find("fsdp.defect_node_rank", TABLES, lambda: node_rank(rows)),
        find("fsdp.defect_agents", TABLES, lambda: agents(rows)),
        find("fsdp.defect_exports", TABLES, lambda: exports(rows)),
    ]


def _row(rows: pd.DataFrame, lines: str) -> Any:
    return need(rows[rows["lines"] == lines], 1, f"lines ({lines})").iloc[0]


def node_rank(rows: pd.DataFrame) -> tuple[str, str]:
    """--node_rank, expanded once for all nodes (first half of defect 13)."""
    theirs, ours = _row(rows, MULTI_NODE), _row(rows, OURS)
    told, given = theirs["node_ranks_told"], theirs["node_ranks"]
    harmless = f"It does no harm: the c10d rendezvous does not read it and gives {given}, as it does"
    harm = f"The ranks' nodes are {given}, and {ours['node_ranks']}"
    return (
        f"No: $SLURM_NODEID is expanded where the batch script runs, so that the torchruns of {theirs['nodes']} nodes "
        f"are all told --node_rank {told}. {harmless if given == ours['node_ranks'] else harm} where nothing is told.",
        "contradicted",
    )


def agents(rows: pd.DataFrame) -> tuple[str, str]:
    """A torchrun for each GPU, each with a rank for each GPU (second half of defect 13)."""
    theirs, ours = _row(rows, LARGE), _row(rows, OURS)
    started, asked = NODES_OF_16 * GPUS_OF_16, NODES_OF_16 * GPUS_OF_16 * GPUS_OF_16
    return (
        f"With a task for each of {theirs['tasks_per_node']} GPUs on {theirs['nodes']} nodes {theirs['torchruns']} "
        f"torchruns start and ask for {theirs['workers_asked']} ranks, {theirs['torchruns_joined']} join and make "
        f"{theirs['ranks']}, the rest waits; with one a node it is {counted(int(ours['torchruns']), 'torchrun')} for "
        f"{ours['ranks']} ranks. The workshop's largest job starts {started} on {NODES_OF_16} nodes, which ask for "
        f"{asked} ranks where there are {NODES_OF_16 * GPUS_OF_16} GPUs.",
        "contradicted",
    )


def exports(rows: pd.DataFrame) -> tuple[str, str]:
    """WORLD_SIZE and CUDA_VISIBLE_DEVICES as the scripts export them (defect 14)."""
    theirs, ours = _row(rows, LARGE), _row(rows, OURS)
    return (
        f"Of WORLD_SIZE nothing is left: {theirs['world_size_exported']} is exported, torchrun gives each rank "
        f"{theirs['world_size']}, and without an export {ours['world_size']}. CUDA_VISIBLE_DEVICES is not set right: "
        f"with it a rank sees {theirs['visible']} GPUs of its node's ranks, without it {ours['visible']}. A fixed id "
        "of a W&B run lets a rerun write into the run before; here a run's id is made from its record.",
        "contradicted",
    )
