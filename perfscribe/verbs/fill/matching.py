"""Matches tables of a user's Markdown file with those of the hand-in, row by row; texts around them may contradict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from perfscribe.report.page import HandinTable, TableCell
from perfscribe.report.quantities import NOTHING
from perfscribe.verbs.fill import document

# Of a document's headings, so many of which have to be the hand-in's: a page may have columns of its own.
LEAST_SHARE = 0.6
# Headings of columns with sentences, which tell no rows apart.
PROSE = re.compile(r"\b(notes?|comments?|remarks?|observations?|extraction|explanation|why)\b")
# Nothing else is in headings that are levels, such as FP32, 128 and 1MB.
LEVEL = re.compile(r"\d+|\b(fp|bf|tf)(?=\d)|(?<=\d)[kmg]i?b\b|[\W_]")
# What stands for a figure or a word that is to come: signs, blank tags, one of these words.
PLACEHOLDER = re.compile(
    r"(?:&nbsp;|<br ?/?>|[^\w<&]|_)+|(?:todo|tbd|tba|n/?a|fixme|pending|x{2,})[.!?:]*", re.IGNORECASE
)
LONGEST_CAPTION, LONGEST_NAME = 30, 12  # words of a text that is all about a table, or names its problem
COUNTS = {"no": "0", "zero": "0", "without": "0", "one": "1", "single": "1", "two": "2", "four": "4", "eight": "8"}
SIZES = "nano|micro|mini|small|medium|large"
# What texts say of figures. A text above a table that says another than the hand-in's table disproves a match.
KINDS = {
    "precision": r"\b(?:(?P<FP32>fp32|float32)|(?P<TF32>tf32)|(?P<BF16>bf16|bfloat16)|(?P<FP16>fp16|float16)"
    r"|(?P<FP8>fp8)|(?P<autocast>mixed precision|autocast|amp))\b",
    "pass": r"\b(?:(?P<forward>(?<!after )(?:forward|fwd))|(?P<backward>(?<!before )(?:backward|bwd))"
    r"|(?P<inference>inference|no grad)|(?P<step>(?:full|train|training|optimi[sz]er) (?:train\w* )?step|end to end|e2e"
    r"|(?<=[+&] )optimi[sz]er))\b",
    "strategy": r"\b(?:(?P<offload>off ?load\w*)|(full ?shard|shard grad op|hybrid shard|zero ?[123]))\b",
    "operation": r"\b(all ?reduce|all ?gather|reduce ?scatter|all ?to ?all|broadcast)",
    "implementation": r"\b(?:(?P<compiled>compil\w*|jit)|(?P<flash>flash\w*|triton|sdpa|cudnn))\b",
    "model": rf"\b({SIZES})(?=[ )]*(?:model|size|config))|(?:model|size)[ :=(]+({SIZES})\b|, ({SIZES})(?=[,.])"
    r"|\b(xl)\b|\b(\d+b\d|\d+m|\d+(?:\.\d+)?b)\b",
    "unit": r"(?<![\w/'’])(?<!\d )(?:(?P<s>s|secs?|seconds?)|(?P<ms>ms|millis\w*)|(?P<us>[uµμ]s|micros\w*)|(?P<ns>ns)"
    r"|(?P<min>(?<=[(\[])min(?=[)\]])|minutes?)|(?P<h>(?<=[(\[])h(?=[)\]])|hours?)"
    r"|(?P<GB>gb)|(?P<GiB>gib)|(?P<MB>mb)|(?P<MiB>mib)|(?P<KB>kb)|(?P<KiB>kib)|(?P<percent>%|percent))(?!\w|/s)"
    r"|(?P<rate>\w+/s(?:ec)?\b|throughput)",
    "device": r"(?P<CPU>\b(?:on (?:the |a )?|device[ :=]*)cpu\b|\bno gpu\b)"
    r"|\b([abhv]\d00|a10g?|l40?s?|t4|rtx \d{4}|mi\d{3}\w?)\b",
}
# Nouns that follow a count, and that stand before one.
COUNTED = {
    "context length": ("tokens", "context|ctx|seq(?:uence)?"),
    "batch": ("per batch", "batch"),
    "width": ("wide", "d model|head dim|d(?= ?=)"),
    "heads": ("heads?", "heads?"),
    "number of GPUs": (r"gpus?|ranks?|proc\w*", "gpus?|ranks?|processes|world size"),
    "nodes": ("nodes?", "nodes"),
    "epochs": ("epochs?", "epochs"),
    "rows": ("rows|samples", "rows"),
    "accumulation": ("accumulations", "accumulation"),
    "warm-up steps": ("warm ?up", "warm ?up steps"),
}
for kind, (after, before) in COUNTED.items():
    KINDS[kind] = (
        rf"\b(\d+(?:,\d{{3}})*|{'|'.join(COUNTS)}) ?[x×]? ?(?:{after})\b"
        rf"|\b(?:{before})(?: len(?:gth)?| size| steps?)?[ :=]*(\d+(?:,\d{{3}})*)"
    )
# Of which the set-up of the hand-in's table may be silent, and of which that of a comment's table may not be.
UNSAID = ("width", "heads", "nodes", "rows", "accumulation", "warm-up steps", "operation")
SAID = ("implementation", "device")


class NoMatch(ValueError):
    """A document's table is none that is known, or may not be filled; the text says why."""


class NoRows(NoMatch):
    """Its headings are those of a known table, whose rows are others."""


@dataclass(frozen=True)
class Known:
    """A table of the hand-in with the heading and the key of its problem. machines: what measured it."""

    heading: str
    table: HandinTable
    key: str = ""
    machines: str = ""

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"{self.heading}: {self.table.title.rstrip('.')}"

    @property
    def problem(self) -> str:
        """The name in `Problem (name)`, else the heading."""
        return re.sub(r"^Problem \((.*)\)$", r"\1", self.heading)

    @cached_property
    def headers(self) -> list[str]:
        """Its headings, to compare."""
        return [same(document.plain_of(header)) for header in self.table.header]

    @cached_property
    def labels(self) -> list[int]:
        """Columns whose texts tell rows apart."""
        columns = [[row[at] for row in self.table.rows] for at in range(len(self.headers))]
        has_words = [
            not any(cell.able for cell in cells) and {cell.text for cell in cells} != {NOTHING} for cells in columns
        ]
        return [at for at, header in enumerate(self.headers) if has_words[at] and not PROSE.search(header)]

    @property
    def about(self) -> str:
        """Text about all numbers of the table: heading, title, set-up and machines."""
        return f"{self.heading} {self.table.title} {self.table.setup} {self.machines}"

    def unit_in(self, column: int) -> str:
        """The unit that a column's figures have in their cells."""
        return next((re.sub(r"[\d.,±]+", "", row[column].text) for row in self.table.rows if row[column].able), "")

    def is_named(self, text: str) -> int:
        """Length of this problem's name if the text contains it, else 0: the longest name wins."""
        if self.problem == self.heading:
            return len(text) * (_bare(text) == _bare(self.heading))
        return len(self.problem) * bool(re.search(rf"(?<!\w){re.escape(same(self.problem))}(?!\w)", same(text)))

    def has_title(self, table: document.MarkdownTable) -> bool:
        """Whether its title begins a text above."""
        title = same(document.plain_of(self.table.title).rstrip(".†‡"))
        return bool(title) and any(same(text.text).startswith(title) for text in table.above)


@dataclass
class Match:
    """A table that a document's table is, and what its rows are.

    columns: what the document's columns are there; labels: those of them that tell rows apart; left: columns of the
    page's own. find: a row's identity and its cells by column, for the texts of its labels, or ValueError. proof: the
    comment, title or heading above that names it. about: what holds for all its figures; shows: what a column says of
    its own. By a row's number: identities, cells, and why it is refused.
    """

    name: str
    setup: str
    columns: dict[int, Any]
    labels: Collection[int]
    find: Callable[[Mapping[int, str]], tuple[Hashable, Mapping[int, TableCell]]]
    left: set[int] = field(default_factory=set)
    known: Known | None = None
    about: str = ""
    shows: Mapping[int, str] = field(default_factory=dict)
    proof: str = "comment"
    remarks: list[str] = field(default_factory=list)
    identities: dict[int, Hashable] = field(default_factory=dict)
    cells: dict[int, Mapping[int, TableCell]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def read(self, table: document.MarkdownTable) -> Match:
        """Find the hand-in's row for each row by its labels; refuse rows where a blank label precedes a filled one."""
        for number, row in enumerate(table.rows):
            texts = {at: row.texts[at] for at in sorted(self.labels) if row.texts[at]}
            try:
                if not texts or any(not row.texts[at] and at < max(texts) for at in self.labels):
                    raise ValueError("its label is blank")
                self.identities[number], self.cells[number] = self.find(texts)
            except ValueError as error:
                self.refused[number] = str(error)
        return self

    def check(self, table: document.MarkdownTable) -> None:
        """Refuse columns and rows that lead to the same, and what a text disproves; NoMatch where nothing is left."""
        for column, count in Counter(self.columns.values()).items():
            there = [at for at, other in self.columns.items() if other == column] if count > 1 else []
            if {*there} & {*self.labels}:
                raise NoMatch(f"several of its columns are {table.headers[there[0]]}")
            self._drop(table, there, "the same column")
        for at, header in enumerate(table.headers):
            texts = [table.rows[number].texts[at] for number in self.cells]
            is_figure = words_of("unit", header) and at > min(self.columns.keys() - {*self.labels}, default=at)
            if at in self.columns or at in self.left or is_figure or not _may_be_level(header, texts):
                continue
            if len({*texts}) > 1:
                raise NoMatch(f"its column {header} ({_listed(texts)}) tells rows apart, and is not in {self.name}")
            if self.proof == "comment":
                raise NoMatch(f"say in the comment what {header} ({_listed(texts)}) is, or {header}=- to leave it")
        self.refuse_same()
        if self.proof != "title":
            self._compare_texts(table)
        if self.remarks and not {*self.columns} - {*self.labels}:
            raise NoMatch(f"{self.name}: {'; '.join(self.remarks)}")

    def label(self, table: document.MarkdownTable, number: int) -> str:
        """The labels of a row."""
        return " / ".join(filter(None, (table.rows[number].texts[at] for at in sorted(self.labels))))

    def refuse_same(self, others: Collection[Hashable] = ()) -> None:
        """Refuse rows that are the same row, here or in other tables of the page."""
        counts = Counter([*self.identities.values(), *others])
        for number in [number for number, identity in self.identities.items() if counts[identity] > 1]:
            self.refused[number] = "another row of the page is the same row"
            del self.identities[number], self.cells[number]

    def _compare_texts(self, table: document.MarkdownTable) -> None:
        """Do not fill columns that a text above or an unmatched column contradicts, such as BF16 over FP32 numbers."""
        figures = [at for at in self.columns if at not in self.labels]
        for at in figures:
            if self.known and not self.proof and not LEVEL.sub("", table.headers[at].casefold()):
                raise NoMatch(f"{table.headers[at]} does not say of what: name {self.known.problem} in a heading above")
        prose = {at for at in self.left if PROSE.search(same(table.headers[at]))}
        heads = {at: "" if at in self.left else header for at, header in enumerate(table.headers) if at not in prose}
        others = [at for at in heads if at not in self.columns]
        held = [f"{heads[at]} {row.texts[at]}" for row in table.rows for at in others if row.texts[at]]
        name = self.known.problem if self.known else self.name
        # Headings above its problem's are about other problems, too.
        within = [at for at, text in enumerate(table.above, 1) if same(text.text).startswith("problem (")]
        texts = [*(document.Text(table.line, text) for text in held), *table.above[: within[0] if within else None]]
        labels = [" ".join(f"{table.headers[at]} {row.texts[at]}" for at in self.labels) for row in table.rows]
        for kind in KINDS:
            says = ((words_of(kind, caption(text.text).replace(name, "")), text.line + 1) for text in texts)
            words, line = next((pair for pair in says if pair[0]), (frozenset[str](), 0))
            fixed = words_of(kind, self.about)
            shown = {at: words_of(kind, self.shows[at]) for at in self.columns}
            # Figures that a comment names are a part of what the texts are about, in their unit.
            fits = words == fixed if self.known else words & fixed or kind == "unit"
            is_unsaid = not fixed and (kind in UNSAID if self.known else kind not in SAID)
            if (
                fits
                or is_unsaid
                or words <= frozenset().union(*shown.values())
                or all(words_of(kind, of) for of in labels)
            ):
                continue
            its = f"the figures are {_listed(fixed)}" if fixed else "the set-up of the figures does not"
            theirs = f"line {line} says {_listed(words)} ({kind}), {its}"
            self._drop(table, [at for at in figures if at in shown and not shown[at]], theirs)

    def _drop(self, table: document.MarkdownTable, columns: Collection[int], why: str) -> None:
        self.left |= {*columns}
        self.columns = {at: column for at, column in self.columns.items() if at not in columns}
        self.remarks += [f"left: {', '.join(table.headers[at] for at in columns)}: {why}"] if columns else []


def choose(table: document.MarkdownTable, known: Sequence[Known], renamed: Mapping[str, str] | None = None) -> Match:
    """The one that fits best; NoMatch where none does, or several alike.

    renamed: where a comment chose the known ones, the hand-in's headings for those of the document, `-` for its own.
    """
    proof, among = "comment", list(known)
    if renamed is None:
        titled = [candidate for candidate in known if candidate.has_title(table)]
        short = [text.text for text in table.above if len(text.text.split()) <= LONGEST_NAME]
        heading = next(filter(None, (_named(text, known) for text in short)), "")
        proof = "title" if titled else "heading" if heading else ""
        among = titled or [candidate for candidate in known if heading in ("", candidate.heading)]
    fits = [match for candidate in among if (match := _fit(table, candidate, renamed or {}))]
    if not fits:
        under = f" under {among[0].heading!r}" if proof == "heading" else ""
        raise NoMatch(f"no table of the hand-in{under} has these headings")
    best = max((bool(match.cells), len(match.columns), len(match.cells)) for match in fits)
    fits = [match for match in fits if (bool(match.cells), len(match.columns), len(match.cells)) == best]
    if len({str(match.known and match.known.table) for match in fits}) > 1:
        raise NoMatch(f"it may be {' or '.join(match.name for match in fits)}; no heading above says which")
    if not fits[0].cells:
        labels = ", ".join(fits[0].label(table, number) for number in range(len(table.rows))[:3]) or "there are none"
        raise NoRows(f"{fits[0].name} has none of its rows: {labels}")
    fits[0].proof = proof
    return fits[0]


def _fit(table: document.MarkdownTable, known: Known, renamed: Mapping[str, str]) -> Match | None:
    """The match by headings; None where too few are the same."""
    names = [same(renamed.get(header, re.sub(r"^[a-z]\) +", "", header))) for header in table.headers]
    columns = {at: known.headers.index(name) for at, name in enumerate(names) if known.headers.count(name) == 1}
    labels = [at for at, column in columns.items() if column in known.labels]
    if len(columns) < 2 or len(columns) < LEAST_SHARE * sum(name not in ("", "-") for name in names) or not labels:
        return None

    def find(texts: Mapping[int, str]) -> tuple[Hashable, Mapping[int, TableCell]]:
        fitting = [
            (number, row)
            for number, row in enumerate(known.table.rows)
            if all(same(text) in _forms(row[columns[at]].text) for at, text in texts.items())
        ]
        if len(fitting) != 1:
            raise ValueError("several rows of the hand-in fit it" if fitting else "no such row in the hand-in")
        return fitting[0][0], {at: fitting[0][1][column] for at, column in columns.items()}

    for at, column in columns.items() if renamed else ():
        texts = (f"{known.table.header[column]} {known.unit_in(column)}", known.about)
        theirs = next(filter(None, (words_of("unit", text) for text in texts)), frozenset())
        if not words_of("unit", table.headers[at]) <= theirs:
            raise NoMatch(f"{table.headers[at]} is in another unit than {known.headers[column]} ({_listed(theirs)})")
    left = {at for at, name in enumerate(names) if renamed and name == "-"}
    shows = {at: f"{known.table.header[column]} {known.unit_in(column)}" for at, column in columns.items()}
    match = Match(known.name, known.table.setup, {**columns}, labels, find, left, known, known.about, shows)
    return match.read(table)


def _may_be_level(header: str, texts: Sequence[str]) -> bool:
    """Whether an unmatched column may hold a factor's levels: it is not only prose, placeholders or row numbers."""
    texts = ["" if PLACEHOLDER.fullmatch(text) else text for text in texts]
    first = int(texts[0]) if texts and texts[0].isdecimal() else 0
    numbered = not header.strip("# ") and [*texts] == [str(first + at) for at in range(len(texts))]
    return any(texts) and not numbered and not PROSE.search(same(header))


@cache
def words_of(kind: str, text: str) -> frozenset[str]:
    """Words of a kind in a text: `ms` of units, `BF16` of precisions."""
    flat = re.sub(r"[_\s-]+", " ", text.casefold())
    words = (match.lastgroup or match[match.lastindex or 0] for match in re.finditer(KINDS[kind], flat))
    return frozenset(COUNTS.get(word, word.replace(",", "")) for word in words)


@cache
def same(text: str) -> str:
    """A heading or a label to compare: without case, thousands' commas, and what joins words (_, - or a blank)."""
    plain = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda match: match[0].replace(",", ""), text.casefold())
    joined = re.sub(r"(?<=[^\W\d_])[\s_–—-]+(?=[^\W\d_])", " ", plain)
    return " ".join(re.sub("[–—]", "-", joined).split())


@cache
def _forms(label: str) -> frozenset[str]:
    """Spellings of a hand-in label: as it is, and without a final mark, (ours) or (yours)."""
    plain = document.plain_of(label)
    return frozenset({same(plain), same(re.sub(r"[†‡]+$| \((ours|yours)\)$", "", plain))})


def _bare(text: str) -> str:
    """A heading without number, letter and signs around it."""
    return same(re.sub(r"^[\W\d_]*(?:[a-z]\)[\W_]*)?|[\W_]+$", "", text, flags=re.IGNORECASE))


def _named(text: str, known: Sequence[Known]) -> str:
    best = max(known, key=lambda candidate: candidate.is_named(text), default=None)
    return best.heading if best and best.is_named(text) else ""


@cache
def caption(text: str) -> str:
    """Part of a text that is about a table: a short text whole; of a longer one what names the table, and its end."""
    sentences = re.split(r"(?<=[.:;!?])\s+", text)
    short = len(text.split()) <= LONGEST_CAPTION
    of_table = [sentence for sentence in sentences if re.search(r"\b(below|following|tables?)\b", sentence)]
    return text if short else " ".join([*of_table, sentences[-1]])


def _listed(texts: Collection[str]) -> str:
    shown = sorted({*texts} - {""})
    return ", ".join(shown[:3]) + (", …" if shown[3:] else "")
