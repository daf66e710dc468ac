"""The parts of the hand-in: problems with tables, figures and answers, and their Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscribe.report.cells import Cell, label, shown
from perfscribe.report.site import Site
from perfscribe.show.markdown_tables import line
from perfscribe.show.rounding import LACKING, Figure

# Rows of a table that stand together; a longer one is printed in blocks.
MOST_ROWS, BLOCK = 25, 24


Entries = Sequence[Cell | Figure | str | int]  # of a row of a table: what is neither cell nor figure is a label


class Table:
    """One hand-in table. title: what, and its unit; setup: the rest, in plain text; notes: lines below it."""

    def __init__(self, title: str, setup: str, header: Sequence[str], rows: Iterable[Entries], *notes: str) -> None:
        self.title, self.setup, self.header, self.notes = title, setup, header, notes
        self.rows = [[_cell(one) for one in row] for row in rows]
        self.cells = [cell for row in self.rows for cell in row]

    def markdown(self) -> str:
        """Title line, table, notes."""
        lines = [f"**{self.title}** {self.setup}".rstrip()]
        block = MOST_ROWS if len(self.rows) <= MOST_ROWS else BLOCK
        for start in range(0, max(1, len(self.rows)), block):
            lines += ["", line(self.header), line(["---"] * len(self.header))]
            lines += [line(cell.text for cell in row) for row in self.rows[start : start + block]]
        notes = "  \n".join(note for note in self.notes if said(note))
        return "\n".join(lines) + (f"\n\n{notes}" if notes else "")

    @property
    def mark(self) -> str:
        """† or ‡, in the title or in a cell."""
        found = re.search("[†‡]", "".join([self.title, *(cell.text for cell in self.cells)]))
        return found[0] if found else ""

    @property
    def marked(self) -> int:
        """Filled cells that are marked, themselves or in the title."""
        all_of_them = bool(re.search("[†‡]", self.title))
        return sum(all_of_them or cell.text[-1:] in ("†", "‡") for cell in self.cells if cell.filled)


def _cell(one: Cell | Figure | str | int) -> Cell:
    if isinstance(one, Cell):
        return one
    return shown(one) if isinstance(one, Figure) else label(one)


class Why(str):
    """A sentence without figures that a person wrote once: a person's own note takes its place."""

    def __new__(cls, text: str, holds: bool = True) -> Why:
        """Nothing where it does not hold."""
        return super().__new__(cls, text if holds else "")


def said(*sentences: str) -> str:
    """Those of the sentences that lack no figure."""
    return " ".join(one for one in sentences if one and LACKING not in one)


def picture(title: str, figure: str) -> str:
    """A figure, with its title below it as well: Markdown shows none."""
    return f"![{title}](figures/{figure}.svg)  \n*{title}*"


class Answer:
    """What is said: the sentences that can be said."""

    letter = ""

    def __init__(self, *sentences: str) -> None:
        self.sentences = sentences

    def text(self, without_why: bool = False) -> str:
        """Those sentences. without_why: those that are computed alone; a person gives the reasons."""
        return said(*(one for one in self.sentences if not (without_why and isinstance(one, Why))))


class Lettered(Answer):
    """What is said under a letter."""

    def __init__(self, letter: str, *sentences: str) -> None:
        super().__init__(*sentences)
        self.letter = letter


class OnPaper(Lettered):
    """What is worked out under a letter: said also where nothing was measured."""


class Title(str):
    """What the figure of a problem shows."""


class Detail(str):
    """A sentence of its page of details."""


class Status(str):
    """Of a problem without a table: checked, computed."""


@dataclass(frozen=True)
class Finding:
    """A sentence for the first page. rank: the least comes first; part: of a chapter, for which few are taken."""

    rank: int
    part: str
    text: str


Part = Table | Answer | Title | Detail | Status | Finding


class Problem:
    """A problem of a course; each one is a class that says what it holds.

    name: for links and files; heading: the course's own. A class of CS336 has its problem's name. letters: what is said
    to lack where nothing was measured. figure: id of its figure; figure_of_yours: of the one where the user's own code
    is handed in. details: tables and further figures of its page of details, of which the first is its table; CHECK:
    the table of another page that it is of.
    """

    name = ""
    heading = ""
    letters = ""
    figure = ""
    figure_of_yours = ""
    details: Sequence[str] = ()
    table = CHECK = ""

    def __init_subclass__(cls) -> None:
        """Heading and name of CS336 by the class's own; elsewhere a name of the heading, where it says none."""
        own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if "heading" in vars(cls):
            words = re.sub(r"\W+", "_", cls.heading.lower()).strip("_")
            chapter = cls.__module__.rpartition(".")[2].partition("_")[0]
            own = f"{chapter}_{words}"
        cls.heading = vars(cls).get("heading", f"Problem ({own})")
        cls.name = vars(cls).get("name", own)
        cls.table = next(iter(cls.details), "")

    def __init__(self, site: Site) -> None:
        self.site = site
        self._prepare(site)
        parts = list(self.parts())
        self.made = [part for part in parts if isinstance(part, Table)]
        self.answered = [part for part in parts if isinstance(part, Answer)]
        self.findings = [part for part in parts if isinstance(part, Finding)]
        self.remarks = said(*(part for part in parts if isinstance(part, Detail)))
        # Of its figure; empty where a figure in it is missing.
        self.shown_title = said(*(part for part in parts if isinstance(part, Title)))
        # What its status says where it has no table.
        self.by = next((part for part in parts if isinstance(part, Status)), "")
        self.measured = bool(self.by) or any(cell.filled for table in self.made for cell in table.cells)

    def _prepare(self, site: Site) -> None:
        """What several of its parts need of the site."""

    def parts(self) -> Iterator[Part]:
        """Tables and answers in the course's order; title of the figure; status where there is no table."""
        yield from ()

    def status(self) -> str:
        """How much of it is there, as the first page says."""
        cells = [cell for table in self.made for cell in table.cells]
        able, filled = sum(cell.able for cell in cells), sum(cell.filled for cell in cells)
        if not able or not filled:
            return self.by or "not measured"
        marked = sum(table.marked for table in self.made)
        marks = "".join(sorted({table.mark for table in self.made} - {""}))
        return f"{filled} of {able}" + (f", {marked}{marks}" if marked else "")

    def markdown(self, figures: Collection[str], has_details: bool = False, notes: str = "") -> str:
        """Heading, tables, figure, answers, what a person wrote. figures: ids of those that the site has."""
        head = f"### {self.heading}"
        if not self.measured:
            stands = f"{self.letters}: " if self.letters else ""
            more = f" [Details](details/{self.name}.md)" if has_details else ""
            worked_out = [f"**({one.letter})** {one.text()}" for one in self.answered if isinstance(one, OnPaper)]
            parts = [f"{head}\n{stands}[not measured here](#not-measured-here){more}", *worked_out, notes]
            return "\n\n".join(part for part in parts if part)
        parts = [table.markdown() for table in self.made]
        if self.figure in figures and self.shown_title:
            parts.append(picture(self.shown_title, self.figure))
        said = [(one.letter, one.text(f"**({one.letter})**" in notes)) for one in self.answered]
        lines = [f"**({letter})** {text}" if letter else text for letter, text in said if text]
        link = f"[Details](details/{self.name}.md)" if has_details else ""
        if lines and link and not notes:
            lines[-1], link = f"{lines[-1]} {link}", ""
        parts = [part for part in (*parts, "  \n".join(lines), notes, link) if part]
        return "\n\n".join([f"{head}\n{''.join(parts[:1])}", *parts[1:]])
