"""Text of `./run plan`: number of cells to measure per experiment, and their expected time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tabulate import tabulate

from perfscribe.base import files
from perfscribe.plan import capabilities
from perfscribe.plan.plan import Plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import journal
from perfscribe.run import gate, session
from perfscribe.run.estimate import Due, Estimate, due
from perfscribe.run.progress import duration


def _status(
    unit: dict, cell: dict, number: int, records: dict[str, list[dict]], changed: Collection[str], done: bool
) -> tuple[str, dict | None]:
    """Return a cell's status, and a record to estimate its time by: the current one, else one of older code or data.

    The record is None if the cell has none, is skipped or cannot run here. unit: the plan of its job. number: of the
    round. changed: data sets to be made again. done: the job's checksums file exists.
    """
    lacking = capabilities.shortfall(cell["requires"])
    cannot = f"{lacking.status} ({lacking.reason})" if lacking else ""
    if cell["skip"]:
        return cannot or f"skipped ({cell['skip']})", None
    same = records.get(_levels(cell), [])
    measured = [r for r in same if r["fingerprint"] == unit["fingerprint"] and r["round"] == number]
    # Keys by each record's data: today's digests are unknown until the data are made.
    key = partial(cell_key, unit["experiment"], cell["factors"], unit["fingerprint"], seed=unit["seed"])
    current = [r for r in measured if r["key"] == key(r["data_digest"])]
    made_anew = not set(changed).isdisjoint(cell["data"])
    if current and not made_anew:
        newest = current[-1]
        if done and newest["status"] == gate.HELD_BACK and gate.complaint(newest):
            return f"skipped ({newest['reason']})", None
        if not newest["values"].get("before_start"):  # else check the machine again
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
    """Return a cell's status in this round of a read-only site, and its newest record; None if it never started."""
    rounds = [record for record in records.get(_levels(cell), []) if record["round"] == number]
    if rounds and not rounds[-1]["values"].get("before_start"):
        return rounds[-1]["status"], rounds[-1]
    status, reason = (rounds[-1]["status"], rounds[-1]["reason"]) if rounds else ("skipped", cell["skip"])
    return (f"{status} ({reason})" if reason else "not_run"), None


def _changed(root: Path, plan: Plan, name: str) -> set[str]:
    """Data sets of a unit whose sources or code changed since the last run."""
    folder, unit = root / "results" / plan.site / "plan", plan.units.get(name)
    before = files.read_object(folder / f"{name}.json").get("datasets")
    if unit is None or before is None:
        return set()
    planned = {
        dataset: plan.units[f"data-{dataset}"] for dataset in unit["datasets"] if f"data-{dataset}" in plan.units
    }
    return {
        dataset for dataset, content in planned.items() if files.read_object(folder / f"data-{dataset}.json") != content
    }


def _levels(cell: Mapping[str, Any]) -> str:
    return repr(sorted(cell["factors"].items()))


@dataclass
class Counted:
    """An experiment's rows for the table of cells, and its cells still to measure, by shard."""

    rows: list[list[object]] = field(default_factory=list)
    waiting: defaultdict[int, list[Due]] = field(default_factory=lambda: defaultdict(list))  # by shard

    def seconds(self, estimate: Estimate) -> dict[int, float] | None:
        """Expected time of each shard's waiting cells, start-up included; None if unknown."""
        by_shard = {shard: seconds for shard, cells in self.waiting.items() if (seconds := estimate.job_s(cells))}
        return by_shard if len(by_shard) == len(self.waiting) else None


def _count(root: Path, plan: Plan, experiment: str, estimate: Estimate) -> Counted:
    history = journal.read(root / "results" / plan.site / "journal" / experiment)
    records: dict[str, list[dict]] = {}
    for record in history.all_records():
        records.setdefault(_levels(record), []).append(record)
    counted, published = Counted(), session.is_committed(root, plan.site)
    for shard in range(plan.shards[experiment]):
        name = f"measure-{experiment}-{shard}"
        # For a committed site only the presentation is planned.
        unit = plan.units.get(name) or files.read_json(root / "results" / plan.site / "plan" / f"{name}.json")
        changed = _changed(root, plan, name)
        done = (root / "results" / plan.site / "checksums" / f"{name}.json").is_file()
        for number in range(1, unit["rounds"] + 1):
            for cell in unit["cells"]:
                if published:  # read-only, regardless of code and machine
                    status, known = _published(cell, number, records)
                else:
                    status, known = _status(unit, cell, number, records, changed, done)
                timed = due(experiment, cell["factors"], cell["cost"])
                if status.startswith("to measure"):
                    counted.waiting[shard].append(timed)
                if known is not None:  # perhaps of older code
                    estimate.add(timed, known["spent"])
                factors = " ".join(f"{name}={level}" for name, level in cell["factors"].items())
                counted.rows.append([experiment, factors, number, status])
    estimate.look_elsewhere(experiment, [cell for cells in counted.waiting.values() for cell in cells])
    return counted


def describe(root: Path, plan: Plan, experiments: Collection[str] = ()) -> str:
    """Table of experiments with expected times, and every cell of the experiments named.

    Raises ValueError if one of them is not planned.
    """
    for name in experiments:
        if name not in plan.shards:
            raise ValueError(f"plan: {name} is not planned; planned: {', '.join(plan.shards)}")
    cells: list[list[object]] = []
    summary, unknown, by_job = [], [], dict[tuple[str, int], float]()
    estimate = Estimate(root, plan.preset)
    # Count all first: the ratio to a committed site's machine uses everything measured here.
    for experiment, counted in {name: _count(root, plan, name, estimate) for name in plan.shards}.items():
        site = "" if (experiment, "") in estimate.paces else estimate.sites.get(experiment, "")
        seconds = counted.seconds(estimate)
        cells += counted.rows if experiment in experiments else []
        states = Counter(str(row[3]).split(" ")[0] for row in counted.rows)
        about = "nothing to do" if not counted.waiting else "no estimate: no site of this preset has it"
        if counted.waiting and seconds is None:
            unknown.append(experiment)
        elif counted.waiting and seconds:
            about = f"about {duration(sum(seconds.values()))}" + (f", as on {site}" if site else "")
        not_here, waiting = states["unsupported"] + states["skipped"], states["to"]
        summary.append([experiment, len(counted.rows) - waiting - not_here, waiting, not_here, about])
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
