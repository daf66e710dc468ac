"""The hand-in as one Markdown text: first page, the courses' problems, and what this machine could not measure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe.handin import cs336, cs336_devices, cs336_kernels, first_page, fsdp, polaris
from perfscribe.handin.problem import Problem
from perfscribe.handin.site import Site

Chapter = tuple[str, str, Sequence[type[Problem]]]

LEGEND = (
    "±: std beside a mean, else half the interquartile range; `-`: not measured, or no such thing; `OOM`: out of "
    "memory; †: emulated link; ‡: settings other than the homework's, named behind the title; GB: 10⁹ bytes."
)
# As the handout has them: what several devices answer stands behind, but for two that stand between.
ORDER = (
    *("benchmarking_script", "nsys_profile", "mixed_precision_accumulation", "benchmarking_mixed_precision"),
    *("memory_profiling", "pytorch_attention", "torch_compile", "flash_forward", "flash_backward"),
    *("flash_benchmarking", "distributed_communication_single_node"),
)


def chapters(wanted: Collection[str]) -> list[Chapter]:
    """Short name, title and problems of the chapters that the config asks for."""
    of_cs336 = [*cs336.PROBLEMS, *cs336_kernels.PROBLEMS, *cs336_devices.PROBLEMS]
    places = {name: place for place, name in enumerate(ORDER)}
    of_cs336.sort(key=lambda problem: places.get(problem.name, len(places)))
    known: list[tuple[str, Chapter]] = [
        ("cs336", ("CS336", cs336.TITLE, of_cs336)),
        ("polaris", ("Polaris", polaris.TITLE, polaris.PROBLEMS)),
        ("fsdp", ("FSDP", fsdp.TITLE, fsdp.PROBLEMS)),
    ]
    return [chapter for name, chapter in known if name in wanted]


def anchor(heading: str) -> str:
    """The address of a heading within its page, as Git hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(problem: Problem) -> str:
    """A problem's heading, as a link."""
    shown = re.sub(r"Problem \((.*)\)", r"\1", problem.heading)
    return f"[{shown}](#{anchor(problem.heading)})"


def write(site: Site, summary: Mapping[str, Any], wanted: Collection[str], figures: Collection[str]) -> str:
    """The whole text. summary: the site in short; figures: ids of those that it has."""
    made = [(short, title, [problem(site) for problem in problems]) for short, title, problems in chapters(wanted)]
    by_name = {problem.name: problem for _, _, problems in made for problem in problems}
    found = first_page.findings(site, list(wanted))
    numbered = [f"{place}. {text} {link(by_name[name])}" for place, (text, name) in enumerate(found, start=1)]
    parts = [
        f"# Perfscribe: {site.name}\n{machine(summary)}  \n{LEGEND}",
        "## Findings\n" + "\n".join(numbered) if numbered else "",
        "## Problems\n" + "\n".join(overview(short, problems) for short, _, problems in made),
    ]
    for _, title, problems in made:
        parts += [f"## {title}", *(problem.markdown(figures) for problem in problems)]
    parts += ["## Not measured here", lacking([problem for _, _, problems in made for problem in problems])]
    return "\n\n".join(part for part in parts if part) + "\n"


def of_site(results: Path, summary: Mapping[str, Any], wanted: Collection[str], name: str, root: Path) -> str:
    """write() for results/<site>, of which these chapters are shown."""
    device = "cpu" if all("no GPU" in machine for machine in summary["machines"]) else "cuda"
    figures = {path.stem for path in (root / "report" / name / "figures").glob("*.svg")}
    return write(Site(name, results / "tables", device), summary, wanted, figures)


def machine(summary: Mapping[str, Any]) -> str:
    """Machine, software and days in one line."""
    software = "; ".join(f"{name} {', '.join(versions)}" for name, versions in summary["software"].items())
    days = " to ".join(dict.fromkeys([summary["first_day"], summary["last_day"]]))
    return "; ".join(part for part in ("; ".join(summary["machines"]), software, days) if part) + "."


def overview(short: str, problems: Sequence[Problem]) -> str:
    """A chapter's problems with how much of each is there."""
    return f"- {short}: " + " · ".join(f"{link(problem)} {problem.status()}" for problem in problems)


def lacking(problems: Sequence[Problem]) -> str:
    """A line for each reason, with the problems and how many of their cells it took."""
    by_reason: dict[str, dict[str, int]] = {}
    for problem in problems:
        for table in problem.made:
            for cell in (cell for row in table.rows for cell in row if cell.able and not cell.filled):
                counts = by_reason.setdefault(_reason(cell.why), {})
                counts[link(problem)] = counts.get(link(problem), 0) + 1
    lines = []
    for reason, counts in sorted(by_reason.items(), key=lambda item: -sum(item[1].values())):
        named = "; ".join(f"{name} ({count})" for name, count in counts.items())
        lines.append(f"- {reason}: {named}.")
    return "\n".join(lines) or "Nothing."


def _reason(why: str) -> str:
    if not why:
        return "No such cell was planned or kept"
    has = "This machine has " if re.fullmatch(r"\d+ (GPU|node|process)(s|es)?", why) else ""
    return f"{has}{why}" if has else f"{why[0].upper()}{why[1:]}"
