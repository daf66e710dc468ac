"""The first page: findings, headlines, figures, counts and caveats, from chapters/first_page.md."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfscribe.base import chapters
from perfscribe.base.chapters import Chapter
from perfscribe.records import form
from perfscribe.report.page import Problem, spanned, whole_page
from perfscribe.report.phrases import listed
from perfscribe.report.quantities import MISSING
from perfscribe.report.rows import Site
from perfscribe.report.templates import Template

ROW = re.compile(r"\| (.*?) \| (.*?) \| ")


def findings(problems: Sequence[Problem], order: Sequence[str], limits: Mapping[str, int]) -> list[Problem]:
    """Select problems whose sentences appear on the first page; keys in `order` come first, in that order.

    Of a problem in two editions the first is taken. limits:
    - by part: the most of that part;
    - `fewest`: the fewest in all; further ones fill it up;
    - `most`: the most in all; the last ones are dropped, but never the first of a part.
    """
    firsts_by_key = {p.key: p for p in reversed(problems) if p.finding}
    ranked = sorted((p for p in problems if firsts_by_key.get(p.key) is p), key=lambda p: [*order, p.key].index(p.key))
    by_part = {p.part: [other for other in ranked if other.part == p.part] for p in ranked}
    chosen = [p for p in ranked if p in by_part[p.part][: limits.get(p.part)]]
    chosen += [p for p in ranked if p not in chosen][: max(0, limits["fewest"] - len(chosen))]
    firsts = [part[0] for part in by_part.values()]
    while len(chosen) > limits["most"] and (others := [p for p in ranked if p in chosen and p not in firsts]):
        chosen.remove(others[-1])
    return [p for p in ranked if p in chosen]


def counts(problem: Problem, is_wrong: bool) -> str:
    """Answered letters, and the number of filled cells."""
    letters = problem.letters
    answered = "".join(problem.answered)
    some = "" if not letters or not answered else spanned(letters) if answered == "".join(letters) else ""
    if answered and not some:
        some = f"{', '.join(f'({letter})' for letter in answered)} of {spanned(letters)}"
    return ", ".join(filter(None, [some, "check failed" if is_wrong else problem.status()]))


def write(
    site: Site,
    summary: Mapping[str, Any],
    by_chapter: Mapping[str, Sequence[Problem]],
    figures: Collection[str],
    links: Mapping[str, str],
    further: Sequence[str],
) -> tuple[str, list[tuple[str, str]]]:
    """Make the page and its headlines, as pairs of name and value with spread.

    summary: of the site. by_chapter: problems. figures: ids of the site's figures. links: by problem key or page name.
    further: links to pages of details that no problem links to.
    """
    source = chapters.source(chapters.ROOT / chapters.FIRST_PAGE)
    problems = [problem for group in by_chapter.values() for problem in group]
    limits = {part: int(limit) for part, limit in source.front["limits"].items()}
    # If two editions show a figure, the caption of the first counts.
    shown = [picture for problem in reversed(problems) for picture in problem.pictures]
    pictures = {p.figure: p for p in shown if p.title and p.figure in figures}

    def picture(*ids: str) -> str:
        """Embed the first of these figures that the site has."""
        return next((pictures[name].markdown() for name in ids if name in pictures), str(MISSING))

    wrong = {problem.code_of or problem.key for problem in problems if problem.status() == "check failed"}
    entries = {
        name: [{"link": p.link, "counts": counts(p, p.key in wrong)} for p in group if not p.code_of]
        for name, group in by_chapter.items()
    }
    names = {
        "site": {
            "name": site.name,
            "machine": machine(summary),
            "courses": courses(by_chapter),
            "disturbed": summary["disturbed"],
            "measured": sum(number for status, number in summary["cells"].items() if status in form.RAN),
            "has_emulated_links": any(table.mark == "†" for problem in problems for table in problem.tables),
        },
        "findings": [{"text": p.finding, "link": p.link} for p in findings(problems, source.front["findings"], limits)],
        "chapters": [{"short": chapters.read(name).short, "problems": group} for name, group in entries.items()],
        "further": further,
        "link": lambda name: links.get(name, str(MISSING)),
        "picture": picture,
    }
    text = whole_page(Template(source, site, names=names))
    return text, [(row[1], row[2]) for row in map(ROW.match, _section(text, "Headlines")[2:]) if row]


def courses(names: Collection[str]) -> list[str]:
    """Title of each course, once; with its editions where the report has several."""
    by_folder: dict[Path, list[Chapter]] = {}
    for chapter in map(chapters.read, names):
        by_folder.setdefault(chapter.path.parent, []).append(chapter)
    return [
        min((chapter.title for chapter in group), key=len)
        + (f" of {listed(sorted(chapter.edition for chapter in group))}" if group[1:] else "")
        for group in by_folder.values()
    ]


def _section(text: str, heading: str) -> list[str]:
    """Rows of the table below a heading."""
    part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith("|")]


def machine(summary: Mapping[str, Any]) -> str:
    """One line with machine, software, days and commit."""
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
    return "; ".join(part for part in (*summary["machines"], nodes(summary), software, days, commit) if part) + "."


def nodes(summary: Mapping[str, Any]) -> str:
    """Number of cluster nodes in words; "" on one machine."""
    emulated = " emulated on this machine" if summary.get("emulated") else ""
    return f"{summary['nodes']} nodes of a cluster{emulated}" if summary["nodes"] else ""
