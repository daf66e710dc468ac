"""A Markdown file as lines, where its tables and headings lie in them, and how cells are put into a line.

markdown-it says which lines are a table (not those of a code block) and what their cells read; where a cell begins
and ends in its line is found here and checked against that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_BAR = re.compile(r"(?<!\\)\|")
_BARRED = re.compile(r"\|.*\|")  # of a paragraph that is meant as rows
_PREFIX = re.compile(r"^[ \t]*(?:>[ \t]?)*[ \t]*")  # of a row in a list or a quotation


@dataclass(frozen=True)
class Row:
    """A row below the header. line: from 0; spans: where each cell lies in the line, bars left out; closed: whether a
    bar ends it; texts: what each cell reads, one for each heading, empty where the cell is empty or lacks."""

    line: int
    spans: tuple[tuple[int, int], ...]
    closed: bool
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table. line: of its header, from 0; above: headings it stands under, nearest first; unread: lines that
    cannot be told apart into cells."""

    line: int
    above: tuple[str, ...]
    headers: tuple[str, ...]
    rows: tuple[Row, ...]
    unread: tuple[int, ...] = ()


@dataclass
class Document:
    """lines: with their ends, so that joined they are the file; tables in order; loose: first lines of paragraphs that
    look like rows and are in no table."""

    lines: list[str]
    tables: list[Table] = field(default_factory=list)
    loose: list[int] = field(default_factory=list)


def parse(text: str) -> Document:
    """The file's tables."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    found = Document(_LINE.findall(text))
    above: list[tuple[int, str]] = []
    found.loose = _loose(tokens)
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            level = int(token.tag[1])
            above = [(level, plain(tokens[place + 1])), *(one for one in above if one[0] < level)]
        if token.type == "table_open":
            end = next(later for later in range(place, len(tokens)) if tokens[later].type == "table_close")
            found.tables.append(_table(tokens[place:end], found.lines, [title for _, title in above]))
    return found


def plain(token: Token) -> str:
    """What an inline token reads, emphasis and code signs left out, on one line."""
    joined = "".join(map(_read_of, token.children or []))
    return " ".join(joined.split())


def _read_of(child: Token) -> str:
    if child.type in ("text", "code_inline", "image"):
        return child.content
    return "" if child.type.endswith(("_open", "_close")) else " "  # emphasis touches words, a line break does not


def _loose(tokens: Sequence[Token]) -> list[int]:
    """Where paragraphs of rows begin; of neighbours the first."""
    found, before = [], False
    for token in tokens:
        if token.type == "inline" and token.map:
            is_row = token.level > 0 and bool(_BARRED.match(token.content))
            found += [token.map[0]] if is_row and not before else []
            before = is_row
    return found


def _table(block: Sequence[Token], lines: Sequence[str], above: list[str]) -> Table:
    """block: the tokens from table_open up to its end."""
    headings = [place for place, token in enumerate(block) if token.type == "th_open"]
    headers = tuple(plain(block[place + 1]) for place in headings)
    rows, unread = [], []
    for place, token in enumerate(block):
        if token.type != "tr_open" or block[place + 1].type != "td_open" or not token.map:
            continue
        line = token.map[0]
        cells = [block[place + 2 + 3 * column] for column in range(len(headers))]  # open, inline, close
        if not _BAR.search(lines[line]):
            continue  # a line of text right below a table counts as its row
        row = _row(line, lines[line], cells)
        if row is None:
            unread.append(line)
        else:
            rows.append(row)
    first = block[0].map[0] if block[0].map else 0
    return Table(first, tuple(above), headers, tuple(rows), tuple(unread))


def _row(number: int, line: str, cells: Sequence[Token]) -> Row | None:
    """The row, where its cells read as markdown-it says that they do."""
    body = line.rstrip("\r\n")
    start, end = len(body) - len(_PREFIX.sub("", body)), len(body.rstrip())
    bars = [match.start() for match in _BAR.finditer(body, start, end)]
    closed = bars[-1] == end - 1
    leading = bars[0] == start and not (closed and len(bars) == 1)
    edges = bars if leading else [start - 1, *bars]
    edges = edges if closed else [*edges, len(body)]
    spans = tuple((left + 1, right) for left, right in pairwise(edges))
    read = [body[left:right].strip().replace("\\|", "|") for left, right in spans[: len(cells)]]
    if any(mine != token.content for mine, token in zip(read, cells, strict=False)):
        return None
    # a picture, a tag or an entity alone reads as nothing, but the cell is not empty
    return Row(number, spans, closed, tuple(plain(token) or token.content.strip() for token in cells))


def filled_line(line: str, row: Row, cells: Mapping[int, str]) -> str:
    """The row's line with these texts in its columns; cells that it lacks, and the bar that ends it, are added."""
    body = line.rstrip("\r\n")
    core = body.rstrip() if row.closed else body
    rest = line[len(core) :] if row.closed else line[len(body) :]
    for column in sorted((one for one in cells if one < len(row.spans)), reverse=True):
        left, right = row.spans[column]
        core = core[:left] + f" {cells[column]} ".ljust(right - left) + core[right:]
    if not row.closed:
        core += "|" if core[-1:].isspace() else " |"
    for column in range(len(row.spans), max(cells, default=-1) + 1):
        core += f" {cells[column]} |" if cells.get(column) else "  |"
    return core + rest
