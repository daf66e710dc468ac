"""Write a page: the document in its template, style and script within, and a policy that lets it load nothing."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import jinja2

from perfscribe import __version__
from perfscribe.page import document, embedded, grid
from perfscribe.statuses import MEANINGS

FOLDER = Path(__file__).parent
# What the page is made of besides this code; the plan knows it by its content.
PARTS = ("report.html", "report.css", "report.js")


def write(report: Path, tables: Path) -> str:
    """The page of a report.md with the figures beside it and its tables' CSV files; ValueError where it is no UTF-8."""
    try:
        text = report.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{report}: not UTF-8 text ({error})") from error
    made = document.read(text, embedded.Folders(report.parent, tables))
    style = _part("report.css")
    style = style.replace("COLUMNS_OF_FIGURES", f"{_columns('n', 'td')},{_columns('n', 'th')}")
    style = style.replace("NARROW_COLUMNS", _columns("s", "td"))
    style = style.replace("COLUMNS_OF_TEXT", _columns("l", "td"))
    script = _part("report.js")
    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True
    )
    return engine.get_template("report.html").render(
        document=made,
        statuses=MEANINGS,
        version=__version__,
        style=style,
        style_digest=_digest(style),
        script=script,
        script_digest=_digest(script),
    )


def _part(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _columns(kind: str, tag: str) -> str:
    """A selector of the cells in columns that a table's classes name: n3 says that the third holds figures."""
    return ",".join(f".{kind}{place} {tag}:nth-child({place})" for place in range(1, grid.MOST_COLUMNS + 1))


def _digest(text: str) -> str:
    """What the page's policy names a style or script by, so that no other is taken."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
