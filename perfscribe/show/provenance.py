"""Who measured: short names of machines and commits, and the line under every figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.records.disturbances import variables_told
from perfscribe.records.records import Record

# In the provenance of a published record from a cluster, in place of the node's name.
NODE_NUMBER = "node_number"
# How variables that say how processes talk to each other begin.
COMMUNICATION = re.compile("(TORCH_)?NCCL_(?!VERSION$)|TORCH_(SYMM_MEM|DISTRIBUTED)_")


def environment_ids(records: Iterable[Record]) -> list[str]:
    """Ids of all environments that these records were measured in, sorted."""
    return sorted({name for record in records for name in record.environments})


def device_name(identity: Mapping[str, Any]) -> str:
    """Short name of a machine: its GPUs, or its processor where it has none."""
    if "cpu_model" not in identity:
        return "a machine whose description is lost"
    gpus = identity.get("gpu_count") or 0
    if gpus:
        return f"{gpus} × {identity['gpu_model']}"
    return f"{identity['cpu_model']}, {identity['cpu_cores']} cores, no GPU"


def devices_of(ids: str, environments: Path) -> str:
    """The machines of a row's environments, which its CSV joins by +."""
    found = {device_name(files.read_object(environments / f"{one}.json")) for one in ids.split("+")}
    return " and ".join(sorted(found))


def commit_name(provenance: Mapping[str, Any]) -> str:
    """The commit that a record was measured at, + where there were changes beside it."""
    commit = provenance.get("commit")
    return f"{commit[:10]}{'+' if provenance.get('dirty') else ''}" if commit else "unknown"


def node_name(provenance: Mapping[str, Any]) -> str:
    """The node that measured; its number at a published site, which has no names."""
    number = provenance.get(NODE_NUMBER)
    return f"node {number}" if number else str(provenance.get("node"))


def telling_variables(records: Iterable[Record]) -> list[str]:
    """Variables of communication, and those that change times, as NAME=value: one text for each set that records have.

    Left out are paths, versions and what compiling reads.
    """
    found = set()
    for variables in (one.get("variables", {}) for record in records if record.ok for one in record.provenances):
        told = [f"{name}={text}" for name, text in variables.items() if COMMUNICATION.match(name)]
        if variables:
            found.add(", ".join(sorted({*told, *variables_told(variables)})))
    return sorted(found)


def scheduler_name(provenance: Mapping[str, Any]) -> str:
    """Whose job measured a record of a cluster."""
    return {"slurm": "Slurm", "cluster-generic": "PBS"}[provenance["cluster"]["executor"]]


def _counts(records: Iterable[Record], sample: str) -> str:
    sizes = {sum(map(len, record.samples[sample])) for record in records if sample in record.samples}
    return f"n = {' to '.join(map(str, sorted({min(sizes), max(sizes)})))} a cell · " if sizes else ""


def figure_footer(records: Sequence[Record], site: str, environments: Path, sample: str) -> str:
    """Who measured what a figure shows: site, device, number of samples, environment, commit.

    sample: whose samples are counted; a figure of figures that are no samples names none, and its caption says why.
    """
    measured = [record for record in records if record.ok]
    if not measured:
        return f"site {site}: no cell was measured"
    ids = environment_ids(measured)
    devices = sorted({device_name(files.read_object(environments / f"{name}.json")) for name in ids})
    commits = sorted({commit_name(one) for record in measured for one in record.provenances})
    where = f"environment {', '.join(ids)} · commit {', '.join(commits)}"
    return f"site {site}: {'; '.join(devices)} · {_counts(measured, sample)}{where}"
