"""Tables and figures that report runs have made: what none makes any more goes, such as a disabled experiment's.

What a run has made stands in results/<site>/drawn.json, and the next one takes away what is there and no longer
declared: nothing that a user has put beside it. Where that list is not there yet, tables and captions say themselves
what they describe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfscribe import files

LIST = "drawn.json"
PUBLISHED = "published.json"  # marks a site that is committed
NAME = re.compile(r"(tables|figures)/\w[\w.-]*")  # nothing else is taken away, whatever the list says
FIGURE_KINDS, TABLE_KINDS, ABOUT = ("svg", "png"), ("csv", "json"), ("findings", "figures")


def figure_kinds(site_folder: Path) -> tuple[str, ...]:
    """What files are made of a figure of this site, results/<site>: of a published one what its report shows alone."""
    return FIGURE_KINDS[:1] if (site_folder / PUBLISHED).is_file() else FIGURE_KINDS


def declared(units: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of the files that the presenting units of a plan make, below results/<site> and report/<site>."""
    shown = list(units)
    tables = {f"tables/{name}.{kind}" for unit in shown for name in unit["tables"] for kind in TABLE_KINDS}
    tables |= {f"tables/{name}" for unit in shown for name in unit["files"]}
    tables |= {f"tables/{unit['experiment']}.{what}.json" for unit in shown for what in ABOUT}
    figures = {f"figures/{name}.{kind}" for unit in shown for name in unit["figures"] for kind in FIGURE_KINDS}
    return {"results": sorted(tables), "report": sorted(figures)}


def clear(root: Path, site: str, experiments: Iterable[str]) -> list[str]:
    """Delete what earlier runs made and these experiments do not; the names of the files that are gone."""
    folder = root / "results" / site
    now = declared(files.read_json(folder / "plan" / f"present-{name}.json") for name in experiments)
    listed = folder / LIST
    before = files.read_json(listed) if listed.is_file() else _described(folder / "tables")
    gone = []
    for parent, names in before.items():
        for name in sorted(set(names) - set(now.get(parent, names))):
            path = root / parent / site / name
            if NAME.fullmatch(name) and path.is_file():
                path.unlink()
                gone.append(path.relative_to(root).as_posix())
    files.write_json_if_changed(listed, now)
    return gone


def _described(tables: Path) -> dict[str, list[str]]:
    """What the descriptions among the tables say that runs have made."""
    made, figures = set(), set()
    for path in sorted(tables.glob("*.json")):
        what = path.name.split(".")[-2]
        if what == "figures" and isinstance(content := _content(path), dict):
            made |= {f"tables/{path.name.removesuffix('.figures.json')}.{about}.json" for about in ABOUT}
            figures |= {f"figures/{name}.{kind}" for name in content for kind in FIGURE_KINDS}
        elif isinstance(content := _content(path), dict) and {"id", "columns", "notes"} <= content.keys():
            made |= set(_of_table(path, content))
    return {"results": sorted(made), "report": sorted(figures)}


def _of_table(path: Path, description: Mapping[str, Any]) -> Iterator[str]:
    if description["id"] == path.stem:
        yield from (f"tables/{path.stem}.{kind}" for kind in TABLE_KINDS)


def _content(path: Path) -> Any:
    """What the file holds; None where it is no JSON."""
    try:
        return files.read_json(path)
    except ValueError:
        return None
