"""report/README.md: the committed sites and their headlines, compared.

`python -m perfscribe.report.sites > report/README.md` makes it from the sites' summaries.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.records import form
from perfscribe.records.form import STATUSES
from perfscribe.report.first_page import nodes
from perfscribe.show.markdown_tables import of_texts

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path("report") / "README.md"
TOP = """\
# Reports

<!-- Made of results/*/summary.json by `python -m perfscribe.report.sites > report/README.md`. -->

Committed sites, each drawn from its journals by today's code. `./run report --config site=NAME` makes
`report/NAME/report.html`, the whole report as one file, and measures nothing. Your own runs are site `local`;
`./run publish NAME` makes a site of them. `-`: not measured there.
"""


def text(root: Path) -> str:
    """Make the page."""
    sites = {
        path.parent.name: files.read_json(path.parent / "summary.json")
        for path in sorted(root.glob("results/*/published.json"))
        if (path.parent / "summary.json").is_file()
    }
    with form.as_written(root / "results"):
        return "\n".join([TOP, _overview(sites), "## Headlines\n", _headlines(sites), *_picture(root, sites)])


def refresh(root: Path) -> None:
    """Write the page if it changed."""
    page, path = text(root), root / PAGE
    if not path.is_file() or path.read_text(encoding="utf-8") != page:
        files.write_text(path, page)


def _overview(sites: Mapping[str, Mapping[str, Any]]) -> str:
    statuses = [status for status in STATUSES if any(status in site["cells"] for site in sites.values())]
    rows = []
    for name, site in sites.items():
        days = " to ".join(dict.fromkeys((site["first_day"], site["last_day"])))
        counts = [str(site["cells"].get(status, 0)) for status in statuses]
        machines = "; ".join(filter(None, [*site["machines"], nodes(site)]))
        rows.append([f"[{name}]({name}/report.md)", machines, days, *counts])
    return of_texts(rows, ["Report", "Machine", "Measured", *(f"Cells {status}" for status in statuses)]) + "\n"


def _headlines(sites: Mapping[str, Mapping[str, Any]]) -> str:
    """Table with one row per headline of any site; cells have the value and its levels."""
    headlines: dict[str, dict[str, str]] = {}
    for name, site in sites.items():
        for what, value in site["headlines"]:
            title, _, levels = what.partition(", ")
            headlines.setdefault(title, {})[name] = f"{value} ({levels})" if levels else value
    rows = [[title, *(cells.get(name, "-") for name in sites)] for title, cells in headlines.items()]
    return of_texts(rows, ["What", *sites]) + "\n"


def _picture(root: Path, sites: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """First figure of the site with most ok cells."""
    name = max(sites, key=lambda site: sites[site]["cells"].get("ok", 0), default="")
    page = root / "report" / name / "report.md"
    match = re.search(r"!\[(.*)\]\((figures/.*)\)", page.read_text(encoding="utf-8")) if page.is_file() else None
    return [f"![{match[1]}]({name}/{match[2]})  \n*{name}: {match[1]}*\n"] if match else []


if __name__ == "__main__":
    sys.stdout.write(text(ROOT))
