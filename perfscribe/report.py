"""The report: chapter templates filled with tables, figures and findings, and what a reader must know beside them."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from tabulate import tabulate

from perfscribe import at_once, called_from, files, findings, minute, tables
from perfscribe.comparing import beside
from perfscribe.comparing.cells import Side
from perfscribe.left_out import notice, once_a_section
from perfscribe.markdown_tables import markdown_text, prose, to_markdown
from perfscribe.measured_by import (
    commit_name,
    communication_variables,
    device_name,
    environment_ids,
    node_name,
    scheduler_name,
)
from perfscribe.records import STATUSES, Record
from perfscribe.repeated_notes import Notes

DATE_LINE = "Written on "


@dataclass
class Sources:
    """Where a report's parts lie, and what was measured.

    own, others: this site and the committed ones, to be compared; a committed site has none.
    """

    root: Path
    site: str
    plan: Mapping[str, Any]
    records: Mapping[str, list[Record]]
    own: Side | None = None
    others: Sequence[Side] = ()

    @property
    def results(self) -> Path:
        """The site's results folder."""
        return self.root / "results" / self.site

    def environment(self, environment_id: str) -> dict[str, Any]:
        """An identity by its id; empty where its file is lost."""
        return files.read_object(self.results / "environments" / f"{environment_id}.json")


def _completeness(sources: Sources) -> str:
    rows = []
    for name, cells in sources.records.items():
        statuses = Counter(record.status for record in cells)
        rows.append([f"`{name}`", len(cells), *(statuses.get(status, 0) for status in STATUSES)])
    return tabulate(rows, ["Experiment", "Cells", *STATUSES], tablefmt="pipe")


def _levels(records: Sequence[Record]) -> str:
    """The factor levels that these cells cover, constants and lists alike; cells need not have the same factors."""
    levels: dict[str, dict[str, None]] = {}
    for record in records:
        for name, level in record.factors.items():
            levels.setdefault(name, {})[str(level)] = None
    return "; ".join(f"{name} {', '.join(found)}" for name, found in levels.items())


def _table(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    """A Markdown table of texts and whole numbers, whatever signs are in them."""
    cells = [[markdown_text(str(cell)) for cell in row] for row in rows]
    return tabulate(cells, heads, tablefmt="pipe", disable_numparse=True)


def _why(status: str, why: str, group: Sequence[Record]) -> str:
    """The reason of these cells; where the machine was too small, which size they ask for: tables have what is here."""
    found = re.fullmatch(r"\d+ (GPU|node)s?", why)
    if status != "skipped" or found is None:
        return why
    asked = [record.factors.get({"GPU": "world_size", "node": "nodes"}[found[1]]) for record in group]
    known = [float(count) for count in asked if isinstance(count, int)]
    many = findings.from_to(known, "{:.0f}".format) if known else "more"
    return f"{why} here, the cell{'s' * (len(group) > 1)} ask{'s' * (len(group) == 1)} for {many}"


def _not_ok(sources: Sources) -> str:
    rows: list[list[object]] = []
    for name, cells in sources.records.items():
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in cells:
            if not record.ok:
                groups.setdefault((record.status, tables.reason(record)), []).append(record)
        rows += [
            [f"`{name}`", status, _why(status, reason, group), len(group), _levels(group)]
            for (status, reason), group in groups.items()
        ]
    return _table(rows, ["Experiment", "Status", "Reason", "Cells", "Factors"]) if rows else "Every cell is ok."


HOST_BUSY_NOTE = (
    "Host busy: the time that the job's cores were busy, less the CPU time of the cell's processes. What the kernel "
    "does for their network, and what a process used whose end nobody waited for, is charged to none of them: where "
    "ranks exchange over TCP the cell's own may be in it."
)


def _flagged(sources: Sources) -> str:
    rows = [
        [f"`{name}`", _levels([record]), "; ".join(record.flags)]
        for name, cells in sources.records.items()
        for record in cells
        if record.flags
    ]
    if not rows:
        return "No cell is flagged."
    busy = any("host busy " in str(row[-1]) for row in rows)
    return _table(rows, ["Experiment", "Cell", "What was unusual"]) + (f"\n\n{HOST_BUSY_NOTE}" if busy else "")


def _identity_rows(identity: Mapping[str, Any]) -> list[list[str]]:
    """Name and value of each part; what a machine does not have or does not tell is said in words."""
    unknown = "not told" if identity.get("gpu_count") else "no GPU"
    rows = []
    for name, level in identity.items():
        if isinstance(level, dict):
            text = ", ".join(f"{key} {value or 'not installed'}" for key, value in level.items()) or "none"
        else:
            text = unknown if level is None else str(level)
        rows.append([name, text])
    return rows


def _environments(sources: Sources) -> str:
    parts = []
    for name in environment_ids(record for cells in sources.records.values() for record in cells):
        users = [e for e, cells in sources.records.items() if any(name in record.environments for record in cells)]
        measured_by = ", ".join(f"`{user}`" for user in users)
        told = communication_variables(
            record for cells in sources.records.values() for record in cells if name in record.environments
        )
        variables = [["variables", "; or ".join(one or "none" for one in told)]] if any(told) else []
        rows = _table([*_identity_rows(sources.environment(name)), *variables], ["Identity", name])
        parts.append(f"Environment `{name}`, of {measured_by}:\n\n{rows}\n")
    return "\n".join(parts) or "Nothing was measured."


def _provenance(sources: Sources) -> str:
    rows = []
    for name, cells in sources.records.items():
        measured = [record.provenance for record in cells if record.provenance]
        if not measured:
            continue
        commits = sorted({commit_name(p) for p in measured})
        times = sorted(re.sub(r"\.\d+", "", str(p.get("time", "not recorded"))) for p in measured)
        current = sources.plan["current_fingerprints"].get(name)
        older = sum(record.fingerprint != current for record in cells if record.ok)
        rows.append([f"`{name}`", ", ".join(commits), times[0], times[-1], older])
    heads = ["Experiment", "Commit (+: with uncommitted changes)", "First cell", "Last cell", "Cells of older code"]
    undigested = sum("undigested" in record.provenance for cells in sources.records.values() for record in cells)
    note = f"\n\n{undigested} cells are of journal lines without a digest, of an older version." if undigested else ""
    return _table(rows, heads) + note if rows else "Nothing was measured."


def _nodes(sources: Sources) -> str:
    """Which nodes of a cluster measured how many cells of what; nothing on one machine."""
    jobs = [record for cells in sources.records.values() for record in cells if record.provenance.get("cluster")]
    if not jobs:
        return ""
    by_node: dict[str, list[Record]] = {}
    for record in jobs:
        by_node.setdefault(node_name(record.provenance), []).append(record)
    rows = []
    for node, cells in sorted(by_node.items(), key=lambda item: (len(item[0]), item[0])):
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(record.experiment for record in cells))
        rows.append([node, len(cells), sum(record.ok for record in cells), names])
    said = f"Measured by {scheduler_name(jobs[0].provenance)} jobs, {_counted(len(by_node), 'node')}:"
    return f"{said}\n\n{_table(rows, ['Node', 'Cells', 'Of these ok', 'Experiments'])}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _machines(sources: Sources) -> str:
    """Who measured: devices, and on how many nodes where that was a cluster."""
    cells = [record for of in sources.records.values() for record in of]
    machines = sorted({device_name(sources.environment(name)) for name in environment_ids(cells)})
    nodes = {node_name(record.provenance) for record in cells if record.provenance.get("cluster")}
    return "; ".join(machines) + (f"; {_counted(len(nodes), 'node')} of a cluster" if nodes else "")


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
        self._said = Notes()
        self.captions: dict[str, str] = {}
        for name in sources.plan["experiments"]:
            self.captions |= files.read_json(folder / f"{name}.figures.json")

    def table(self, table_id: str) -> str:
        """A table, its title above."""
        folder = self.sources.results / "tables"
        if self._left_out(table_id) or not (folder / f"{table_id}.json").is_file():
            return self._in_place_of("table", table_id)
        description = files.read_json(folder / f"{table_id}.json")
        text = to_markdown(folder, table_id, self._said)
        link = f"[CSV](../../results/{self.sources.site}/tables/{table_id}.csv)"
        return f"**{description['title']}** ({link})\n\n{text}"

    def figure(self, figure_id: str) -> str:
        """A figure with its caption."""
        if figure_id not in self.captions:
            return self._in_place_of("figure", figure_id)
        caption = self.captions[figure_id]
        return f"![{caption}](figures/{figure_id}.svg)\n\n*{caption}*"

    def finding(self, finding_id: str) -> str:
        """A finding's verdict and sentence."""
        if finding_id not in self.findings:
            return self._in_place_of("finding", finding_id)
        finding = self.findings[finding_id]
        verdict = "Cannot tell here:" if finding.verdict == "cannot tell" else f"{finding.verdict.capitalize()}."
        return f"**{verdict}** {prose(finding.text)}"

    def notes(self, name: str) -> str:
        """What people wrote in report/notes/<site>/<name>.md, nothing where there is no such file."""
        path = self.sources.root / "report" / "notes" / self.sources.site / f"{name}.md"
        return called_from.text(path, self.sources.root).strip() if path.exists() else ""

    @cached_property
    def _code(self) -> list[tuple[str, str]]:
        """Names of experiments, each with the text of one of its files."""
        folder = self.sources.root / "perfscribe" / "experiments"
        return [(path.parent.name, path.read_text("utf-8")) for path in folder.glob("*/*.py")]

    def _left_out(self, item_id: str) -> str:
        """Name of the experiment that makes this, where the site does not hold it; else empty."""
        named_by = {name for name, text in self._code if f'"{item_id}"' in text}
        return "" if not named_by or named_by & set(self.sources.plan["experiments"]) else min(named_by)

    def _in_place_of(self, kind: str, item_id: str) -> str:
        """What stands for a thing that the site does not hold; ValueError where no experiment makes it at all."""
        owner = self._left_out(item_id)
        if not owner:
            raise ValueError(f"no experiment makes the {kind} {item_id}")
        return notice(owner)

    def fill(self, template: str) -> str:
        """A template's text with everything filled in; ValueError with one line where it names what is not there."""
        loader = jinja2.FileSystemLoader(self.sources.root / "report" / "templates")
        engine = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=False)
        self._said = Notes()
        try:
            filled = engine.get_template(template).render(
                table=self.table, figure=self.figure, finding=self.finding, notes=self.notes, site=self.sources.site
            )
            return once_a_section(re.sub(r"\n{3,}", "\n\n", filled))
        except jinja2.TemplateNotFound as error:
            raise ValueError(f"there is no report/templates/{error.name}") from error
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"report/templates/{template}, line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, LookupError, TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise ValueError(f"report/templates/{template}: {text}") from error


def missing(sources: Sources) -> list[str]:
    """A line for each experiment whose records are not one for each planned cell; ValueError without its plan."""
    told = []
    for name, cells in sources.records.items():
        planned = {
            files.canonical(cell["factors"])
            for path in (sources.results / "plan").glob(f"measure-{name}-[0-9]*.json")
            for cell in files.read_json(path)["cells"]
        }
        shown = [files.canonical(record.factors) for record in cells if record.origin == "measured"]
        if set(shown) != planned or len(shown) != len(planned):
            told.append(f"{name}: {len(planned)} cells planned, {len(set(shown) & planned)} of them in the records")
    return told


def summary(sources: Sources) -> dict[str, Any]:
    """The site in short, as the report opens and as other pages compare it."""
    return minute.summary(sources.root, sources.plan, sources.records, sources.results)


def write(sources: Sources, now: datetime.datetime) -> str:
    """The whole report as Markdown."""
    filler = Filler(sources)
    found = summary(sources)
    parts = [
        f"# Lab report: {sources.site}",
        f"{DATE_LINE}{now:%Y-%m-%d %H:%M} UTC",
        f"Machine: {_machines(sources) or 'nothing was measured'}. Preset: `{sources.plan['preset']}`. "
        f"{minute.software(found)}",
        "## In short",
        minute.headline_table(found),
        f"{minute.totals(found)} By experiment and status:",
        _completeness(sources),
        f"What was unusual: {minute.unusual(found)}",
        filler.notes("introduction"),
        *(filler.fill(f"{chapter}.md") for chapter in sources.plan["chapters"]),
        beside.chapter(sources.own, sources.others, sources.site),
        "# Cells that are not ok",
        _not_ok(sources),
        "# What was unusual",
        _flagged(sources),
        "# Environment",
        _environments(sources),
        _provenance(sources),
        at_once.sentence(sources.records),
        _nodes(sources),
        filler.fill("method.md"),
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
