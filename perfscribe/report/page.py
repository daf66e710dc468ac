"""A rendered chapter's file as a problem of the hand-in: its answers, its tables with their cells, its figure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.base.chapters import Chapter, Source
from perfscribe.report.problem import Finding
from perfscribe.report.quantities import END_REASON, NOTHING, REASON, TOKEN, in_prose, is_incomplete
from perfscribe.report.rows import Site
from perfscribe.report.templates import Template
from perfscribe.show.markdown_tables import line

# A longer table is printed in blocks, so that a reader sees its header.
MOST_ROWS, BLOCK = 25, 24
SPAN = re.compile(f"{REASON}([^{END_REASON}]*){END_REASON}")
BAR = re.compile("\\|(?![^\ue000\ue002]*\ue002)")  # between cells, not within a number's token
LETTER = re.compile(r"\*\*\((\w)\)\*\* ?")
IMAGE = re.compile(r"!\[(.*)\]\(figures/(.+?)\.svg\)$")
MARKS = re.compile("[†‡]")


RANKS = {
    "nsys_profile": 1,
    "flash_benchmarking": 2,
    "fsdp_sharding_strategies_off_loading": 3,
    "benchmarking_mixed_precision": 4,
    "fsdp_multi_gpu_fine_tuning_with_fsdp": 5,
    "naive_ddp_benchmarking": 6,
    "distributed_communication_single_node": 8,
    "memory_profiling": 9,
    "optimizer_state_sharding_accounting": 10,
    "torch_compile": 11,
    "polaris_5": 13,
    "fsdp_weak_scaling_experiment_with_fsdp_custom_model": 15,
    "pytorch_attention": 16,
    "polaris_1": 17,
}


@dataclass(frozen=True)
class Cell:
    """A cell of a hand-in table.

    able: it can hold a number. filled: it does, or a word that is a result. why: the reason where it does not.
    """

    text: str
    able: bool = True
    filled: bool = True
    why: str = ""


def read_cell(text: str) -> Cell:
    """A cell as it is rendered: a number with what stands around it, the word of its status, or a label."""
    tokens = list(TOKEN.finditer(text))
    if not tokens:
        return Cell(text or NOTHING, able=False, filled=False)
    missing = next((match for match in tokens if not match[1]), None)
    if missing is not None:
        return Cell(missing[3], filled=missing[3] == "OOM", why=missing[4])
    return Cell(TOKEN.sub(lambda match: match[2], text))


@dataclass
class Table:
    """A hand-in table. title: what it shows, with its unit; setup: how it was measured."""

    title: str
    setup: str
    header: Sequence[str]
    rows: list[list[Cell]]

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [cell for row in self.rows for cell in row]

    def markdown(self) -> str:
        """Title and set-up, then the table."""
        lines = [f"**{self.title}** {self.setup}".rstrip()] if self.title else []
        block = MOST_ROWS if len(self.rows) <= MOST_ROWS else BLOCK
        for start in range(0, max(1, len(self.rows)), block):
            lines += ["", line(self.header), line(["---"] * len(self.header))]
            lines += [line(cell.text for cell in row) for row in self.rows[start : start + block]]
        return "\n".join(lines).lstrip("\n")

    @property
    def mark(self) -> str:
        """† or ‡, in the title or in a cell."""
        match = MARKS.search("".join([self.title, *(cell.text for cell in self.cells)]))
        return match[0] if match else ""

    @property
    def marked(self) -> int:
        """The number of filled cells that are marked, themselves or by the title."""
        title_is_marked = bool(MARKS.search(self.title))
        return sum(title_is_marked or cell.text[-1:] in ("†", "‡") for cell in self.cells if cell.filled)


@dataclass
class Text:
    """A paragraph: lines of a sentence or a few; a line whose number is missing is left out."""

    lines: list[str]
    letter: str = ""

    def markdown(self, notes: str = "") -> str:
        """Its sentences; without reasons where a person's notes give those for its letter."""
        without_reasons = bool(self.letter) and f"**({self.letter})**" in notes
        text = " ".join(in_prose(line).strip() for line in self.complete(without_reasons) if line.strip())
        return f"**({self.letter})** {text}" if text and self.letter else text

    def complete(self, without_reasons: bool = False) -> list[str]:
        """Lines without missing numbers."""

        def reason(match: re.Match[str]) -> str:
            lines = match[1].splitlines(keepends=True)
            return "" if without_reasons else "".join(line for line in lines if not is_incomplete(line))

        text = SPAN.sub(reason, "\n".join(self.lines))
        return [line for line in _joined(text.splitlines()) if not is_incomplete(line)]


def _joined(lines: list[str]) -> list[str]:
    """Lines, those that begin with blanks at the end of the one before."""
    joined: list[str] = []
    for text in lines:
        if text.startswith("  ") and joined:
            joined[-1] += f" {text.strip()}"
        else:
            joined.append(text)
    return joined


@dataclass
class Picture:
    """A figure of the site with its title, which is empty where a number in it is missing."""

    title: str
    figure: str

    def markdown(self) -> str:
        """The figure, with its title below it as well: Markdown shows none."""
        return f"![{self.title}](figures/{self.figure}.svg)  \n*{self.title}*"


Block = Table | Text | Picture


def blocks(rendered: str, source: Source) -> tuple[str, list[Block]]:
    """The heading and the blocks of a rendered text; ValueError where a row does not fit its table's header."""
    found: list[Block] = []
    heading = title = ""
    rendered = re.sub(r"\|\n\s*\n(?=\|)", "|\n", rendered)  # between rows that macros made
    rendered = re.sub(f"(\n+){END_REASON}", rf"{END_REASON}\1", rendered)
    for paragraph in re.split(r"\n[ \t]*\n", rendered.strip("\n")):
        lines = [text for text in paragraph.splitlines() if text.strip()]
        if not lines:
            continue
        if lines[0].startswith("### "):
            heading = in_prose(lines[0][4:])
        elif lines[0].startswith("|"):
            found.append(_table(title, lines, source))
            title = ""
        elif lines[0].startswith("**") and not LETTER.match(lines[0]):
            title = " ".join(text.strip() for text in lines)
        else:
            found += _texts(lines)
    return heading, found


def _texts(lines: list[str]) -> Iterator[Text | Picture]:
    """Paragraphs: a letter begins a new one, a figure stands by itself."""
    text = Text([])
    for written in lines:
        if match := IMAGE.match(written):
            yield Picture("" if is_incomplete(written) else in_prose(match[1]), match[2])
        elif (match := LETTER.match(written)) or not text.lines:
            if text.lines:
                yield text
            text = Text([written[match.end() :] if match else written], match[1] if match else "")
        else:
            text.lines.append(written)
    if text.lines:
        yield text


def _table(title: str, lines: list[str], source: Source) -> Table:
    header, *rows = [[cell.strip() for cell in BAR.split(text.strip())[1:-1]] for text in lines]
    rows = [row for row in rows if set("".join(row)) - set("-: ") or NOTHING in row]  # not the line of dashes
    for row in rows:
        if len(row) != len(header):
            place = source.text[: source.text.find(f"| {header[0]} |")].count("\n") + 1
            raise ValueError(f"{source.name}:{place}: {len(row)} cells under {len(header)} headings")
    match = re.match(r"\*\*(.*?)\*\* ?(.*)", title, re.DOTALL)
    bold, setup = match.groups() if match else ("", "")
    clauses = [clause for clause in setup.split("; ") if not is_incomplete(clause)]
    text = in_prose("; ".join(clauses)).rstrip("; ")
    header = [in_prose(name) for name in header]
    return Table(in_prose(bold), f"{text}." if text and text[-1] != "." else text, header, [*map(_cells, rows)])


def _cells(row: list[str]) -> list[Cell]:
    return [read_cell(text) for text in row]


class Problem:
    """A problem of a chapter over a site. name: for links and files; letters: those that its text answers."""

    def __init__(self, chapter: Chapter, key: str, site: Site) -> None:
        self.chapter, self.key, self.site = chapter, key, site
        self.source = chapter.source(key)
        front = self.source.front
        self.name = str(front.get("name", key))
        self.part = str(front.get("part", chapter.name))
        self.code_of = str(front.get("code_of", ""))  # the problem that measures this one's code
        self.on_paper: Collection[str] = front.get("on_paper", ())  # letters that need no measurement
        self.details = [*front.get("details", dict.fromkeys(_ids(self.source)))]
        rendered, variables = Template(self.source, site, chapter, {"homework": chapter.homework(key)}).render()
        self.heading, self.blocks = blocks(rendered, self.source)
        self.tables = [block for block in self.blocks if isinstance(block, Table) and block.rows]
        self.texts = [block for block in self.blocks if isinstance(block, Text)]
        self.pictures = [block for block in self.blocks if isinstance(block, Picture)]
        self.finding = _sentences(variables.get("first_page", ""))
        self.remarks = _sentences(variables.get("details", ""))
        self.check = variables.get("check", "").strip()  # of code: checked, or check failed
        self.measured = bool(self._own_status()) or any(cell.filled for table in self.tables for cell in table.cells)

    # As the classes that are not yet files have it.
    CHECK = ""

    @property
    def made(self) -> list[Table]:
        """Its tables."""
        return self.tables

    @property
    def findings(self) -> list[Any]:
        """Its sentence for the first page."""
        return [Finding(RANKS.get(self.name, 99), self.part, self.finding)]

    @property
    def figure(self) -> str:
        """The id of its figure."""
        return self.pictures[0].figure if self.pictures else ""

    @property
    def shown_title(self) -> str:
        """The title of its figure."""
        return self.pictures[0].title if self.pictures else ""

    @property
    def letters(self) -> list[str]:
        """Letters that the file answers, whether this site can or not."""
        return sorted(set(re.findall(r"(?m)^\*\*\((\w)\)\*\*", self.source.text)))

    @property
    def answered(self) -> list[str]:
        """Letters under which this site's numbers, or what needs none, say something."""
        texts = [text for text in self.texts if text.letter and text.markdown()]
        return sorted({text.letter for text in texts if self.measured or text.letter in self.on_paper})

    def _own_status(self) -> str:
        """The status of a problem without a table: its check, or how many numbers of its sentences are there."""
        if self.tables or self.check:
            return self.check
        texts = [text for text in self.texts if text.letter not in self.on_paper]
        numbers = [match for text in texts for match in TOKEN.finditer(SPAN.sub("", "\n".join(text.lines)))]
        there = [match for text in texts for one in text.complete(True) for match in TOKEN.finditer(one)]
        return f"{len(there)} of {len(numbers)}" if there else ""

    def status(self) -> str:
        """The number of cells that are there, of how many."""
        cells = [cell for table in self.tables for cell in table.cells]
        able, filled = sum(cell.able for cell in cells), sum(cell.filled for cell in cells)
        if not able or not filled:
            return self._own_status() or "not measured"
        marked = sum(table.marked for table in self.tables)
        marks = "".join(sorted({table.mark for table in self.tables} - {""}))
        return f"{filled} of {able}" + (f", {marked}{marks}" if marked else "")

    def markdown(self, figures: Collection[str], has_details: bool = False, notes: str = "") -> str:
        """The problem in its file's order, then what a person wrote. figures: ids of those that the site has."""
        link = f"[Details](details/{self.name}.md)" if has_details else ""
        parts = [f"### {self.heading}"]
        if not self.measured:
            measured = [letter for letter in self.letters if letter not in self.on_paper]
            letters = f"{spanned(measured)}: " if measured else ""
            parts.append(f"{letters}[not measured here](#not-measured-here) {link}".rstrip())
            parts += [text.markdown(notes) for text in self.texts if text.letter in self.on_paper]
            return "\n\n".join(part for part in [*parts, notes] if part)
        for block in self.blocks:
            if isinstance(block, Text):
                parts.append(block.markdown(notes))
            elif isinstance(block, Picture):
                parts.append(block.markdown() if block.title and block.figure in figures else "")
            elif block.rows:
                parts.append(block.markdown())
        return "\n\n".join(part for part in [*parts, notes, link] if part)


def spanned(letters: Sequence[str]) -> str:
    """`(a)`, `(a)-(c)`."""
    return f"({letters[0]})" + (f"-({letters[-1]})" if letters[1:] else "")


def _sentences(text: str) -> str:
    return Text(text.splitlines()).markdown()


def _ids(source: Source) -> Iterator[str]:
    """Ids of the tables that a file's front matter names, in its order."""
    for table in source.front.get("tables", {}).values():
        yield table if isinstance(table, str) else table["id"]


def problems(chapter: Chapter, site: Site) -> list[Problem]:
    """All problems of a chapter over a site."""
    return [Problem(chapter, key, site) for key in chapter.problems]
