"""The hand-in as one Markdown text: first page, the courses' problems, and what this machine could not measure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perfscribe.report import cs336, cs336_devices, cs336_kernels, details, first_page, fsdp, polaris
from perfscribe.report.cells import WORDS
from perfscribe.report.problem import Problem, Table, picture
from perfscribe.report.site import NOTHING, Site
from perfscribe.subjects import YOURS

# Its key in the config, its short name, its title, its problems.
Chapter = tuple[str, str, str, Sequence[type[Problem]]]

LEGEND = (
    "±: std after a mean, half the range of rounds, else half the interquartile range; `-`: not measured or not "
    "applicable; `OOM`: out of memory; †: emulated link; ‡: settings other than the homework's, named after the title; "
    "GB: 10⁹ bytes; 000 to 004: published write-ups ([sources](../../references/sources.csv))."
)
# In the handout's order.
OF_CS336 = (
    *(cs336.BenchmarkingScript, cs336_kernels.NsysProfile),
    *(cs336.MixedPrecisionAccumulation, cs336.BenchmarkingMixedPrecision, cs336.MemoryProfiling),
    *(cs336.PytorchAttention, cs336.TorchCompile),
    *(cs336_kernels.FlashForward, cs336_kernels.FlashBackward, cs336_kernels.FlashBenchmarking),
    *cs336_devices.PROBLEMS,
)
# Problems that are code alone, by that whose entry on the first page says whether it is right.
MEASURED_WITH = {
    "flash_backward": "flash_forward",
    "naive_ddp": "naive_ddp_benchmarking",
    "ddp_overlap_individual_parameters": "ddp_overlap_individual_parameters_benchmarking",
    "ddp_overlap_bucketed": "ddp_bucketed_benchmarking",
    "optimizer_state_sharding": "optimizer_state_sharding_accounting",
}
# What the marks mean, as LEGEND has it.
MARKS = {"†": "an emulated link", "‡": "settings other than the homework's"}


def chapters(wanted: Collection[str]) -> list[Chapter]:
    """The chapters that the config asks for."""
    known: list[Chapter] = [
        ("cs336", "CS336", cs336.TITLE, OF_CS336),
        ("polaris", "Polaris", polaris.TITLE, polaris.PROBLEMS),
        ("fsdp", "FSDP", fsdp.TITLE, fsdp.PROBLEMS),
    ]
    return [chapter for chapter in known if chapter[0] in wanted]


def anchor(heading: str) -> str:
    """The address of a heading within its page, as Git hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(problem: Problem) -> str:
    """A problem's heading, as a link."""
    shown = re.sub(r"Problem \((.*)\)", r"\1", problem.heading)
    return f"[{shown}](#{anchor(problem.heading)})"


def write(
    site: Site, summary: Mapping[str, Any], captions: Mapping[str, str], notes: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """All pages by their path in report/<site>: report.md and details/<problem>.md.

    summary: the site in short; captions: of its figures, by id; notes: what people wrote, by chapter that the config
    asks for and by heading; the text before the first heading by "".
    """
    made = [
        (short, key, title, [problem(site) for problem in problems]) for key, short, title, problems in chapters(notes)
    ]
    problems = [problem for *_, of in made for problem in of]
    pages = details.pages(problems, notes, site.folder, captions)
    links = {f"details/{name}": f"[details](details/{name}.md)" for name in pages}
    links |= {problem.name: link(problem) for problem in problems}
    parts = [f"# Perfscribe: {site.name}\n{machine(summary)}  \n{LEGEND}"]
    findings = enumerate(first_page.findings(problems), start=1)
    if found := [f"{place}. {text} {links[name]}" for place, (text, name) in findings]:
        parts.append("## Findings\n" + "\n".join(found))
    if rows := [
        f"| {one.what} | {one.value} | {one.bound} | {links[one.problem]} |"
        for one in first_page.headlines(site)[: first_page.MOST_HEADLINES]
        if one.problem in links
    ]:
        head = ["## Headlines\n", "| what | value ± spread | share of bound | link |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([*head, *rows]))
    if figures := [picture(*one) for one in first_page.figures(problems, captions)]:
        parts.append("## Figures\n" + "\n\n".join(figures))
    lists = [overview(short, of) for short, _, _, of in made]
    further = [f"[{title}](details/{name}.md)" for name, title in details.FURTHER.items() if name in pages]
    lists += [f"- Further tables: {' · '.join(further)}"] if further else []
    parts.append("## Problems\nTable cells that hold a figure:\n\n" + "\n".join(lists))
    if said := first_page.caveats(site, problems, summary):
        parts.append(f"## Caveats\n{' '.join(said)}")
    for _, key, title, of in made:
        parts += [f"## {title}", notes[key].get("", "")]
        parts += [one.markdown(captions, one.name in pages, notes[key].get(one.heading, "")) for one in of]
    parts += ["## Not measured here", lacking(problems, pages)]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return {"report.md": text} | {f"details/{name}.md": page for name, page in pages.items()}


def by_heading(text: str, known: Collection[str], elsewhere: Mapping[str, str]) -> dict[str, str]:
    """A person's notes by the known heading that they stand under; any other heading is text, so that none is lost.

    elsewhere: headings of other chapters, and the file of each. ValueError: such a heading, or one that is nearly a
    known one, under which the text would stand at another problem; a block of code without an end, which would take in
    all that follows.
    """
    found: dict[str, list[str]] = {"": []}
    at, in_code = "", False
    for line in text.splitlines():
        in_code ^= bool(re.match(r" {0,3}```[^`]*$", line))
        heading = None if in_code else re.match(r"#+ +(.+?) *#*$", line)
        if heading and heading[1] in known:
            at = heading[1]
            continue
        if heading and heading[1] in elsewhere:
            raise ValueError(f"{heading[1]!r} belongs in {elsewhere[heading[1]]}")
        if heading and (meant := difflib.get_close_matches(heading[1], known, n=1, cutoff=0.75)):
            raise ValueError(f"no problem {heading[1]!r}; did you mean {meant[0]!r}?")
        found.setdefault(at, []).append(line)
    if in_code:
        raise ValueError("a block of code that begins with ``` has no end")
    return {heading: "\n".join(lines).strip() for heading, lines in found.items() if "".join(lines).strip()}


def machine(summary: Mapping[str, Any]) -> str:
    """Machine, software, days and commit in one line."""
    software = ", ".join(
        f"{name} {', '.join(dict.fromkeys(version.partition('+')[0] for version in summary['software'][name]))}"
        for name in summary["software"]
        if name != "Python"
    )
    first, last = summary["first_day"], summary["last_day"]
    same_month = first[:7] == last[:7]
    days = first if first == last else f"{first} to {last[8:] if same_month else last}"
    commits = summary["commits"]
    commit = f"commit {commits[0]}" if len(commits) == 1 else f"{len(commits)} commits" if commits else ""
    cluster = nodes(summary)
    return "; ".join(part for part in (*summary["machines"], cluster, software, days, commit) if part) + "."


def nodes(summary: Mapping[str, Any]) -> str:
    """Nodes of a cluster; nothing on one machine."""
    emulated = " emulated on this machine" if summary.get("emulated") else ""
    return f"{summary['nodes']} nodes of a cluster{emulated}" if summary["nodes"] else ""


def overview(short: str, problems: Sequence[Problem]) -> str:
    """A chapter's problems with how much of each is there; code that another problem measures is part of its entry."""
    wrong = {MEASURED_WITH.get(one.name, one.name) for one in problems if one.status() == "check failed"}
    entries = [
        f"{link(one)} {'check failed' if one.name in wrong else one.status()}"
        for one in problems
        if one.name not in MEASURED_WITH
    ]
    return f"- {short}: " + " · ".join(entries)


def lacking(problems: Sequence[Problem], pages: Collection[str] = ()) -> str:
    """A line for each reason, with the problems and their rows, or the one column, that lack a figure for it.

    pages: problems with a page of details, which has what was measured in other settings.
    """
    by_reason: dict[str, dict[str, str]] = {}
    for problem in problems:
        names: dict[str, list[str]] = {}
        for table in problem.made:
            lettered = re.match(r"\(\w\) ", table.title) if problem.made[1:] else None
            for reason, of in _lacking(table).items():
                names.setdefault(reason, []).extend([(lettered[0] if lettered else "") + of[0], *of[1:]])
        for reason, of in names.items():
            if reason or problem.measured:
                shown = " / ".join(of) if len(of) <= MOST_NAMES else f"{len(of)} rows"
                by_reason.setdefault(reason or NO_CELL, {})[link(problem)] = f" ({shown})"
        if not problem.measured and not any(names):
            by_reason.setdefault(_unmeasured(problem, pages), {})[link(problem)] = ""
    lines = [
        f"- {reason}: {'; '.join(name + of for name, of in found.items())}." for reason, found in by_reason.items()
    ]
    return "\n".join(lines) or "Nothing."


def _unmeasured(problem: Problem, pages: Collection[str]) -> str:
    """Why a problem has no figure at all: the reason of its cells, where no page of details has others."""
    rows = [row for table in (*problem.details, problem.CHECK) for row in problem.site.table(table)]
    failed = [row for row in rows if row.get("subject") == YOURS and row["status"] in WORDS]
    if failed or (rows and not any(row["status"] == "ok" for row in rows)):
        return _reason((failed or rows)[0]["reason"])
    return ELSEWHERE if problem.name in pages else LEFT_OUT


def _lacking(table: Table) -> dict[str, list[str]]:
    """Names of what lacks a figure, by reason: columns, where one alone or some of them whole lack it, else rows."""
    able = {(row, at): cell for row, cells in enumerate(table.rows) for at, cell in enumerate(cells) if cell.able}
    found: dict[str, list[tuple[int, int]]] = {}
    for place, cell in able.items():
        if not cell.filled:
            found.setdefault(_reason(cell.why), []).append(place)
    names = {}
    for reason, places in found.items():
        rows, columns = ({place[axis] for place in places} for axis in (0, 1))
        whole = {place for place in able if place[1] in columns} == {*places} != able.keys()
        one_of_several = len(columns) == 1 < len({at for _, at in able})
        if len(rows) > 1 and (one_of_several or whole):
            names[reason] = [table.header[at] for at in sorted(columns)]
        elif len(places) == 1 and sum(cell.able for cell in table.rows[min(rows)]) > 1:
            names[reason] = [f"{_name(table, min(rows))}: {table.header[min(columns)]}"]
        else:
            names[reason] = [_name(table, row) for row in sorted(rows)]
    return names


def _name(table: Table, row: int) -> str:
    """As many of its labels as tell it from the other rows."""
    texts = [[cell.text for cell in cells if not cell.able] for cells in table.rows]
    own = texts[row]
    count = next((n for n in range(1, len(own)) if [other[:n] for other in texts].count(own[:n]) == 1), len(own))
    told = [text for text in own[:count] if text != NOTHING]
    if told and all(text.isdecimal() for text in told):
        return ", ".join(f"{header} {text}" for header, text in zip(table.header, told, strict=False))
    return " ".join(told) or table.rows[row][0].text


# What lacks figures in a problem is named up to so many rows, then counted.
MOST_NAMES = 6
NO_CELL = "Not among this site's measurements"
LEFT_OUT = "Left out by the config, or not measured"
ELSEWHERE = "Measured only in other settings, see their details"


def _reason(why: str) -> str:
    # A site may have several machines, so that no reason speaks of its one.
    on = "cluster" if re.fullmatch(r"\d+ nodes", why) else "machine"
    lacks = re.fullmatch(r"\d+ (GPU|node|process)(s|es)?", why)
    return f"Skipped on a {on} with {why}" if lacks else why[:1].upper() + why[1:]
