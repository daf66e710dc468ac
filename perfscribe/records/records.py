"""Records: what the cells of an experiment gave, one a cell and round in files, one a cell in memory."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, median_low
from typing import Any

from perfscribe.base import files
from perfscribe.records import form
from perfscribe.records.disturbances import flags_of
from perfscribe.records.form import STATUSES as STATUSES

SCHEMA = 1


def now_utc() -> str:
    """The time of day as a record keeps it, so fine that no two records of one cell have the same content, hence id."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def make(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A complete record from its fields, with an id made of its content."""
    record = {
        "schema": SCHEMA,
        "id": "",
        "origin": "measured",
        "reason": "",
        "samples": {},
        "warmup": {},
        "values": {},
        "series": {},
        "timers": {},
        "spent": {"warmup_s": 0.0, "timed_s": 0.0, "compile_s": 0.0, "wall_s": 0.0},
        "environment": "",
        "provenance": {},
        "watch": {},
        "flags": [],
        "data_digest": "",
        **fields,
    }
    return {**record, "id": hashlib.sha256(files.canonical(record).encode()).hexdigest()[:12]}


@dataclass
class Record:
    """What one cell gave, all rounds together.

    samples, warmup: for each name one list of raw samples a round.
    values, series: the median over rounds, of a series place by place; where they are not numbers, the first round's.
    ranges: of each figure in values, the greatest over rounds less the least; empty for one round.
    rounds: how many rounds count.
    reason: why the status is not ok; for oom, sizes asked and free stand in error.
    provenance: of the first round that counts; later: of those after it.
    gpu: what the driver calls the GPU of the machine that measured; empty where that is not known, or none, or several.
    """

    experiment: str
    factors: dict[str, Any]
    status: str
    reason: str
    origin: str
    samples: dict[str, list[list[float]]] = field(default_factory=dict)
    warmup: dict[str, list[list[float]]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, float] = field(default_factory=dict)
    rounds: int = 1
    timers: dict[str, str] = field(default_factory=dict)
    environments: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    later: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] = field(default_factory=dict)
    gpu: str = ""

    @property
    def provenances(self) -> list[dict[str, Any]]:
        """Of each round that counts."""
        return [one for one in (self.provenance, *self.later) if one]

    @property
    def ok(self) -> bool:
        """Whether the cell has figures."""
        return self.status == "ok"

    def has(self, **factors: Any) -> bool:
        """Whether the record's factors hold these levels."""
        return all(self.factors.get(name) == level for name, level in factors.items())


def _merge(rounds: Sequence[Mapping[str, Any]]) -> Record:
    """One record of a cell's rounds; the worst status counts, so that no round that failed is hidden.

    Rounds that are still to come hide none that were measured; a flag says how many there are.
    """
    planned, rounds = len(rounds), [r for r in rounds if r["status"] != "not_run"] or rounds
    started = any(r["status"] != "skipped" for r in rounds)
    short = [f"{len(rounds)} of {planned} rounds"] if started and len(rounds) < planned else []
    worst = max(rounds, key=lambda r: (r["status"] != "ok", STATUSES.index(r["status"])))
    # Where no round is ok, what the cell had measured before it failed.
    good = [r for r in rounds if r["status"] == "ok"] or [r for r in rounds if r["samples"] or r["values"]] or [worst]
    first = good[0]
    return Record(
        experiment=worst["experiment"],
        factors=dict(worst["factors"]),
        status=worst["status"],
        reason=worst["reason"],
        origin=worst["origin"],
        samples={name: [r["samples"][name] for r in good if name in r["samples"]] for name in first["samples"]},
        warmup={name: [r["warmup"].get(name, []) for r in good] for name in first["warmup"]},
        values={name: _middle([r["values"].get(name) for r in good]) for name in first["values"]},
        series={name: _middle_series([r["series"].get(name) for r in good]) for name in first["series"]},
        ranges=_ranges([r["values"] for r in good]),
        rounds=len(good),
        timers=dict(first["timers"]),
        environments=sorted({r["environment"] for r in rounds if r["environment"]}),
        flags=sorted({flag for r in rounds for flag in r["flags"]} | set(short)),
        provenance=dict(first["provenance"]),
        later=[r["provenance"] for r in good[1:]],
        error=dict(worst["provenance"].get("error", {})),
    )


def _middle(rounds: Sequence[Any]) -> Any:
    """The median of numbers, whole where they are whole; of anything else the first."""
    if len(rounds) == 1 or not all(map(is_number, rounds)):
        return rounds[0]
    return (median_low if all(isinstance(one, int) for one in rounds) else median)(rounds)


def _middle_series(rounds: Sequence[list[Any] | None]) -> list[Any]:
    first = rounds[0] or []
    alike = len(rounds) > 1 and all(one is not None and len(one) == len(first) for one in rounds)
    return [_middle(places) for places in zip(*rounds, strict=True)] if alike else list(first)  # type: ignore[arg-type]


def _ranges(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    if len(rounds) == 1:
        return {}
    held: dict[str, list[Any]] = {name: [one.get(name) for one in rounds] for name in rounds[0]}
    return {name: max(found) - min(found) for name, found in held.items() if all(map(is_number, found))}


def is_number(value: Any) -> bool:
    """Whether it is a figure: true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def merge_rounds(rows: Iterable[Mapping[str, Any]]) -> list[Record]:
    """One Record a cell, in the order of the plan, or that in which the cells first appear."""
    by_cell: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault(files.canonical(row["factors"]), []).append({**row, "flags": flags_of(row)})
    return [_merge(rounds) for rounds in sorted(by_cell.values(), key=lambda rounds: rounds[0].get("order", 0))]


def load(paths: Iterable[Path]) -> list[Record]:
    """All cells of an experiment from its records files, in the order of their levels, whatever the shards."""
    paths = list(paths)
    with form.as_written(paths[0].parent if paths else Path()):
        return merge_rounds(row for path in paths for row in rows_of(path))


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a records file, one at a time; ValueError with one line that names the file where one is broken."""
    try:
        with open(path, "rb") as stream:
            yield from map(form.record, map(json.loads, stream))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as records ({error})") from error


def load_by_experiment(paths: Iterable[Path], environments: Path | None = None) -> dict[str, list[Record]]:
    """Cells by experiment; a records file lies in a folder of its experiment's name.

    environments: the folder with what is known of the machines, which names their GPUs.
    """
    grouped: dict[str, list[Path]] = {}
    for path in paths:
        grouped.setdefault(path.parent.name, []).append(path)
    found = {name: load(sorted(group)) for name, group in grouped.items()}
    if environments is not None:
        known = {path.stem: str(files.read_object(path).get("gpu_model") or "") for path in environments.glob("*.json")}
        for record in (record for cells in found.values() for record in cells):
            models = {known.get(one, "") for one in record.environments}
            record.gpu = models.pop() if len(models) == 1 else ""
    return found
