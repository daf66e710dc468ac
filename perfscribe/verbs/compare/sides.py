"""A side of a comparison: a site's results, or the local results of one commit or subject."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.config.errors import hint
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import checkout, journal
from perfscribe.records.records import Record, is_number, merge_rounds
from perfscribe.run import session
from perfscribe.run.shard import Shard
from perfscribe.show.provenance import commit_name, device_name

Row = Mapping[str, Any]
SUBJECT = "subject"  # replaces the user's name for a subject


@dataclass(frozen=True)
class MeasuredCell:
    """A cell of one side. rows: its records, one per round; record: merged. seed: None if unknown."""

    experiment: str
    rows: tuple[Row, ...]
    record: Record
    seed: int | None = None

    @property
    def factors(self) -> dict[str, Any]:
        """Levels of the cell's factors."""
        return self.record.factors

    @cached_property
    def good(self) -> list[Row]:
        """Rounds that are ok."""
        return [row for row in self.rows if row["status"] == "ok"]

    def samples(self, name: str) -> list[list[float]]:
        """Samples by round; for a numeric value, one sample per round."""
        rounds = [row["samples"][name] for row in self.good if row["samples"].get(name)]
        return rounds or [[float(value)] for row in self.good if is_number(value := row["values"].get(name))]

    @cached_property
    def names(self) -> list[str]:
        """Names of samples and of numeric values."""
        names: dict[str, None] = {}
        for row in self.good:
            names |= dict.fromkeys(name for name, samples in row["samples"].items() if samples)
            names |= dict.fromkeys(name for name, value in row["values"].items() if is_number(value))
        return list(names)

    def values(self, name: str) -> set[str]:
        """Distinct values over rounds, as text."""
        return {str(row["values"][name]) for row in self.good if name in row["values"]}

    def field(self, name: str) -> set[Any]:
        """Distinct contents of a field of the records."""
        return {row[name] for row in self.good}


@dataclass
class Side:
    """One side: name as typed by the user, site, cells by experiment and factors, machine identities by id."""

    name: str
    site: str
    cells: dict[str, dict[str, MeasuredCell]]
    identities: dict[str, Row] = field(default_factory=dict)

    @property
    def machines(self) -> str:
        """Short names of the machines that measured it."""
        return (
            "; ".join(sorted({device_name(self.identities[name]) for name in self._used()})) or "nothing was measured"
        )

    @property
    def commits(self) -> str:
        """Commits that measured it; + for uncommitted changes."""
        rows = (row for group in self.cells.values() for cell in group.values() for row in cell.rows)
        return ", ".join(sorted({commit_name(row["provenance"]) for row in rows if row["provenance"]})) or "none"

    def identity(self, cell: MeasuredCell | None = None) -> dict[str, set[str]]:
        """Properties of the machines of a cell, or of all: texts by key."""
        properties: dict[str, set[str]] = {}
        for name in self._used() if cell is None else cell.record.environments:
            identity = self.identities.get(name, {})
            texts = {key: "none" if value is None else str(value) for key, value in identity.items()}
            texts |= {key: str(version or "not installed") for key, version in identity.get("libraries", {}).items()}
            for key, text in texts.items():
                if key != "libraries":
                    properties.setdefault(key, set()).add(text)
        return properties

    def _used(self) -> list[str]:
        names = {name for group in self.cells.values() for cell in group.values() for name in cell.record.environments}
        return sorted(names & self.identities.keys())


def read(root: Path, name: str) -> Side:
    """Read a side by name: SITE, local@COMMIT or a subject of site local; ValueError (one line) if unknown."""
    site, at, commit = name.partition("@")
    known = sorted(path.parents[1].name for path in (root / "results").glob("*/plan/index.json"))
    if not at and name in known:
        return _read_folder(root / "results" / name, name, name)
    if site == session.LOCAL_SITE and commit:
        return _read_commit(root, name, site, commit)
    subjects = _subjects(root / "results" / session.LOCAL_SITE)
    if name in subjects:
        return _only_subject(_read_folder(root / "results" / session.LOCAL_SITE, name, session.LOCAL_SITE))
    choices = f"{', '.join(known) or 'none'}{hint(name, [*known, *subjects])}"
    choices += f"; subjects: {', '.join(subjects)}" if subjects else ""
    raise ValueError(f"compare: {name!r} is no site, local@COMMIT or subject; sites here: {choices}")


def _subjects(folder: Path) -> list[str]:
    cells = (cell for plans in _plans(folder).values() for path in plans for cell in files.read_json(path)["cells"])
    return sorted({str(cell["factors"]["subject"]) for cell in cells if "subject" in cell["factors"]})


def _only_subject(side: Side) -> Side:
    """Keep only the cells of the subject that the side is named after, renamed so that subjects can be compared."""
    cells: dict[str, dict[str, MeasuredCell]] = {}
    for experiment, group in side.cells.items():
        rows = [row for cell in group.values() for row in cell.rows if row["factors"].get("subject") == side.name]
        if rows:
            seed = next(iter(group.values())).seed
            cells[experiment] = _cells(experiment, [_unnamed(row, side.name) for row in rows], seed)
    return Side(side.name, side.site, cells, side.identities)


def _unnamed(row: Row, subject: str) -> Row:
    """Rename a record's subject to SUBJECT, keeping only figures of the subject's code."""
    factors = {key: level for key, level in row["factors"].items() if key not in ("subject", "code")}
    if factors.get("implementation") == subject:
        factors["implementation"] = SUBJECT
    if "variants" in factors:
        words = str(factors["variants"]).split()
        factors["variants"] = " ".join(re.sub(f"^{re.escape(subject)}[.]", f"{SUBJECT}.", word) for word in words)
    renamed: dict[str, Any] = {}
    for key in ("samples", "values", "timers"):
        data = {re.sub(f"^{re.escape(subject)}[.]", f"{SUBJECT}.", name): datum for name, datum in row[key].items()}
        theirs = {name: datum for name, datum in data.items() if name.startswith((f"{SUBJECT}.", f"{SUBJECT}_"))}
        renamed[key] = theirs or {name: datum for name, datum in data.items() if not name.startswith("ours_")}
    return {**row, **renamed, "factors": factors}


def _read_folder(folder: Path, name: str, site: str) -> Side:
    """Read the journal's records for the cells of a site's plan."""
    cells: dict[str, dict[str, MeasuredCell]] = {}
    for experiment, plans in _plans(folder).items():
        rows: list[Row] = []
        history = journal.read(folder / "journal" / experiment)
        for path in plans:
            shard = Shard(path, folder)
            rows += [shard.row(task, history, None) for task in shard.tasks]
        seed = files.read_json(plans[0])["seed"]
        cells[experiment] = _cells(experiment, sorted(rows, key=lambda row: int(row["order"])), seed)
    return Side(name, site, cells, _identities(folder))


def _cells(experiment: str, rows: Iterable[Row], seed: int | None) -> dict[str, MeasuredCell]:
    """Group records into cells by factors, keeping their order."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(files.canonical(row["factors"]), []).append(row)
    return {key: MeasuredCell(experiment, tuple(group), merge_rounds(group)[0], seed) for key, group in grouped.items()}


def _identities(folder: Path) -> dict[str, Row]:
    return {path.stem: files.read_object(path) for path in sorted((folder / "environments").glob("*.json"))}


def _plans(folder: Path) -> dict[str, list[Path]]:
    """Measuring plan files of a site, by experiment."""
    paths: dict[str, list[Path]] = {}
    for path in sorted((folder / "plan").glob("measure-*.json")):
        experiment = path.stem.removeprefix("measure-").rpartition("-")[0]
        paths.setdefault(experiment, []).append(path)
    return paths


def _read_commit(root: Path, name: str, site: str, word: str) -> Side:
    """Newest record of each cell and round that a commit measured, without uncommitted changes."""
    folder = root / "results" / site
    records = (row for path in sorted((folder / "journal").glob("*")) for row in journal.read(path).all_records())
    committed = [row for row in records if not row["provenance"].get("dirty")]
    commit = _resolved(root, word) or word
    named = re.fullmatch(r"[0-9a-f]{7,40}", commit)
    rows = [row for row in committed if named and str(row["provenance"].get("commit") or "").startswith(commit)]
    if not rows:
        measured = ", ".join(sorted({commit_name(row["provenance"]) for row in committed})) or "none"
        raise ValueError(f"compare: {name}: site {site} holds no records of {word!r}; it has those of {measured}")
    newest: dict[tuple[str, str, int], Row] = {}
    for row in sorted(rows, key=lambda row: str(row["provenance"].get("time", ""))):
        newest[row["experiment"], files.canonical(row["factors"]), row["round"]] = row
    plans = _plans(folder)
    cells = {}
    for experiment in sorted({row["experiment"] for row in rows}):
        chosen = [row for row in newest.values() if row["experiment"] == experiment]
        cells[experiment] = _cells(experiment, chosen, _seed(plans.get(experiment, []), experiment, chosen))
    return Side(name, site, cells, _identities(folder))


def _seed(plans: Sequence[Path], experiment: str, rows: Sequence[Row]) -> int | None:
    """Seed of today's plan if it reproduces the keys of all these records, which contain it only as a digest."""
    if not plans:
        return None
    seed = int(files.read_json(plans[0])["seed"])
    same = (cell_key(experiment, r["factors"], r["fingerprint"], r["data_digest"], seed) == r["key"] for r in rows)
    return seed if all(same) else None


def _resolved(root: Path, revision: str) -> str | None:
    """Commit that git resolves the name to; None if unknown."""
    return checkout.git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
