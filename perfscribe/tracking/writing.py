"""Writes to a tracker what it has not got yet, run by run, and keeps a list of what it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfscribe.base import files
from perfscribe.tracking import runs, trackers

WRITTEN = "written.json"


def folder_of(site_folder: Path, tracker: str) -> Path:
    """Where a site's runs lie."""
    return site_folder / "tracking" / tracker


def written(folder: Path) -> dict[str, str]:
    """Name by id of the runs that the tracker has."""
    path = folder / WRITTEN
    found: dict[str, str] = files.read_json(path) if path.is_file() else {}
    return found


def write(rows: Iterable[Mapping[str, Any]], folder: Path, tracker: str, site: str) -> dict[str, str]:
    """Write the runs of these records; those that the tracker has are passed over. Returns name by id of all it has."""
    have = written(folder)
    for run in runs.of_records(rows):
        if run.id not in have:
            trackers.WRITERS[tracker](run, folder, site)
            have[run.id] = run.name
            files.write_json(folder / WRITTEN, have)
    return have
