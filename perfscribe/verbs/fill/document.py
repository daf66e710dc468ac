"""A Markdown file as lines, where its tables and headings lie in them, and how cells are put into a line.

markdown-it says which lines are a table (not those of a code block) and what their cells read; where a cell begins
and ends in its line is found here and checked against that.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_BAR = re.compile(r"(?<!\\)\|")
_BARRED = re.compile(r"\|.*\|")  # of a paragraph that is meant as rows
_PREFIX = re.compile(r"^[ \t]*(?:>[ \t]?)*[ \t]*")  # of a row in a list or a quotation
_COMMENT = re.compile(r"<!--\s*perfscribe:(.*?)-->", re.DOTALL)
_CAPTION = re.compile(r"table\b|tab\.|:", re.IGNORECASE)  # of a paragraph right below a table
_BLOCKS = ("heading_open", "paragraph_open", "fence", "code_block", "html_block", "hr")  # end what a comment is for
_PLAIN = ("text", "code_inline", "softbreak", "strong_open", "strong_close", "em_open", "em_close")
_MARKDOWN = MarkdownIt("commonmark").enable("table")
MOST_TEXTS = 3  # above a table
LOOSE = "looks like a table and is none: blank lines in it, another indentation, or a line of dashes that does not fit"
UNUSED = "no table is right below this comment"


@dataclass(frozen=True)
class Row:
    """A row below the header. line: from 0; spans: where each cell lies in the line, bars left out; closed: whether a
    bar ends it; texts: what each cell reads, one for each heading, empty where the cell is empty or lacks; linked:
    columns whose cell holds a link, a picture, a comment or another tag."""

    line: int
    spans: tuple[tuple[int, int], ...]
    closed: bool
    texts: tuple[str, ...]
    linked: frozenset[int] = frozenset()


class Text(NamedTuple):
    """A heading, a paragraph, a comment or a warning, and its line (from 0)."""

    line: int
    text: str


@dataclass(frozen=True)
class MarkdownTable:
    """A table. line: its header's, from 0; unread: lines of rows whose cells could not be located.

    above: texts about it, nearest first: a caption below it, the last MOST_TEXTS paragraphs above it and below the last
    heading, the first paragraph below that heading, the headings over it. comment: its perfscribe comment, right above.
    """

    line: int
    above: tuple[Text, ...]
    headers: tuple[str, ...]
    rows: tuple[Row, ...]
    unread: tuple[int, ...] = ()
    comment: str = ""


@dataclass
class Document:
    """A parsed file: lines with their ends, tables in order; loose: warnings about what cannot be used as a table."""

    lines: list[str]
    tables: list[MarkdownTable] = field(default_factory=list)
    loose: list[Text] = field(default_factory=list)


def parse(text: str) -> Document:
    """Parse a Markdown file's text into a Document."""
    tokens = _MARKDOWN.parse(text)
    document = Document(_LINE.findall(text), loose=[Text(line, LOOSE) for line in _loose(tokens)])
    headings: list[tuple[int, Text]] = []
    texts: list[Text] = []
    comments: list[Text] = []  # the one that no block follows yet
    is_after_table = False
    for place, token in enumerate(tokens):
        line = token.map[0] if token.map else 0
        if token.type in _BLOCKS:
            document.loose += [Text(comment.line, UNUSED) for comment in comments]
            comments = []
        if token.type == "heading_open":
            level, texts = int(token.tag[1]), []
            headings = [(level, Text(line, plain(tokens[place + 1]))), *(pair for pair in headings if pair[0] < level)]
        elif token.type == "table_open":
            end = next(later for later in range(place, len(tokens)) if tokens[later].type == "table_close")
            caption = "" if _is_table(tokens, end + 4) else _paragraph(tokens, end + 1)
            above = [Text(line, caption)] if _CAPTION.match(caption) else []
            above += texts[:MOST_TEXTS] + (texts[MOST_TEXTS:][-1:] if headings else [])
            above += [heading for _, heading in headings]
            comment = "".join(comment.text for comment in comments)
            document.tables.append(_table(tokens[place:end], document.lines, tuple(above), comment))
            comments, is_after_table = [], True
        elif token.type == "html_block" and (match := _COMMENT.search(token.content)):
            comments = [Text(line, " ".join(match[1].split()))]
        elif paragraph := _paragraph(tokens, place):
            texts = [Text(line, paragraph), *([] if is_after_table else texts)]
            is_after_table = False
    document.loose += [Text(comment.line, UNUSED) for comment in comments]
    return document


def plain(token: Token) -> str:
    """Text of an inline token without emphasis and code signs, on one line."""
    joined = "".join(map(_read_of, token.children or []))
    return " ".join(joined.split())


@cache
def plain_of(text: str) -> str:
    """Plain text of inline Markdown such as a cell's, without emphasis, code signs and targets of links."""
    return plain(_MARKDOWN.parseInline(text)[0])


def _read_of(child: Token) -> str:
    if child.type in ("text", "code_inline", "image"):
        return child.content
    return "" if child.type.endswith(("_open", "_close")) else " "  # emphasis touches words, a line break does not


def _paragraph(tokens: Sequence[Token], place: int) -> str:
    """Text of a paragraph or a block of tags; empty for pictures and all other blocks."""
    kind = tokens[place].type if place < len(tokens) else ""
    if kind == "html_block":
        return " ".join(re.sub(r"<!--.*?-->|<[^>]*>", " ", tokens[place].content, flags=re.DOTALL).split())
    children = (tokens[place + 1].children or []) if kind == "paragraph_open" else []
    return "" if all(child.type in ("image", "softbreak") for child in children) else plain(tokens[place + 1])


def _is_table(tokens: Sequence[Token], place: int) -> bool:
    return place < len(tokens) and tokens[place].type == "table_open"


def _is_linked(token: Token) -> bool:
    return any(child.type not in _PLAIN for child in token.children or [])


def _loose(tokens: Sequence[Token]) -> list[int]:
    """Line numbers, from 0, of paragraphs that look like rows of a table; of adjacent ones only the first."""
    lines, before = [], False
    for token in tokens:
        if token.type == "inline" and token.map:
            is_row = token.level > 0 and bool(_BARRED.match(token.content))
            lines += [token.map[0]] if is_row and not before else []
            before = is_row
    return lines


def _table(block: Sequence[Token], lines: Sequence[str], above: tuple[Text, ...], comment: str) -> MarkdownTable:
    """Build a table from its tokens, from table_open to just before table_close; lines: the whole file's."""
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
    return MarkdownTable(first, above, headers, tuple(rows), tuple(unread), comment)


def _row(number: int, line: str, cells: Sequence[Token]) -> Row | None:
    """Locate a row's cells in its line; None if what is found there differs from markdown-it's cells."""
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
    texts = tuple(plain(token) or token.content.strip() for token in cells)
    return Row(number, spans, closed, texts, frozenset(at for at, token in enumerate(cells) if _is_linked(token)))


def filled_line(line: str, row: Row, cells: Mapping[int, str]) -> str:
    """The row's line with these texts in its columns; cells that it lacks, and the bar that ends it, are added."""
    body = line.rstrip("\r\n")
    core = body.rstrip() if row.closed else body
    rest = line[len(core) :] if row.closed else line[len(body) :]
    for column in sorted((number for number in cells if number < len(row.spans)), reverse=True):
        left, right = row.spans[column]
        core = core[:left] + f" {cells[column]} ".ljust(right - left) + core[right:]
    if not row.closed:
        core += "|" if core[-1:].isspace() else " |"
    for column in range(len(row.spans), max(cells, default=-1) + 1):
        core += f" {cells[column]} |" if cells.get(column) else "  |"
    return core + rest
