"""Provenance in words: short names of machines and commits, and the footer of figures."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.records.disturbances import influential_variables
from perfscribe.records.records import Record

# Key in provenance of published records from a cluster, replacing the node's name.
NODE_NUMBER = "node_number"
# Prefixes of variables that affect communication between processes.
COMMUNICATION = re.compile("(TORCH_)?NCCL_(?!VERSION$)|TORCH_(SYMM_MEM|DISTRIBUTED)_")


def environment_ids(records: Iterable[Record]) -> list[str]:
    """Sorted ids of all environments in which these records were measured."""
    return sorted({name for record in records for name in record.environments})


def device_name(identity: Mapping[str, Any]) -> str:
    """Short name of a machine: its GPUs, or its processor if it has none."""
    if "cpu_model" not in identity:
        return "a machine whose description is lost"
    gpus = identity.get("gpu_count") or 0
    if gpus:
        return f"{gpus} × {identity['gpu_model']}"
    return f"{identity['cpu_model']}, {identity['cpu_cores']} cores, no GPU"


def devices_of(ids: str, environments: Path) -> str:
    """Names of a row's machines; ids: environments joined by +, as in the CSV."""
    names = {device_name(files.read_object(environments / f"{name}.json")) for name in ids.split("+")}
    return " and ".join(sorted(names))


def commit_name(provenance: Mapping[str, Any]) -> str:
    """Short commit of a record, with + for uncommitted changes."""
    commit = provenance.get("commit")
    return f"{commit[:10]}{'+' if provenance.get('dirty') else ''}" if commit else "unknown"


def node_name(provenance: Mapping[str, Any]) -> str:
    """Node of a record; on published sites its number, as names are removed."""
    number = provenance.get(NODE_NUMBER)
    return f"node {number}" if number else str(provenance.get("node"))


def of_boots(rows: Iterable[frozenset[str]]) -> str:
    """Remark on rows, each with its boots, that were measured in several; "" for one, or where records tell none."""
    distinct = {boots for boots in rows if boots}
    count = len(frozenset[str]().union(*distinct))
    if count < 2:
        return ""
    if len(distinct) == 1:
        return f"each row is of the same {count} boots or hosts, so ± includes their differences"
    return f"rows ran on {count} boots or hosts, which may cause differences and ±"


def telling_variables(records: Iterable[Record]) -> list[str]:
    """Variables that affect communication or times, as NAME=value: one text per distinct set in the records.

    Excludes paths, versions and variables of compilers.
    """
    texts = set()
    for variables in (p.get("variables", {}) for record in records if record.ok for p in record.provenances):
        communication = [f"{name}={text}" for name, text in variables.items() if COMMUNICATION.match(name)]
        if variables:
            texts.add(", ".join(sorted({*communication, *influential_variables(variables)})))
    return sorted(texts)


def scheduler_name(provenance: Mapping[str, Any]) -> str:
    """Name of the scheduler whose job measured a record."""
    return {"slurm": "Slurm", "cluster-generic": "PBS"}[provenance["cluster"]["executor"]]


def _counts(records: Iterable[Record], sample: str) -> str:
    sizes = {sum(map(len, record.samples[sample])) for record in records if sample in record.samples}
    return f"n = {' to '.join(map(str, sorted({min(sizes), max(sizes)})))} a cell · " if sizes else ""


def figure_footer(records: Sequence[Record], site: str, environments: Path, sample: str) -> str:
    """Footer of a figure: site, device, number of samples, environment, commit.

    sample: name of the sample to count; "" for figures without samples, whose caption explains this.
    """
    measured = [record for record in records if record.ok]
    if not measured:
        return f"site {site}: no cell was measured"
    ids = environment_ids(measured)
    devices = sorted({device_name(files.read_object(environments / f"{name}.json")) for name in ids})
    commits = sorted({commit_name(provenance) for record in measured for provenance in record.provenances})
    where = f"environment {', '.join(ids)} · commit {', '.join(commits)}"
    return f"site {site}: {'; '.join(devices)} · {_counts(measured, sample)}{where}"
