"""What `./run plan` prints: how many cells each experiment has to measure, and how long they may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

from perfscribe.base import files
from perfscribe.plan.plan import Plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import environment, journal
from perfscribe.run import gate, session
from perfscribe.run.progress import Pace, duration

# A job's processes, imports, tables and figures: 150 s for 30 experiments on two cores.
START_S = 5.0


def _status(
    unit: dict, cell: dict, number: int, records: dict[str, list[dict]], changed: Collection[str], done: bool
) -> tuple[str, dict | None]:
    """A cell's status in the journal, and the newest record of the same factors, whatever its code.

    changed: data sets that are made anew. done: whether the unit's job has finished and is not asked for again.
    """
    lacking = environment.shortfall(cell["requires"])
    cannot = f"{lacking[0]} ({lacking[1]})" if lacking else ""
    if cell["skip"]:
        return cannot or f"skipped ({cell['skip']})", None
    same = records.get(_levels(cell), [])
    measured = [r for r in same if r["fingerprint"] == unit["fingerprint"] and r["round"] == number]
    # By the data that each had: which these are today is known once they are made.
    key = partial(cell_key, unit["experiment"], cell["factors"], unit["fingerprint"], seed=unit["seed"])
    current = [r for r in measured if r["key"] == key(r["data_digest"])]
    made_anew = not set(changed).isdisjoint(cell["data"])
    if current and not made_anew:
        newest = current[-1]
        if done and newest["status"] == gate.HELD_BACK and gate.complaint(newest):
            return f"skipped ({newest['reason']})", None
        if not newest["values"].get("before_start"):  # what was lacking is asked anew
            return newest["status"], newest
    if cannot:
        return cannot, None
    if not same:
        return "to measure", None
    code_changed = all(r["fingerprint"] != unit["fingerprint"] for r in same)
    of_seed = "seed changed" if measured and not current else ""
    why = "code changed" if code_changed else "data changed" if made_anew else of_seed
    return f"to measure{f' ({why})' if why else ''}", same[-1]


def _published(cell: dict, number: int, records: dict[str, list[dict]]) -> tuple[str, dict | None]:
    """As _status, of a site that is read-only."""
    found = [record for record in records.get(_levels(cell), []) if record["round"] == number]
    if found and not found[-1]["values"].get("before_start"):
        return found[-1]["status"], found[-1]
    status, reason = (found[-1]["status"], found[-1]["reason"]) if found else ("skipped", cell["skip"])
    return (f"{status} ({reason})" if reason else "not_run"), None


def _changed(root: Path, plan: Plan, name: str) -> set[str]:
    """Data sets of a unit that the next run makes of other sources, or by other code, than the last one did."""
    folder, unit = root / "results" / plan.site / "plan", plan.units.get(name)
    before = files.read_object(folder / f"{name}.json").get("datasets")
    if unit is None or before is None:
        return set()
    planned = {one: plan.units[f"data-{one}"] for one in unit["datasets"] if f"data-{one}" in plan.units}
    return {one for one, made in planned.items() if files.read_object(folder / f"data-{one}.json") != made}


def _levels(cell: Mapping[str, Any]) -> str:
    return repr(sorted(cell["factors"].items()))


def _elsewhere(root: Path, preset: str, experiment: str) -> tuple[str, dict[str, float]]:
    """Of the committed site of a preset that has most of an experiment's cells: its name, and s of each, by levels."""
    found: dict[str, dict[str, float]] = {"": {}}
    for folder in sorted(path.parent for path in (root / "results").glob("*/published.json")):
        if files.read_object(folder / "plan" / "index.json").get("preset") == preset:
            rows = journal.read(folder / "journal" / experiment).all_records()
            found[folder.name] = {_levels(row): row["spent"]["wall_s"] for row in rows if row["spent"]["wall_s"]}
    return max(found.items(), key=lambda item: len(item[1]))


@dataclass
class Counted:
    """Cells of an experiment by what becomes of them, each list by shard; times in s."""

    rows: list[list[object]] = field(default_factory=list)
    waiting: list[tuple[int, dict, float | None]] = field(default_factory=list)  # shard, cell, s of last time
    pace: Pace = field(default_factory=Pace)

    @property
    def measured_here(self) -> bool:
        """Whether any cell was, be it with older code."""
        return bool(self.pace.cells) or any(last is not None for _, _, last in self.waiting)

    def seconds(self, elsewhere: Mapping[str, float]) -> dict[int, float] | None:
        """For the waiting cells of each shard, its start included; None where nothing is known.

        As long as last time, or in proportion to cost. Where none was measured here: as elsewhere, or its median there.
        """
        for _, cell, last in self.waiting:
            if last is not None:
                self.pace.add(last, cell["cost"])
        if not self.measured_here and not elsewhere:
            return None
        usual = median(elsewhere.values()) if elsewhere else 0.0
        found: dict[int, float] = {}
        for shard, cell, last in self.waiting:
            guess = self.pace.expected_s(cell["cost"]) if self.pace.cells else elsewhere.get(_levels(cell), usual)
            found[shard] = found.get(shard, START_S) + (guess if last is None else last)
        return found


def _count(root: Path, plan: Plan, experiment: str) -> Counted:
    history = journal.read(root / "results" / plan.site / "journal" / experiment)
    records: dict[str, list[dict]] = {}
    for record in history.all_records():
        records.setdefault(_levels(record), []).append(record)
    counted, published = Counted(), session.is_committed(root, plan.site)
    for shard in range(plan.shards[experiment]):
        name = f"measure-{experiment}-{shard}"
        # Of a committed site only what says how it is shown is planned anew.
        unit = plan.units.get(name) or files.read_json(root / "results" / plan.site / "plan" / f"{name}.json")
        changed = _changed(root, plan, name)
        done = (root / "results" / plan.site / "checksums" / f"{name}.json").is_file()
        for number in range(1, unit["rounds"] + 1):
            for cell in unit["cells"]:
                if published:  # read-only, whatever code and machine measured it
                    status, known = _published(cell, number, records)
                else:
                    status, known = _status(unit, cell, number, records, changed, done)
                last = known["spent"]["wall_s"] if known else None
                if status.startswith("to measure"):
                    counted.waiting.append((shard, cell, last))
                elif last is not None:
                    counted.pace.add(last, cell["cost"])
                factors = " ".join(f"{name}={level}" for name, level in cell["factors"].items())
                counted.rows.append([experiment, factors, number, status])
    return counted


def describe(root: Path, plan: Plan, experiments: Collection[str] = ()) -> str:
    """A row an experiment with the time that its cells may take, and every cell of the experiments named.

    Raises ValueError where one of them is not planned.
    """
    for name in experiments:
        if name not in plan.shards:
            raise ValueError(f"plan: {name} is not planned; planned: {', '.join(plan.shards)}")
    cells: list[list[object]] = []
    summary, unknown, by_job = [], [], dict[tuple[str, int], float]()
    for experiment in plan.shards:
        counted = _count(root, plan, experiment)
        new = counted.waiting and not counted.measured_here
        site, spent = _elsewhere(root, plan.preset, experiment) if new else ("", {})
        seconds = counted.seconds(spent)
        cells += counted.rows if experiment in experiments else []
        states = Counter(str(row[3]).split(" ")[0] for row in counted.rows)
        about = "nothing to do" if not counted.waiting else "no estimate: no site of this preset has it"
        if counted.waiting and seconds is None:
            unknown.append(experiment)
        elif counted.waiting and seconds:
            about = f"about {duration(sum(seconds.values()))}" + (f", as on {site}" if site else "")
        here = len(counted.rows) - len(counted.waiting) - states["unsupported"] - states["skipped"]
        summary.append([experiment, here, len(counted.waiting), states["unsupported"] + states["skipped"], about])
        by_job |= {(experiment, shard): shard_s for shard, shard_s in (seconds or {}).items()}
    total = plan.span_s(by_job)
    known = [f"about {duration(total)}"] if total else [] if unknown else ["nothing"]
    rest = [f"without an estimate, {', '.join(unknown)}"] if unknown else []
    together = f", {plan.at_a_time} jobs of one GPU each at a time" if plan.beside_others & by_job.keys() else ""
    parts = [tabulate(cells, ["experiment", "cell", "round", "status"], tablefmt="plain")] if experiments else []
    parts.append(tabulate(summary, ["experiment", "measured", "to measure", "not here", "time"], tablefmt="plain"))
    parts.append(
        f"site {plan.site}, preset {plan.preset}; to measure: {' and, '.join([*known, *rest])}{together}; "
        "cell by cell: ./run plan EXPERIMENT"
    )
    return "\n\n".join(parts)
