"""`./run chapter FILE [--site NAME]`: print one problem of a chapter, or the whole chapter, with a site's results."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe.base import called_from, chapters, registry
from perfscribe.base.chapters import Chapter, Source
from perfscribe.base.one_line import Parser
from perfscribe.report.page import Problem
from perfscribe.report.rows import Mistake, of_name
from perfscribe.report.templates import let_lines, names_in


def main(root: Path, arguments: Sequence[str], read_config: Callable[[], Mapping[str, Any]]) -> int:
    """Print a problem or a whole chapter; ValueError (one line) for a mistake in a file."""
    parser = Parser(prog="./run chapter", description=__doc__)
    parser.add_argument("path", metavar="FILE", help="a problem's Markdown file; or a chapter's folder, or its name")
    parser.add_argument("--site", metavar="NAME", default="", help="whose results (default: your own, else h200x4)")
    chosen = parser.parse_args(arguments)
    site = of_name(root, chosen.site or _default_site(root))
    path = called_from.file(chosen.path).resolve()
    chapter = _chapter_of(path) if path.suffix == ".md" else chapters.read(chosen.path)
    for key in [path.stem] if path.suffix == ".md" else chapter.problems:
        print(_shown(Problem(chapter, key, site)), end="\n\n")
    print(f"Site: {site.name}")
    return 0


def _shown(problem: Problem) -> str:
    """Render the problem and its texts for other pages; ValueError for unknown figures."""
    figures = {figure for name in registry.known() for figure in registry.shown(name).figures}
    for picture in problem.pictures:
        if picture.figure not in figures:
            raise ValueError(f"{problem.source.name}: {Mistake('no figure', picture.figure, figures)}")
    parts = [problem.markdown(figures)]
    for title, text in (("First page", problem.finding), ("Details", problem.remarks), ("Status", problem.status())):
        parts += [f"{title}: {text}"] if text else []
    if unmeasured := [table for table in problem.ids if not problem.site.table(table).columns]:
        parts.append(f"Tables not measured here: {', '.join(unmeasured)}")
    conditions = re.findall(r"{% reason (.+?) %}", problem.source.text)
    names = dict.fromkeys(name for condition in conditions for name in re.findall(r"\w+", condition))
    failed = [name for name in names if problem.variables.get(name) == "False"]
    if failed := [name for name in failed if name not in _resting_on(unmeasured, problem.source)]:
        parts.append(f"Reasons left out, as these do not hold here: {', '.join(failed)}")
    return "\n\n".join(parts)


def _resting_on(unmeasured: Sequence[str], source: Source) -> set[str]:
    """Names of these tables in a file, and of its `let` and {% set %} that use one, directly or through others."""
    tables = source.front.get("tables", {})
    names = {name for name, table in tables.items() if (table if isinstance(table, str) else table["id"]) in unmeasured}
    lets = [(name, expression) for _, _, name, expression in let_lines(source.name, source.front)]
    for name, expression in [*lets, *re.findall(r"{% set (\w+) = (.+?) %}", source.text)]:
        if names & names_in(expression):
            names.add(name)
    return names


def _default_site(root: Path) -> str:
    known = sorted(path.parent.name for path in (root / "results").glob("*/summary.json"))
    if not known:
        raise ValueError("chapter: there is no site; `./run report` makes one")
    return next((name for name in ("local", "h200x4") if name in known), known[0])


def _chapter_of(path: Path) -> Chapter:
    """Find the chapter whose index lists a file."""
    index = path.parent / chapters.OWN_INDEX
    names = [str(path.parent)] if index.is_file() else [*chapters.names()]
    for chapter in map(chapters.read, names):
        if path.stem in chapter.index["problems"] and chapter.file(path.stem) == path:
            return chapter
    if not path.is_file():
        raise ValueError(f"{chapters.shown(path)}: no such file")
    raise ValueError(
        f"{chapters.shown(path)}: neither {chapters.OWN_INDEX} beside it nor an index of chapters/ lists it"
    )
