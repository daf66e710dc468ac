"""The hand-in as one Markdown text: first page, problems of the chapters, and what could not be measured."""

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perfscribe.base import chapters
from perfscribe.report import details, first_page
from perfscribe.report.page import HandinTable, Problem, problems
from perfscribe.report.quantities import NOTHING
from perfscribe.report.rows import WORDS, Site
from perfscribe.show.markdown_tables import in_words
from perfscribe.subjects import YOURS

# Explanations of the marks, with the first page's wording.
MARKS = {"†": "an emulated link", "‡": "settings other than the homework's"}
# Rows of a problem without figures are named up to this number, else counted.
MOST_NAMES = 6
NO_CELL = "Not among this site's measurements"
LEFT_OUT = "Left out by the config, or not measured"
ELSEWHERE = "Measured only in other settings, see their details"


def write(
    site: Site, summary: dict[str, Any], captions: Mapping[str, str], notes: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Make all pages, by path in report/<site>: report.md and details/<problem>.md.

    summary: of the site; its headlines are set here, and mistakes in problems' files, if any. captions: of its figures,
    by id. notes: written by people, by chapter and heading; text before the first heading is under "".
    """
    by_chapter = {name: problems(chapters.read(name), site, edition) for name, edition in _editions(notes).items()}
    pages = details.pages(by_chapter, site.folder, captions)
    links = {name: f"[details](details/{name}.md)" for name in pages}
    # Of two editions the first has the links.
    links |= {problem.key: problem.link for group in reversed(by_chapter.values()) for problem in group}
    shown = [problem for group in by_chapter.values() for problem in group]
    titles = details.titles(by_chapter)
    further = [f"[{title}](details/{name}.md)" for name, title in titles.items() if name in pages]
    top, summary["headlines"] = first_page.write(site, summary, by_chapter, captions, links, further)
    if mistakes := [problem.mistake for problem in shown if problem.mistake]:
        summary["mistakes"] = mistakes
    parts = [top]
    for name, group in by_chapter.items():
        chapter = chapters.read(name)
        parts += [f"## {chapter.title}", str(chapter.index.get("intro", "")), notes[name].get("", "")]
        parts += [p.markdown(captions, p.name in pages, notes[name].get(p.heading, "")) for p in group]
    parts += ["## Not measured here", lacking(shown, pages)]
    text = "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
    return {"report.md": text} | {f"details/{name}.md": page for name, page in pages.items()}


def _editions(names: Collection[str]) -> dict[str, str]:
    """Return each chapter's edition if another edition of its course comes before it, else ""."""
    editions, courses = {}, set()
    for name in names:
        chapter = chapters.read(name)
        editions[name] = chapter.edition if chapter.path.parent in courses else ""
        courses.add(chapter.path.parent)
    return editions


def by_heading(text: str, known: Collection[str], elsewhere: Mapping[str, str]) -> dict[str, str]:
    """Split a person's notes by known headings; any other heading stays part of the text.

    elsewhere: headings of other chapters, and the file of each. Raises ValueError for such a heading, for one that
    resembles a known one, since the text would go to another problem, and for an unclosed block of code, which would
    swallow the rest.
    """
    notes: dict[str, list[str]] = {"": []}
    at, in_code = "", False
    for line in text.splitlines():
        in_code ^= bool(re.match(r" {0,3}```[^`]*$", line))
        heading = None if in_code else re.match(r"#+ +(.+?) *#*$", line)
        if heading and heading[1] in known:
            at = heading[1]
            continue
        if heading and heading[1] in elsewhere:
            raise ValueError(f"{heading[1]!r} belongs in {elsewhere[heading[1]]}")
        if heading and (meant := difflib.get_close_matches(heading[1], known, n=1, cutoff=0.75)):
            raise ValueError(f"no problem {heading[1]!r}; did you mean {meant[0]!r}?")
        notes.setdefault(at, []).append(line)
    if in_code:
        raise ValueError("a block of code that begins with ``` has no end")
    return {heading: "\n".join(lines).strip() for heading, lines in notes.items() if "".join(lines).strip()}


def lacking(problems: Sequence[Problem], pages: Collection[str] = ()) -> str:
    """One line per reason, listing the problems with the rows or columns that lack figures for this reason.

    pages: problems with a page of details, which has measurements in other settings.
    """
    by_reason: dict[str, dict[str, str]] = {}
    for problem in problems:
        names: dict[str, list[str]] = {}
        for table in problem.tables:
            lettered = re.match(r"\(\w\) ", table.title) if problem.tables[1:] else None
            for reason, labels in _lacking(table).items():
                names.setdefault(reason, []).extend([(lettered[0] if lettered else "") + labels[0], *labels[1:]])
        for reason, labels in names.items():
            if reason or problem.measured:
                shown = " / ".join(labels) if len(labels) <= MOST_NAMES else f"{len(labels)} rows"
                by_reason.setdefault(reason or NO_CELL, {})[problem.link] = f" ({shown})"
        if not problem.measured and not any(names):
            by_reason.setdefault(_unmeasured(problem, pages), {})[problem.link] = ""
    lines = [f"- {reason}: {'; '.join(map(''.join, links.items()))}." for reason, links in by_reason.items()]
    return "\n".join(lines) or "Nothing."


def _unmeasured(problem: Problem, pages: Collection[str]) -> str:
    """Reason why a problem has no figures: its cells', unless a page of details has figures in other settings."""
    rows = problem.rows()
    failed = [row for row in rows if row.get("subject") == YOURS and row["status"] in WORDS]
    if failed or (rows and not any(row["status"] == "ok" for row in rows)):
        return _reason((failed or rows)[0]["reason"])
    return ELSEWHERE if problem.name in pages else LEFT_OUT


def _lacking(table: HandinTable) -> dict[str, list[str]]:
    """Names of columns or rows that lack figures, by reason; columns if only one lacks them or some lack all."""
    able = {(row, at): cell for row, cells in enumerate(table.rows) for at, cell in enumerate(cells) if cell.able}
    places_by_reason: dict[str, list[tuple[int, int]]] = {}
    for place, cell in able.items():
        if not cell.filled:
            places_by_reason.setdefault(_reason(cell.why), []).append(place)
    names = {}
    for reason, places in places_by_reason.items():
        rows, columns = ({place[axis] for place in places} for axis in (0, 1))
        whole = {place for place in able if place[1] in columns} == {*places} != able.keys()
        one_of_several = len(columns) == 1 < len({at for _, at in able})
        if len(rows) > 1 and (one_of_several or whole):
            names[reason] = [table.header[at] for at in sorted(columns)]
        elif len(places) == 1 and sum(cell.able for cell in table.rows[min(rows)]) > 1:
            names[reason] = [f"{_name(table, min(rows))}: {table.header[min(columns)]}"]
        else:
            names[reason] = [_name(table, row) for row in sorted(rows)]
    return names


def _name(table: HandinTable, row: int) -> str:
    """Name a row by as many labels as distinguish it from the other rows."""
    texts = [[cell.text for cell in cells if not cell.able] for cells in table.rows]
    mine = texts[row]
    count = next((n for n in range(1, len(mine)) if [other[:n] for other in texts].count(mine[:n]) == 1), len(mine))
    labels = [text for text in mine[:count] if text != NOTHING]
    if labels and all(text.isdecimal() for text in labels):
        return ", ".join(f"{header} {text}" for header, text in zip(table.header, labels, strict=False))
    return " ".join(labels) or table.rows[row][0].text


def _reason(why: str) -> str:
    words = in_words("skipped", why)
    return f"Skipped {words}" if words != why else why[:1].upper() + why[1:]
