"""Files that a page takes in, so that it is whole without a network or a checkout: figures, and CSV files of tables."""

from __future__ import annotations

import base64
import gzip
import re
from dataclasses import dataclass
from pathlib import Path

_SIZE = re.compile(r'<svg\b[^>]*?\bviewBox="0 0 ([\d.]+) ([\d.]+)"', re.DOTALL)
POINTS_PER_INCH, PIXELS_PER_INCH = 72, 96


@dataclass(frozen=True)
class Folders:
    """Where a report may take files from: nothing else is read, whatever a text in it names.

    report: holds report.md and figures/. tables: holds the CSV files.
    """

    report: Path
    tables: Path

    def figure(self, target: str) -> Path | None:
        """The SVG that a link of the report leads to; None for anything else."""
        return self._below(target, self.report / "figures", ".svg")

    def table(self, target: str) -> Path | None:
        """The CSV file that a link of the report leads to; None for anything else."""
        return self._below(target, self.tables, ".csv")

    def _below(self, target: str, folder: Path, suffix: str) -> Path | None:
        if re.match(r"[a-z][a-z0-9+.-]*:|/|#", target, re.IGNORECASE):
            return None
        path = (self.report / target).resolve()
        inside = path.parent == folder.resolve() and path.suffix == suffix
        return path if inside and path.is_file() else None


@dataclass(frozen=True)
class Picture:
    """A figure in a page. uri: the whole of it. width, height: in CSS pixels."""

    uri: str
    width: int
    height: int


def picture(path: Path) -> Picture:
    """An SVG as an image: there it can run no script and load nothing."""
    content = path.read_bytes()
    text = content.decode("utf-8", "replace")
    found = _SIZE.search(text)
    width, height = (
        (float(number) * PIXELS_PER_INCH / POINTS_PER_INCH for number in found.groups()) if found else (0, 0)
    )
    return Picture(f"data:image/svg+xml;base64,{_text(content)}", round(width), round(height))


def compressed(path: Path) -> str:
    """A file as a link that downloads it, gzipped: tables shrink to a tenth. The same bytes for the same content."""
    return f"data:application/gzip;base64,{_text(gzip.compress(path.read_bytes(), mtime=0))}"


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
