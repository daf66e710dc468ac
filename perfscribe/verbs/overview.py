"""Text of `./run plan`: number of cells to measure per experiment, and their expected time."""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from perfscribe.base import files
from perfscribe.plan import capabilities
from perfscribe.plan.plan import Plan
from perfscribe.records import form, journal
from perfscribe.run import gate, session
from perfscribe.run.estimate import Due, Estimate, due
from perfscribe.run.progress import duration
from perfscribe.run.shard import Shard, Task


def _status(
    shard: Shard, task: Task, history: journal.History, changed: Collection[str], done: bool
) -> tuple[str, dict | None]:
    """Return a cell's status, and a record to estimate its time by: the current one, else one of older code or data.

    The record is None if the cell has none, is skipped or cannot run here. changed: data sets to be made again. done:
    the job's checksums file exists.
    """
    cell = task.cell
    lacking = capabilities.shortfall(cell["requires"])
    cannot = f"{lacking.status} ({lacking.reason})" if lacking else ""
    if cell["skip"]:
        return cannot or f"skipped ({cell['skip']})", None
    made_anew = not set(changed).isdisjoint(cell["data"])
    newest = None if made_anew else shard.standing(task, history, None)
    if newest is not None:
        if done and newest["status"] == gate.HELD_BACK and gate.complaint(newest):
            return f"skipped ({newest['reason']})", None
        if not newest["values"].get("before_start"):  # else check the machine again
            return newest["status"], newest
    if cannot:
        return cannot, None
    records = history.of_cell(cell["factors"], task.round)
    if not records:
        return "to measure", None
    code_changed = all(record["fingerprint"] != shard.plan["fingerprint"] for record in records)
    of_seed = " (seed changed)" if newest is None else ""
    why = " (code changed)" if code_changed else " (data changed)" if made_anew else of_seed
    return f"to measure{why}", records[-1]


def _published(shard: Shard, task: Task, history: journal.History) -> tuple[str, dict | None]:
    """Return a cell's status in this round of a read-only site, and its record; None if it never started."""
    row = shard.row(task, history, None)
    if row["status"] in form.RAN:
        return row["status"], row
    return "not_run" if row["status"] == "not_run" else f"{row['status']} ({row['reason']})", None


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
    counted, published = Counted(), session.is_committed(root, plan.site)
    for shard in range(plan.shards[experiment]):
        name = f"measure-{experiment}-{shard}"
        changed = _changed(root, plan, name)
        done = (root / "results" / plan.site / "checksums" / f"{name}.json").is_file()
        planned = Shard(root / "results" / plan.site / "plan" / f"{name}.json", root, plan.units.get(name))
        for task in planned.tasks:
            if published:  # read-only, regardless of code and machine
                status, known = _published(planned, task, history)
            else:
                status, known = _status(planned, task, history, changed, done)
            timed = due(experiment, task.cell["factors"], task.cell["cost"])
            if status.startswith("to measure"):
                counted.waiting[shard].append(timed)
            if known is not None:  # perhaps of older code
                estimate.add(timed, known["spent"])
            counted.rows.append([experiment, task.label(), task.round, status])
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
