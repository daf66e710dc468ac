"""A rendered chapter file as a problem of the hand-in: answers, tables with their cells, figures."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfscribe.base.chapters import Chapter, Source
from perfscribe.report.anchors import anchor
from perfscribe.report.phrases import listed
from perfscribe.report.quantities import END_REASON, NOTHING, PRIVATE, REASON, TOKEN, in_prose, is_incomplete
from perfscribe.report.rows import Renamed, Site
from perfscribe.report.templates import Template
from perfscribe.show.markdown_tables import line
from perfscribe.show.provenance import of_boots

# Longer tables are printed in blocks, each with the header.
MOST_ROWS, BLOCK = 25, 24
SPAN = re.compile(f"{REASON}([^{END_REASON}]*){END_REASON}")
BAR = re.compile("\\|(?![^\ue000\ue002]*\ue002)")  # between cells, but not within a number's token
LETTER = re.compile(r"\*\*\((\w)\)\*\* ?")
IMAGE = re.compile(r"!\[(.*)\]\(figures/(.+?)\.svg\)$")
MARKS = re.compile("[†‡]")


@dataclass(frozen=True)
class TableCell:
    """A cell of a hand-in table.

    able: it can hold a number. filled: it has a number or a word that is a result. why: reason for not being filled.
    boots: in which its numbers were measured.
    """

    text: str
    able: bool = True
    filled: bool = True
    why: str = ""
    boots: frozenset[str] = frozenset()


def read_cell(text: str) -> TableCell:
    """Parse a rendered cell: a number with the text around it, a status word, or a label."""
    tokens = list(TOKEN.finditer(text))
    if not tokens:
        return TableCell(text or NOTHING, able=False, filled=False)
    missing = next((match for match in tokens if not match[1]), None)
    if missing is not None:
        return TableCell(missing[3], filled=missing[3] == "OOM", why=missing[4])
    boots = frozenset(" ".join(match[5] for match in tokens).split())
    return TableCell(TOKEN.sub(lambda match: match[2], text), boots=boots)


@dataclass
class HandinTable:
    """A hand-in table. title: its content and unit; setup: how it was measured."""

    title: str
    setup: str
    header: Sequence[str]
    rows: list[list[TableCell]]

    @property
    def cells(self) -> list[TableCell]:
        """All cells, row by row."""
        return [cell for row in self.rows for cell in row]

    def markdown(self) -> str:
        """Render title, set-up and table."""
        lines = [f"**{self.title}** {self.setup}".rstrip()] if self.title else []
        block = MOST_ROWS if len(self.rows) <= MOST_ROWS else BLOCK
        for start in range(0, max(1, len(self.rows)), block):
            lines += ["", line(self.header), line(["---"] * len(self.header))]
            lines += [line(cell.text for cell in row) for row in self.rows[start : start + block]]
        return "\n".join(lines).lstrip("\n")

    @property
    def mark(self) -> str:
        """Mark († or ‡) in the title or a cell; "" without one."""
        match = MARKS.search("".join([self.title, *(cell.text for cell in self.cells)]))
        return match[0] if match else ""

    @property
    def marked(self) -> int:
        """Number of filled cells that have a mark, directly or by the title."""
        title_is_marked = bool(MARKS.search(self.title))
        return sum(title_is_marked or cell.text[-1:] in ("†", "‡") for cell in self.cells if cell.filled)


@dataclass
class Text:
    """A paragraph; rendering drops lines with a missing number. letter: part of the problem it answers, or ""."""

    lines: list[str]
    letter: str = ""

    def markdown(self, notes: str = "") -> str:
        """Render the complete lines, without {% reason %} passages if a person's notes have the same letter."""
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
    """Append indented lines to the line before."""
    joined: list[str] = []
    for text in lines:
        if text.startswith("  ") and joined:
            joined[-1] += f" {text.strip()}"
        else:
            joined.append(text)
    return joined


@dataclass
class Picture:
    """A figure of the site and its title, which is "" if a number in it is missing. names: of levels in the figure."""

    title: str
    figure: str
    names: str = ""

    def markdown(self) -> str:
        """Embed the figure, repeating its title below, as Markdown does not show it."""
        return f"![{self.title}](figures/{self.figure}.svg)  \n*{self.title}{self.names}*"


Block = HandinTable | Text | Picture


def blocks(rendered: str, source: Source) -> list[Block]:
    """Parse a rendered text into blocks; ValueError if a row does not match its table's header."""
    parsed: list[Block] = []
    title = ""
    rendered = re.sub(r"\|\n\s*\n(?=\|)", "|\n", rendered)  # blank lines between rows made by macros
    rendered = re.sub(f"(\n+){END_REASON}", rf"{END_REASON}\1", rendered)
    for paragraph in re.split(r"\n[ \t]*\n", rendered.strip("\n")):
        lines = [text for text in paragraph.splitlines() if text.strip()]
        if not lines or lines[0].startswith("### "):
            continue
        if lines[0].startswith("|"):
            parsed.append(_table(title, lines, source))
            title = ""
        elif lines[0].startswith("**") and not LETTER.match(lines[0]):
            title = " ".join(text.strip() for text in lines)
        else:
            parsed += _texts(lines)
    return parsed


def _texts(lines: list[str]) -> Iterator[Text | Picture]:
    """Split lines into paragraphs, one per letter, and figures."""
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


def _table(title: str, lines: list[str], source: Source) -> HandinTable:
    header, *rows = [[cell.strip() for cell in BAR.split(text.strip())[1:-1]] for text in lines]
    rows = [row for row in rows if set("".join(row)) - set("-: ") or NOTHING in row]  # drop the separator line
    for row in rows:
        if len(row) != len(header):
            place = source.text[: source.text.find(f"| {header[0]} |")].count("\n") + 1
            raise ValueError(f"{source.name}:{place}: {len(row)} cells under {len(header)} headings")
    match = re.match(r"\*\*(.*?)\*\* ?(.*)", title, re.DOTALL)
    bold, setup = match.groups() if match else ("", "")
    cells = [[read_cell(text) for text in row] for row in rows]
    boots = of_boots(frozenset[str]().union(*(cell.boots for cell in row)) for row in cells)
    clauses = [*setup.removesuffix(".").split("; "), boots]
    clauses = [clause for clause in clauses if clause and not is_incomplete(clause)]
    text = in_prose("; ".join(clauses)).rstrip("; ")
    header = [in_prose(name) for name in header]
    return HandinTable(in_prose(bold), f"{text}." if text else "", header, cells)


class Problem:
    """A problem of a chapter, rendered with a site's numbers. name: of its files and links.

    finding, remarks: its texts for the first page and for its page of details, which has the tables `details`.
    letters: parts that its text answers; on_paper: those that need no measurement. variables: names that its file sets,
    with their values as text.
    keeps_mistake: a mistake in the file becomes the attribute `mistake`, one line; else it raises ValueError.
    edition: set where the report has another edition of the course, to tell links and headings apart.
    """

    def __init__(self, chapter: Chapter, key: str, site: Site, keeps_mistake: bool = False, edition: str = "") -> None:
        self.chapter, self.key = chapter, key
        self.site = site = Renamed(site, chapter.names) if chapter.names else site
        self.source = chapter.source(key)
        front = self.source.front
        self.name = str(front.get("name", key)) + (f"-{edition}" if edition else "")
        self.part = str(front.get("part", chapter.name))
        self.code_of = str(front.get("code_of", ""))  # problem that measures this one's code
        self.ids = _ids(self.source)
        self.is_on_paper = front.get("on_paper") == "all"
        # Letters that need no measurement, "" for texts without one.
        needless = self.is_on_paper or not self.ids
        self.on_paper: Collection[str] = ["", *self.letters] if needless else front.get("on_paper", ())
        self.details = [*front.get("details", self.ids)]
        self.heading = self.source.heading
        self.title = self.heading + (f", {edition}" if edition else "")
        self.mistake = ""
        self.blocks: list[Block] = []
        self.variables: dict[str, str] = {}
        try:
            names = {"homework": chapter.homework(key), "chapter": chapter.name}
            rendered, self.variables = Template(self.source, site, chapter, names).render()
            if edition:  # links between its problems
                others = "|".join(chapter.problems)
                rendered = re.sub(rf"\]\(#problem-({others})\)", rf"](#problem-\1-{edition})", rendered)
            self.blocks = blocks(rendered, self.source)
        except ValueError as error:
            if not keeps_mistake:
                raise
            self.mistake = str(error)
        self.tables = [block for block in self.blocks if isinstance(block, HandinTable) and block.rows]
        self.texts = [block for block in self.blocks if isinstance(block, Text)]
        self.pictures = [block for block in self.blocks if isinstance(block, Picture)]
        if isinstance(site, Renamed) and site.renamed:
            renamed = listed(f"{new or 'another model'} is named {name}" for name, new in site.renamed.items())
            for picture in self.pictures:
                picture.names = f". In the figure {renamed}"
        self.finding = _sentences(self.variables.get("first_page", ""))
        self.remarks = _sentences(self.variables.get("details", ""))
        self.check = self.variables.get("check", "").strip()  # code: checked, or check failed
        self.measured = bool(self._own_status()) or any(cell.filled for table in self.tables for cell in table.cells)

    @property
    def link(self) -> str:
        """Link to the problem's heading."""
        text = re.sub(r"Problem \((.*)\)", r"\1", self.title)
        return f"[{text}](#{anchor(self.title)})"

    def rows(self) -> list[Mapping[str, Any]]:
        """Stored rows of all its tables, from which the hand-in tells why the problem has no numbers."""
        return [row for name in self.ids for row in self.site.rows(name, None, self.ids[name]).stored]

    @property
    def letters(self) -> list[str]:
        """Letters that the file can answer, on any site."""
        return sorted(set(re.findall(r"(?m)^\*\*\((\w)\)\*\*", self.source.text)))

    @property
    def answered(self) -> list[str]:
        """Letters answered on this site, or without measurements."""
        texts = [text for text in self.texts if text.letter and text.markdown()]
        return sorted({text.letter for text in texts if self.measured or text.letter in self.on_paper})

    def _own_status(self) -> str:
        """Status of a problem without filled cells: its check, or how many numbers in its sentences are known."""
        if self.mistake:
            return "not written"
        if self.is_on_paper:
            return "on paper"
        if self.tables or self.check:
            return self.check
        texts = [text for text in self.texts if text.letter not in self.on_paper]
        numbers = [match for text in texts for match in TOKEN.finditer(SPAN.sub("", "\n".join(text.lines)))]
        there = [match for text in texts for line in text.complete(True) for match in TOKEN.finditer(line)]
        return f"{len(there)} of {len(numbers)}" if there else ""

    def status(self) -> str:
        """Filled cells of all that can be, and marked ones, as "3 of 5, 1†"; without filled ones, another status."""
        cells = [cell for table in self.tables for cell in table.cells]
        able, filled = sum(cell.able for cell in cells), sum(cell.filled for cell in cells)
        if not able or not filled:
            return self._own_status() or "not measured"
        marked = sum(table.marked for table in self.tables)
        marks = "".join(sorted({table.mark for table in self.tables} - {""}))
        return f"{filled} of {able}" + (f", {marked}{marks}" if marked else "")

    def markdown(self, figures: Collection[str], has_details: bool = False, notes: str = "") -> str:
        """Render the problem in its file's order, then people's notes. figures: ids of the site's figures."""
        link = f"[Details](details/{self.name}.md)" if has_details else ""
        parts = [f"### {self.title}"]
        if not self.measured:
            measured = [letter for letter in self.letters if letter not in self.on_paper]
            letters = f"{spanned(measured)}: " if measured else ""
            parts.append(f"{letters}[not measured here](#not-measured-here) {link}".rstrip())
            parts += [text.markdown(notes) for text in self.texts if text.letter in self.on_paper]
            return "\n\n".join(part for part in [*parts, notes] if part)
        if self.mistake:
            parts.append(f"Not written, because of a mistake in its file: `{self.mistake}`")
        for block in self.blocks:
            if isinstance(block, Text):
                parts.append(block.markdown(notes))
            elif isinstance(block, Picture):
                parts.append(block.markdown() if block.title and block.figure in figures else "")
            elif block.rows:
                parts.append(block.markdown())
        if PRIVATE.search("".join(parts)):
            raise ValueError(f"{self.source.name}: a private character is in the text")
        return "\n\n".join(part for part in [*parts, notes, link] if part)


def spanned(letters: Sequence[str]) -> str:
    """Range of letters: `(a)`, `(a)-(c)`."""
    return f"({letters[0]})" + (f"-({letters[-1]})" if letters[1:] else "")


def _sentences(text: str) -> str:
    return Text(text.splitlines()).markdown()


def _ids(source: Source) -> dict[str, str]:
    """Table ids in a file's front matter, in order, each with that of the table for the user's code."""
    tables = [{"id": table} if isinstance(table, str) else table for table in source.front.get("tables", {}).values()]
    return {table["id"]: table.get("yours", "") for table in tables}


def whole_page(template: Template) -> str:
    """Render a page other than a problem's, without lines that lack a number and headings that this leaves empty."""
    lines = [text for text in template.render()[0].splitlines() if not is_incomplete(text)]
    texts = [TOKEN.sub(lambda match: match[2], line) if line.startswith("|") else in_prose(line) for line in lines]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(texts)).strip("\n") + "\n"
    text = re.sub(r"(?m)^## .*\n+(\|.*\n\| ---.*\n+)?(?=## |\Z)", "", text)
    if PRIVATE.search(text):
        raise ValueError(f"{template.source.name}: a private character is in the page")
    return text


def problems(chapter: Chapter, site: Site, edition: str = "") -> list[Problem]:
    """Make all problems of a chapter over a site; a mistake in a file costs only its own problem."""
    return [Problem(chapter, key, site, keeps_mistake=True, edition=edition) for key in chapter.problems]
