"""Summary of a site, saved with its tables: machines, software, days, numbers of cells by status."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.records import form
from perfscribe.records.disturbances import OF_WATCH
from perfscribe.records.form import STATUSES
from perfscribe.records.records import Record
from perfscribe.show.provenance import commit_name, device_name, environment_ids, node_name

NCCL = ("NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")


def of_site(plan: Mapping[str, Any], records: Mapping[str, Sequence[Record]], results: Path) -> dict[str, Any]:
    """Summarise a site. records: by experiment; results: the site's folder."""
    cells = [record for group in records.values() for record in group]
    known = {name: files.read_object(results / "environments" / f"{name}.json") for name in environment_ids(cells)}
    identities = known.values()
    ran = [record for record in cells if not record.values.get("before_start")]
    measured = [provenance for record in ran for provenance in record.provenances if provenance.get("time")]
    days = sorted(str(provenance["time"])[:10] for provenance in measured)
    statuses = Counter(record.status for record in cells)
    nodes = {node_name(record.provenance) for record in cells if record.provenance.get("cluster")}
    several = [int(record.factors.get("nodes") or 1) for record in cells if record.ok]
    with form.as_written(results / "environments"):
        names = {name: machine(identity) for name, identity in known.items()}
        ok = Counter(names[record.environments[0]] for record in cells if record.ok and record.environments)
        machines = sorted(ok or set(names.values()))
        gpus = max((int(identity.get("gpu_count") or 0) for identity in identities), default=0)
        software = _software(identities) | (_nccl_settings(cells) if gpus > 1 else {})
    return {
        "site": plan["site"],
        "preset": plan["preset"],
        "machines": [f"{name} ({ok[name]} cells)" for name in machines] if len(machines) > 1 else machines,
        "gpus": gpus,
        "nodes": max([len(nodes), *several]) if nodes else 0,
        "software": software,
        "first_day": days[0] if days else "",
        "last_day": days[-1] if days else "",
        "commits": sorted({commit_name(provenance) for provenance in measured}),
        "cells": {status: statuses[status] for status in STATUSES if statuses[status]},
        "disturbed": sum(any(flag.startswith(OF_WATCH) for flag in record.flags) for record in cells),
    }


def machine(identity: Mapping[str, Any]) -> str:
    """GPUs with nominal memory, and cores; or the processor; and whether the machine is virtual."""
    name = device_name(identity)
    virtual = identity.get("is_virtual")
    if not identity.get("gpu_count"):
        return name + ", virtual machine" * bool(virtual)
    memory = identity.get("gpu_memory_bytes")
    # Drivers report slightly less than 2³⁰ bytes per nominal GB: 140.4 GiB of 141 GB, 79.6 of 80.
    size = f" ({math.ceil(memory / 2**30)} GB)" if memory else ""
    return f"{name}{size}, {identity['cpu_cores']} cores{' of a virtual machine' if virtual else ''}"


def _nccl_settings(cells: Iterable[Record]) -> dict[str, list[str]]:
    """Values of variables that disable or select NCCL's transports and algorithms, which affect bandwidths."""
    environments = [record.provenance.get("variables", {}) for record in cells if record.ok]
    by_name = {name: sorted({env[name] for env in environments if name in env}) for name in NCCL}
    return {name: values for name, values in by_name.items() if values}


def _software(identities: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Versions of driver, CUDA, torch and Python; several if cells were measured under several."""
    known = [{**identity, **identity.get("libraries", {})} for identity in identities]
    keys = {"driver": "driver_version", "CUDA": "cuda_driver_version", "torch": "torch", "Python": "python"}
    by_name = {name: sorted({str(machine[key]) for machine in known if machine.get(key)}) for name, key in keys.items()}
    return {name: versions for name, versions in by_name.items() if versions}
