"""The text of a cell: the figure that the site measured, or in short why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from perfscribe.filling import homework, units
from perfscribe.filling.homework import Choice, Entry, Rule
from perfscribe.filling.matching import Fit
from perfscribe.filling.site_tables import MEASURED, SiteTable, same_level, stored_unit
from perfscribe.markdown_tables import as_number, as_shown, markdown_text
from perfscribe.tables import NOTHING

NOT_MEASURED = "not measured"
LONGEST_REASON = 60
SiteRow = Mapping[str, str]


@dataclass(frozen=True)
class Found:
    """text: of the cell; figure: whether it is one; beside: what the source's own formula gives; flags: of its row;
    unit: what to know of its unit."""

    text: str
    figure: bool = True
    beside: str = ""
    flags: str = ""
    unit: str = ""


def joined(column: Rule, row: Rule) -> Rule:
    """What a column and a row say of the cell where they meet, the column first."""
    names = ("level", "column", "until", "unit", "stored", "suffix", "beside", "exact")
    said = {name: getattr(column, name) or getattr(row, name) for name in names}
    return replace(column, where={**row.where, **column.where}, **said)


class LookUp:
    """The cells of one table of a document. words: what the comment above it asks for besides its name and site."""

    def __init__(self, fit: Fit, own: SiteTable | None, words: Mapping[str, str], headers: Sequence[str]) -> None:
        """ValueError with one line: a word is neither parameter nor heading nor factor with such a level; or the site's
        table is of other code and lacks a column."""
        self.entry, self.own, self.stored = fit.entry, own, homework.load().stored
        unforeseen = _unforeseen(fit.entry, own, words)
        self.parameters = homework.defaults(fit.entry, {n: v for n, v in words.items() if n not in unforeseen})
        rules = [rule for rule in fit.columns if rule is not None]
        missing = homework.columns_named(fit.entry, rules, self.parameters) - (own.columns.keys() if own else set())
        if own is not None and missing:
            raise ValueError(f"{own.id} of this site has no {', '.join(sorted(missing))}; `./run report` draws it anew")
        rest = {name: level for name, level in words.items() if name not in self.parameters or name in unforeseen}
        self.asked: set[str] = set()
        self.stood_in: Choice | None = None
        self.rows: Sequence[SiteRow] = own.rows if own is not None else ()
        for name, level in rest.items():
            if own is not None and not (name in headers and own.name_of(level)):
                self._keep(own, name, level)

    def _keep(self, own: SiteTable, name: str, level: str) -> None:
        """Keep the rows of this level; of a part of its name, where none is called so."""
        column = own.name_of(name)
        if not column or own.columns[column]["kind"] != "factor":
            factors = ", ".join(c["name"] for c in own.shown if c["kind"] == "factor")
            raise ValueError(f"{name} is no factor of {own.id}, which has {factors}")
        exact = [row for row in self.rows if same_level(level, row[column])]
        # A number is a whole one: 8 is no part of 128.
        part = re.escape(level) if as_number(level) is None else rf"(?<![\w.,]){re.escape(level)}(?![\w.,])"
        kept = exact or [row for row in self.rows if re.search(part, row[column], re.IGNORECASE)]
        if not kept:
            there = ", ".join(dict.fromkeys(row[column] for row in self.rows))
            raise ValueError(f"no row of {own.id} has {name} {level!r}; there are {there or 'none'}")
        self.asked.add(column)
        self.rows = kept

    def _levels(self, where: Mapping[str, str]) -> dict[str, str]:
        """The levels as they are meant here, but for those that the comment sets."""
        told = Rule("", where).substituted(self.parameters).where
        return {name: level for name, level in told.items() if name not in self.asked}

    @cached_property
    def choices(self) -> list[Choice]:
        """Which rows may stand for the homework's, the first that has figures before all others."""
        meant = [Choice(Rule("", one.where).substituted(self.parameters).where, one.mark) for one in self.entry.prefer]
        there = [one for one in meant if self._of(one.where)] or [Choice()]
        general = self._levels(self.entry.where)
        have = [one for one in there if any(row["status"] == "ok" for row in self._of({**general, **one.where}))]
        return sorted(there, key=lambda one: one is not (have[0] if have else there[0]))

    @property
    def stand_in(self) -> str:
        """What to know where other rows stood for the homework's own; else empty."""
        if self.stood_in is None or self.asked & self.stood_in.where.keys():
            return ""
        told = (Rule("", self.entry.prefer[0].where).substituted(self.parameters).where, self.stood_in.where)
        wanted, stands = (", ".join(f"{name} {level}" for name, level in where.items()) for where in told)
        marks = " and ".join(self.stood_in.mark)
        return f"{marks} behind a figure: it is of {stands}, for want of one of {wanted}"

    def _of(self, where: Mapping[str, str]) -> list[SiteRow]:
        return [row for row in self.rows if all(same_level(row[name], level) for name, level in where.items())]

    def cell(self, rule: Rule, levels: Mapping[str, str]) -> Found:
        """The cell that a rule and its row's levels name. ValueError with one line: several rows fit."""
        rule = rule.substituted(self.parameters)
        if rule.level and rule.level in (where := {**levels, **rule.where}):
            return Found(where[rule.level] + rule.suffix)
        own = Rule("", {**levels, **rule.where}).substituted(self.parameters).where
        meant = {**self._levels(self.entry.where), **own}
        for choice in self.choices:
            rows = self._of({**choice.where, **meant})
            if rows:
                found = {self._told(row, rule, choice): row for row in rows}
                if len(found) > 1:
                    raise ValueError(self._several(list(found.values())))
                return next(iter(found))
        return Found(NOT_MEASURED, figure=False)

    def _several(self, rows: Sequence[SiteRow]) -> str:
        columns = self.own.columns.values() if self.own is not None else ()
        factors = [c["name"] for c in columns if c["kind"] == "factor" and len({r[c["name"]] for r in rows}) > 1]
        if not factors:
            return f"{len(rows)} rows of {self.entry.table} fit"
        levels = ", ".join(dict.fromkeys(row[factors[0]] for row in rows))
        example = f"{factors[0]}={rows[0][factors[0]]}"
        return f"{len(rows)} rows of {self.entry.table} fit, {factors[0]} {levels}: say which above it, as in {example}"

    def _told(self, row: SiteRow, rule: Rule, choice: Choice) -> Found:
        name = rule.column or rule.level
        text, status, flags = row[name], row["status"], row["flags"].replace(NOTHING, "")
        column = self.own.columns[name] if self.own is not None else {}
        if status != "ok" and text == status:
            return Found(markdown_text(_short(status, row["reason"])), figure=False)
        if as_number(text) is None:
            return Found(markdown_text(text), figure=column["kind"] == "factor")
        figure = self._figure(row, name, rule) + (f" to {self._figure(row, rule.until, rule)}" if rule.until else "")
        remarks = []
        if rule.column:  # a level must go on naming its row
            remarks = [row[mark] for mark in choice.mark]
            remarks += [row["origin"]] if row.get("origin", MEASURED) != MEASURED else []
        remarks += [f"then {status}"] if status != "ok" and column["kind"] == "figure" else []
        behind = f" ({', '.join(remarks)})" if remarks else ""
        beside = row[rule.beside] if rule.beside else ""
        beside = self._figure(row, rule.beside, Rule("")) if as_number(beside) is not None else ""
        self.stood_in = choice if choice.mark else self.stood_in
        return Found(markdown_text(figure + rule.suffix + behind), True, beside, flags, self._unit(name, rule))

    def _figure(self, row: SiteRow, name: str, rule: Rule) -> str:
        column, stored = self._stored(name, rule)
        told = {**column, "exact": column["exact"] or rule.exact}
        return as_shown(row[name], told, row, units.scale(stored, rule.unit))

    def _stored(self, name: str, rule: Rule) -> tuple[Mapping[str, Any], str]:
        """A column, and the unit that its figures are in."""
        column = self.own.columns[name] if self.own is not None else {}
        return column, rule.stored or stored_unit(column, self.stored)

    def _unit(self, name: str, rule: Rule) -> str:
        """What the unit in a heading is, and where the report means another by it."""
        column, stored = self._stored(name, rule)
        titled = units.in_heading(column["title"])
        other = f"; the report's table says {titled} and means {stored}" if titled and titled != stored else ""
        return units.told(rule.unit) + other if rule.unit else ""


def _unforeseen(entry: Entry, own: SiteTable | None, words: Mapping[str, str]) -> set[str]:
    """Parameters asked for with a level that the list does not foresee: one like any other of the table's factor."""
    asked = {name for name, choices in entry.parameters.items() if name in words and words[name] not in choices}
    if own is None:
        return set()
    return {name for name in asked if (column := own.name_of(name)) and own.columns[column]["kind"] == "factor"}


def _short(status: str, reason: str) -> str:
    if reason in ("", NOTHING):
        return status
    cut = reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON].rstrip() + "…"
    return f"{status} ({cut})"
