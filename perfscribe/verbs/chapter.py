"""`./run chapter FILE [--site NAME]`: one problem of a chapter as it stands in a site's report, for its author."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe.base import called_from, chapters
from perfscribe.base.chapters import Chapter
from perfscribe.base.one_line import Parser
from perfscribe.report.page import Problem
from perfscribe.report.rows import of_name


def main(root: Path, arguments: Sequence[str], read_config: Callable[[], Mapping[str, Any]]) -> int:
    """Print the problem; ValueError with one line where the file has a mistake."""
    parser = Parser(prog="./run chapter", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="a problem's file, a Markdown file that an index lists")
    parser.add_argument("--site", metavar="NAME", default="", help="whose results (default: your own, else h200x4)")
    chosen = parser.parse_args(arguments)
    path = called_from.file(chosen.file).resolve()
    chapter = _chapter_of(path)
    problem = Problem(chapter, path.stem, of_name(root, chosen.site or _default_site(root)))
    figures = {picture.figure for picture in problem.pictures}
    print(problem.markdown(figures, has_details=False))
    for title, text in (("First page", problem.finding), ("Details", problem.remarks), ("Status", problem.status())):
        if text:
            print(f"\n{title}: {text}")
    return 0


def _default_site(root: Path) -> str:
    known = sorted(path.parent.name for path in (root / "results").glob("*/summary.json"))
    if not known:
        raise ValueError("chapter: there is no site; `./run report` makes one")
    return next((name for name in ("local", "h200x4") if name in known), known[0])


def _chapter_of(path: Path) -> Chapter:
    """The chapter whose index lists a file."""
    own = path.parent / chapters.OWN_INDEX
    names = [str(path.parent)] if own.is_file() else [*chapters.names()]
    for chapter in map(chapters.read, names):
        if path.stem in chapter.index["problems"] and chapter.file(path.stem) == path:
            return chapter
    raise ValueError(f"{chapters.shown(path)}: no index lists this file")
