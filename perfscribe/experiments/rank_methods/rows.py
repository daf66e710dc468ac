"""Records of launches and bindings as the rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.distributed import binding
from perfscribe.distributed.mpi_start import METHODS
from perfscribe.experiments.rank_methods import polaris
from perfscribe.experiments.rank_methods.words import BOUND, LAUNCHED
from perfscribe.experiments.rank_methods.words import METHODS as TITLES
from perfscribe.instruments.statistics import summarise
from perfscribe.records.records import Record
from perfscribe.show import references

ALL = "all"
NOT_RUN_HERE = "of another machine"
NO_GPU = "no GPU"


def _said(record: Record, rank: int) -> dict[str, Any]:
    return {method: record.series[f"said_{method}"][rank] for method in METHODS}


def _row(record: Record, values: dict[str, Any], **factors: Any) -> Record:
    return replace(record, factors={**record.factors, **factors}, samples={}, values=values)


def by_rank(records: Sequence[Record]) -> list[Record]:
    """A row for each rank of each launch."""
    result = []
    for record in (one for one in records if one.factors["part"] == LAUNCHED):
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
        "agreement": _agreement(method, said),
        "rank_training_s": record.series["training_s_by_rank"][rank],
        "training_s": total_s,
        "first_epoch_s": epochs_s[0],
        "later_epoch_s": sorted(epochs_s[1:])[len(epochs_s[1:]) // 2] if epochs_s[1:] else "one epoch",
        "samples_per_s": trained / total_s,
    }


def _agreement(method: str, said: Mapping[str, Any]) -> str:
    """Which of the methods that say anything on this rank say the same as this one, and which do not."""
    heard = {name: one for name, one in said.items() if isinstance(one, list) and name != method}
    same = [TITLES[name] for name, one in heard.items() if one == said[method]]
    others = [f"{TITLES[name]}: rank {one[0]} of {one[1]}" for name, one in heard.items() if one != said[method]]
    parts = ["as " + ", ".join(same)] if same else []
    parts += ["unlike " + "; ".join(others)] if others else []
    return "; ".join(parts) or "no other says anything"


def by_binding(records: Sequence[Record]) -> list[Record]:
    """A row for each rank of each binding: what was asked, what was granted, where its GPU's nearest cores are."""
    result = []
    for record in (one for one in records if one.factors["part"] == BOUND):
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
