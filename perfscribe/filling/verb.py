"""`./run fill FILE.md`: the empty tables of a Markdown file, filled in place from a site's results.

What was filled, what could not be and why, and what was left alone stands on standard output.
"""

from __future__ import annotations

import argparse
import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from perfscribe import called_from
from perfscribe.filling import comments, document, outcome, rewriting
from perfscribe.filling.document import Document, Row, Table
from perfscribe.filling.homework import Rule, load
from perfscribe.filling.looking_up import NOT_MEASURED, Found, LookUp, joined
from perfscribe.filling.matching import Fit, NoMatch, choose
from perfscribe.filling.outcome import Outcome
from perfscribe.filling.site_tables import Site

LOOSE = "looks like a table and is none: blank lines in it, another indentation, or a line of dashes that does not fit"


class Parser(argparse.ArgumentParser):
    """Tells what is wrong with the command line in one line."""

    def error(self, message: str) -> NoReturn:
        """ValueError with what is wrong."""
        raise ValueError(f"fill: {message}")


class NoSite(Exception):
    """There are no results of the site that tables are filled from."""


class Filler:
    """Fills the lines of one document. site: for tables whose comment names none; overwrite: also cells with text."""

    def __init__(self, root: Path, found: Document, site: str, overwrite: bool = False) -> None:
        self.root, self.found, self.site, self.overwrite = root, found, site, overwrite
        self.sites: dict[str, Site] = {}

    def fill(self) -> list[Outcome]:
        """Fill what can be; what became of each table and of comments without one, in their order.

        NoSite: tables are to be filled from `site`, there is none, and no other table could be filled.
        """
        missing: NoSite | None = None
        outcomes = [self._stray(comment) for comment in self.found.stray]
        outcomes += [Outcome(line + 1, LOOSE) for line in self.found.loose]
        for table in self.found.tables:
            one = Outcome(table.line + 1)
            outcomes.append(one)
            try:
                self._fill_table(table, one)
            except NoMatch as error:
                one.what = f"left as it is: {error}"
            except NoSite as error:
                one.what, missing = f"left as it is: {error}", error
            except ValueError as error:
                one.faults.append(str(error))
        if missing is not None and not any(one.known for one in outcomes):
            raise missing
        return sorted(outcomes, key=lambda one: one.line)

    def _stray(self, comment: document.Comment) -> Outcome:
        fault = "there is no table below it" if comment.text is not None else f"expected {comments.FORM}"
        return Outcome(comment.line + 1, "a comment", faults=[fault])

    def _fill_table(self, table: Table, one: Outcome) -> None:
        asked = comments.read(table.comment)
        if asked.leave:
            raise NoMatch("the comment above it says so")
        site = self._site_of(asked)
        fit = choose(table, asked, site, load())
        own = site.table(fit.entry.table)
        look_up = LookUp(fit, own, asked.words, table.headers)
        one.what = f"{fit.entry.table} of site {site.name}{'' if own is not None else ', which has no such table'}"
        one.known = True
        for row in table.rows:
            self._fill_row(table, row, fit, look_up, one)
        one.faults += [f"line {line + 1}: its cells cannot be told apart" for line in table.unread]
        left = [
            header or "one without heading" for header, rule in zip(table.headers, fit.columns, strict=True) if not rule
        ]
        one.remark(f"columns left as they are: {', '.join(dict.fromkeys(left))}" if left else "")
        if one.cells and own is not None:
            one.remark(look_up.stand_in, *fit.entry.notes)

    def _site_of(self, asked: comments.Asked) -> Site:
        name = asked.site or self.site
        if name not in self.sites:
            try:
                self.sites[name] = Site(self.root, name)
            except ValueError as error:
                if asked.site:
                    raise
                raise NoSite(str(error)) from None
        return self.sites[name]

    def _fill_row(self, table: Table, row: Row, fit: Fit, look_up: LookUp, one: Outcome) -> None:
        gaps = [place for place, rule in enumerate(fit.columns) if self._is_gap(rule, row.texts[place])]
        if not gaps:
            return
        name = _named(row, fit)
        cells: dict[int, Found] = {}
        try:
            levels, told = fit.levels(row)
        except ValueError as error:
            one.faults.append(f"{name}: {error}")
            return
        for place in gaps:
            rule = joined(fit.columns[place] or told, told)
            if not rule.fills or (row.texts[place] and rule.level):
                continue
            try:
                cell = look_up.cell(rule, levels)
            except ValueError as error:
                outcome.put(one.unfilled, str(error), name, table.headers[place])
                continue
            one.note(name, table.headers[place], cell)
            if not row.texts[place] or cell.text != NOT_MEASURED:  # text is replaced by results alone
                cells[place] = cell
        self._write(table, row, cells, one)

    def _is_gap(self, rule: Rule | None, text: str) -> bool:
        if rule is None or rule.label or rule.aside:
            return False
        return not text or (self.overwrite and not rule.level)

    def _write(self, table: Table, row: Row, cells: Mapping[int, Found], one: Outcome) -> None:
        line = self.found.lines[row.line]
        changed = {place: cell.text for place, cell in cells.items() if _stands(line, row, place) != cell.text}
        if changed:
            self.found.lines[row.line] = rewriting.filled_line(line, row, changed, table.aligned)
        one.cells += len(changed)
        one.figures += sum(cells[place].figure for place in changed)


def _named(row: Row, fit: Fit) -> str:
    """The row by the cells that tell it."""
    told = [text for text, rule in zip(row.texts, fit.columns, strict=True) if rule and (rule.label or rule.level)]
    return " / ".join(filter(None, told)) or f"line {row.line + 1}"


def _stands(line: str, row: Row, place: int) -> str:
    """What stands in the cell; empty where the row lacks it."""
    return line[slice(*row.spans[place])].strip() if place < len(row.spans) else ""


def main(root: Path, site: str, arguments: Sequence[str]) -> int:
    """Fill a file; 1 where a table or a comment of it could not be followed.

    ValueError with one line, and the file as it was: it cannot be read or written, holds no table; no such site.
    """
    parser = Parser(prog="./run fill", description="fill the empty tables of a Markdown file in place")
    parser.add_argument("file", type=called_from.file, metavar="FILE.md")
    parser.add_argument("--site", default=site, help="whose results, where no comment says so (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace what stands in cells that can be filled")
    parser.add_argument("--dry-run", action="store_true", help="show the difference, change nothing")
    asked = parser.parse_args(arguments)
    try:
        found = document.parse(called_from.text(asked.file))
        if not found.tables:
            raise ValueError(f"{asked.file}: there is no table in it")
        old = list(found.lines)
        outcomes = Filler(root, found, asked.site, asked.overwrite).fill()
        if found.lines != old and not asked.dry_run:
            if called_from.text(asked.file) != "".join(old):
                raise ValueError(f"{asked.file}: changed while it was read; run it again")
            mark = codecs.BOM_UTF8 if asked.file.read_bytes().startswith(codecs.BOM_UTF8) else b""
            rewriting.replace_content(asked.file, mark + "".join(found.lines).encode("utf-8"))
    except OSError as error:
        raise ValueError(f"fill: {asked.file}: cannot be written ({error.strerror})") from None
    except (ValueError, NoSite) as error:
        raise ValueError(f"fill: {error}") from None
    print(outcome.told(str(asked.file), outcomes))
    if asked.dry_run:
        print(outcome.difference(str(asked.file), old, found.lines), end="")
    return int(any(one.failed for one in outcomes))
