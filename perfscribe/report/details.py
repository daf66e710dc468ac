"""Details: a page for each problem with the whole tables behind it, and the figures that the hand-in leaves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from perfscribe.base import chapters, files
from perfscribe.report.page import Problem
from perfscribe.show import markdown_tables

# Rows of a table that a page shows; the CSV has all.
MOST_ROWS = 40
MORE = "more"


def titles(of: Collection[str]) -> dict[str, str]:
    """Titles of the pages that belong to no problem, by name."""
    further = [chapters.read(name).further for name in of]
    return {name: page["title"] for pages in further for name, page in pages.items()} | {MORE: "Others"}


def pages(of: Mapping[str, Sequence[Problem]], folder: Path, captions: Mapping[str, str]) -> dict[str, str]:
    """Markdown by the page's name.

    of: problems by chapter; folder: of the site's tables; captions: of its figures, by id. Tables that no chapter names
    are on a page of their own.
    """
    there = sorted(path.stem for path in folder.glob("*.csv") if path.with_suffix(".json").is_file())
    made = {}
    for problem in (problem for group in of.values() for problem in group):
        figures = [picture.figure for picture in problem.pictures]
        made[problem.name] = _page(problem.heading, problem.details, folder, captions, problem.remarks, figures)
    for page_name, page in ((key, page) for name in of for key, page in chapters.read(name).further.items()):
        made[page_name] = _page(page["title"], page["show"], folder, captions, whole=page.get("whole", ()))
    named = {table for name in (*chapters.names(), *of) for table in chapters.read(name).tables()}
    made[MORE] = _page("Further tables", [one for one in there if one not in named], folder, captions)
    return {name: text for name, text in made.items() if text}


def _page(
    title: str,
    ids: Sequence[str],
    folder: Path,
    captions: Mapping[str, str],
    remarks: str = "",
    figures: Sequence[str] = (),
    whole: Collection[str] = (),
) -> str:
    """A page; nothing where none of its tables and figures is there.

    figures: those of the problem, which come last. whole: tables of which every row is shown by itself.
    """
    parts = []
    for one in ids:
        path = folder / f"{one}.csv"
        if path.is_file() and path.read_bytes().count(b"\n") > 1:
            parts.append(_table(folder, one, one in whole))
        if one not in figures:  # a table and a figure may have the same name
            parts.append(_figure(one, captions))
    parts += [_figure(one, captions) for one in figures]
    return "\n\n".join(filter(None, [f"# {title}", remarks, *parts])) + "\n" if any(parts) else ""


def _table(folder: Path, table: str, is_whole: bool) -> str:
    """Title, table, notes."""
    description = files.read_json(folder / f"{table}.json")
    text = markdown_tables.to_markdown(folder, table, 0 if is_whole else MOST_ROWS, fold=not is_whole)
    site = folder.parent.name
    return f"## {description['title']}\n\n{text}\n[{table}.csv](../../../results/{site}/tables/{table}.csv)"


def _figure(figure: str, captions: Mapping[str, str]) -> str:
    """A figure and how it was measured; nothing where the site has none."""
    if figure not in captions:
        return ""
    return f"![](../figures/{figure}.svg)\n\n*{captions[figure]}*"
