"""Helpers for the text of chapters: units, lists, names, and comparisons that respect noise."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log, log2
from typing import Any

from perfscribe.report.quantities import MISSING, NOTHING, Quantity, number, token
from perfscribe.report.rows import Row, Rows
from perfscribe.show import references
from perfscribe.show.rounding import Number


def listed(items: Iterable[Any]) -> str:
    """Join items as `a, b and c`."""
    *some, last = [str(item) for item in items] or [""]
    return f"{', '.join(some)} and {last}" if some else last


def plural(count: Any, noun: str, several: str = "") -> str:
    """Count and noun, e.g. `1 cell`, `20 cells`."""
    return f"{count} {noun if number(count) == 1 else several or f'{noun}s'}"


def word(text: str) -> str:
    """Mark a word that was derived from measurements, such as `within noise`, as numbers are marked."""
    return token(text, text)


def gb(size_bytes: Any) -> Quantity:
    """Convert bytes to GB (10⁹ bytes)."""
    return Quantity(number(size_bytes) / 1e9)


def mb(size_bytes: Any) -> Quantity:
    """Convert bytes to MB (10⁶ bytes)."""
    return Quantity(number(size_bytes) / 1e6)


def in_mb(gigabytes: Quantity) -> Quantity:
    """Convert a quantity from GB to MB, including its spread."""
    spread = None if gigabytes.spread is None else gigabytes.spread * 1000
    return replace(gigabytes, value=gigabytes.value * 1000, spread=spread)


def power_capped(flags: object) -> float:
    """Largest percentage of a cell's time in which the power cap slowed its clock, by the flags of its rounds."""
    shares = re.findall(r"throttled (?:in )?(\d+)(?: of (\d+) readings| % of the time) \(power cap", str(flags))
    return max((100 * int(part) / int(whole or 100) for part, whole in shares), default=0.0)


def power_cap(rows: Rows) -> str:
    """Remark for a table's title on cells under the power cap; "" without any."""
    shares = [share for row in rows.ok if (share := power_capped(row.flags))]
    slowed = f"in {len(shares)} of {len(rows.ok)} cells, at worst for {int(max(shares, default=0))} % of the time"
    return f"; the power cap slowed the clock {slowed}" if shares else ""


def memory(gigabytes: Quantity) -> str:
    """Size as `12.8 GB`, or as `13.4 MB` if below 0.1 GB."""
    return f"{gigabytes} GB" if gigabytes >= 0.1 else f"{in_mb(gigabytes)} MB"


@dataclass(frozen=True)
class Extremes:
    """Rows of the smallest and greatest number. same: they are within noise; count: rows with a number."""

    least: Row
    most: Row
    same: bool
    count: int

    def __bool__(self) -> bool:
        return self.count > 1


def extremes(rows: Iterable[Row], column: str) -> Extremes:
    """Rows with the smallest and greatest number of a column; false if fewer than two rows have a number."""
    ordered = sorted((row for row in rows if row[column]), key=lambda row: number(row[column]))
    if len(ordered) < 2:
        return Extremes(Row("", {}, {}), Row("", {}, {}), False, len(ordered))
    least, most = ordered[0], ordered[-1]
    return Extremes(least, most, least[column].within_noise(most[column]), len(ordered))


def greatest(rows: Iterable[Row], column: str) -> Row:
    """Row with the greatest number, even if it is the only one; a missing row if there is none."""
    return max((row for row in rows if row[column]), key=lambda row: number(row[column]), default=Row("", {}, {}))


def share(part: Any, whole: Any) -> Quantity:
    """`part` as a percentage of `whole`; a plain number as part is exact."""
    percent: Quantity = _quantity(part) * 100 / whole
    return percent


def _quantity(value: Any) -> Quantity:
    return value if isinstance(value, Quantity) else Quantity(number(value), exact=True)


def growth(rows: Sequence[Row], column: str, by: str) -> Quantity:
    """Mean factor by which a column grows per doubling of the level `by`, from the first row to the last."""
    measured = [row for row in rows if row[column]]
    if len(measured) < 2 or measured[0][by] == measured[-1][by]:
        return MISSING
    first, last = measured[0], measured[-1]
    doublings = log2(number(last[by]) / number(first[by]))
    ratio: Quantity = last[column] / first[column]
    return Quantity(number(ratio) ** (1 / doublings), most=ratio.digits)


def out_of_memory(rows: Rows, *levels: str) -> str:
    """Sentence on whether all cells fit in memory, or the smallest by these levels that does not."""
    lacking, fitting = len(rows.oom), len(rows.ok)
    if not lacking:
        ran = " that ran" if rows.broken else ""
        return f"All {fitting} cells{ran} fit in memory." if fitting > 1 else MISSING.full
    smallest = rows.oom.smallest(*levels)
    cell = " × ".join(str(smallest[name]) for name in levels)
    if lacking == 1:
        return f"Only {cell} runs out of memory."
    return f"{lacking} cells run out of memory, the smallest of them {cell}."


def lower(ours: Rows, theirs: Rows, column: str) -> list[Row]:
    """Rows of `ours` with a number lower, beyond noise, than in `theirs` at the same levels."""
    pairs = [(row, row[column], theirs.at(row)[column]) for row in ours]
    return [row for row, number, other in pairs if number < other and not number.within_noise(other)]


def ranking(pairs: Iterable[tuple[str, Quantity]], unit: str = "", most: int = 3, least: bool = False) -> str:
    """List the greatest (or least) numbers: `elementwise kernels 14.2 %, copies 3.56 % and reductions 2.17 %`."""
    ordered = sorted((pair for pair in pairs if pair[1] and pair[1].value), key=lambda pair: pair[1].value)
    ordered = ordered if least else ordered[::-1]
    return listed(f"{name} {value}{unit}" for name, value in ordered[:most]) or str(MISSING)


def published(experiment: str, source: str, metrics: Sequence[str] | str, **levels: Any) -> str:
    """Published figures for these levels, joined by commas; `-` if one is missing.

    One is printed as in its source, several are rounded; text that is not a number is put in backticks.
    """
    texts, names = [], [metrics] if isinstance(metrics, str) else metrics
    for metric in names:
        figures = references.find(experiment, metric, source, **levels)
        if not figures:
            return NOTHING
        text = figures[0].text
        if figures[0].value is None:
            text = f"`{text}`"
        elif len(names) > 1:
            text = str(Number(float(text)))
        texts.append(text)
    return ", ".join(texts)


def noise(ours: Quantity, theirs: Quantity, words: str = ", the same within noise") -> str:
    """Return `words`, to append after two numbers, if they are within noise of each other, else ""."""
    return words if ours.within_noise(theirs) else ""


def beyond_noise(cost: Quantity, unit: str = "") -> str:
    """A cost with its unit; `nothing beyond noise` if it is at most its spread, or below 0."""
    return "nothing beyond noise" if cost <= (cost.spread or 0.0) else f"{cost}{unit}"


def spelt(name: Any) -> Any:
    """A level as written in prose: `XL`, `NCCL`, `Gloo`; others unchanged."""
    return {"xl": "XL", "nccl": "NCCL", "gloo": "Gloo"}.get(name, name)


def kernel(name: Any) -> Any:
    """Format a kernel's name in backticks: names of GEMMs shortened, without the digest of a truncated name."""
    if not isinstance(name, str):
        return name
    parts = re.match(r"(\w+?_gemm)_\w*?_([nt]{2})_n_(tilesize\d+x\d+x\d+)", name)
    return f"`{parts[1]}…{parts[2]}…{parts[3]}`" if parts else f"`{re.sub(r'…?#.*|…', '', name)}`"


def ln(count: Any) -> Quantity:
    """Natural logarithm: the loss of a uniform guess among `count` tokens."""
    return Quantity(log(number(count))) if number(count) > 0 else MISSING


def thousands(value: Any) -> str:
    """Number with thousands separators: `131,072`, `15,700`."""
    quantity = _quantity(value)
    rounded = quantity.value if quantity.exact else float(f"{quantity.value:.{quantity.digits}g}")
    text = f"{rounded:,.0f}" if quantity else ""
    return token(text, text, quantity.word, quantity.why)


def basename(path: Any) -> Any:
    """Last part of a path: `bloom-560m` of `bigscience/bloom-560m`."""
    return path.rpartition("/")[2] if isinstance(path, str) else path
