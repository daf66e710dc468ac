"""The report's last chapter: an own site beside each committed one, by the figures that speak for its cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfscribe.comparing import differences, headlines, page, shown
from perfscribe.comparing.cells import Side
from perfscribe.comparing.compared import Comparison, compare

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
    parts = [TITLE, *(_beside(compare(other, own)) for other in others)]
    return "\n\n".join(parts if others else [*parts, NOBODY])


def _beside(made: Comparison) -> str:
    """This site against another: how much they share, what differs, a row an experiment, some of the cells."""
    speaking = replace(made, rows=headlines.rows(made))
    differ = differences.between(made.a, made.b)
    shared = [name for name in speaking.experiments if shown.shared(speaking.of(name))]
    chosen = [row for name in shared for row in headlines.spread(speaking.of(name), MOST_CELLS)]
    parts = [
        f"## {made.b.name} against {made.a.name}",
        page.says(speaking),
        f"A: {differences.machines(made.a)}. B: {differences.machines(made.b)}.",
        shown.table(differ, ["Differs", f"A: {made.a.name}", f"B: {made.b.name}"]) if differ else "",
    ]
    if chosen:
        parts += [
            shown.summary(replace(speaking, rows=[row for row in speaking.rows if row.experiment in shared])),
            f"At most {MOST_CELLS} cells of each, evenly from all along the order of its levels:",
            shown.figures_table(chosen, made.a.name, made.b.name),
            *page.notes(speaking),
            NOTE.format(other=made.a.name, own=made.b.name),
        ]
    else:
        parts.append(_apart(made))
    return "\n\n".join(part for part in parts if part)


def _apart(made: Comparison) -> str:
    """Which experiments each side has, where they share no cell."""
    held = [
        sorted(name for name, cells in side.cells.items() if any(cell.record.ok for cell in cells.values()))
        for side in (made.a, made.b)
    ]
    both = sorted(set(held[0]) & set(held[1]) - set(made.left_out))
    alone = [", ".join(f"`{name}`" for name in sorted(set(names) - set(both))) or "none" for names in held]
    told = f"Measured at both, with other levels: {', '.join(f'`{name}`' for name in both)}. " if both else ""
    return f"{told}Beside these, at A: {alone[0]}; at B: {alone[1]}."
