"""A reader's first minute: who measured, the headlines, how much is there, what was unusual; all from records and
tables. As a summary, which a site keeps beside its tables, and as the Markdown that a report opens with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from perfscribe import files, headlines
from perfscribe.findings import counted
from perfscribe.markdown_tables import markdown_text
from perfscribe.measured_by import device_name, environment_ids
from perfscribe.records import STATUSES, Record
from perfscribe.statistics import format_figure

# How a figure that stands beside a headline is called, by its kind; only the first two bound what can be reached.
_BESIDE = {"data sheet": "bound, data sheet", "measured link": "bound, measured link", "prediction": "predicted"}

_PUBLISHED = "Published: by another's program on another machine; what else differs stands below the table named."

# What a flag begins with, and how cells that have it are counted.
_UNUSUAL = (
    (re.compile(r"throttled "), "throttled"),
    (re.compile(r"SM clock "), "at a lower clock than the device's highest"),
    (re.compile(r"host busy "), "while the host seemed busy with something else"),
    (re.compile(r"foreign process "), "beside a foreign process on the GPU"),
    (re.compile(r"kept from environment "), "kept from another environment"),
    (re.compile(r"\d+ of \d+ rounds"), "with rounds still to come"),
    (re.compile(r""), "flagged for another reason"),
)
NEVER_RAN = ("unsupported", "skipped", "not_run")  # which nothing could disturb
MOST_NAMED = 3  # experiments, with each kind of what was unusual
_WHERE_FLAGS = "[What was unusual](#what-was-unusual)"


def summary(
    root: Path, plan: Mapping[str, Any], records: Mapping[str, Sequence[Record]], results: Path
) -> dict[str, Any]:
    """What a site is in short. records: by experiment; results: the site's folder.

    code: fingerprints of what measured the cells that have figures, by experiment.
    """
    cells = [record for of in records.values() for record in of]
    identities = [files.read_object(results / "environments" / f"{name}.json") for name in environment_ids(cells)]
    days = sorted(str(record.provenance["time"])[:10] for record in cells if record.provenance.get("time"))
    found, lacking = headlines.find(root, results / "tables")
    statuses = Counter(record.status for record in cells)
    return {
        "site": plan["site"],
        "preset": plan["preset"],
        "machines": sorted({device_name(identity) for identity in identities}),
        "software": _software(identities),
        "first_day": days[0] if days else "",
        "last_day": days[-1] if days else "",
        "cells": {status: statuses[status] for status in STATUSES if statuses[status]},
        "headlines": [headline.as_json() for headline in found],
        "lacking": lacking,
        "unusual": _unusual(plan, records, identities),
        "code": {name: sorted({r.fingerprint for r in of if r.ok and r.fingerprint}) for name, of in records.items()},
    }


def _software(identities: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Versions of driver, CUDA, torch and Python; several of each where cells were measured under several."""
    found: dict[str, set[str]] = {"driver": set(), "CUDA": set(), "torch": set(), "Python": set()}
    for identity in identities:
        found["driver"].add(str(identity.get("driver_version") or ""))
        found["CUDA"].add(str(identity.get("cuda_driver_version") or ""))
        found["torch"].add(str(identity.get("libraries", {}).get("torch") or ""))
        found["Python"].add(str(identity.get("python") or ""))
    return {name: sorted(versions - {""}) for name, versions in found.items() if versions - {""}}


def _unusual(
    plan: Mapping[str, Any], records: Mapping[str, Sequence[Record]], identities: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What a reader should know before the figures, a sentence each; none where nothing was unusual."""
    ran = {name: [record for record in of if record.status not in NEVER_RAN] for name, of in records.items()}
    cells = [record for of in ran.values() for record in of]
    by_kind: dict[str, Counter[str]] = {words: Counter() for _, words in _UNUSUAL}
    for name, of in ran.items():
        for record in of:
            for words in {_kind(flag) for flag in record.flags}:
                by_kind[words][name] += 1
    said = []
    parts = ", ".join(f"{counts.total()} {words} ({_most(counts)})" for words, counts in by_kind.items() if counts)
    if parts:
        said.append(f"Of {counted(len(cells), 'cell')} that ran: {parts}; see {_WHERE_FLAGS}.")
    machines = sorted({device_name(identity) for identity in identities})
    if len(machines) > 1:
        said.append(f"Cells come from {len(machines)} unlike machines: {'; '.join(machines)}.")
    dirty = sum(bool(record.provenance.get("dirty")) for record in cells)
    if dirty:
        said.append(f"{_cells(dirty)} measured with uncommitted changes in the code.")
    current = plan["current_fingerprints"]
    older = sum(record.fingerprint != current.get(name) for name, of in records.items() for record in of if record.ok)
    if older:
        said.append(f"{_cells(older)} measured by older code than this report's.")
    return said


def _most(counts: Counter[str]) -> str:
    """The experiments with most of them, by number."""
    shown = [f"{name} {count}" for name, count in counts.most_common(MOST_NAMED)]
    others = len(counts) - len(shown)
    left = counts.total() - sum(count for _, count in counts.most_common(MOST_NAMED))
    return ", ".join(shown) + (f", {left} in {counted(others, 'other experiment')}" if others else "")


def _kind(flag: str) -> str:
    return next(words for pattern, words in _UNUSUAL if pattern.match(flag))


def _cells(count: int) -> str:
    return f"{count} cell{'s were' if count != 1 else ' was'}"


def software(found: Mapping[str, Any]) -> str:
    """Versions in one sentence; empty where nothing was measured."""
    said = "; ".join(f"{name} {', '.join(versions)}" for name, versions in found["software"].items())
    return f"{said[0].upper()}{said[1:]}." if said else ""


def totals(found: Mapping[str, Any]) -> str:
    """How many cells there are, and of which status."""
    counts = found["cells"]
    parts = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{sum(counts.values())} cells planned, all of them shown: {parts or 'none'}."


def unusual(found: Mapping[str, Any]) -> str:
    """What was unusual, or that nothing was."""
    return " ".join(found["unusual"]) or "No cell was disturbed, all on one kind of machine, by this report's code."


def headline_table(found: Mapping[str, Any]) -> str:
    """The headlines, a row each; remarks below, and what the site lacks in one line. Empty where none is declared."""
    rows, remarks = [], list[str]()
    for item in found["headlines"]:
        headline = headlines.Headline(**item)
        mark = _mark(_remark(headline), remarks)
        rows.append([markdown_text(cell) for cell in _row(headline)])
        rows[-1][1] += mark
    heads = ["Figure, and its table", "Value", "Spread", "n", "Bound or reference", "Cell", "Environment"]
    parts = [re.sub(r" +\|", " |", tabulate(rows, heads, tablefmt="pipe", disable_numparse=True))] if rows else []
    parts.append("\n".join(f"[{number}] {markdown_text(text)}  " for number, text in enumerate(remarks, start=1)))
    parts.append(_spreads({item["spread_is"] for item in found["headlines"]}))
    parts.append(_PUBLISHED if any(str(item["kind"]).startswith("published") for item in found["headlines"]) else "")
    if found["lacking"]:
        parts.append(f"Not measured at this site: {'; '.join(map(markdown_text, found['lacking']))}.")
    return "\n\n".join(part.rstrip() for part in parts if part)


def _spreads(words: Collection[str]) -> str:
    """What those of the words in the column Spread mean that stand there; empty where none does."""
    said = [f"{word[0].upper()}{word[1:]}: {meaning}." for word, meaning in headlines.SPREADS.items() if word in words]
    return " ".join([*said, "No value is shown finer than its spread allows."] if said else [])


def _row(headline: headlines.Headline) -> list[str]:
    bound = headline.kind
    if headline.bound is not None:
        bound = f"{format_figure(headline.bound)} {headline.unit} ({_BESIDE.get(headline.kind, headline.kind)})"
    spread = "none" if headline.spread is None else f"{headline.spread_is} {format_figure(headline.spread)}"
    levels = ", ".join(f"{name} {level}" for name, level in headline.cell.items())
    title, measured_in = f"{headline.title}, `{headline.table}`", ", ".join(headline.environments)
    return [title, headline.shown, spread, headline.n, bound, levels, measured_in]


def _remark(headline: headlines.Headline) -> str:
    """What a reader must know of one figure; several environments are said, not mixed in silence."""
    mixed = f"rounds of {len(headline.environments)} environments" if len(headline.environments) > 1 else ""
    return "; ".join(filter(None, [headline.flags, mixed]))


def _mark(remark: str, remarks: list[str]) -> str:
    if not remark:
        return ""
    if remark not in remarks:
        remarks.append(remark)
    return f" [{remarks.index(remark) + 1}]"
