"""A site's report: hand-in, pages of details, and appendix (environment, method, cells that are not ok)."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from perfscribe.base import called_from, chapters, files
from perfscribe.records.disturbances import SET
from perfscribe.records.form import STATUSES
from perfscribe.records.records import Record
from perfscribe.report import handin, summary
from perfscribe.report.page import whole_page
from perfscribe.report.rows import Site
from perfscribe.report.templates import Template
from perfscribe.show import tables
from perfscribe.show.markdown_tables import in_words, of_texts
from perfscribe.show.provenance import commit_name, environment_ids, node_name, scheduler_name, telling_variables


@dataclass
class Sources:
    """Inputs of a report: folders, plan and records."""

    root: Path
    site: str
    plan: Mapping[str, Any]
    records: Mapping[str, list[Record]]

    @property
    def results(self) -> Path:
        """Results folder of the site."""
        return self.root / "results" / self.site


def _completeness(sources: Sources) -> str:
    rows = []
    for name, cells in sources.records.items():
        statuses = Counter(record.status for record in cells)
        rows.append([f"`{name}`", len(cells), *(statuses.get(status, 0) for status in STATUSES)])
    return tabulate(rows, ["Experiment", "Cells", *STATUSES], tablefmt="pipe")


def _levels(records: Sequence[Record]) -> str:
    """List all factor levels of these cells; cells may have different factors."""
    levels: dict[str, dict[str, None]] = {}
    for record in records:
        for name, level in record.factors.items():
            levels.setdefault(name, {})[str(level)] = None
    return "; ".join(f"{name} {', '.join(texts)}" for name, texts in levels.items())


def _not_ok(sources: Sources) -> str:
    rows: list[list[object]] = []
    for name, cells in sources.records.items():
        lacking = [record for record in cells if not record.ok]
        groups = tables.grouped(lacking, lambda record: (record.status, in_words(record.status, tables.reason(record))))
        rows += [[f"`{name}`", *why, len(group), _levels(group)] for why, group in groups.items()]
    return of_texts(rows, ["Experiment", "Status", "Reason", "Cells", "Factors"]) if rows else "Every cell is ok."


def _flagged(sources: Sources) -> str:
    """Table of flagged cells; cells of an experiment with equal flags, the first for variables, share a row."""

    def row_of(record: Record) -> str:
        return "; ".join(record.flags) if record.flags[0].startswith(SET) else files.canonical(record.factors)

    rows = []
    for name, cells in sources.records.items():
        for group in tables.grouped((record for record in cells if record.flags), row_of).values():
            rows.append([f"`{name}`", _levels(group), "; ".join(group[0].flags)])
    return of_texts(rows, ["Experiment", "Cell", "What was unusual"]) if rows else "No cell is flagged."


def _identity(identity: Mapping[str, Any]) -> dict[str, str]:
    """Parts of an identity by name; unknown or missing ones in words."""
    unknown = "not told" if identity.get("gpu_count") else "no GPU"

    def shown(level: Any) -> str:
        if isinstance(level, dict):
            return ", ".join(f"{key} {value or 'not installed'}" for key, value in level.items()) or "none"
        return unknown if level is None else str(level)

    return {name: shown(level) for name, level in identity.items()}


def _environments(sources: Sources) -> str:
    """List each machine once, with its environments, which differ in libraries."""
    records = [record for cells in sources.records.values() for record in cells]
    machines: dict[str, list[list[str]]] = {}
    for name in environment_ids(records):
        cells = [record for record in records if name in record.environments]
        identity = files.read_object(sources.results / "environments" / f"{name}.json")  # empty if lost
        sets = telling_variables(cells)
        variables = [["variables", "; or ".join(text or "none" for text in sets)]] if any(sets) else []
        rows = _identity(identity)
        libraries = rows.pop("libraries", "lost")
        machine = (
            of_texts([*rows.items(), *variables], ["Environment", "Value"])
            if rows
            else "A machine whose description is lost:"
        )
        measured = ", ".join(dict.fromkeys(f"`{record.experiment}`" for record in cells))
        machines.setdefault(machine, []).append([f"`{name}`", measured, libraries])
    heads = ["Environment", "Experiments", "Libraries"]
    return "\n\n".join(f"{top}\n\n{of_texts(rows, heads)}" for top, rows in machines.items()) or "Nothing was measured."


def _provenance(sources: Sources) -> str:
    rows = []
    for name, cells in sources.records.items():
        measured = [provenance for record in cells for provenance in record.provenances]
        if not measured:
            continue
        commits = sorted({commit_name(p) for p in measured})
        times = sorted(re.sub(r"\.\d+", "", str(p.get("time", "not recorded"))) for p in measured)
        rows.append([f"`{name}`", ", ".join(commits), times[0], times[-1]])
    heads = ["Experiment", "Commit (+: with uncommitted changes)", "First cell", "Last cell"]
    return of_texts(rows, heads) if rows else "Nothing was measured."


def _nodes(sources: Sources) -> str:
    """Number of cells that each cluster node measured; "" on one machine."""
    jobs = [record for cells in sources.records.values() for record in cells if record.provenance.get("cluster")]
    if not jobs:
        return ""
    by_node = tables.grouped(jobs, lambda record: node_name(record.provenance))
    rows = []
    for node, cells in sorted(by_node.items(), key=lambda item: (len(item[0]), item[0])):
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(record.experiment for record in cells))
        rows.append([node, len(cells), sum(record.ok for record in cells), names])
    heading = f"Measured by {scheduler_name(jobs[0].provenance)} jobs:"
    return f"{heading}\n\n{of_texts(rows, ['Node', 'Cells', 'Of these ok', 'Experiments'])}"


def missing(sources: Sources) -> list[str]:
    """One line per experiment whose records differ from the planned cells; ValueError if its plan is missing."""
    lines = []
    for name, cells in sources.records.items():
        planned = {
            files.canonical(cell["factors"])
            for path in (sources.results / "plan").glob(f"measure-{name}-[0-9]*.json")
            for cell in files.read_json(path)["cells"]
        }
        shown = [files.canonical(record.factors) for record in cells]
        if set(shown) != planned or len(shown) != len(planned):
            lines.append(f"{name}: {len(planned)} cells planned, {len(set(shown) & planned)} of them in the records")
    return lines


def notes(root: Path, site: str, chapter: str) -> dict[str, str]:
    """Read report/notes/<site>/<chapter>.md by heading; ValueError if a heading resembles a problem's."""
    course = chapters.read(chapter)
    path = root / "report" / "notes" / site / f"{course.name}.md"
    if not path.exists():
        return {}
    written = called_from.text(path, root)
    others = {name: chapters.read(name).headings() for name in chapters.names() if name != course.name}
    elsewhere = {heading: f"{name}.md" for name, headings in others.items() for heading in headings}
    try:
        return handin.by_heading(written, course.headings(), elsewhere)
    except ValueError as error:
        raise ValueError(f"{path.relative_to(root)}: {error}") from None


def appendix(sources: Sources, site: Site) -> str:
    """Make the appendix: environment, method, and every cell that is not ok or was disturbed."""
    names = {
        "site": {"name": sources.site},
        "cells_by_status": _completeness(sources),
        "not_ok": _not_ok(sources),
        "remarks": _flagged(sources),
        "environments": _environments(sources),
        "provenance": _provenance(sources),
        "nodes": _nodes(sources),
    }
    return whole_page(Template(chapters.source(chapters.ROOT / chapters.APPENDIX), site, names=names))


def write(sources: Sources) -> tuple[dict[str, str], dict[str, Any]]:
    """Make all pages, by path in report/<site>, and the summary."""
    short = summary.of_site(sources.plan, sources.records, sources.results)
    folder = sources.results / "tables"
    captions: dict[str, str] = {}
    for name in sources.plan["experiments"]:
        captions |= files.read_json(folder / f"{name}.figures.json")
    people = {chapter: notes(sources.root, sources.site, chapter) for chapter in sources.plan["chapters"]}
    site = Site(sources.site, folder, "cuda" if short["gpus"] else "cpu")
    page = appendix(sources, site)
    short["emulated"] = bool(Template.shared(site)["emulated"])
    pages = handin.write(site, short, captions, people)
    return pages | {"appendix.md": page}, short
