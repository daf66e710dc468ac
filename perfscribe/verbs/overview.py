"""What `./run plan` prints: every cell, what the journal says of it, and how long the rest may take."""

from __future__ import annotations

from pathlib import Path

from tabulate import tabulate

from perfscribe.base import files
from perfscribe.plan.plan import Plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import environment, journal
from perfscribe.run import leases
from perfscribe.run.progress import Pace, duration

UNKNOWN = "no estimate: no cell of it was measured yet with this preset"


def _status(unit: dict, cell: dict, number: int, records: dict[str, list[dict]]) -> tuple[str, dict | None]:
    """A cell's status in the journal, and the newest record of the same factors, whatever its code."""
    lacking = environment.shortfall(cell["requires"])
    cannot = f"{lacking[0]} ({lacking[1]})" if lacking else ""
    if cell["skip"]:
        return cannot or f"skipped ({cell['skip']})", None
    same = records.get(repr(sorted(cell["factors"].items())), [])
    current = [r for r in same if r["fingerprint"] == unit["fingerprint"] and r["round"] == number]
    if current and current[-1]["values"].get("before_start"):
        current = []  # what was lacking then is asked anew
    if current and (cell["data"] or current[-1]["key"] == _key(unit, cell)):
        return current[-1]["status"], current[-1]
    if cannot:
        return cannot, None
    if not same:
        return "to measure", None
    code_changed = all(r["fingerprint"] != unit["fingerprint"] for r in same)
    why = " (code changed)" if code_changed else " (seed changed)" if current else ""
    return f"to measure{why}", same[-1]


def _key(unit: dict, cell: dict) -> str:
    return cell_key(unit["experiment"], cell["factors"], unit["fingerprint"], "", unit["seed"])


Waiting = list[tuple[int, dict, dict | None]]  # a cell's shard, the cell, and its record of last time


def _estimate(waiting: Waiting, done: list[tuple[dict, dict]]) -> dict[int, float] | None:
    """Seconds for the waiting cells of each shard: as long as last time, else in proportion to their cost."""
    pace = Pace()
    known = [*done, *((cell, record) for _, cell, record in waiting if record is not None)]
    for cell, record in known:
        pace.add(record["spent"]["wall_s"], cell["cost"])
    if waiting and not known:
        return None
    seconds: dict[int, float] = {}
    for shard, cell, last in waiting:
        expected_s = last["spent"]["wall_s"] if last else pace.expected_s(cell["cost"])
        seconds[shard] = seconds.get(shard, 0.0) + expected_s
    return seconds


def _experiment(root: Path, plan: Plan, experiment: str) -> tuple[list[list[object]], dict[int, float] | None]:
    history = journal.read(root / "results" / plan.site / "journal" / experiment)
    records: dict[str, list[dict]] = {}
    for record in history.all_records():
        records.setdefault(repr(sorted(record["factors"].items())), []).append(record)
    rows: list[list[object]] = []
    waiting: Waiting = []
    done: list[tuple[dict, dict]] = []
    for shard in range(plan.shards[experiment]):
        name = f"measure-{experiment}-{shard}"
        # Of a committed site only what says how it is shown is planned anew.
        unit = plan.units.get(name) or files.read_json(root / "results" / plan.site / "plan" / f"{name}.json")
        for number in range(1, unit["rounds"] + 1):
            for cell in unit["cells"]:
                status, known = _status(unit, cell, number, records)
                if status.startswith("to measure"):
                    waiting.append((shard, cell, known))
                elif known is not None:
                    done.append((cell, known))
                factors = " ".join(f"{name}={level}" for name, level in cell["factors"].items())
                rows.append([experiment, factors, number, status])
    return rows, _estimate(waiting, done)


def describe(root: Path, plan: Plan) -> str:
    """The whole plan as text."""
    parts, alone_s, beside_s, unknown = [], 0.0, list[float](), []
    summary = []
    for experiment in plan.shards:
        rows, seconds = _experiment(root, plan, experiment)
        waiting = sum(str(row[3]).startswith("to measure") for row in rows)
        parts.append(tabulate(rows, ["experiment", "cell", "round", "status"], tablefmt="plain"))
        one_by_one = None if seconds is None else f"about {duration(sum(seconds.values()))}"
        time = "nothing to do" if not waiting else one_by_one or UNKNOWN
        summary.append([experiment, len(rows), waiting, time])
        if waiting and seconds is None:
            unknown.append(experiment)
        for shard, shard_s in (seconds or {}).items():
            if (experiment, shard) in plan.beside_others:
                beside_s.append(shard_s)
            else:
                alone_s += shard_s
    total = leases.span_s(alone_s, beside_s, plan.at_a_time)
    parts.append(tabulate(summary, ["experiment", "cells", "to measure", "time"], tablefmt="plain"))
    parts_known = [f"about {duration(total)}"] if total or not unknown else []
    known = " and, ".join([*parts_known, *([f"without an estimate, {', '.join(unknown)}"] if unknown else [])])
    together = f", {plan.at_a_time} jobs of one GPU each at a time" if beside_s else ""
    parts.append(f"site {plan.site}, preset {plan.preset}; to measure: {known}{together}")
    return "\n\n".join(parts)
