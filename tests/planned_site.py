"""A planned site of one experiment `probe`, and records of its cells in the journal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscribe.base.cells import Cell
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key, cell_to_json
from perfscribe.records import journal, records

CODE = "f" * 16


def cell(n: int, **fields: Any) -> Cell:
    """The cell n, whose cost is n."""
    return Cell({"n": n, "dtype": "fp32"}, cost=float(n), **fields)


def planned(root: Path, cells: Sequence[Cell], site: str = "local", **fields: Any) -> plan.Plan:
    """Its plan, written as a run writes it; fields replace those of the unit that measures."""
    made = plan.Plan(site, "tiny", ("cs336",), shards={"probe": 1})
    unit = {"experiment": "probe", "fingerprint": CODE, "seed": 0, "rounds": 1, "datasets": [], "shard": 0}
    listed = [{"position": place, **cell_to_json(one)} for place, one in enumerate(cells)]
    made.units["measure-probe-0"] = {**unit, "unit": "measure", "on_identity_change": "keep", "cells": listed, **fields}
    made.write(root / "results" / site / "plan")
    return made


def record(n: int = 1, status: str = "ok", wall_s: float = 2.0, **fields: Any) -> dict[str, Any]:
    """The record of the cell n, or of other factors."""
    factors = fields.get("factors", {"n": n, "dtype": "fp32"})
    key = cell_key("probe", factors, fields.get("fingerprint", CODE), fields.get("data_digest", ""), 0)
    own = {"experiment": "probe", "key": key, "round": 1, "factors": factors, "fingerprint": CODE}
    own |= {"status": status, "reason": "" if status == "ok" else "why"}
    own |= {"samples": {"time_ms": [1.0, 2.0, 4.0]} if status == "ok" else {}}
    own |= {"spent": {"warmup_s": 0.0, "timed_s": 0.0, "compile_s": 0.0, "wall_s": wall_s}}
    return records.make(own | fields)


def journal_file(root: Path, site: str = "local") -> Path:
    return root / "results" / site / "journal" / "probe" / "0.jsonl"


def keep(root: Path, *kept: dict[str, Any], site: str = "local") -> None:
    """Append records to the journal, as a worker does."""
    with journal.Journal(journal_file(root, site)) as book:
        for one in kept:
            book.record(one)
