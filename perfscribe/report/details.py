"""Details: a page for each problem with the whole tables behind it, and the figures that the hand-in leaves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from perfscribe.base import files
from perfscribe.report.problem import Problem
from perfscribe.show import markdown_tables

# Rows of a table that a page shows; the CSV has all.
MOST_ROWS = 40
MORE, SUBJECTS = "more", "subjects"
# What figures are drawn from, step by step and span by span: no page shows it.
DRAWN = ("cs336.benchmarking_steps", "cs336.memory_timelines", "cs336.ddp_timeline_spans", "cs336.subject_ddp_spans")
# Pages that belong to no problem: name, title, chapter, tables and figures.
OTHERS: Sequence[tuple[str, str, str, Sequence[str]]] = (
    (
        "ceilings",
        "Ceilings and roofline",
        "cs336",
        ("cs336.ceilings_products", "cs336.ceilings_bandwidths", "cs336.roofline"),
    ),
    (
        SUBJECTS,
        "Your code beside ours",
        "cs336",
        (
            *("cs336.subjects", "cs336.subject_flash", "cs336.subject_leaderboard", "cs336.subject_ddp"),
            *("cs336.subject_sharding", "cs336.subject_sharding_kinds"),
        ),
    ),
    ("collectives", "Collectives", "cs336", ("cs336.collectives",)),
    ("fsdp_checkpoints", "Checkpoints", "fsdp", ("fsdp.checkpoints",)),
)

# Those that the first page alone links to.
FURTHER = {name: title for name, title, *_ in OTHERS} | {MORE: "Others"}


def pages(
    problems: Sequence[Problem], chapters: Collection[str], tables: Path, figures: Mapping[str, str]
) -> dict[str, str]:
    """Markdown by the page's name. figures: captions by id; tables: the folder of the CSV files."""
    wanted = [(problem.name, problem.heading, problem.details, problem.figure) for problem in problems]
    remarks = {problem.name: problem.remarks for problem in problems}
    wanted += [(name, title, ids, "") for name, title, chapter, ids in OTHERS if chapter in chapters]
    named = {*DRAWN, *(one for *_, ids, _ in wanted for one in ids)}
    there = sorted(path.stem for path in tables.glob("*.csv") if path.with_suffix(".json").is_file())
    # On no other page: so that an experiment of one's own is shown by itself.
    further = [one for one in there if one not in named and one.partition(".")[0] in chapters]
    wanted.append((MORE, "Further tables", further, ""))
    made = {}
    for name, title, ids, shown in wanted:
        parts = []
        for one in ids:
            path = tables / f"{one}.csv"
            # Of one's own code a single kernel may be there, and the other tables have no rows.
            if path.is_file() and (name != SUBJECTS or path.read_bytes().count(b"\n") > 1):
                parts.append(_table(tables, one))
            if one != shown:  # a table and a figure may have the same name
                parts.append(_figure(one, figures))
        parts.append(_figure(shown, figures))
        if any(parts):
            made[name] = "\n\n".join(filter(None, [f"# {title}", remarks.get(name), *parts])) + "\n"
    return made


def _table(folder: Path, table: str) -> str:
    """Title, table, notes."""
    description = files.read_json(folder / f"{table}.json")
    text = markdown_tables.to_markdown(folder, table, MOST_ROWS)
    site = folder.parent.name
    return f"## {description['title']}\n\n{text}\n[{table}.csv](../../../results/{site}/tables/{table}.csv)"


def _figure(figure: str, captions: Mapping[str, str]) -> str:
    """A figure and how it was measured; nothing where the site has none."""
    if figure not in captions:
        return ""
    return f"![](../figures/{figure}.svg)\n\n*{captions[figure]}*"
