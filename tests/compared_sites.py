"""Small sites made by hand, for comparisons: a plan, a journal, an identity."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planned_site import journal_file, planned, record

from perfscribe.base import files
from perfscribe.base.cells import Cell
from perfscribe.records import journal

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
    gpu = {"gpu_model": "GPU One", "gpu_count": 1, "gpu_memory_bytes": 2**33, "gpu_power_limit_w": 300}
    machine = {"driver_version": "1.0", "cpu_model": "CPU One", "cpu_cores": 4, "python": "3.12"}
    return {**gpu, **machine, "platform": "Linux x86_64", "libraries": {"torch": "2.9.0"}, **parts}


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
    folder, name = root / "results" / site, f"{site}-machine"
    reads = (SET,) if data else ()
    unit = {"fingerprint": cells[0].code, "rounds": max(1, *(len(cell.rounds) for cell in cells)), "datasets": reads}
    planned(root, [Cell(cell.factors, data=reads) for cell in cells], site, **unit)
    files.write_json(folder / "environments" / f"{name}.json", machine or identity())
    if data:
        files.write_json(folder / "data" / f"{SET}.digest", {"arrays": data})
    lines = [line for cell in (*extra, *cells) for line in _lines(cell, environment=name, data_digest=data)]
    text = b"".join(map(journal.as_line, lines))
    if site == "local":
        files.write_bytes(journal_file(root), text)
    else:
        files.write_bytes(folder / "journal" / "probe" / "0.jsonl.gz", gzip.compress(text, mtime=0))
        files.write_json(folder / "published.json", {"version": "0", "commit": FIRST, "dirty": False})


def _lines(cell: Measured, **fields: Any) -> Iterator[dict[str, Any]]:
    """A record a round."""
    fields |= {"factors": cell.factors, "values": cell.values, "flags": cell.flags, "fingerprint": cell.code}
    for number, samples in enumerate(cell.rounds or [[]], start=1):
        timed = {"samples": {cell.sample: list(samples)}, "timers": {cell.sample: cell.timer}} if samples else {}
        told = {"commit": cell.commit, "dirty": cell.dirty, "time": f"2026-01-0{number}"}
        one = record(status=cell.status, **{"samples": {}, **timed}, round=number, provenance=told, **fields)
        yield {"event": "record", **one}
