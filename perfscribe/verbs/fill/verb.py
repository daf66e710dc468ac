"""`./run fill FILE.md`: the empty tables of a Markdown file, filled in place with the figures of a site's hand-in."""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from perfscribe.base import called_from, chapters, files
from perfscribe.base.one_line import Parser
from perfscribe.report import handin
from perfscribe.report.page import problems
from perfscribe.report.quantities import NOTHING
from perfscribe.report.rows import of_name
from perfscribe.run import session
from perfscribe.verbs.fill import document
from perfscribe.verbs.fill.document import Document
from perfscribe.verbs.fill.matching import Fit, Known, NoMatch, choose

LOOSE = "looks like a table and is none: blank lines in it, another indentation, or a line of dashes that does not fit"


def known(root: Path, name: str) -> list[Known]:
    """The tables of a site's hand-in; ValueError with one line where there are no results of such a site."""
    site = of_name(root, name)
    made = [problem for chapter in chapters.names() for problem in problems(chapters.read(chapter), site)]
    return [Known(problem.heading, table) for problem in made for table in problem.tables]


def fill(found: Document, tables: Sequence[Known], overwrite: bool = False) -> tuple[list[str], int]:
    """Fill a document's lines. What became of each table, a line or more each; how many cells were filled."""
    told = [(line, LOOSE) for line in found.loose]
    total = 0
    for table in found.tables:
        try:
            fit = choose(table, tables)
        except NoMatch as error:
            told.append((table.line, f"left as it is: {error}"))
            continue
        count, remarks = _fill_table(found, table, fit, overwrite)
        total += count
        told.append((table.line, "\n  ".join([f"{fit.known.name}: {count} cells filled", *remarks])))
    return [f"line {line + 1}: {text}" for line, text in sorted(told)], total


def _fill_table(found: Document, table: document.Table, fit: Fit, overwrite: bool) -> tuple[int, list[str]]:
    remarks = [f"line {line + 1}: its cells cannot be told apart" for line in table.unread]
    left = [
        header or "without heading" for header, column in zip(table.headers, fit.columns, strict=True) if column is None
    ]
    remarks += [f"columns left as they are: {', '.join(left)}"] if left else []
    mark = "".join(re.findall("[†‡]", fit.known.table.title))
    marked, count = mark, 0
    for row in table.rows:
        try:
            ours = fit.row(row.texts)
        except ValueError as error:
            labels = " / ".join(text for _, text in fit.labels(row.texts))
            remarks.append(f"{labels or f'line {row.line + 1}'}: {error}")
            continue
        cells = {}
        for place, column in enumerate(fit.columns):
            # What was not measured when the page was filled before may be now.
            stands = row.texts[place] not in ("", NOTHING)
            if column is None or (stands and not (overwrite and ours[column].able)):
                continue
            text = written(ours[column].text, mark if ours[column].filled else "")
            if row.texts[place] != text:
                cells[place] = text
                marked += "".join(re.findall("[†‡]", text))
        if cells:
            found.lines[row.line] = document.filled_line(found.lines[row.line], row, cells)
        count += sum(text != NOTHING for text in cells.values())
    if count and marked:
        remarks.append(f"marked: {handin.MARKS[marked[0]]}; {fit.known.table.setup}")
    return count, remarks


def written(text: str, mark: str) -> str:
    """A cell as a page of one's own has it: the figure without its spread, marked where its whole table is."""
    plain = re.sub(r" ± [\d.,]+", "", text)
    return plain if not mark or plain.endswith(("†", "‡")) else f"{plain}{mark}"


def main(root: Path, arguments: Sequence[str], config: session.ReadConfig) -> int:
    """Fill a file; 1 where it holds tables and none of them is the hand-in's.

    ValueError with one line, and the file as it was: it cannot be read or written, holds no table; no such site.
    """
    parser = Parser(prog="./run fill", description="fill the empty tables of a Markdown file in place")
    parser.add_argument("file", type=called_from.file, metavar="FILE.md")
    parser.add_argument("--site", default=session.site_of(config()), help="whose results (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace figures that stand there, too")
    parser.add_argument("--dry-run", action="store_true", help="show the difference, change nothing")
    asked = parser.parse_args(arguments)
    try:
        found = document.parse(called_from.text(asked.file))
        if not found.tables and not found.loose:
            raise ValueError(f"{asked.file}: there is no table in it")
        old = list(found.lines)
        told, total = fill(found, known(root, asked.site), asked.overwrite)
        if found.lines != old and not asked.dry_run:
            if called_from.text(asked.file) != "".join(old):
                raise ValueError(f"{asked.file}: changed while it was read; run it again")
            mark = codecs.BOM_UTF8 if asked.file.read_bytes().startswith(codecs.BOM_UTF8) else b""
            target = asked.file.resolve(strict=True)  # a link goes on leading to it
            mode = target.stat().st_mode & 0o7777
            files.write_bytes(target, mark + "".join(found.lines).encode("utf-8"))
            target.chmod(mode)
    except OSError as error:
        raise ValueError(f"fill: {asked.file}: cannot be written ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"fill: {error}") from None
    print("\n".join([f"{asked.file}: {total} cells filled from site {asked.site}", *told]))
    if asked.dry_run:
        lines = difflib.unified_diff(old, found.lines, str(asked.file), str(asked.file))
        print(
            "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines),
            end="",
        )
    return int(all("left as it is" in line or LOOSE in line for line in told))
