"""What homework.yaml says of the homework's own tables: which table of ours each is, and what its rows and columns are.

The file is data: a new homework's table is a new entry, and no code.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from perfscribe.filling import units

FILE = Path(__file__).with_name("homework.yaml")


@dataclass(frozen=True)
class Rule:
    """What a column or a row of a homework's table is.

    pattern: regular expression for the whole of its heading or label; its named groups are levels of factors, `unit`
    the unit asked for. where: levels of factors. level: the factor whose level its cells hold. column: of the site's
    table; until: the column of the upper end, where a cell holds a range. unit: asked for; stored: of the figures,
    where neither title nor list says it. suffix: behind each figure. beside: the column with what the source's own
    formula gives. exact: counts, which are not rounded. label: rows are told by it. aside: text of the homework that
    stays.
    """

    pattern: str
    where: Mapping[str, str] = field(default_factory=dict)
    level: str = ""
    column: str = ""
    until: str = ""
    unit: str = ""
    stored: str = ""
    suffix: str = ""
    beside: str = ""
    exact: bool = False
    label: bool = False
    aside: bool = False

    @property
    def fills(self) -> bool:
        """Whether its cells are filled."""
        return bool(self.column or self.level)

    def read(self, text: str) -> Rule | None:
        """The rule for this very heading or label; None where it is not for it."""
        match = re.fullmatch(self.pattern, text, re.IGNORECASE)
        if match is None:
            return None
        groups = {name: found for name, found in match.groupdict().items() if found}
        unit = units.named(groups.pop("unit")) if "unit" in groups else self.unit
        return Rule(**{**self.__dict__, "where": {**self.where, **groups}, "unit": unit})

    def substituted(self, parameters: Mapping[str, str]) -> Rule:
        """The rule with $names replaced."""

        def put(text: str) -> str:
            return string.Template(text).safe_substitute(parameters)

        texts = {"column": put(self.column), "where": {name: put(level) for name, level in self.where.items()}}
        return Rule(**{**self.__dict__, **texts})


@dataclass(frozen=True)
class Choice:
    """Rows that may stand for the homework's. where: their levels; mark: columns whose texts are put behind a figure,
    as it is not of the homework's own model or device."""

    where: Mapping[str, str] = field(default_factory=dict)
    mark: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One table of a homework. parameters: names with what they may be, the first being taken; prefer: the first of
    these that has a row with figures is taken; heading: told by the headings above where headers do not tell."""

    id: str
    table: str
    source: str
    columns: tuple[Rule, ...]
    rows: tuple[Rule, ...] = ()
    heading: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prefer: tuple[Choice, ...] = (Choice(),)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Homework:
    """stored: units of columns whose titles say another; entries in the file's order."""

    stored: Mapping[str, str]
    entries: tuple[Entry, ...]


@cache
def load(path: Path = FILE) -> Homework:
    """The file; ValueError with one line where it is not of its form."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        stored = {column: units.named(unit) for unit, columns in content["stored"].items() for column in columns}
        return Homework(stored, tuple(_entry(raw) for raw in content["tables"]))
    except (AttributeError, KeyError, TypeError, ValueError, re.error, yaml.YAMLError) as error:
        raise ValueError(f"{path.name}: {' '.join(str(error).split())}") from error


def _entry(raw: Mapping[str, Any]) -> Entry:
    made = dict(raw)
    re.compile(raw.get("heading", ""))
    made["columns"] = tuple(_rule(one, "header") for one in raw["columns"])
    made["rows"] = tuple(_rule(one, "label") for one in raw.get("rows", ()))
    made["where"] = _texts(raw.get("where", {}))
    made["parameters"] = {name: tuple(map(str, levels)) for name, levels in raw.get("parameters", {}).items()}
    made["notes"] = tuple(raw.get("notes", ()))
    if "prefer" in raw:
        made["prefer"] = tuple(Choice(_texts(one["where"]), tuple(one.get("mark", ()))) for one in raw["prefer"])
    return Entry(**made)


def _rule(raw: Mapping[str, Any], key: str) -> Rule:
    re.compile(str(raw[key]))  # wrong here, not when a table is met
    made = {name: value for name, value in raw.items() if name not in (key, "where", "is_label")}
    return Rule(str(raw[key]), _texts(raw.get("where", {})), label=bool(raw.get("is_label")), **made)


def _texts(levels: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(level) for name, level in levels.items()}


def defaults(entry: Entry, asked: Mapping[str, str]) -> dict[str, str]:
    """Each parameter's value; ValueError with one line where what is asked for is none of those."""
    for name, choices in entry.parameters.items():
        if name in asked and asked[name] not in choices:
            raise ValueError(f"{name}: got {asked[name]!r}, expected {' or '.join(choices)}")
    return {name: asked.get(name, choices[0]) for name, choices in entry.parameters.items()}


def columns_named(entry: Entry, rules: Sequence[Rule], parameters: Mapping[str, str]) -> set[str]:
    """Every column of the site's table that an entry with these rules for columns asks for."""
    named = {*entry.where, *(name for one in entry.prefer for name in (*one.where, *one.mark))}
    for rule in (one.substituted(parameters) for one in (*rules, *entry.rows)):
        named |= {*rule.where, rule.level, rule.column, rule.until, rule.beside}
    return named - {""}


def first_reading(rules: Sequence[Rule], text: str) -> Rule | None:
    """The first rule for a heading or label."""
    return next((found for rule in rules if (found := rule.read(text)) is not None), None)
