"""A table as HTML that scrolls within itself: columns of figures to the right, the header in sight of long ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfscribe.records import STATUSES

# A cell: its Markdown, which tells what it is, and its HTML.
Cell = tuple[str, str]

_FIGURE = re.compile(r"[+-]?\d[\d.,]*(?:e[+-]?\d+)?(?: [%×])?", re.IGNORECASE)
_MARK = re.compile(r" \[\d+\]$")
# From how many rows on a table has a height of its own, and from how many columns smaller letters on paper.
LONG_FROM_ROWS, WIDE_FROM_COLUMNS, WIDEST_FROM_COLUMNS = 25, 10, 16
# On a screen a column of cells as short as this is not broken into lines, and one with cells as long as that has room.
LONGEST_UNBROKEN, LONG_TEXT_FROM = 20, 45
# Columns that the style sheet knows by number; those beyond stay on the left.
MOST_COLUMNS = 60


def grid(header: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
    """The table's HTML."""
    places = range(min(len(header), MOST_COLUMNS))
    columns = [[row[place][0] for row in rows if place < len(row)] for place in places]
    kinds = [f"n{place + 1}" for place in places if _is_of_figures(columns[place])]
    longest = [max(map(len, column), default=0) for column in columns]
    kinds += [f"s{place + 1}" for place in places if longest[place] <= LONGEST_UNBROKEN]
    kinds += [f"l{place + 1}" for place in places if longest[place] >= LONG_TEXT_FROM]
    kinds += ["wide"] * (len(header) >= WIDE_FROM_COLUMNS) + ["widest"] * (len(header) >= WIDEST_FROM_COLUMNS)
    head = "".join(f'<th scope="col">{text}</th>' for _, text in header)
    body = "".join(f"<tr>{''.join(f'<td>{text}</td>' for _, text in row)}</tr>\n" for row in rows)
    long = " long" if len(rows) >= LONG_FROM_ROWS else ""
    named = f' class="{" ".join(kinds)}"' if kinds else ""
    return (
        f'<div class="scroll{long}" tabindex="0"><table{named}>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _is_of_figures(column: Sequence[str]) -> bool:
    """Whether a column holds figures: more than 3 in 5 of what is no status."""
    told = [text for cell in column if (text := _MARK.sub("", cell)) not in STATUSES]
    return 5 * sum(bool(_FIGURE.fullmatch(text)) for text in told) > 3 * len(told)
