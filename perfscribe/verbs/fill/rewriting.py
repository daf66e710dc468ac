"""Cells put into the lines of a table, and the file written in one step: nothing else of it changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfscribe.base import files
from perfscribe.verbs.fill.document import Row


def filled_line(line: str, row: Row, cells: Mapping[int, str]) -> str:
    """The row's line with these texts in its columns; cells that it lacks, and the bar that ends it, are added."""
    body = line.rstrip("\r\n")
    core = body.rstrip() if row.closed else body
    rest = line[len(core) :] if row.closed else line[len(body) :]
    for column in sorted((one for one in cells if one < len(row.spans)), reverse=True):
        left, right = row.spans[column]
        core = core[:left] + f" {cells[column]} ".ljust(right - left) + core[right:]
    if not row.closed:
        core += "|" if core[-1:].isspace() else " |"
    for column in range(len(row.spans), max(cells, default=-1) + 1):
        core += f" {cells[column]} |" if cells.get(column) else "  |"
    return core + rest


def replace_content(path: Path, content: bytes) -> None:
    """Replace a file's content in one step; its mode stays, and a link goes on leading to it."""
    target = path.resolve(strict=True)
    mode = target.stat().st_mode & 0o7777
    files.write_bytes(target, content)
    target.chmod(mode)
