"""Findings: sentences computed from tables, each the answer to a question that the homework asks."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from perfscribe import files
from perfscribe.statistics import format_figure

# How the columns end that hold how far a figure may be trusted: an interquartile range, or a spread computed from one.
SPREADS = ("_iqr", "_spread")
VERDICTS = ("answered", "confirmed", "contradicted", "cannot tell")


@dataclass(frozen=True)
class Finding:
    """One answer.

    id: `<chapter>.<name>`, as docs/questions.csv and the chapter template name it.
    text: the sentence; every number in it was computed from a table or belongs to a citation.
    verdict: answered, confirmed or contradicted (of a published claim), cannot tell.
    tables: ids of the tables that it was computed from.
    """

    id: str
    text: str
    verdict: str = "answered"
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.id}: verdict {self.verdict!r} is none of {', '.join(VERDICTS)}")
        if not self.text.strip():
            raise ValueError(f"{self.id}: the sentence is blank")


class CannotTell(Exception):
    """Raised while a finding is computed where the tables lack what it needs; the text says what."""


def need(rows: pd.DataFrame, at_least: int, what: str) -> pd.DataFrame:
    """The rows, or CannotTell where there are too few of them."""
    if len(rows) < at_least:
        raise CannotTell(f"{what}: {len(rows)} measured, {at_least} needed")
    return rows


def one_setting(rows: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """The rows of one combination of these factors' levels, the one with most rows, and its name for a sentence."""
    need(rows, 1, "cells")
    present = [name for name in names if name in rows.columns]
    group, chosen = max(rows.groupby(present, sort=False), key=lambda pair: len(pair[1]))
    return chosen, ", ".join(f"{name} {level}" for name, level in zip(present, group, strict=True))


def counted(count: int, what: str) -> str:
    """1 bucket, 2 buckets."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def from_to(values: Iterable[float], show: Callable[[float], str] = format_figure) -> str:
    """The least and the greatest of these as they are printed, or the one figure that both are printed as.

    What is not a number is passed over, as pandas does.
    """
    found = [number for number in map(float, values) if not math.isnan(number)]
    low, high = show(min(found)), show(max(found))
    return low if low == high else f"{low} to {high}"


def is_number(value: object) -> bool:
    """Whether a table's entry is a figure and not a text in its place."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def spread_of(row: pd.Series, name: str) -> float | None:
    """How far a row's figure may be trusted, by the column that its table rounds it by; None where there is none."""
    found = next((row[name + end] for end in SPREADS if name + end in row.index), None)
    return float(str(found)) if is_number(found) else None


def shown(row: pd.Series, name: str, scale: float = 1.0) -> str:
    """A row's figure times `scale` as its table prints it: no finer than its spread."""
    spread = spread_of(row, name)
    return format_figure(float(row[name]) * scale, None if spread is None else spread * scale)


def shown_from_to(rows: pd.DataFrame, name: str, scale: float = 1.0) -> str:
    """The least and the greatest figure of a column times `scale`, each no finer than its spread; texts left out."""
    known = pd.to_numeric(rows[name], errors="coerce").dropna()
    low, high = (shown(rows.loc[at], name, scale) for at in (known.idxmin(), known.idxmax()))
    return low if low == high else f"{low} to {high}"


def ratio_of(one: pd.Series, other: pd.Series, name: str) -> str:
    """A row's figure over another's, no finer than both spread, as shares of them."""
    ratio = float(one[name]) / float(other[name])
    spreads = [(spread_of(row, name) or 0.0) / float(row[name]) for row in (one, other)]
    return format_figure(ratio, ratio * sum(spreads))


def find(finding_id: str, tables: Iterable[str], compute: Callable[[], str | tuple[str, str]]) -> Finding:
    """A finding from a function that gives the sentence, or (sentence, verdict), or raises CannotTell."""
    try:
        answer = compute()
    except CannotTell as reason:
        return Finding(finding_id, f"{reason}.", "cannot tell", tuple(tables))
    except Exception as error:  # a sentence that fails must not cost the report: its tables say what was measured
        traceback.print_exc()
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Finding(finding_id, f"The sentence could not be computed ({why}).", "cannot tell", tuple(tables))
    text, verdict = answer if isinstance(answer, tuple) else (answer, "answered")
    return Finding(finding_id, text, verdict, tuple(tables))


def write(findings: Iterable[Finding], path: Path) -> None:
    """All findings of an experiment as one JSON file."""
    files.write_json(path, [asdict(finding) for finding in findings])


def load(path: Path) -> list[Finding]:
    """The inverse of write."""
    return [Finding(**{**item, "tables": tuple(item["tables"])}) for item in files.read_json(path)]
