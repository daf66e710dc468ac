"""The report: chapter templates filled with tables, figures and findings, and what a reader must know beside them."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from tabulate import tabulate

from perfscribe import files, findings, tables
from perfscribe.records import STATUSES, Record

DATE_LINE = "Written on "


@dataclass
class Sources:
    """Where a report's parts lie, and what was measured."""

    root: Path
    site: str
    plan: Mapping[str, Any]
    records: Mapping[str, list[Record]]

    @property
    def results(self) -> Path:
        """The site's results folder."""
        return self.root / "results" / self.site

    def environment(self, environment_id: str) -> dict[str, Any]:
        """An identity by its id."""
        found: dict[str, Any] = files.read_json(self.results / "environments" / f"{environment_id}.json")
        return found


def _environment_ids(records: Iterable[Record]) -> list[str]:
    return sorted({name for record in records for name in record.environments})


def device_name(identity: Mapping[str, Any]) -> str:
    """Short name of a machine: its GPUs, or its processor where it has none."""
    gpus = identity.get("gpu_count") or 0
    if gpus:
        return f"{gpus} × {identity['gpu_model']}"
    return f"{identity['cpu_model']}, {identity['cpu_cores']} cores, no GPU"


def _commit(provenance: Mapping[str, Any]) -> str:
    """The commit that a record was measured at, + where there were changes beside it."""
    commit = provenance.get("commit")
    return f"{commit[:10]}{'+' if provenance.get('dirty') else ''}" if commit else "unknown"


def figure_footer(records: Sequence[Record], site: str, environments: Path) -> str:
    """Who measured what a figure shows: site, device, number of samples, commit."""
    measured = [record for record in records if record.ok]
    if not measured:
        return f"site {site}: no cell was measured"
    ids = _environment_ids(measured)
    devices = sorted({device_name(files.read_json(environments / f"{name}.json")) for name in ids})
    sizes = [sum(map(len, rounds)) for record in measured for rounds in list(record.samples.values())[:1]]
    n = f"n = {' to '.join(map(str, sorted({min(sizes), max(sizes)})))} a cell, " if sizes else ""
    commits = sorted({_commit(record.provenance) for record in measured})
    where = f"environment {', '.join(ids)} · commit {', '.join(commits)}"
    return f"site {site}: {'; '.join(devices)} · {n}bars: interquartile range · {where}"


def _completeness(sources: Sources) -> str:
    rows = []
    for name, cells in sources.records.items():
        statuses = Counter(record.status for record in cells)
        rows.append([f"`{name}`", len(cells), *(statuses.get(status, 0) for status in STATUSES)])
    return tabulate(rows, ["Experiment", "Cells", *STATUSES], tablefmt="pipe")


def _levels(records: Sequence[Record]) -> str:
    """The factor levels that these cells cover, constants and lists alike."""
    parts = []
    for name in records[0].factors:
        levels = list(dict.fromkeys(str(record.factors.get(name)) for record in records))
        parts.append(f"{name} {', '.join(levels)}")
    return "; ".join(parts)


def _not_ok(sources: Sources) -> str:
    rows = []
    for name, cells in sources.records.items():
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in cells:
            if not record.ok:
                groups.setdefault((record.status, record.reason), []).append(record)
        rows += [
            [f"`{name}`", status, reason, len(group), _levels(group)] for (status, reason), group in groups.items()
        ]
    if not rows:
        return "Every cell is ok."
    text = tabulate(
        rows, ["Experiment", "Status", "Reason", "Cells", "Factors"], tablefmt="pipe", disable_numparse=True
    )
    return text


def _flagged(sources: Sources) -> str:
    rows = [
        [f"`{name}`", _levels([record]), "; ".join(record.flags)]
        for name, cells in sources.records.items()
        for record in cells
        if record.flags
    ]
    return (
        tabulate(rows, ["Experiment", "Cell", "What was unusual"], tablefmt="pipe") if rows else "No cell is flagged."
    )


def _identity_rows(identity: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, level in identity.items():
        text = ", ".join(f"{k} {v}" for k, v in level.items()) if isinstance(level, dict) else str(level)
        rows.append([name, text])
    return rows


def _environments(sources: Sources) -> str:
    parts = []
    for name in _environment_ids(record for cells in sources.records.values() for record in cells):
        users = [e for e, cells in sources.records.items() if any(name in record.environments for record in cells)]
        measured_by = ", ".join(f"`{user}`" for user in users)
        rows = tabulate(_identity_rows(sources.environment(name)), ["Identity", name], tablefmt="pipe")
        parts.append(f"Environment `{name}`, of {measured_by}:\n\n{rows}\n")
    return "\n".join(parts) or "Nothing was measured."


def _provenance(sources: Sources) -> str:
    rows = []
    for name, cells in sources.records.items():
        measured = [record.provenance for record in cells if record.provenance]
        if not measured:
            continue
        commits = sorted({_commit(p) for p in measured})
        times = sorted(str(p.get("time", "")) for p in measured)
        current = sources.plan["current_fingerprints"].get(name)
        older = sum(record.fingerprint != current for record in cells if record.ok)
        rows.append([f"`{name}`", ", ".join(commits), times[0], times[-1], older])
    heads = ["Experiment", "Commit (+: with uncommitted changes)", "First cell", "Last cell", "Cells of older code"]
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True) if rows else "Nothing was measured."


class Filler:
    """What a chapter template may name: table(id), figure(id), finding(id), notes(name)."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        folder = sources.results / "tables"
        self.findings = {
            finding.id: finding
            for name in sources.plan["experiments"]
            for finding in findings.load(folder / f"{name}.findings.json")
        }
        self.captions: dict[str, str] = {}
        for name in sources.plan["experiments"]:
            self.captions |= files.read_json(folder / f"{name}.figures.json")

    def table(self, table_id: str) -> str:
        """A table, its title above, the environments of its figures below."""
        folder = self.sources.results / "tables"
        description = files.read_json(folder / f"{table_id}.json")
        text = tables.to_markdown(folder, table_id)
        link = f"[CSV](../../results/{self.sources.site}/tables/{table_id}.csv)"
        return f"**{description['title']}** ({link})\n\n{text}"

    def figure(self, figure_id: str) -> str:
        """A figure with its caption."""
        caption = self.captions[figure_id]
        return f"![{caption}](figures/{figure_id}.svg)\n\n*{caption}*"

    def finding(self, finding_id: str) -> str:
        """A finding's sentence and verdict."""
        finding = self.findings[finding_id]
        return f"**{finding.verdict.capitalize()}.** {finding.text}"

    def notes(self, name: str) -> str:
        """What people wrote in report/notes/<site>/<name>.md, nothing where there is no such file."""
        path = self.sources.root / "report" / "notes" / self.sources.site / f"{name}.md"
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""

    def fill(self, template: str) -> str:
        """A template's text with everything filled in; ValueError with one line where it names what is not there."""
        loader = jinja2.FileSystemLoader(self.sources.root / "report" / "templates")
        engine = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=False)
        try:
            filled = engine.get_template(template).render(
                table=self.table, figure=self.figure, finding=self.finding, notes=self.notes, site=self.sources.site
            )
            return re.sub(r"\n{3,}", "\n\n", filled)
        except (jinja2.TemplateError, KeyError, ValueError) as error:
            raise ValueError(f"report/templates/{template}: {type(error).__name__}: {error}") from error


def write(sources: Sources, now: datetime.datetime) -> str:
    """The whole report as Markdown."""
    filler = Filler(sources)
    ids = _environment_ids(record for cells in sources.records.values() for record in cells)
    machines = sorted({device_name(sources.environment(name)) for name in ids})
    parts = [
        f"# Lab report: {sources.site}",
        f"{DATE_LINE}{now:%Y-%m-%d %H:%M} UTC",
        f"Machine: {'; '.join(machines) or 'nothing was measured'}. Preset: `{sources.plan['preset']}`.",
        "How complete it is, by experiment and status:",
        _completeness(sources),
        filler.notes("introduction"),
        *(filler.fill(f"{chapter}.md") for chapter in sources.plan["chapters"]),
        "# Cells that are not ok",
        _not_ok(sources),
        "# What was unusual",
        _flagged(sources),
        "# Environment",
        _environments(sources),
        _provenance(sources),
        filler.fill("method.md"),
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
