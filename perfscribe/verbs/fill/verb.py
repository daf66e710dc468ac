"""`./run fill FILE.md`: fill the empty tables of a Markdown file, in place, with the figures of a site."""

import codecs
import difflib
import io
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from perfscribe.base import called_from, chapters, files, registry
from perfscribe.base.one_line import Parser
from perfscribe.report import handin
from perfscribe.report.page import TableCell, problems
from perfscribe.report.quantities import NOTHING
from perfscribe.report.rows import WORDS, Site, of_name
from perfscribe.run import session
from perfscribe.verbs.fill import document
from perfscribe.verbs.fill.bound import bind
from perfscribe.verbs.fill.document import Document, MarkdownTable
from perfscribe.verbs.fill.matching import PLACEHOLDER, Known, Match, NoMatch, NoRows, choose
from perfscribe.verbs.fill.nearest import Nearest

LEFT = "left as it is"
FILLED = "cells filled"
MOST_ROWS = 8  # rows that are listed for one reason
FIGURE = re.compile(
    r"[≈~<>+-]? ?\d[\d.,]*(?:e[+-]?\d+)?(?: ?\(?± ?[\d.,]+\)?)?(?: ?[×x%]| ?[a-zµμ]{1,3}(?:/s)?)?[†‡]?"
    rf"|{'|'.join(WORDS.values())}",
    re.IGNORECASE,
)


def known(root: Path, name: str) -> list[Known]:
    """Tables of a site's hand-in; ValueError (one line) if there are no results of such a site."""
    site = of_name(root, name)
    machines = files.read_json(root / "results" / name / "summary.json").get("machines", [])
    return _known(site, ", ".join(machines))


def _known(site: Site, machines: str = "") -> list[Known]:
    index = files.read_object(site.folder.parent / "plan" / "index.json")
    names = dict.fromkeys([*index.get("chapters", ()), *registry.CHAPTERS])
    all_problems = [problem for name in names for problem in problems(chapters.read(name), site)]
    return [
        Known(problem.heading, table, problem.key, machines) for problem in all_problems for table in problem.tables
    ]


@cache
def _gpu_tables(site: Site) -> list[Known]:
    """Tables of the hand-in for a GPU, on a site without one: with rows but without figures."""

    def without_figures(known: Known) -> Known:
        blank, setup = TableCell(NOTHING, filled=False), f"site {site.name} has no GPU"
        rows = [[blank if cell.able else cell for cell in row] for row in known.table.rows]
        return replace(known, table=replace(known.table, rows=rows, setup=setup))

    return [without_figures(known) for known in _known(Site(site.name, site.folder, "cuda"))]


def fill(
    page: Document, tables: Sequence[Known], overwrite: bool = False, site: Site | None = None
) -> tuple[list[str], int]:
    """Fill a document's lines. Return a report of one or more lines per table, and the number of cells filled.

    site: source of the tables that comments name, and of advice on tables without a match.
    """
    account = [(line, [text]) for line, text in page.loose]
    matched: list[tuple[MarkdownTable, Match]] = []
    nearest = Nearest(site) if site else None
    for table in page.tables:
        try:
            match = _match(table, tables, site)
            match.check(table)
            matched.append((table, match))
        except ValueError as error:
            is_unknown = not table.comment and not isinstance(error, NoRows)
            near = nearest.lines(table) if nearest and is_unknown else []
            account.append((table.line, [f"{LEFT}: {error}", *near]))
    _refuse_again(matched)
    total = 0
    for table, match in matched:
        here = (table.above, table.headers)  # equal for the blocks of one table
        same_source = [other for other, candidate in matched if candidate.known is match.known]
        others = [other for other in same_source if (other.above, other.headers) != here]
        if match.known and others and not match.named_by:
            elsewhere = ", ".join(str(other.line + 1) for other in others)
            text = f"{LEFT}: {match.name} as in line {elsewhere}, and no heading tells them apart"
            account.append((table.line, [text]))
            continue
        count, lines = _fill_table(page, table, match, overwrite)
        total += count
        account.append((table.line, lines))
    return [f"line {line + 1}: " + "\n  ".join(lines) for line, lines in sorted(account)], total


def _match(table: MarkdownTable, tables: Sequence[Known], site: Site | None) -> Match:
    if table.comment and site:
        return bind(table, tables, site)
    try:
        return choose(table, tables)
    except NoMatch:
        if site and not site.gpu:
            with suppress(NoMatch):
                return choose(table, _gpu_tables(site))
        raise


def _refuse_again(matched: Sequence[tuple[MarkdownTable, Match]]) -> None:
    """Refuse rows that several tables of the document have, unless a comment names the table."""
    matches = [match for _, match in matched if match.known and match.named_by != "comment"]
    rows = [(match, [*match.identities.values()]) for match in matches]
    for match in matches:
        others = [identities for other, identities in rows if other.known is match.known and other is not match]
        match.refuse_same([identity for identities in others for identity in identities])


def _fill_table(page: Document, table: MarkdownTable, match: Match, overwrite: bool) -> tuple[int, list[str]]:
    title = match.known.table.title if match.known else ""
    mark = "".join(re.findall("[†‡]", title))
    marked, count, held = "", 0, []
    for number, cells in match.cells.items():
        row, new = table.rows[number], {}
        for at in match.columns.keys() & cells.keys():
            cell, text = cells[at], row.texts[at]
            # What was not measured when the page was filled before may be now.
            if text in ("", NOTHING) or (overwrite and cell.able and cell.text != NOTHING and _may_go(row, at)):
                new[at] = written(cell.text, mark if cell.filled else "")
            elif cell.able:
                held.append(text)
        new = {at: text for at, text in new.items() if text != row.texts[at]}
        page.lines[row.line] = document.filled_line(page.lines[row.line], row, new) if new else page.lines[row.line]
        marked += "".join(re.findall("[†‡]", "".join(new.values())))
        count += sum(text != NOTHING for text in new.values())
    lines = [
        f"{match.name}: {count} {FILLED}" + (f", {_counted(held, overwrite)}" if held else ""),
        f"set-up: {match.setup}",
    ]
    lines += [f"marked: {handin.MARKS[marked[0]]}"] if marked else []
    there = {*match.columns, *match.unfilled}
    left = [header for at, header in enumerate(table.headers) if header and at not in there]
    lines += [*match.remarks, *([f"columns left as they are: {', '.join(left)}"] if left else [])]
    lines += [f"line {line + 1}: its cells cannot be told apart" for line in table.unread]
    for why in dict.fromkeys(match.refused.values()):
        numbers = [number for number, other in sorted(match.refused.items()) if other == why]
        rows = [f"line {table.rows[number].line + 1} ({match.label(table, number)})" for number in numbers]
        lines.append(
            f"{why}: {', '.join(rows[:MOST_ROWS])}" + (f" and {len(rows) - MOST_ROWS} more" * bool(rows[MOST_ROWS:]))
        )
    return count, lines


def _may_go(row: document.Row, at: int) -> bool:
    text = row.texts[at]
    return bool(PLACEHOLDER.fullmatch(text) or (at not in row.linked and FIGURE.fullmatch(text)))


def _counted(texts: Sequence[str], overwrite: bool) -> str:
    """Say how many cells were left, such as `3 hold text and were left (--overwrite fills TODO, ?)`."""
    signs = ", ".join(dict.fromkeys(text for text in texts if PLACEHOLDER.fullmatch(text)))
    return f"{len(texts)} hold text and were left" + (f" (--overwrite fills {signs})" * bool(signs and not overwrite))


def written(text: str, mark: str) -> str:
    """Text of a cell in a user's document: the figure without its spread, with the mark of its whole table."""
    plain = re.sub(r" ± [\d.,]+", "", text)
    return plain if not mark or plain.endswith(("†", "‡")) else f"{plain}{mark}"


def main(root: Path, arguments: Sequence[str], config: session.ReadConfig) -> int:
    """Fill a file; return 1 if none of its tables has a match.

    Raises ValueError (one line) and leaves the file as it is if it cannot be read or written or has no table, or if
    there is no such site.
    """
    parser = Parser(prog="./run fill", description="fill the empty tables of a Markdown file in place")
    parser.add_argument("file", type=called_from.file, metavar="FILE.md")
    parser.add_argument("--site", default=session.site_of(config()), help="whose results (default: %(default)s)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace figures and placeholders that stand there, too"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the difference, change nothing")
    asked = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal lacks must not end a run half way
    try:
        page = document.parse(called_from.text(asked.file))
        if not page.tables and not page.loose:
            raise ValueError(f"{asked.file}: there is no table in it")
        old = list(page.lines)
        account, total = fill(page, known(root, asked.site), asked.overwrite, of_name(root, asked.site))
        if page.lines != old and not asked.dry_run:
            if called_from.text(asked.file) != "".join(old):
                raise ValueError(f"{asked.file}: changed while it was read; run it again")
            mark = codecs.BOM_UTF8 if asked.file.read_bytes().startswith(codecs.BOM_UTF8) else b""
            target = asked.file.resolve(strict=True)  # a link goes on leading to it
            mode = target.stat().st_mode & 0o7777
            files.write_bytes(target, mark + "".join(page.lines).encode("utf-8"))
            target.chmod(mode)
    except OSError as error:
        raise ValueError(f"fill: {asked.file}: cannot be written ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"fill: {error}") from None
    print("\n".join([f"{asked.file}: {total} {FILLED} from site {asked.site}", *account]))
    if asked.dry_run:
        lines = difflib.unified_diff(old, page.lines, str(asked.file), str(asked.file))
        print(
            "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines),
            end="",
        )
    return int(not any(FILLED in line for line in account))
