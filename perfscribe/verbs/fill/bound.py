"""Matches a document's table with the table that the comment above it names: columns, their units, and rows."""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from perfscribe.base import files
from perfscribe.report.page import TableCell
from perfscribe.report.quantities import NOTHING, Quantity
from perfscribe.report.rows import LEVELS, Mistake, Rows, Site
from perfscribe.verbs.fill.document import MarkdownTable
from perfscribe.verbs.fill.matching import (
    KINDS,
    LONGEST_NAME,
    MANDATORY,
    Known,
    Match,
    NoMatch,
    choose,
    normalised,
    words_of,
)

OWN, UNKNOWN = "-", "?"  # in a comment: a column that the source lacks, and a gap that its author has to fill
WITH_UNIT = re.compile(r"\W*\d[\W\d]*([^\W\d]+)\W*")  # a figure with its unit: 0.974 ± 0.1 ms
# Scale of a column without a unit, in its name or heading: percent, a ratio, or `GB` per second.
SCALE = re.compile(
    r"(?P<percent>%|percent)|(?P<ratio>(?<![a-z])(?:ratio|fraction)|speed[ _-]?up|×)"
    r"|([a-z]+?)s?(?:/|[ _]per[ _])s(?:ec\w*)?\b"
)
MOST_LEVELS = 3  # levels of a column that a set-up lists
TIME = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTES = {"GB": 1e9, "GiB": 2.0**30, "MB": 1e6, "MiB": 2.0**20, "KB": 1e3, "KiB": 2.0**10}


@dataclass(frozen=True)
class Column:
    """Meaning of a heading: `heading=name[key=value, …]`.

    name: column of the site's table; {HEADING} in it stands for the row's label there. Empty for such a label.
    pairs: of a figure, its levels by column; of a column of levels, the levels by their names in the document.
    """

    heading: str
    name: str
    pairs: Mapping[str, str]
    unit: str = ""

    def levels_in(self, header: str) -> Mapping[str, str] | None:
        """Match a heading with the clause's; None if it is another.

        `Forward {dtype}` on `Forward bf16` gives {"dtype": "bf16"}.
        """
        parts = re.split(r"\{(\w+)\}", _plain(self.heading))
        pattern = "".join("(.+?)" if at % 2 else re.escape(part) for at, part in enumerate(parts))
        match = re.fullmatch(pattern, _plain(header))
        return dict(zip(parts[1::2], match.groups(), strict=True)) if match else None


def bind(table: MarkdownTable, known: Sequence[Known], site: Site) -> Match:
    """Match with the table that the comment names: of the hand-in by its problem, or of the site by its id.

    Raises NoMatch or Mistake if there is no such table, or if a part of the comment is wrong.
    """
    first, *rest = table.comment.split(";")
    name, *fixed = re.split(r"\s*,\s*(?=\w+\s*=)", first.strip())
    clauses = [_clause(text.strip()) for text in rest if text.strip()]
    for clause in clauses:
        if all(clause.levels_in(header) is None for header in table.headers):
            raise NoMatch(f"the comment's {clause.heading!r} is no heading of the table")
        if UNKNOWN in clause.name:
            raise NoMatch(f"say in the comment what {clause.heading!r} is, or {clause.heading}={OWN} to leave it")
    if "." in name:
        ids = [path.stem for path in site.folder.glob("*.csv")]
        if name not in ids:
            raise Mistake(f"site {site.name} has no table", name, ids)
        return _match_site(table, measured(site, name), dict(map(_pair, fixed)), clauses)
    chosen = [candidate for candidate in known if name in (candidate.key, candidate.problem)]
    if not chosen:
        raise Mistake("the hand-in has no problem", name, [candidate.key for candidate in known])
    names = {header: clause.name for header in table.headers for clause in clauses if clause.levels_in(header) == {}}
    return choose(table, chosen, names)


def measured(site: Site, name: str) -> Rows:
    """A site's table without published figures, with rows of all devices, since Gloo runs on CPUs."""
    stored = site.table(name)
    columns = {column: described for column, described in stored.columns.items() if described["kind"] != "published"}
    return Rows(site, name, columns, stored.rows)


def _plain(heading: str) -> str:
    return " ".join(heading.casefold().split())


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def _clause(text: str) -> Column:
    match = re.fullmatch(r"(.*)=([^=\[\]]*)(?:\[(.*)\])?", text)
    if not match:
        raise NoMatch(f"the comment's {text!r} is not heading=column")
    pairs = re.split(r",\s*(?=[^,=]+=)", match[3]) if match[3] else []
    return Column(match[1].strip(), match[2].strip(), dict(map(_pair, pairs)))


def _match_site(table: MarkdownTable, rows: Rows, fixed: Mapping[str, str], clauses: Sequence[Column]) -> Match:
    levels = {name: _level(rows, name, text) for name, text in fixed.items()}
    for name, level in levels.items():
        _compare(table, name, normalised(str(level)), [text for text in _levels(rows, name) if not text.isdecimal()])
    columns = {at: column for at, header in enumerate(table.headers) if (column := _column(rows, header, clauses))}
    left = {at for at, column in columns.items() if column.name == OWN}
    labels = {at: column for at, column in columns.items() if not column.name or _is_level(rows, column.name)}
    figures = {at: _with_unit(table, at, columns[at], rows) for at in columns.keys() - labels.keys() - left}

    def find(texts: Mapping[int, str]) -> tuple[Hashable, Mapping[int, TableCell]]:
        names, of_row = {}, {}
        for at, text in texts.items():
            text = {normalised(name): level for name, level in labels[at].pairs.items()}.get(normalised(text), text)
            names[normalised(table.headers[at])] = text.casefold()
            if labels[at].name:
                of_row[labels[at].name] = _level(rows, labels[at].name, text)
        cells = {at: _cell(rows, column, {**levels, **of_row}, names) for at, column in figures.items()}
        if not any(cells.values()):
            raise ValueError(f"{rows.table} has no such row")
        return tuple(sorted(names.items())), {
            at: cell or TableCell(NOTHING, filled=False) for at, cell in cells.items()
        }

    what = {
        at: (column.name or at, column.unit, *sorted(column.pairs.items()))
        for at, column in {**labels, **figures}.items()
    }
    setup, about = _setup(table, rows.where(**levels), labels, figures)
    shows = dict(enumerate(table.headers))
    named = {
        at: _with_implied(", ".join([figure.name, *(f"{name} {level}" for name, level in figure.pairs.items())]))
        for at, figure in figures.items()
    }
    for at, kind in product(figures, KINDS.keys() - {"unit"}):
        stated, has = words_of(kind, shows[at]), words_of(kind, f"{about}, {named[at]}")
        if stated and not stated & has and (has or kind in MANDATORY):
            theirs = ", ".join(sorted(has)) or "not"
            raise NoMatch(f"{shows[at]} says {', '.join(sorted(stated))} ({kind}), {columns[at].name} is {theirs}")
    about = ", ".join([rows.table, about, *named.values()])
    return Match(rows.table, setup, what, labels, find, left, text=about, column_texts=shows).read(table)


def _compare(table: MarkdownTable, name: str, level: str, others: Sequence[str]) -> None:
    """Raise NoMatch if the nearest short text above with a level of this column, such as `medium`, has another one."""
    for text in filter(lambda text: len(text.text.split()) <= LONGEST_NAME, table.above):
        plain = normalised(text.text)
        stated = [other for other in others if re.search(rf"(?<![\w.]){re.escape(other)}(?![\w.])", plain)]
        stated = [other for other in stated if not any(other in longer and other != longer for longer in stated)]
        if stated and level not in stated:
            raise NoMatch(f"line {text.line + 1} says {stated[0]}, the comment {name}={level}")
        if stated:
            return


def _with_implied(text: str) -> str:
    """Append what the words imply: inference is a forward pass, 16 bits are mixed precision."""
    return re.sub(r"\b(bf16|fp16)\b", r"\1 autocast", re.sub("inference|no_grad", "inference forward", text))


def _column(rows: Rows, header: str, clauses: Sequence[Column]) -> Column | None:
    """Meaning of a heading by the comment, else the column of that name or title; None without either."""
    for clause in clauses:
        in_heading = clause.levels_in(header)
        if in_heading is None:
            continue
        if clause.name in ("", OWN) or _is_level(rows, clause.name):
            return clause
        if clause.name not in rows.columns and "{" not in clause.name:
            raise Mistake(f"{rows.table} has no column", clause.name, rows.columns)
        texts = {**in_heading, **clause.pairs}
        if any(normalised(text) not in _levels(rows, name) for name, text in in_heading.items()):
            continue
        return replace(clause, pairs={name: _level(rows, name, text) for name, text in texts.items()})
    named = [
        name
        for name, column in rows.columns.items()
        if normalised(header) in (normalised(name), normalised(column["title"]))
    ]
    return Column(header, named[0], {}) if len(named) == 1 else None


def _is_level(rows: Rows, name: str) -> bool:
    return rows.columns.get(name, {}).get("kind") in LEVELS


def _levels(rows: Rows, name: str) -> dict[str, Any]:
    return {normalised(str(row[name])): row[name] for row in rows}


def _level(rows: Rows, name: str, text: str) -> Any:
    """Level of a column by its text; raises NoMatch if the table has none."""
    levels = _levels(rows, name)
    if normalised(text) not in levels:
        raise NoMatch(f"{rows.table} has no {name} {text}, only {', '.join(map(str, levels.values())) or 'no rows'}")
    return levels[normalised(text)]


def _cell(rows: Rows, column: Column, levels: Mapping[str, Any], names: Mapping[str, str]) -> TableCell | None:
    """Figure of the row with these levels; None without such a row, ValueError if there are several."""
    levels = {**levels, **column.pairs}
    fitting = rows.where(**levels)
    if "device" in rows.columns and "device" not in levels:
        fitting = fitting.where(device=rows.site.device) or fitting
    for name in filter(lambda name: _is_level(rows, name) and name not in levels, rows.columns):
        if len(differing := _levels(fitting, name)) > 1:
            raise ValueError(
                f"several rows fit; say in the comment which {name}: {', '.join(map(str, differing.values()))}"
            )
    if not fitting:
        return None
    name = re.sub(r"\{(.*?)\}", lambda match: names.get(normalised(match[1]), match[0]), column.name)
    value = fitting.row()[name]
    if not isinstance(value, Quantity):
        return TableCell(str(value))
    if not value:
        return TableCell(value.word, filled=value.word == "OOM")
    has = unit_of(rows, name)
    unit = column.unit or has
    alike = next((units for units in (TIME, BYTES) if has in units), {has: 1.0})
    if unit not in alike:
        raise ValueError(f"{name} is not in {unit}")
    scale = alike["GB" if name.endswith("_gib") else has] / alike[unit]  # a row gives such a column in GB
    if scale != 1:
        spread = None if value.spread is None else value.spread * scale
        value = replace(value, value=value.value * scale, spread=spread, exact=False)
    return TableCell(value.quoted)


def unit_of(rows: Rows, name: str) -> str:
    """Unit of a column by its name and its title; empty for counts and rates."""
    parts = re.split("[_-]", name.casefold())
    by_title = words_of("unit", rows.columns[name]["title"] if name in rows.columns else "") & {*TIME, *BYTES}
    by_name = [unit for part in parts for unit in (*TIME, *BYTES) if unit.casefold() == part][-1:]
    units = by_name if not by_title or {*by_name} & by_title else [*by_title]
    return units[0] if len(units) == 1 and "per" not in parts and parts[-1] != "n" else ""


def _scale(text: str) -> str:
    match = SCALE.search(text)
    return (match.lastgroup or match[3]) if match else ""


def _with_unit(table: MarkdownTable, at: int, column: Column, rows: Rows) -> Column:
    """The column in the unit of its heading, else of its cells, else of the nearest text above, else of the source."""
    unit = unit_of(rows, column.name)
    alike = next((units for units in (TIME, BYTES) if unit in units), {})
    heading = _plain(table.headers[at])
    for level in column.pairs.values():
        heading = heading.replace(str(level).casefold(), " ")
    says, has = _scale(heading), _scale(column.name)
    if says and not has.startswith(says):
        raise NoMatch(f"{table.headers[at]} is in {says}, {column.name} in {has or unit or 'no unit'}")
    heading = SCALE.sub(" ", heading)
    cells = " ".join(f"({match[1]})" for row in table.rows if (match := WITH_UNIT.fullmatch(row.texts[at])))
    for text in (heading, cells, *(above.text for above in table.above if alike)):
        named = words_of("unit", text)
        if text in (heading, cells) and (named - {*alike} if alike else named & {*TIME, *BYTES}):
            raise NoMatch(f"{table.headers[at]} is in {', '.join(sorted(named))}, {column.name} in {unit or 'no unit'}")
        if len(named & {*alike}) > 1:
            raise NoMatch(f"it is not clear which unit {table.headers[at]} is in: {', '.join(sorted(named))}")
        if named & {*alike}:
            return replace(column, unit=next(iter(named & {*alike})))
    return replace(column, unit=unit)


def _setup(
    table: MarkdownTable, rows: Rows, labels: Mapping[int, Column], figures: Mapping[int, Column]
) -> tuple[str, str]:
    """Set-up to print (title, shared levels, units that headings lack), and the text that holds for all figures."""
    described = files.read_json(rows.site.folder / f"{rows.table}.json")
    shown = {column.name for column in labels.values()} | {name for column in figures.values() for name in column.pairs}
    names = [name for name in rows.columns if (_is_level(rows, name) or name == "timer") and name not in shown]
    levels = {name: [*map(str, _levels(rows.ok, name).values())] for name in names}
    shared = {name: f"{name} {' / '.join(texts)}" for name, texts in levels.items() if 0 < len(texts) <= MOST_LEVELS}
    silent = [column for at, column in figures.items() if column.unit and not words_of("unit", table.headers[at])]
    units = dict.fromkeys(f"{column.name} in {column.unit}" for column in silent)
    without = "" if rows.site.gpu else f"site {rows.site.name} has no GPU"
    parts = [described["title"], without, ", ".join(shared.values()), *units, *described["notes"][:1]]
    single = [text for name, text in shared.items() if len(levels[name]) == 1]
    title = re.sub("forward|backward", "", described["title"].casefold())  # of some of its columns
    about = ", ".join([title, *single, rows.site.machine(rows.ok.row())])
    return "; ".join(filter(None, parts)), _with_implied(about)
