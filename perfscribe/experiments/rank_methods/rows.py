"""Records of launches, recordings and bindings as the rows of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfscribe import references
from perfscribe.experiments.rank_methods import judging, polaris
from perfscribe.experiments.rank_methods.words import BOUND, HERE, LAUNCHED, RECORDED
from perfscribe.parallel import binding
from perfscribe.parallel.mpi_start import METHODS, MODULO, SPLIT
from perfscribe.records import Record
from perfscribe.statistics import summarise

ALL = "all"
DETAILED = ("slurm_cyclic", "slurm_uneven")
NOT_RUN_HERE = "of another machine"
NO_GPU = "no GPU"
SEED = "polaris-homework-000"


def of(records: Sequence[Record], part: str) -> list[Record]:
    """The records of a part of the experiment."""
    return [record for record in records if record.factors["part"] == part]


def _said(record: Record, rank: int) -> dict[str, Any]:
    return {method: record.series[f"said_{method}"][rank] for method in METHODS}


def _row(record: Record, values: dict[str, Any], **factors: Any) -> Record:
    return replace(record, factors={**record.factors, **factors}, samples={}, values=values)


def by_rank(records: Sequence[Record]) -> list[Record]:
    """A row for each rank of each launch."""
    result = []
    for record in of(records, LAUNCHED):
        if not record.ok:
            result.append(_row(record, {}, rank=ALL))
            continue
        result += [_row(record, _ranks_values(record, rank), rank=rank) for rank in range(len(record.series["node"]))]
    return result


def _ranks_values(record: Record, rank: int) -> dict[str, Any]:
    method, said = record.factors["method"], _said(record, rank)
    cores = binding.cores_of_mask(record.series["mask"][rank])
    epochs_s = record.samples["epoch_s"][0]
    trained = record.factors["samples"] * record.factors["epochs"]
    total_s = summarise(record.samples["training_s"]).median
    return {
        "world_size_said": said[method][1],
        "local_rank": said[method][2],
        "host": record.series["host"][rank],
        "used_device": record.series["device"][rank],
        "mask": record.series["mask"][rank],
        "cores": binding.shown(cores),
        "cores_count": len(cores),
        "agreement": judging.agreement(method, said),
        "rank_training_s": record.series["training_s_by_rank"][rank],
        "training_s": total_s,
        "first_epoch_s": epochs_s[0],
        "later_epoch_s": sorted(epochs_s[1:])[len(epochs_s[1:]) // 2] if epochs_s[1:] else "one epoch",
        "samples_per_s": trained / total_s,
    }


def by_launch(records: Sequence[Record]) -> list[Record]:
    """A row for each launch and recording, with every method's verdict; a launcher's cells of all methods as one."""
    first: dict[Any, Record] = {}
    for record in of(records, LAUNCHED):
        key = (record.factors["launcher"], record.status == "skipped")
        if key not in first or (record.ok and not first[key].ok):
            first[key] = record
    known = {key[0] for key, record in first.items() if not key[1]}
    launches = [record for (launcher, skipped), record in first.items() if not (skipped and launcher in known)]
    return [_judged(record) for record in (*launches, *of(records, RECORDED))]


def _judged(record: Record) -> Record:
    here = record.factors["part"] == LAUNCHED
    factors = {"origin": "run here" if here else "recorded", "placement": record.factors.get("placement", "one node")}
    if not record.ok:
        return _row(record, {}, **factors)
    nodes = record.series["node"]
    values = {method: judging.judge(record.series[f"said_{method}"], nodes) for method in METHODS}
    values["ranks"] = f"{len(nodes)} on {len(set(nodes))}"
    values["source"] = HERE if here else record.values["source"]
    return _row(record, values, **factors)


def by_placement(records: Sequence[Record]) -> list[Record]:
    """A row for each rank of two recordings: ranks dealt out in turns, and nodes of unequal numbers of ranks."""
    result = []
    for record in of(records, RECORDED):
        if record.factors["recording"] not in DETAILED:
            continue
        if not record.ok:
            result.append(_row(record, {}, rank=ALL))
            continue
        nodes = record.series["node"]
        result += [_row(record, _placed(record, nodes, rank), rank=rank) for rank in range(len(nodes))]
    return result


def _placed(record: Record, nodes: Sequence[int], rank: int) -> dict[str, Any]:
    modulo = [one[2] for one in record.series[f"said_{MODULO}"]]
    shared = judging.sharers(modulo, nodes).get(rank, [])
    right = judging.truth(nodes)[rank][2]
    return {
        "node": nodes[rank],
        "gpus": record.values["gpus_per_node"],
        "true_local_rank": right,
        "modulo": modulo[rank],
        "modulo_verdict": judging.RIGHT if modulo[rank] == right else "wrong",
        "shared_with": f"rank {', '.join(map(str, shared))}" if shared else "nobody",
        "split": record.series[f"said_{SPLIT}"][rank][2],
        "own": record.series[f"said_{record.factors['launcher']}"][rank][2],
    }


def by_binding(records: Sequence[Record]) -> list[Record]:
    """A row for each rank of each binding: what was asked, what was granted, where its GPU's nearest cores are."""
    result = []
    for record in of(records, BOUND):
        if not record.ok:
            result.append(_row(record, {}, rank=ALL))
            continue
        result += [_row(record, _bound(record, rank), rank=rank) for rank in range(len(record.series["asked"]))]
    return result


def published_mask(record: Record, rank: Any) -> str:
    """The mask that a write-up's launcher reported; none for other bindings."""
    if (record.factors["machine"], record.factors["cpu_bind"]) != (polaris.NAME, polaris.HOMEWORK):
        return "none"
    found = references.find(references.load("rank_methods"), "cpu_mask", rank=rank)
    return found[0].text if found else "none"


def _bound(record: Record, rank: int) -> dict[str, Any]:
    asked = record.series["asked"][rank]
    own, nearest = record.series["granted"], record.series["gpu_cores"]
    known = own[rank] if own else published_mask(record, rank)
    known = known if known.startswith("0x") else ""
    near = binding.parse_cpu_bind(f"list:{nearest[rank]}")[0] if rank < len(nearest) else None
    cores = binding.cores_of_mask(known or asked)
    return {
        "asked_cores": binding.shown(binding.cores_of_mask(asked)),
        "asked_mask": asked,
        "granted_mask": own[rank] if own else NOT_RUN_HERE,
        "as_asked": ("yes" if int(known, 16) == int(asked, 16) else "no") if known else "not told",
        "gpu": rank if near else NO_GPU,
        "gpu_cores": nearest[rank] if near else NO_GPU,
        "nearness": binding.nearness(cores, near) if near else NO_GPU,
    }
