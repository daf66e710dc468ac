"""One shard: its cells in every round, and the journal's record of each."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.base.atomic import replacing
from perfscribe.plan import capabilities
from perfscribe.plan.capabilities import Shortfall
from perfscribe.plan.plan_cells import cell_from_json, cell_key
from perfscribe.records import checksums, form, journal, records

ABSENT = "absent"  # digest of a missing data set
MOST_ROUNDS = 100  # limit for configs
# Start and end of the time budget of the run that started this job, below the project's root.
CLOCK = Path(".perfscribe") / "clock.json"


@dataclass
class Task:
    """One cell in one round, as known before it runs."""

    cell: dict[str, Any]
    key: str
    round: int
    data_digest: str

    @property
    def slot(self) -> journal.Slot:
        """Key of its record in the journal."""
        return self.key, self.round

    def label(self) -> str:
        """The cell's factors as text."""
        return " ".join(f"{name}={level}" for name, level in self.cell["factors"].items())


class Shard:
    """One shard's plan file (results/<site>/plan/...), journal folder and options. root: the checkout.

    content: of a plan file that is not written yet.
    """

    def __init__(self, plan_file: Path, root: Path, content: dict[str, Any] | None = None) -> None:
        self.root, self.site_folder = root, plan_file.parents[1]
        self.unit, self.plan = plan_file.stem, content or files.read_json(plan_file)
        options = files.read_object(plan_file.with_name("options.json"))
        clock = files.read_object(root / CLOCK)
        self.run_clock = {name: float(time) for name, time in clock.items() if isinstance(time, (int, float))}
        defaults = {"isolation": "job", "timeout_s": 600.0, "tools": {}, "at_a_time": 1, "subjects": {}}
        # Tells why cells cannot run here; the worker replaces this by its gate.
        self.shortfall: Callable[[Iterable[str]], Shortfall | None] = capabilities.shortfall
        with form.as_written(plan_file):
            self.options = defaults | options.get(self.plan["experiment"], {})
            self.folder = self.site_folder / "journal" / form.name(self.plan["experiment"])
            self.tasks = self._tasks()

    def _tasks(self) -> list[Task]:
        digests = {name: self._data_digest(name) for name in self.plan["datasets"]}
        cells = []
        for cell in self.plan["cells"]:
            cell_from_json(cell)
            digest = "+".join(digests.get(name, "") for name in cell["data"])
            cells.append((cell, self._key(cell["factors"], digest), digest))
        rounds = range(1, form.count(self.plan["rounds"], MOST_ROUNDS) + 1)
        return [Task(cell, key, number, digest) for number in rounds for cell, key, digest in cells]

    def _key(self, factors: Mapping[str, Any], digest: str) -> str:
        return cell_key(self.plan["experiment"], factors, self.plan["fingerprint"], digest, self.plan["seed"])

    def _is_of_plan(self, record: journal.Record) -> bool:
        """Return whether the plan's code and seed made the record, with any version of its data."""
        return bool(record["key"] == self._key(record["factors"], record["data_digest"]))

    def deadline(self, now: float) -> float | None:
        """End of the time budget, in s since the epoch: the run's, or from `now` for a job started by hand."""
        budget = self.plan["budget_minutes"]
        if not budget:
            return None
        return min(now + float(budget) * 60, float(self.run_clock.get("budget_ends", float("inf"))))

    def _data_digest(self, dataset: str) -> str:
        path = self.site_folder / "data" / f"{form.name(dataset)}.digest"
        return str(files.read_json(path)["arrays"]) if path.is_file() else ABSENT

    def standing(self, task: Task, history: journal.History, identity: str | None) -> journal.Record | None:
        """Record that stands for the task on a machine of this identity; None if it must be measured.

        identity None: the newest record of the plan's key on any machine; without one, of any key if the site is
        published, and of the plan's code and seed if data are absent.
        """
        if identity is None:
            spares = history.of_cell(task.cell["factors"], task.round)
            if not (self.site_folder / "published.json").is_file():
                spares = [record for record in spares if ABSENT in task.data_digest and self._is_of_plan(record)]
            return history.newest(task.slot) or next(reversed(spares), None)
        record, newest = history.newest(task.slot, identity), history.newest(task.slot)
        if newest is None:
            return None
        if record is None or (_before_start(record) and not _before_start(newest)):  # measured elsewhere later
            record = newest
        if _before_start(record):
            # The machine may have been given what it lacked then.
            lacking = self.lacking(task)
            return record if lacking and lacking[:2] == (record["status"], record["reason"]) else None
        if record["environment"] == identity:
            return record
        # Another machine's out-of-memory says nothing about this one.
        return record if self.plan["on_identity_change"] == "keep" and record["status"] == "ok" else None

    def lacking(self, task: Task) -> Shortfall | None:
        """Return why a cell cannot run here or is held back; None if it can start.

        Cells that the preset leaves out trigger no self-test.
        """
        ask = capabilities.shortfall if task.cell["skip"] else self.shortfall
        return ask(task.cell["requires"])

    def fields(self, task: Task, **more: Any) -> dict[str, Any]:
        """Make a record of the task with these fields."""
        return records.make(
            {
                "experiment": self.plan["experiment"],
                "key": task.key,
                "round": task.round,
                "factors": task.cell["factors"],
                "fingerprint": self.plan["fingerprint"],
                "data_digest": task.data_digest,
                **more,
            }
        )

    def row(self, task: Task, history: journal.History, identity: str | None) -> dict[str, Any]:
        """Return the task's row of the records file."""
        standing = self.standing(task, history, identity)
        if task.cell["skip"] and (standing is None or standing["status"] != "unsupported"):
            record = self.fields(task, status="skipped", reason=task.cell["skip"])
        else:
            missing = {"status": "not_run", "reason": "not measured yet"}
            record = self.fields(task, **missing) if standing is None else standing
        if identity is not None and record["environment"] not in ("", identity):
            record = {**record, "flags": [*record["flags"], f"kept from environment {record['environment']}"]}
        return {**record, "order": task.cell["position"]}

    def write_records(self, out: Path, identity: str | None, history: journal.History | None = None) -> None:
        """Write the shard's records from the journal, one at a time, since all may not fit into memory.

        If cells are left unmeasured (time budget), the unit stays due for the next run.
        """
        history = history or journal.read(self.folder)
        machines, whole = set(), True
        with replacing(out) as temporary, open(temporary, "w", encoding="utf-8") as stream:
            for task in self.tasks:
                row = self.row(task, history, identity)
                machines.add(row["environment"])
                whole = whole and row["status"] != "not_run"
                stream.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")
        journals = self.folder.glob(f"{self.plan['shard']}.jsonl*")
        identities = [self.site_folder / "environments" / f"{name}.json" for name in sorted(machines - {""})]
        checksums.keep(self.site_folder, self.unit, [out, *journals, *identities])
        if identity is not None and not whole:
            checksums.forget(self.site_folder, [self.unit])


def _before_start(record: journal.Record) -> bool:
    """Return whether it only records that the machine lacked something, before anything ran."""
    return bool(record["values"].get("before_start"))
