"""Records: results of cells, one per cell and round in files, one per cell in memory."""

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

SCHEMA = 1


def now_utc() -> str:
    """Current UTC time in microseconds, so that equal results of one cell still get different ids."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def make(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a record from its fields; its id is a hash of the content."""
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
    """Results of one cell, all rounds combined.

    samples, warmup: by name, one list of raw samples per round.
    values, series: median over rounds, elementwise for series; non-numbers are those of the first round.
    ranges: maximum less minimum over rounds of each number in values; empty for one round.
    rounds: number of rounds that count.
    reason: why the status is not ok; for oom, `error` has the requested and free sizes.
    provenance: of the first round that counts; later: of the others.
    gpu: model name by the driver; empty if unknown, without a GPU, or if machines differ.
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
        """Provenance of each round that counts."""
        return [provenance for provenance in (self.provenance, *self.later) if provenance]

    @property
    def boots(self) -> set[str]:
        """Boots of the machines that measured its rounds, as far as their records tell."""
        return {provenance["boot"] for provenance in self.provenances if provenance.get("boot")}

    @property
    def ok(self) -> bool:
        """Return whether the cell has figures."""
        return self.status == "ok"

    def has(self, **factors: Any) -> bool:
        """Return whether the factors have these levels."""
        return all(self.factors.get(name) == level for name, level in factors.items())

    def levels(self, *names: str) -> tuple[Any, ...]:
        """Levels of these factors, a key to group records by."""
        return tuple(self.factors[name] for name in names)


def _merge(rounds: Sequence[Mapping[str, Any]]) -> Record:
    """Merge a cell's rounds; the worst status wins, so that failed rounds are visible.

    Rounds not yet run do not hide measured ones; a flag counts them.
    """
    planned, rounds = len(rounds), [r for r in rounds if r["status"] != "not_run"] or rounds
    started = any(r["status"] != "skipped" for r in rounds)
    short = [f"{len(rounds)} of {planned} rounds"] if started and len(rounds) < planned else []
    worst = max(rounds, key=lambda r: (r["status"] != "ok", form.STATUSES.index(r["status"])))
    # If no round is ok, use what was measured before the failure.
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
    """Median of numbers, an integer for integers; for anything else the first."""
    if len(rounds) == 1 or not all(map(is_number, rounds)):
        return rounds[0]
    return (median_low if all(isinstance(value, int) for value in rounds) else median)(rounds)


def _middle_series(rounds: Sequence[list[Any] | None]) -> list[Any]:
    first = rounds[0] or []
    alike = len(rounds) > 1 and all(values is not None and len(values) == len(first) for values in rounds)
    return [_middle(places) for places in zip(*rounds, strict=True)] if alike else list(first)  # type: ignore[arg-type]


def _ranges(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    if len(rounds) == 1:
        return {}
    by_name: dict[str, list[Any]] = {name: [values.get(name) for values in rounds] for name in rounds[0]}
    return {name: max(values) - min(values) for name, values in by_name.items() if all(map(is_number, values))}


def is_number(value: Any) -> bool:
    """Return whether it is an int or float, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def merge_rounds(rows: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Merge rows into one Record per cell, in the plan's order, else in order of first appearance."""
    by_cell: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault(files.canonical(row["factors"]), []).append({**row, "flags": flags_of(row)})
    return [_merge(rounds) for rounds in sorted(by_cell.values(), key=lambda rounds: rounds[0].get("order", 0))]


def load(paths: Iterable[Path]) -> list[Record]:
    """Load all cells of an experiment from the records files of its shards, in the plan's order."""
    paths = list(paths)
    with form.as_written(paths[0].parent if paths else Path()):
        return merge_rounds(row for path in paths for row in rows_of(path))


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a records file; a malformed row raises a one-line ValueError that names the file."""
    try:
        with open(path, "rb") as stream:
            yield from map(form.record, map(json.loads, stream))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as records ({error})") from error


def load_by_experiment(paths: Iterable[Path], environments: Path | None = None) -> dict[str, list[Record]]:
    """Load cells by experiment, which is the name of a records file's folder.

    environments: folder of machine identities, from which Record.gpu is set.
    """
    grouped: dict[str, list[Path]] = {}
    for path in paths:
        grouped.setdefault(path.parent.name, []).append(path)
    experiments = {name: load(sorted(group)) for name, group in grouped.items()}
    if environments is not None:
        gpus = {path.stem: str(files.read_object(path).get("gpu_model") or "") for path in environments.glob("*.json")}
        for record in (record for cells in experiments.values() for record in cells):
            models = {gpus.get(identity, "") for identity in record.environments}
            record.gpu = models.pop() if len(models) == 1 else ""
    return experiments
