"""Small sites made by hand, for comparisons: a plan, a journal, an identity."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import journal, records

CODE, OTHER_CODE = "a" * 16, "b" * 16
FIRST, SECOND = "1" * 40, "2" * 40
SET = "numbers"


@dataclass
class Measured:
    """What one cell gave. rounds: samples of time_ms, a list a round, or of the samples named by `sample`."""

    factors: dict[str, Any]
    rounds: Sequence[Sequence[float]] = ()
    status: str = "ok"
    values: dict[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()
    sample: str = "time_ms"
    timer: str = "host clock"
    code: str = CODE
    commit: str = FIRST
    dirty: bool = False


def steady(time_ms: float, rounds: int = 6, samples: int = 5) -> list[list[float]]:
    """Samples around a time, a few per mille apart, as are the medians of rounds."""
    return [
        [time_ms * (1 + 0.002 * (3 * number % 5 - 2) + 0.001 * (place - 2)) for place in range(samples)]
        for number in range(rounds)
    ]


def identity(**parts: Any) -> dict[str, Any]:
    """A machine with one GPU."""
    return {
        "gpu_model": "GPU One",
        "gpu_count": 1,
        "gpu_memory_bytes": 2**33,
        "gpu_power_limit_w": 300,
        "driver_version": "1.0",
        "cpu_model": "CPU One",
        "cpu_cores": 4,
        "python": "3.12",
        "platform": "Linux x86_64",
        "libraries": {"torch": "2.9.0"},
        **parts,
    }


def write_site(
    root: Path,
    site: str,
    cells: Sequence[Measured],
    *,
    machine: dict[str, Any] | None = None,
    data: str = "",
    extra: Sequence[Measured] = (),
) -> None:
    """results/<site> of the experiment `probe`; `local` as a run leaves it, any other as it is published.

    data: digest of the data set that every cell reads. extra: records in the journal that the plan does not ask for.
    """
    folder = root / "results" / site
    rounds = max((len(cell.rounds) for cell in cells), default=1) or 1
    unit = {
        "unit": "measure",
        "experiment": "probe",
        "shard": 0,
        "fingerprint": cells[0].code if cells else CODE,
        "rounds": rounds,
        "seed": 0,
        "on_identity_change": "keep",
        "datasets": [SET] if data else [],
        "cells": [
            {
                "position": place,
                "factors": cell.factors,
                "requires": [],
                "cost": 1,
                "data": [SET] * bool(data),
                "skip": "",
            }
            for place, cell in enumerate(cells)
        ],
    }
    made = plan.Plan(site, "tiny", ("cs336",), shards={"probe": 1})
    made.units["measure-probe-0"] = unit
    made.write(folder / "plan")
    name = f"{site}-machine"
    files.write_json(folder / "environments" / f"{name}.json", machine or identity())
    if data:
        files.write_json(folder / "data" / f"{SET}.digest", {"arrays": data})
    lines = [line for cell in (*extra, *cells) for line in _lines(cell, name, data)]
    text = b"".join(map(journal.as_line, lines))
    if site == "local":
        files.write_bytes(folder / "journal" / "probe" / "0.jsonl", text)
    else:
        files.write_bytes(folder / "journal" / "probe" / "0.jsonl.gz", gzip.compress(text, mtime=0))
        files.write_json(folder / "published.json", {"version": "0", "commit": FIRST, "dirty": False})


def _lines(cell: Measured, environment: str, data: str) -> list[dict[str, Any]]:
    """A record a round."""
    return [
        {
            "event": "record",
            **records.make(
                {
                    "experiment": "probe",
                    "key": cell_key("probe", cell.factors, cell.code, data, 0),
                    "round": number,
                    "factors": cell.factors,
                    "status": cell.status,
                    "reason": "" if cell.status == "ok" else "of the test",
                    "samples": {cell.sample: list(samples)} if samples else {},
                    "timers": {cell.sample: cell.timer} if samples else {},
                    "values": cell.values,
                    "flags": list(cell.flags),
                    "environment": environment,
                    "provenance": {"commit": cell.commit, "dirty": cell.dirty, "time": f"2026-01-0{number}"},
                    "fingerprint": cell.code,
                    "data_digest": data,
                }
            ),
        }
        for number, samples in enumerate(cell.rounds or [[]], start=1)
    ]
