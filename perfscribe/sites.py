"""report/README.md: the committed sites, what each measured, and their headlines side by side.

`python -m perfscribe.sites > report/README.md` makes it of the sites' summaries.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from perfscribe import files, headlines, minute
from perfscribe.markdown_tables import markdown_text
from perfscribe.records import STATUSES
from perfscribe.statistics import format_figure

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("report") / "README.md"
TOP = """\
# Reports

<!-- Made of results/*/summary.json by `python -m perfscribe.sites > report/README.md`. -->

Committed sites, each measured on its own machine and drawn from its journals by today's code. The same report as one
HTML file, to read without a network or to send to somebody: `./run report --config site=NAME` makes
`report/NAME/report.html` in a few seconds and measures nothing. Your own runs are site `local`; `./run publish NAME`
makes a site of them.
"""
EXPERIMENTS = """\
## Experiments by site

What each site has figures of. A site leaves out what its machine or its time did not allow; what a report names and
this table does not is made of the cells of others.
"""
SIDE_BY_SIDE = """\
## Headlines side by side

Each figure is of one cell, the largest of its kind that the site has measured; its levels stand beside it. A ratio
stands only where two sites have measured the same cell by the same code; it is to the first of them. What bounds each
figure stands in the site's report.
"""


def text(root: Path) -> str:
    """The page."""
    sites = {path.parent.name: _summary(path.parent) for path in sorted(root.glob("results/*/published.json"))}
    drawn = {name: found for name, found in sites.items() if found}
    parts = [TOP, _overview(sites)]
    if drawn:
        parts += [EXPERIMENTS, _experiments(drawn)]
        parts += [
            SIDE_BY_SIDE,
            _side_by_side(drawn, list(dict.fromkeys(one.title for one in headlines.declared(root)))),
        ]
    return "\n".join(parts)


def refresh(root: Path) -> None:
    """Write the page where it would be another."""
    made, path = text(root), root / PAGE
    if not path.is_file() or path.read_text(encoding="utf-8") != made:
        files.write_text(path, made)


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    found: dict[str, Any] = files.read_json(path) if path.is_file() else {}
    return found


def _table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    cells = [[markdown_text(cell) for cell in row] for row in rows]
    return tabulate(cells, heads, tablefmt="pipe", disable_numparse=True) + "\n"


def _overview(sites: Mapping[str, Mapping[str, Any]]) -> str:
    statuses = [status for status in STATUSES if any(status in found.get("cells", {}) for found in sites.values())]
    rows = []
    for name, found in sites.items():
        link = f"[{name}]({name}/report.md)"
        if not found:
            rows.append([link, "not drawn by this version yet", *[""] * (3 + len(statuses))])
            continue
        days = " to ".join(dict.fromkeys([found["first_day"], found["last_day"]]))
        counts = [str(found["cells"].get(status, 0)) for status in statuses]
        total = str(sum(found["cells"].values()))
        rows.append([link, "; ".join(found["machines"]), minute.software(found).rstrip("."), days, total, *counts])
    return _table(rows, ["Report", "Machine", "Software", "Measured", "Cells", *statuses])


def _experiments(sites: Mapping[str, Mapping[str, Any]]) -> str:
    """Which sites have figures of which experiment."""
    names = sorted({name for found in sites.values() for name in found["code"]})
    rows = [
        [f"`{name}`", *("measured" if found["code"].get(name) else "no" for found in sites.values())] for name in names
    ]
    return _table(rows, ["Experiment", *(f"[{name}]({name}/report.md)" for name in sites)])


def _side_by_side(sites: Mapping[str, Mapping[str, Any]], titles: Sequence[str]) -> str:
    by_site = {
        name: {item["title"]: headlines.Headline(**item) for item in found["headlines"]}
        for name, found in sites.items()
    }
    rows = []
    for title in titles:
        having = {name: found[title] for name, found in by_site.items() if title in found}
        if having:
            cells = [_beside(name, having, sites) if name in having else "not measured" for name in sites]
            rows.append([title, *cells])
    return _table(rows, ["Figure", *sites])


def _beside(name: str, having: Mapping[str, headlines.Headline], sites: Mapping[str, Mapping[str, Any]]) -> str:
    """A site's figure with its cell, and its ratio to the first site where that is a comparison."""
    own = having[name]
    levels = ", ".join(f"{factor} {level}" for factor, level in own.cell.items())
    shown = f"{own.shown} ({levels})"
    others = [other for other in having if _comparable(other, name, having, sites)]
    if not others or others[0] == name or not having[others[0]].value:
        return shown
    ratio = own.value / having[others[0]].value
    return f"{shown}; {format_figure(ratio)} × {others[0]}"


def _comparable(
    one: str, other: str, having: Mapping[str, headlines.Headline], sites: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether two sites measured the same cell by the same code, so that only the machine differs."""
    first, second = having[one], having[other]
    codes = [sites[name]["code"].get(having[name].experiment) for name in (one, other)]
    same_code = codes[0] == codes[1] and bool(codes[0]) and len(codes[0] or ()) == 1
    return same_code and (first.table, first.unit, first.cell) == (second.table, second.unit, second.cell)


if __name__ == "__main__":
    sys.stdout.write(text(ROOT))
