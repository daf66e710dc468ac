"""The README's table: some rows and columns of a committed report, cell for cell."""

from __future__ import annotations

from pathlib import Path

TITLE = "Attention in PyTorch, no head axis"
# Of the report's columns, by place, since IQR stands twice.
COLUMNS = (0, 1, 2, 5, 6, 7, 8, 9, 13, 16, 14, 17)
LENGTHS = ("1024", "4096", "16384")


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table_of(report: str, title: str) -> list[list[str]]:
    """Header and rows of the table under a title."""
    lines = report[report.index(f"**{title}**") :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return [rows[0], *rows[2:]]


def excerpt(root: Path) -> list[list[str]]:
    """What the README shows: three lengths at the widest head, footnote marks left out with the footnotes."""
    header, *rows = table_of((root / "report" / "h200" / "report.md").read_text(encoding="utf-8"), TITLE)
    chosen = [row for row in rows if row[0] in LENGTHS and row[1] == "128"]
    return [[row[place].split(" [")[0] for place in COLUMNS] for row in (header, *chosen)]


def render(table: list[list[str]]) -> str:
    """Lines of a Markdown table."""
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)
