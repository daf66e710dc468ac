"""Checksums of the files that each unit of a plan has made, in results/<site>/checksums/<unit>.json.

Derived files are never trusted: before a run, a unit is due again if its files differ from its checksums. This includes
the journal, which a measuring unit reads anew. The lists also show which tables and figures no unit makes any more.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from perfscribe.base import files, registry

FOLDER = "checksums"
# Bytes hashed at each end of a file; the middle of larger files (data sets) is checked by their readers. mtimes are
# ignored: measuring cold reads and Snakemake change them.
HASHED_BYTES = 1 << 21
# Only matching files are ever deleted, whatever a list contains; relative to results/<site>.
SHOWN = re.compile(r"(tables|\.\./\.\./report/[a-z0-9_-]+/figures)/\w[\w.-]*")

KINDS = ("csv", "json")  # file types of a table
# Consequence of a difference, by folder.
THEN = {
    "journal": "what it lost is measured again",
    "data": "made again when a cell reads it",
    "environments": "the machine that it described is not known any more",
}


def keep(site_folder: Path, unit: str, outputs: Iterable[Path]) -> None:
    """Record the unit's files; delete files that it made before and no longer makes.

    site_folder: results/<site>. unit: name of the plan file.
    """
    before = _listed(site_folder, unit) or {}
    now = {os.path.relpath(path, site_folder): _mark(path) for path in outputs}
    _delete(site_folder, before.keys() - now.keys())
    files.write_json(site_folder / FOLDER / f"{unit}.json", now)


def renew(
    site_folder: Path, units: Mapping[str, str], published: bool = False, delete: Callable[[Path], None] = Path.unlink
) -> list[str]:
    """Make units due again whose files differ from their checksums; return one line per such file.

    units: for each unit the output, relative to the site's folder, whose deletion makes Snakemake run the unit again.
    A unit without checksums runs again, too, without a line; not on a published site, where git keeps the files.
    """
    lines = []
    for unit, output in units.items():
        listed = _listed(site_folder, unit)
        if output.startswith("data/") and not (site_folder / output).exists():
            continue  # due and reported already: a data set is made only when a cell needs it
        differing = [name for name, mark in (listed or {}).items() if _mark(_file(site_folder, name)) != mark]
        for name in differing:
            path = os.path.relpath(site_folder / name, site_folder.parents[1])
            then = THEN.get(name.partition("/")[0], "made again")
            what = "differs from its checksum" if _file(site_folder, name).exists() else "is missing"
            lines.append(f"{path} {what}: {then}")
        if (differing or (listed is None and not published)) and (file := _file(site_folder, output)).exists():
            delete(file)
    return lines


def clear(site_folder: Path) -> list[str]:
    """Delete tables and figures that no planned unit makes any more; return their names, relative to the site.

    Keeps data sets and their checksums: their digests show later runs which cells are done.
    """
    lists = [path for path in sorted((site_folder / FOLDER).glob("*.json")) if not path.name.startswith("data-")]
    planned = [path for path in lists if (site_folder / "plan" / path.name).exists()]
    expected = {name for path in planned for name in _listed(site_folder, path.stem) or {}}
    gone = []
    for path in lists:
        if path not in planned:
            gone += _delete(site_folder, (_listed(site_folder, path.stem) or {}).keys() - expected)
            path.unlink()
    return gone + _delete(site_folder, _of_unplanned(site_folder) - expected)


def _of_unplanned(site_folder: Path) -> set[str]:
    """Files that the report would show for experiments that are not planned, in case their lists are lost."""
    unplanned = [name for name in registry.known() if not (site_folder / "plan" / f"present-{name}.json").exists()]
    tables = {f"tables/{table}.{kind}" for name in unplanned for table in registry.shown(name).tables for kind in KINDS}
    return tables | {f"tables/{name}.figures.json" for name in unplanned}


def forget(site_folder: Path, units: Iterable[str]) -> None:
    """Make units due again, whether or not their files changed."""
    for unit in units:
        (site_folder / FOLDER / f"{unit}.json").unlink(missing_ok=True)


def _listed(site_folder: Path, unit: str) -> dict[str, str] | None:
    """Files and checksums in the unit's list; None if missing or malformed."""
    try:
        listed = files.read_json(site_folder / FOLDER / f"{unit}.json")
    except ValueError:
        return None
    sound = isinstance(listed, dict) and all(isinstance(mark, str) for mark in listed.values())
    return listed if sound else None


def _file(site_folder: Path, name: str) -> Path:
    """Path of a listed name; .. is resolved without following links, so that a linked site folder works."""
    return Path(os.path.normpath(site_folder / name))


def _mark(path: Path) -> str:
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            content = stream.read(size if path.suffix == ".jsonl" else HASHED_BYTES)
            stream.seek(max(len(content), size - HASHED_BYTES))
            content += stream.read(HASHED_BYTES)
    except OSError:
        return ""
    return f"{size} {hashlib.sha256(content).hexdigest()}"


def _delete(site_folder: Path, names: Iterable[str]) -> list[str]:
    gone = [name for name in sorted(names) if SHOWN.fullmatch(name) and _file(site_folder, name).is_file()]
    for name in gone:
        _file(site_folder, name).unlink()
    return gone
