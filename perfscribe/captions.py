"""Captions for `snakemake --report`: one file of reStructuredText for each figure and table that it shows.

Snakemake reads them when it makes its report. They say what the report's own captions say, so they are made of the
same files, just before, and are no output of a rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perfscribe import files

FOLDER = Path(".perfscribe") / "captions"
ABSENT = "No caption: this was not drawn yet."


def wanted(arguments: Sequence[str]) -> bool:
    """Whether Snakemake's arguments ask for its report."""
    return any(argument.split("=")[0] == "--report" for argument in arguments)


def write(folder: Path, tables: Path, table_ids: Sequence[str], figure_ids: Sequence[str]) -> None:
    """The captions `table-<id>.rst` and `figure-<id>.rst`. tables: the site's folder of tables and their captions."""
    of_figures: dict[str, str] = {}
    for path in sorted(tables.glob("*.figures.json")):
        of_figures |= files.read_object(path)
    for name in figure_ids:
        _write(folder / f"figure-{name}.rst", of_figures.get(name, ABSENT))
    for name in table_ids:
        description = tables / f"{name}.json"
        found = files.read_object(description)
        text = "\n\n".join([f"{found['title']}.", *found["notes"]]) if found else ABSENT
        _write(folder / f"table-{name}.rst", text)


def _write(path: Path, text: str) -> None:
    files.write_text(path, literal(text) + "\n")


def literal(text: str) -> str:
    """Text as reStructuredText that reads as it stands, in a template of Jinja, which Snakemake takes captions for."""
    escaped = re.sub(r"([\\*`_|<>\[\]])", r"\\\1", text)
    return re.sub(r"[{}]", lambda brace: "{{ '" + brace[0] + "' }}", escaped)
