"""The figures that speak for cells: one of each pair, for pages that show a few."""

from __future__ import annotations

from collections.abc import Sequence

from perfscribe.comparing import shown
from perfscribe.comparing.compared import Comparison, Row


def rows(made: Comparison) -> list[Row]:
    """The figures that speak for cells, and cells refused as a whole."""
    return [row for row in made.rows if row.headline or (row.verdict in shown.WITHOUT_FIGURES and not row.name)]


def spread(found: Sequence[Row], most: int) -> list[Row]:
    """At most so many rows, evenly from all along their order: neither the best nor the worst are picked."""
    if len(found) <= most:
        return list(found)
    return [found[round(place * (len(found) - 1) / (most - 1))] for place in range(most)]
