"""Details: one page per problem with the full tables behind it, and the figures that the hand-in omits."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from perfscribe.base import chapters, files
from perfscribe.report.page import Problem
from perfscribe.show import markdown_tables

# Maximum number of table rows on a page; the CSV has all.
MOST_ROWS = 40
MORE = "more"


def titles(course_names: Collection[str]) -> dict[str, str]:
    """Return the titles of pages that belong to no problem of these chapters, by name."""
    further = [chapters.read(name).further for name in course_names]
    return {name: page["title"] for pages in further for name, page in pages.items()} | {MORE: "Others"}


def pages(by_chapter: Mapping[str, Sequence[Problem]], folder: Path, captions: Mapping[str, str]) -> dict[str, str]:
    """Make all pages as Markdown, by name, from the problems by chapter.

    folder: of the site's tables. captions: of its figures, by id. Tables that no chapter names are on the page MORE.
    """
    there = sorted(path.stem for path in folder.glob("*.csv") if path.with_suffix(".json").is_file())
    texts = {}
    for problem in (problem for group in by_chapter.values() for problem in group):
        figures = [picture.figure for picture in problem.pictures]
        texts[problem.name] = _page(problem.title, problem.details, folder, captions, problem.remarks, figures)
    for page_name, page in ((key, page) for name in by_chapter for key, page in chapters.read(name).further.items()):
        texts[page_name] = _page(page["title"], page["show"], folder, captions, whole=page.get("whole", ()))
    named = {table for name in (*chapters.names(), *by_chapter) for table in chapters.read(name).tables()}
    texts[MORE] = _page("Further tables", [table for table in there if table not in named], folder, captions)
    return {name: text for name, text in texts.items() if text}


def _page(
    title: str,
    ids: Sequence[str],
    folder: Path,
    captions: Mapping[str, str],
    remarks: str = "",
    figures: Sequence[str] = (),
    whole: Collection[str] = (),
) -> str:
    """Make a page; "" if none of its tables and figures exists.

    figures: those of the problem, which come last. whole: tables of which all rows are shown, without folding.
    """
    parts = []
    for name in ids:
        path = folder / f"{name}.csv"
        if path.is_file() and path.read_bytes().count(b"\n") > 1:
            parts.append(_table(folder, name, name in whole))
        if name not in figures:  # table and figure may share a name
            parts.append(_figure(name, captions))
    parts += [_figure(name, captions) for name in figures]
    return "\n\n".join(filter(None, [f"# {title}", remarks, *parts])) + "\n" if any(parts) else ""


def _table(folder: Path, table: str, is_whole: bool) -> str:
    description = files.read_json(folder / f"{table}.json")
    text = markdown_tables.to_markdown(folder, table, 0 if is_whole else MOST_ROWS, fold=not is_whole)
    site = folder.parent.name
    return f"## {description['title']}\n\n{text}\n[{table}.csv](../../../results/{site}/tables/{table}.csv)"


def _figure(figure: str, captions: Mapping[str, str]) -> str:
    """Embed a figure with its caption (how it was measured); "" if the site lacks it."""
    if figure not in captions:
        return ""
    return f"![](../figures/{figure}.svg)\n\n*{captions[figure]}*"
