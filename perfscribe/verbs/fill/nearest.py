"""Advice on a table without a match: the site's most similar table, and the comment that would name it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from perfscribe.report.rows import LEVELS, Site
from perfscribe.verbs.fill.bound import OWN, UNKNOWN, measured
from perfscribe.verbs.fill.document import MarkdownTable
from perfscribe.verbs.fill.matching import normalised

ALIKE = 0.5  # least likeness of two headings
LEAST = 0.3  # least share of a table's headings that are alike
WORDS = {"fwd": "forward", "bwd": "backward", "mem": "memory", "seq": "sequence", "len": "length", "avg": "mean"}
WORDS |= {"ctx": "context", "precision": "dtype", "config": "size", "%": "percent", "stddev": "std", "sigma": "std"}
WORDS |= dict.fromkeys(("s", "us", "µs", "time", "latency"), "ms") | dict.fromkeys(("gib", "mb", "mib"), "gb")
# Words that tell one figure of a table from another, such as a minimum from a median.
STATISTICS = {"total", "min", "max", "std", "iqr", "n", "warmup", "×", "percent", "speedup", "predicted"}


@dataclass(frozen=True)
class Candidate:
    """A table of the site. name: its id; columns: names and titles by column; levels: by column of levels."""

    name: str
    columns: Mapping[str, Sequence[str]]
    levels: Mapping[str, Sequence[str]]

    def guess(self, header: str) -> tuple[float, str]:
        """Likeness (0 to 1) of the column that is most like a heading, and its name."""
        return max((_likeness(header, text), name) for name, texts in self.columns.items() for text in texts)

    def share_of_name(self, words: frozenset[str]) -> float:
        """Share of its name's words that are among these."""
        name_words = _words(self.name.partition(".")[2])
        return len(name_words & words) / len(name_words)


class Nearest:
    """Similar tables of a site. Tables with the same headings get the advice once."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._lines: dict[tuple[str, ...], list[str]] = {}

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All tables of the site."""
        result = []
        for name in sorted(path.stem for path in self.site.folder.glob("*.csv")):
            rows = measured(self.site, name)
            titles = {
                column: [column, described["title"]]
                for column, described in rows.columns.items()
                if not column.endswith("_n")
            }
            factors = [column for column, described in rows.columns.items() if described["kind"] in LEVELS]
            levels = {factor: list(dict.fromkeys(str(row[factor]) for row in rows)) for factor in factors}
            result.append(Candidate(name, titles, levels))
        return result

    def lines(self, table: MarkdownTable) -> list[str]:
        """Name of the most similar table, headings that differ, and the comment; empty if no table is similar."""
        headings = [header for header in table.headers if header]
        above = frozenset().union(*(_words(text.text) for text in table.above))
        guesses = [(candidate, [candidate.guess(header) for header in headings]) for candidate in self.candidates]
        best, guess = max(
            guesses, key=lambda pair: pair[0].share_of_name(above) + sum(likeness for likeness, _ in pair[1])
        )
        is_like = sum(likeness >= ALIKE for likeness, _ in guess) >= max(2, LEAST * len(headings))
        if not is_like or (best.name, *table.headers) in self._lines:
            return self._lines.get((best.name, *table.headers), [])
        self._lines[best.name, *table.headers] = [f"nearest: as for line {table.line + 1}"]
        return _advice(best, dict(zip(headings, guess, strict=True)))


def _advice(best: Candidate, guesses: Mapping[str, tuple[float, str]]) -> list[str]:
    bound: set[str] = set()
    clauses: dict[str, str] = {}
    for header, (likeness, column) in sorted(guesses.items(), key=lambda pair: pair[1], reverse=True):
        if likeness >= ALIKE and column not in bound:
            bound.add(column)
            clauses[header] = "" if normalised(header) == normalised(column) else column
        else:
            heading, factor = _pivoted(header, best.levels)
            bound.add(factor)
            clauses[heading] = UNKNOWN
    several = [
        f"{name}={'|'.join(levels)}" for name, levels in best.levels.items() if name not in bound and len(levels) > 1
    ]
    given = [f"{heading}={column}" for heading, column in clauses.items() if column]
    differing = ", ".join(header for header, (likeness, _) in guesses.items() if likeness < 1) or "none"
    return [
        f"nearest is {best.name}; headings that differ: {differing}",
        f"if it is meant, check this, name each {UNKNOWN} ({OWN} for your own), and put it right above the table:",
        f"<!-- perfscribe: {'; '.join([', '.join([best.name, *several]), *given])} -->",
    ]


def _pivoted(header: str, levels: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """A heading with a level replaced by its column in braces, and that column; unchanged without a level."""
    for name, texts in levels.items():
        for text in texts if len(texts) > 1 else ():
            pattern = rf"(?<![\d.]){re.escape(text)}(?![\d.])" if text[0].isdigit() else rf"\b{re.escape(text)}\b"
            if re.search(pattern, header, re.IGNORECASE):
                return re.sub(pattern, f"{{{name}}}", header, count=1, flags=re.IGNORECASE), name
    return header, ""


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(WORDS.get(word, word) for word in re.findall(r"[^\W\d_]+|\d+|[×%]", normalised(text)))


@cache
def _likeness(header: str, text: str) -> float:
    """Share of words that two headings have in common; 0 if they are different statistics."""
    both = _words(header), _words(text)
    return 0.0 if (both[0] ^ both[1]) & STATISTICS else len(both[0] & both[1]) / max(1, len(both[0] | both[1]))
