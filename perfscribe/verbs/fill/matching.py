"""Matches each table of a user's Markdown document with a table of the hand-in: columns by heading, rows by label.

A match is refused or reduced if the document's text contradicts it, e.g. "BF16" above a table of FP32 numbers.
"""

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

# Share of a document's headings that must be the hand-in's; the others are columns that the hand-in lacks.
LEAST_SHARE = 0.6
# Headings of columns with sentences, which do not label rows.
PROSE = re.compile(r"\b(notes?|comments?|remarks?|observations?|extraction|explanation|why)\b")
# Removing this from a heading that is only a level (FP32, 128, 1MB) leaves nothing.
LEVEL = re.compile(r"\d+|\b(fp|bf|tf)(?=\d)|(?<=\d)[kmg]i?b\b|[\W_]")
# Placeholder for a missing figure or word: signs, blank tags, or one of these words.
PLACEHOLDER = re.compile(
    r"(?:&nbsp;|<br ?/?>|[^\w<&]|_)+|(?:todo|tbd|tba|n/?a|fixme|pending|x{2,})[.!?:]*", re.IGNORECASE
)
LONGEST_CAPTION, LONGEST_NAME = 30, 12  # words of a text that is a table's caption, or that names its problem
COUNTS = {"no": "0", "zero": "0", "without": "0", "one": "1", "single": "1", "two": "2", "four": "4", "eight": "8"}
SIZES = "nano|micro|mini|small|medium|large"
# Properties of figures, as patterns of the words that state them. A text above a document's table that states another
# value than the hand-in's table disproves a match.
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
# Patterns of nouns after a count, and before one.
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
# Kinds that a table of the hand-in need not state, and kinds that a table named by a comment must state.
OPTIONAL = ("width", "heads", "nodes", "rows", "accumulation", "warm-up steps", "operation")
MANDATORY = ("implementation", "device")


class NoMatch(ValueError):
    """A document's table has no match, or must not be filled; the text has the reason."""


class NoRows(NoMatch):
    """The headings match a table of the hand-in, but no row does."""


@dataclass(frozen=True)
class Known:
    """A table of the hand-in. heading, key: of its problem. machines: models that measured it."""

    heading: str
    table: HandinTable
    key: str = ""
    machines: str = ""

    @property
    def name(self) -> str:
        """Name in messages: heading and title."""
        return f"{self.heading}: {self.table.title.rstrip('.')}"

    @property
    def problem(self) -> str:
        """`name` of a heading `Problem (name)`, else the whole heading."""
        return re.sub(r"^Problem \((.*)\)$", r"\1", self.heading)

    @cached_property
    def headers(self) -> list[str]:
        """Normalised column headings."""
        return [normalised(document.plain_of(header)) for header in self.table.header]

    @cached_property
    def labels(self) -> list[int]:
        """Indices of the columns that label rows: with words, and without figures or prose."""

        def has_words(column: int) -> bool:
            cells = [row[column] for row in self.table.rows]
            return not any(cell.able for cell in cells) and {cell.text for cell in cells} != {NOTHING}

        return [at for at, header in enumerate(self.headers) if has_words(at) and not PROSE.search(header)]

    @property
    def text(self) -> str:
        """Text that holds for all figures of the table: heading, title, set-up and machines."""
        return f"{self.heading} {self.table.title} {self.table.setup} {self.machines}"

    def text_of(self, column: int) -> str:
        """Text that holds for the figures of a column: its heading, and the unit that its cells have."""
        units = (re.sub(r"[\d.,±]+", "", row[column].text) for row in self.table.rows if row[column].able)
        return f"{self.table.header[column]} {next(units, '')}"

    def name_length(self, text: str) -> int:
        """Length of the problem's name if the text has it, else 0; of several problems the longest name wins."""
        if self.problem == self.heading:
            return len(text) * (_bare(text) == _bare(self.heading))
        name = re.escape(normalised(self.problem))
        return len(self.problem) * bool(re.search(rf"(?<!\w){name}(?!\w)", normalised(text)))

    def has_title(self, table: document.MarkdownTable) -> bool:
        """Return whether a text above the document's table begins with this table's title."""
        title = normalised(document.plain_of(self.table.title).rstrip(".†‡"))
        return bool(title) and any(normalised(text.text).startswith(title) for text in table.above)


@dataclass
class Match:
    """A document's table and the source of its figures: a table of the hand-in, or the site's table in a comment.

    Columns are indices into the document's headings, rows are numbers in the document's table.

    name: of the source, in messages. setup: line printed about the source.
    columns: by column, the source's column. labels: those of them that label rows.
    find: returns for the texts of a row's labels, by column, an identity of the source's row and its cells by column;
        raises ValueError without such a row.
    unfilled: columns that are not filled.
    known: the hand-in's table, if it is the source.
    text: text that holds for all figures. column_texts: text that holds for the figures of a column.
    named_by: text of the document that names the source: "comment", "title", "heading", or "" for none.
    remarks: lines for the user about columns that are not filled.
    identities, cells: results of `find` by row. refused: by row that is not filled, the reason.
    """

    name: str
    setup: str
    columns: dict[int, Any]
    labels: Collection[int]
    find: Callable[[Mapping[int, str]], tuple[Hashable, Mapping[int, TableCell]]]
    unfilled: set[int] = field(default_factory=set)
    known: Known | None = None
    text: str = ""
    column_texts: Mapping[int, str] = field(default_factory=dict)
    named_by: str = "comment"
    remarks: list[str] = field(default_factory=list)
    identities: dict[int, Hashable] = field(default_factory=dict)
    cells: dict[int, Mapping[int, TableCell]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def read(self, table: document.MarkdownTable) -> Match:
        """Find the source's row of each row; refuse rows without one, or with a blank label before a filled one."""
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
        """Refuse rows and columns that are filled twice or that a text contradicts; NoMatch if none are left."""
        for source, count in Counter(self.columns.values()).items():
            twice = [at for at, other in self.columns.items() if other == source] if count > 1 else []
            if {*twice} & {*self.labels}:
                raise NoMatch(f"several of its columns are {table.headers[twice[0]]}")
            self._drop(table, twice, "the same column")
        self._require_no_other_labels(table)
        self.refuse_same()
        if self.named_by != "title":
            self._require_names(table)
            self._drop_contradicted(table)
        if self.remarks and not {*self.columns} - {*self.labels}:
            raise NoMatch(f"{self.name}: {'; '.join(self.remarks)}")

    def _require_no_other_labels(self, table: document.MarkdownTable) -> None:
        """Raise NoMatch if a column that the source lacks may distinguish rows or hold a level."""
        first_figure = min(self.columns.keys() - {*self.labels}, default=len(table.headers))
        for at, header in enumerate(table.headers):
            texts = [table.rows[number].texts[at] for number in self.cells]
            is_figure = words_of("unit", header) and at > first_figure
            if at in self.columns or at in self.unfilled or is_figure or not _may_be_level(header, texts):
                continue
            if len({*texts}) > 1:
                raise NoMatch(f"its column {header} ({_listed(texts)}) tells rows apart, and is not in {self.name}")
            if self.named_by == "comment":
                raise NoMatch(f"say in the comment what {header} ({_listed(texts)}) is, or {header}=- to leave it")

    def label(self, table: document.MarkdownTable, number: int) -> str:
        """Labels of a row, joined for messages."""
        return " / ".join(filter(None, (table.rows[number].texts[at] for at in sorted(self.labels))))

    def refuse_same(self, others: Collection[Hashable] = ()) -> None:
        """Refuse rows with equal identities, also those equal to `others`, which other tables of the document have."""
        counts = Counter([*self.identities.values(), *others])
        for number in [number for number, identity in self.identities.items() if counts[identity] > 1]:
            self.refused[number] = "another row of the page is the same row"
            del self.identities[number], self.cells[number]

    def _require_names(self, table: document.MarkdownTable) -> None:
        """Raise NoMatch if nothing names the hand-in's table and a heading of figures is only a level, such as FP32."""
        if self.known and not self.named_by:
            for header in [table.headers[at] for at in self.columns if at not in self.labels]:
                if not LEVEL.sub("", header.casefold()):
                    raise NoMatch(f"{header} does not say of what: name {self.known.problem} in a heading above")

    def _drop_contradicted(self, table: document.MarkdownTable) -> None:
        """Do not fill columns that a text above or an unmatched column contradicts, such as BF16 over FP32 numbers."""
        texts = self._texts_about(table)
        label_texts = [" ".join(f"{table.headers[at]} {row.texts[at]}" for at in self.labels) for row in table.rows]
        for kind in KINDS:
            statements = ((words_of(kind, text), line) for text, line in texts)
            stated, line = next((pair for pair in statements if pair[0]), (frozenset[str](), 0))
            of_table = words_of(kind, self.text)
            of_columns = {at: words_of(kind, self.column_texts[at]) for at in self.columns}
            # Figures that a comment names are a part of those that the texts are about, in their unit.
            agrees = stated == of_table if self.known else stated & of_table or kind == "unit"
            is_unstated = not of_table and (kind in OPTIONAL if self.known else kind not in MANDATORY)
            in_columns = stated <= frozenset().union(*of_columns.values())
            if agrees or is_unstated or in_columns or all(words_of(kind, text) for text in label_texts):
                continue
            ours = f"the figures are {_listed(of_table)}" if of_table else "the set-up of the figures does not"
            silent = [at for at in self.columns if at not in self.labels and not of_columns[at]]
            self._drop(table, silent, f"line {line} says {_listed(stated)} ({kind}), {ours}")

    def _texts_about(self, table: document.MarkdownTable) -> list[tuple[str, int]]:
        """Texts of the document about its table, each with its line from 1: unmatched columns, then the texts above.

        Texts above the problem's own heading are about other problems, too, and are left out.
        """
        others = [
            at
            for at, header in enumerate(table.headers)
            if at not in self.columns and not (at in self.unfilled and PROSE.search(normalised(header)))
        ]
        heads = {at: "" if at in self.unfilled else table.headers[at] for at in others}
        in_columns = [f"{heads[at]} {row.texts[at]}" for row in table.rows for at in others if row.texts[at]]
        ends = (at for at, text in enumerate(table.above, 1) if normalised(text.text).startswith("problem ("))
        name = self.known.problem if self.known else self.name
        texts = [*(document.Text(table.line, text) for text in in_columns), *table.above[: next(ends, None)]]
        return [(caption(text.text).replace(name, ""), text.line + 1) for text in texts]

    def _drop(self, table: document.MarkdownTable, columns: Collection[int], reason: str) -> None:
        self.unfilled |= {*columns}
        self.columns = {at: source for at, source in self.columns.items() if at not in columns}
        self.remarks += [f"left: {', '.join(table.headers[at] for at in columns)}: {reason}"] if columns else []


def choose(table: document.MarkdownTable, known: Sequence[Known], renamed: Mapping[str, str] | None = None) -> Match:
    """Return the best match among the hand-in's tables; NoMatch if there is none, or if several are equally good.

    renamed: given if a comment selected `known`: the hand-in's headings by the document's; `-` for a column that the
    hand-in lacks.
    """
    named_by, candidates = "comment", list(known)
    if renamed is None:
        titled = [candidate for candidate in known if candidate.has_title(table)]
        short = [text.text for text in table.above if len(text.text.split()) <= LONGEST_NAME]
        heading = next(filter(None, (_named(text, known) for text in short)), "")
        named_by = "title" if titled else "heading" if heading else ""
        candidates = titled or [candidate for candidate in known if heading in ("", candidate.heading)]
    matches = [match for candidate in candidates if (match := _fit(table, candidate, renamed or {}))]
    if not matches:
        under = f" under {candidates[0].heading!r}" if named_by == "heading" else ""
        raise NoMatch(f"no table of the hand-in{under} has these headings")
    best = max((bool(match.cells), len(match.columns), len(match.cells)) for match in matches)
    matches = [match for match in matches if (bool(match.cells), len(match.columns), len(match.cells)) == best]
    if len({str(match.known and match.known.table) for match in matches}) > 1:
        raise NoMatch(f"it may be {' or '.join(match.name for match in matches)}; no heading above says which")
    if not matches[0].cells:
        labels = ", ".join(matches[0].label(table, number) for number in range(len(table.rows))[:3]) or "there are none"
        raise NoRows(f"{matches[0].name} has none of its rows: {labels}")
    matches[0].named_by = named_by
    return matches[0]


def _fit(table: document.MarkdownTable, known: Known, renamed: Mapping[str, str]) -> Match | None:
    """Match a document's table with one of the hand-in by headings; None if too few are equal or none is a label."""
    names = [normalised(renamed.get(header, re.sub(r"^[a-z]\) +", "", header))) for header in table.headers]
    columns = {at: known.headers.index(name) for at, name in enumerate(names) if known.headers.count(name) == 1}
    labels = [at for at, source in columns.items() if source in known.labels]
    if len(columns) < 2 or len(columns) < LEAST_SHARE * sum(name not in ("", "-") for name in names) or not labels:
        return None

    def find(texts: Mapping[int, str]) -> tuple[Hashable, Mapping[int, TableCell]]:
        fitting = [
            (number, row)
            for number, row in enumerate(known.table.rows)
            if all(normalised(text) in _spellings(row[columns[at]].text) for at, text in texts.items())
        ]
        if len(fitting) != 1:
            raise ValueError("several rows of the hand-in fit it" if fitting else "no such row in the hand-in")
        return fitting[0][0], {at: fitting[0][1][source] for at, source in columns.items()}

    for at, source in columns.items() if renamed else ():
        units = words_of("unit", known.text_of(source)) or words_of("unit", known.text)
        if not words_of("unit", table.headers[at]) <= units:
            raise NoMatch(f"{table.headers[at]} is in another unit than {known.headers[source]} ({_listed(units)})")
    unfilled = {at for at, name in enumerate(names) if renamed and name == "-"}
    column_texts = {at: known.text_of(source) for at, source in columns.items()}
    match = Match(known.name, known.table.setup, {**columns}, labels, find, unfilled, known, known.text, column_texts)
    return match.read(table)


def _may_be_level(header: str, texts: Sequence[str]) -> bool:
    """Return whether an unmatched column may hold a factor's levels, not only prose, placeholders or row numbers."""
    texts = ["" if PLACEHOLDER.fullmatch(text) else text for text in texts]
    first = int(texts[0]) if texts and texts[0].isdecimal() else 0
    numbered = not header.strip("# ") and [*texts] == [str(first + at) for at in range(len(texts))]
    return any(texts) and not numbered and not PROSE.search(normalised(header))


@cache
def words_of(kind: str, text: str) -> frozenset[str]:
    """Words of a kind of KINDS in a text, in one spelling: `ms` of units, `BF16` of precisions."""
    flat = re.sub(r"[_\s-]+", " ", text.casefold())
    words = (match.lastgroup or match[match.lastindex or 0] for match in re.finditer(KINDS[kind], flat))
    return frozenset(COUNTS.get(word, word.replace(",", "")) for word in words)


@cache
def normalised(text: str) -> str:
    """Heading or label for comparisons: without case, thousands separators, and differences of `_`, `-` and space."""
    plain = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda match: match[0].replace(",", ""), text.casefold())
    joined = re.sub(r"(?<=[^\W\d_])[\s_–—-]+(?=[^\W\d_])", " ", plain)
    return " ".join(re.sub("[–—]", "-", joined).split())


@cache
def _spellings(label: str) -> frozenset[str]:
    """A label of the hand-in, normalised: as it is, and without a final mark, (ours) or (yours)."""
    plain = document.plain_of(label)
    return frozenset({normalised(plain), normalised(re.sub(r"[†‡]+$| \((ours|yours)\)$", "", plain))})


def _bare(text: str) -> str:
    """A heading, normalised, without number, letter and signs around it."""
    return normalised(re.sub(r"^[\W\d_]*(?:[a-z]\)[\W_]*)?|[\W_]+$", "", text, flags=re.IGNORECASE))


def _named(text: str, known: Sequence[Known]) -> str:
    """Heading of the problem that the text names, "" for none."""
    best = max(known, key=lambda candidate: candidate.name_length(text), default=None)
    return best.heading if best and best.name_length(text) else ""


@cache
def caption(text: str) -> str:
    """Part of a text that is about the table below: all of a short text, else sentences that say so, and the last."""
    sentences = re.split(r"(?<=[.:;!?])\s+", text)
    short = len(text.split()) <= LONGEST_CAPTION
    of_table = [sentence for sentence in sentences if re.search(r"\b(below|following|tables?)\b", sentence)]
    return text if short else " ".join([*of_table, sentences[-1]])


def _listed(texts: Collection[str]) -> str:
    shown = sorted({*texts} - {""})
    return ", ".join(shown[:3]) + (", …" if shown[3:] else "")
