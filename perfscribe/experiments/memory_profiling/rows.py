"""Predicted peaks of a cell, and rows that are not simply one cell: a group of blocks, the three modes of a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from perfscribe.analytic import memory
from perfscribe.analytic.ledger import Items
from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.workload import Workload
from perfscribe.records.records import Record

PHASES = ("forward", "backward", "optimizer")
MODES = {"inference": "Forward under no_grad", "forward": "Forward with graph", "full_step": "Full step"}
SETTING = ("device", "size", "seq_len", "dtype", "batch")
SHOWN_GROUPS = 3
GROUP_FIELDS = ("size_bytes", "count", "phase", "kind", "frame", "below")


def items(record: Record) -> dict[str, Items]:
    """Predicted bytes by item at the peak of each phase; a pass without backward uses one cuBLAS handle, a step two."""
    f = record.factors
    handles = 2 if f["mode"] == "full_step" else 1
    load = Workload(SIZES[f["size"]], f["batch"], f["seq_len"], f["dtype"], f["device"], cublas_handles=handles)
    return _items(load, f["mode"])


@cache
def _items(load: Workload, mode: str) -> dict[str, Items]:
    if mode == "inference":
        return {"forward": memory.inference_peak(load)}
    if mode == "forward":
        return {"forward": memory.forward_peak(load)}
    # torch.optim.AdamW takes foreach on CUDA and the loop over tensors on a CPU.
    return memory.step_phase_peaks(load, "foreach" if load.device == "cuda" else "for-loop")


def peak_bytes(record: Record) -> int:
    """Predicted peak of the whole pass."""
    return max(memory.total_bytes(phase) for phase in items(record).values())


def of_mode(cells: Sequence[Record], mode: str) -> list[Record]:
    """The cells of one mode, without that factor."""
    return [
        replace(record, factors={name: level for name, level in record.factors.items() if name != "mode"})
        for record in cells
        if record.factors["mode"] == mode
    ]


def by_context(cells: Sequence[Record]) -> list[Record]:
    """One record a size, context and dtype: the peak of each mode, or its status; and those of fp32 beside them."""
    settings: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in cells:
        key = tuple(record.factors[name] for name in SETTING)
        settings.setdefault(key, {})[record.factors["mode"]] = record
    return [_merged(key, modes, settings) for key, modes in settings.items()]


def _merged(key: tuple[Any, ...], modes: dict[str, Record], settings: dict[Any, dict[str, Record]]) -> Record:
    dtype = SETTING.index("dtype")
    in_fp32 = settings.get((*key[:dtype], "fp32", *key[dtype + 1 :]), {})
    ok = [record for record in modes.values() if record.ok]
    first = ok[0] if ok else next(iter(modes.values()))
    values: dict[str, Any] = {}
    for mode in MODES:
        values[mode] = _peak(modes.get(mode))
        values[f"{mode}_fp32"] = _peak(in_fp32.get(mode))
    return replace(
        first,
        factors=dict(zip(SETTING, key, strict=True)),
        values=values if ok else {},
        environments=sorted({name for record in modes.values() for name in record.environments}),
        flags=sorted({flag for record in modes.values() for flag in record.flags}),
    )


def _peak(record: Record | None) -> Any:
    if record is None:
        return "not planned"
    return record.values["peak_bytes"] if record.ok else record.status


def largest(cells: Sequence[Record]) -> list[Record]:
    """The first groups of each cell at the longest context of its size; a cell without figures stays one row."""
    found = []
    for record in cells:
        f = record.factors
        alike = [r.factors["seq_len"] for r in cells if r.has(device=f["device"], size=f["size"])]
        if f["seq_len"] == max(alike):
            found += [replace(record, factors={**f, "rank": rank}, values=v) for rank, v in _groups(record)]
    return found


def _groups(record: Record) -> list[tuple[Any, dict[str, Any]]]:
    if not record.ok:
        return [("all", {})]
    columns = [record.series[f"group_{name}"][:SHOWN_GROUPS] for name in GROUP_FIELDS]
    groups = [dict(zip(GROUP_FIELDS, group, strict=True)) for group in zip(*columns, strict=True)]
    return list(enumerate(groups, start=1))
