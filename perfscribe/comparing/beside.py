"""The report's last chapter: an own site beside each committed one, by the figures that speak for its cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfscribe.comparing import differences, headlines, page, shown
from perfscribe.comparing.cells import Side
from perfscribe.comparing.compared import Comparison, compare
from perfscribe.comparing.metrics import NOT_COMPARED

TITLE = "# This site beside others"
# Figures of an experiment that the chapter shows; `./run compare` shows all.
MOST_CELLS = 6
NOTE = (
    "One figure speaks for a cell here; `./run compare {other} {own}` shows all of them, and "
    "[docs/compare.md](../../docs/compare.md) says what is compared, what is refused and why."
)
# A committed site is drawn alike in every checkout, whichever other sites that has.
ELSEWHERE = (
    "The committed sites stand side by side in [report/README.md](../README.md); `./run compare {own} SITE` puts this "
    "one beside any other, figure by figure ([docs/compare.md](../../docs/compare.md))."
)
NOBODY = "There is no committed site here to stand beside."


def chapter(own: Side | None, others: Sequence[Side], site: str) -> str:
    """The chapter; own is None for a committed site."""
    if own is None:
        return f"{TITLE}\n\n{ELSEWHERE.format(own=site)}"
    if not others:
        return f"{TITLE}\n\n{NOBODY}"
    compared = [compare(other, own) for other in others]
    speaking = [replace(made, rows=headlines.rows(made)) for made in compared]
    notes = dict.fromkeys(note for made in speaking for note in page.notes(made))
    return "\n\n".join([TITLE, *notes, *map(_beside, compared, speaking)])


def _beside(made: Comparison, speaking: Comparison) -> str:
    """This site against another: how much they share, what differs, a row an experiment, some of the cells.

    speaking: of the figures that speak for cells alone.
    """
    differ = differences.between(made.a, made.b)
    shared = [name for name in speaking.experiments if shown.shared(speaking.of(name))]
    chosen = [
        row for name in shared for row in headlines.spread([row for row in speaking.of(name) if row.found], MOST_CELLS)
    ]
    parts = [
        f"## {made.b.name} against {made.a.name}",
        page.says(speaking),
        f"A: {differences.machines(made.a)}. B: {differences.machines(made.b)}.",
        shown.table(differ, ["Differs", f"A: {made.a.name}", f"B: {made.b.name}"]) if differ else "",
    ]
    if shared:
        parts.append(shown.summary(replace(made, rows=[row for row in speaking.rows if row.experiment in shared])))
    if chosen:
        parts += [
            f"At most {MOST_CELLS} cells of each experiment, evenly from all along the order of its levels:",
            shown.figures_table(made, chosen),
        ]
    parts += [page.ended_otherwise(speaking, "###"), page.refused(speaking, "###")]
    parts.append(NOTE.format(other=made.a.name, own=made.b.name) if shared else _apart(made))
    return "\n\n".join(part for part in parts if part)


def _apart(made: Comparison) -> str:
    """Which experiments each side has, where they share no cell."""
    held = [
        {name for name, cells in side.cells.items() if any(cell.record.ok for cell in cells.values())} - {*NOT_COMPARED}
        for side in (made.a, made.b)
    ]
    both = held[0] & held[1]
    told = f"Measured at both, with other levels: {_named(both)}. " if both else ""
    return f"{told}Measured at A alone: {_named(held[0] - both)}; at B alone: {_named(held[1] - both)}."


def _named(experiments: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(experiments)) or "none"
