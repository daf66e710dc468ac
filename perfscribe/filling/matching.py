"""Which table of a site a table of a document is: by the comment above it, or by its headings and rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfscribe.filling import homework, units
from perfscribe.filling.comments import Asked
from perfscribe.filling.document import Row, Table
from perfscribe.filling.homework import Entry, Rule
from perfscribe.filling.site_tables import MEASURED, Site, SiteTable, same_level


class NoMatch(Exception):
    """The table is none of a site's; its text says why."""


@dataclass(frozen=True)
class Fit:
    """An entry, and the rule for each of the table's headings."""

    entry: Entry
    columns: tuple[Rule | None, ...]

    def levels(self, row: Row) -> tuple[dict[str, str], Rule]:
        """The levels that a row's own cells tell, and the rule for its label. ValueError: why they tell none."""
        where: dict[str, str] = {}
        told = Rule("")
        for rule, text in zip(self.columns, row.texts, strict=True):
            if rule is None or not text:
                continue
            if rule.label:
                found = homework.first_reading(self.entry.rows, text)
                if found is None:
                    raise ValueError(f"{self.entry.table} has no row {text!r}")
                told, new = found, dict(found.where)
            else:
                new = {rule.level: text} if rule.level else {}
            differing = [name for name in new if name in where and not same_level(where[name], new[name])]
            if differing:
                raise ValueError(f"its cells say {differing[0]} {where[differing[0]]} and {new[differing[0]]}")
            where |= new
        if not where and not told.pattern:
            raise ValueError("no cell of it tells which row it is")
        return where, told

    def merit(self, table: Table) -> tuple[int, int]:
        """How many of the table's rows can be told, and how many headings are known."""
        return sum(self.tells(row) for row in table.rows), sum(rule is not None for rule in self.columns)

    def tells(self, row: Row) -> bool:
        """Whether the row can be told."""
        try:
            return bool(self.levels(row))
        except ValueError:
            return False


def choose(table: Table, asked: Asked, site: Site, known: homework.Homework) -> Fit:
    """The entry that fits. NoMatch: it is no table of ours; ValueError with one line: it cannot be told which."""
    if asked.table:
        fits = _named(table, asked, site, known)
    else:
        fits = _rows_fit(table, [_fit(entry, table) for entry in known.entries])
        fits = fits or _rows_fit(table, [by_titles(one, table.headers) for one in _all(site)])
        fits = [fit for fit in fits if fit.entry.id or _found(fit, table, site)]
        if not fits:
            raise NoMatch("its headings and rows are those of no table")
    best = max(fit.merit(table) for fit in fits)
    fits = [fit for fit in fits if fit.merit(table) == best]
    fits = _under_heading(fits, table.above) if len(fits) > 1 else fits
    if len(fits) > 1:
        names = ", ".join(sorted(fit.entry.table for fit in fits)[:5])
        raise ValueError(f"it may be {names}: name one above it, as in <!-- perfscribe: {fits[0].entry.table} -->")
    return fits[0]


def _named(table: Table, asked: Asked, site: Site, known: homework.Homework) -> list[Fit]:
    own = site.table(asked.table)
    entries = [_fit(entry, table, named=True) for entry in known.entries if entry.table == asked.table]
    fits = [fit for fit in entries if fit is not None]
    if not fits and own is None:
        raise ValueError(f"site {site.name} has no table {asked.table}")
    if own is not None and not fits:
        fits = [by_titles(own, table.headers, named=True) or Fit(_titled(own), (None,) * len(table.headers))]
    if own is not None:
        fits = [replace(fit, columns=_mapped(fit, table, asked, own)) for fit in fits]
    fits = [fit for fit in fits if any(rule is not None and rule.fills for rule in fit.columns)]
    if not fits:
        raise ValueError(f"none of its headings is one of {asked.table}'s")
    return fits


def _mapped(fit: Fit, table: Table, asked: Asked, own: SiteTable) -> tuple[Rule | None, ...]:
    """The rules, with those that the comment gives for headings by name."""
    columns = list(fit.columns)
    for place, header in enumerate(table.headers):
        name = own.name_of(asked.words.get(header, ""))
        if name:
            columns[place] = _rule_of(own, name, header)
    return tuple(columns)


def _fit(entry: Entry, table: Table, named: bool = False) -> Fit | None:
    """All of the entry's columns must be there; under its name only one that is filled and one that tells rows."""
    columns = tuple(homework.first_reading(entry.columns, header) for header in table.headers)
    there = [rule.pattern for rule in columns if rule is not None]
    if len(set(there)) != len(there):
        return None
    if not named:
        return Fit(entry, columns) if len(there) == len(entry.columns) else None
    tells = any(rule is not None and (rule.label or rule.level) for rule in columns)
    return Fit(entry, columns) if tells else None


def by_titles(own: SiteTable, headers: Sequence[str], named: bool = False) -> Fit | None:
    """The fit of a table whose headings are the titles or names of a site's columns; of a named one some may be."""
    columns: list[Rule | None] = []
    taken: list[str] = []
    for header in headers:
        name = _column_titled(own, header, taken) if header else ""
        if header and not name and not named:
            return None
        taken += [name] if name else []
        columns.append(_rule_of(own, name, header) if name else None)
    kinds = {bool(rule.level) for rule in columns if rule is not None}
    return Fit(_titled(own), tuple(columns)) if kinds == {True, False} else None


def _titled(own: SiteTable) -> Entry:
    where = {"origin": MEASURED} if "origin" in own.columns else {}
    return Entry("", own.id, "", (), where=where)


def _column_titled(own: SiteTable, header: str, taken: Sequence[str]) -> str:
    """The column of this title or name that was not taken yet: several may have one title, such as IQR (ms)."""
    wanted = units.without_unit(header)
    names = [c["name"] for c in own.shown if wanted in (units.without_unit(c["title"]), c["name"].casefold())]
    order = [column["name"] for column in own.shown]
    behind = order.index(taken[-1]) if taken else -1
    free = [name for name in names if name not in taken]
    return next((name for name in free if order.index(name) > behind), next(iter(free), ""))


def _rule_of(own: SiteTable, name: str, header: str) -> Rule:
    if own.columns[name]["kind"] == "factor":
        return Rule(re.escape(header), level=name)
    return Rule(re.escape(header), column=name, unit=units.in_heading(header))


def _all(site: Site) -> list[SiteTable]:
    return [found for name in site.ids if (found := site.table(name)) is not None]


def _rows_fit(table: Table, fits: Sequence[Fit | None]) -> list[Fit]:
    return [fit for fit in fits if fit is not None and fit.merit(table)[0]]


def _found(fit: Fit, table: Table, site: Site) -> bool:
    """Whether a row of the site's table has the levels of each row that can be told."""
    own = site.table(fit.entry.table)
    told = [fit.levels(row)[0] for row in table.rows if fit.tells(row)]
    rows = own.rows if own is not None else []
    return all(any(all(same_level(row[k], v) for k, v in where.items()) for row in rows) for where in told)


def _under_heading(fits: Sequence[Fit], above: Sequence[str]) -> list[Fit]:
    """Those that the nearest heading that tells any of them apart tells."""
    for heading in above:
        told = [fit for fit in fits if fit.entry.heading and re.fullmatch(fit.entry.heading, heading, re.IGNORECASE)]
        if 0 < len(told) < len(fits):
            return told
    return list(fits)
