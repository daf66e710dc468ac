"""Every question of the chapters has a finding that answers it, and no chapter states a number of its own."""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe.plan import Presentation, known_experiments, read_presentation

TEMPLATES = sorted((ROOT / "report" / "templates").glob("*.md"))
# Chapters hold questions; method.md is what stands at the end of each report.
CHAPTERS = [path for path in TEMPLATES if path.stem != "method"]
COLUMNS = ["id", "chapter", "problem", "question", "finding"]

EXPRESSION = re.compile(r"\{\{\s*(.*?)\s*\}\}")
CALL = re.compile(r"(table|figure|finding|notes)\(\"([\w.]+)\"\)")
QUESTION = re.compile(r"\*\*(.+\?)\*\*")

# --- what templates and present.py say --------------------------------------------------------------------------


def lines(path: Path) -> list[str]:
    return [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def named(kind: str) -> list[tuple[str, str]]:
    """(chapter, id) of every table, figure or finding that a template names, in order."""
    return [
        (path.stem, call[2])
        for path in TEMPLATES
        for call in CALL.finditer(path.read_text(encoding="utf-8"))
        if call[1] == kind
    ]


def questions_of(path: Path) -> Iterator[dict[str, str]]:
    """The questions of a chapter: a bold line under a `##` heading, the finding on the next line."""
    problem, text = "", lines(path)
    for line, after in zip(text, [*text[1:], ""], strict=True):
        if line.startswith("## "):
            problem = line.removeprefix("## ").split(":")[0]
        question = QUESTION.fullmatch(line)
        if question:
            answer = CALL.search(after)
            finding = answer[2] if answer and answer[1] == "finding" else ""
            yield {"chapter": path.stem, "problem": problem, "question": question[1], "finding": finding}


def asked() -> list[dict[str, str]]:
    with open(ROOT / "docs" / "questions.csv", encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def made_findings() -> Counter[str]:
    """How often each finding's id is made, by the calls of find("…") and Finding("…") in all present.py."""
    made: Counter[str] = Counter()
    for experiment in known_experiments(ROOT):
        tree = ast.parse((ROOT / "perfscribe" / "experiments" / experiment / "present.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("find", "Finding"):
                first = node.args[0]
                assert isinstance(first, ast.Constant), f"{experiment}: a finding's id is to be a literal"
                made[str(first.value)] += 1
    return made


def declared() -> dict[str, Presentation]:
    return {name: read_presentation(name, ROOT) for name in known_experiments(ROOT)}


# --- questions and findings -------------------------------------------------------------------------------------


def test_questions_are_those_of_the_chapters() -> None:
    of_chapters = [question for path in CHAPTERS for question in questions_of(path)]
    listed = [{name: row[name] for name in COLUMNS[1:]} for row in asked()]
    assert sorted(listed, key=str) == sorted(of_chapters, key=str)


def test_ids_of_questions() -> None:
    ids = [row["id"] for row in asked()]
    assert len(set(ids)) == len(ids)
    for row in asked():
        assert re.fullmatch(rf"{row['chapter']}\.[a-z0-9_]+\.[1-9]\d*", row["id"]), row["id"]


def test_every_question_has_a_finding() -> None:
    for path in CHAPTERS:
        found = list(questions_of(path))
        assert found, f"{path.name} asks nothing"
        for question in found:
            assert question["finding"], f"{path.name}: no finding on the line after: {question['question']}"
            assert question["problem"], f"{path.name}: no heading above: {question['question']}"
    made = made_findings()
    assert all(row["finding"] in made for row in asked())


def test_every_finding_is_made_once_and_rendered_once() -> None:
    made, shown = made_findings(), Counter(name for _, name in named("finding"))
    assert set(made.values()) == {1}, [name for name, times in made.items() if times > 1]
    assert set(shown.values()) == {1}, [name for name, times in shown.items() if times > 1]
    assert set(made) == set(shown), set(made) ^ set(shown)


@pytest.mark.parametrize("kind", ["table", "figure"])
def test_named_tables_and_figures_are_made_by_one_experiment(kind: str) -> None:
    made = Counter(name for shown in declared().values() for name in getattr(shown, f"{kind}s"))
    assert set(made.values()) == {1}, [name for name, times in made.items() if times > 1]
    missing = {name for _, name in named(kind)} - set(made)
    assert not missing, f"chapters name what no present.py declares: {missing}"


def test_every_figure_is_rendered() -> None:
    drawn = {name for shown in declared().values() for name in shown.figures}
    assert drawn == {name for _, name in named("figure")}


def test_a_report_has_at_most_forty_figures() -> None:
    """What shows the same cells by another measure is a part of a figure (figures.stacked), or readers look at none."""
    assert 0 < len(named("figure")) <= 40


@pytest.mark.parametrize("kind", ["table", "figure", "finding"])
def test_ids_belong_to_their_chapter(kind: str) -> None:
    assert named(kind)
    assert [f"{chapter}: {name}" for chapter, name in named(kind) if name.split(".")[0] != chapter] == []


# --- no numbers in prose ----------------------------------------------------------------------------------------

# Digits that are part of a name. A name that is missing here is added by hand: that is the point of the list.
NAMES = re.compile(
    r"CS336|HDF5|L[123]|F1|FSDP[12]|ZeRO-[123]|FlashAttention-[23]|GPT-2|SHA-256|2\.7B|[ABHV]100|[BH]200"
    r"|fp(?:8|16|32|64)|bf16|tf32|TF32|int8|float(?:16|32|64)|bfloat16"
)
# What a unit stands for: MB (10^6), GiB (2^30), GB/s (10^9).
UNITS = re.compile(r"\b(?:[kMGT](?:B|FLOP)(?:/s)? \(10\^(?:3|6|9|12)\)|[KMG]iB(?:/s)? \(2\^(?:10|20|30)\))")
# Not prose: code, comments, targets of links, bare addresses. Kept as long as they were, for the line numbers.
NO_PROSE = re.compile(r"^```.*?^```$|`[^`\n]*`|<!--.*?-->|\{#.*?#\}|(?<=\])\([^)\n]*\)|<https?://[^>\n]*>", re.M | re.S)
TOKEN = re.compile(r"[^\s|()\[\]*_,;:!?\"“”‘’]+")


@dataclass(frozen=True)
class Fault:
    """A digit that a chapter states by itself."""

    line: int
    token: str


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text with each match replaced by blanks, line ends kept."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def is_name(token: str) -> bool:
    token = token.rstrip(".").removesuffix("'s")
    parts = re.split(r"[-/]", token)
    return any(
        all(NAMES.fullmatch(part) or not any(map(str.isdecimal, part)) for part in group) for group in ([token], parts)
    )


def bad_expressions(text: str) -> Iterator[Fault]:
    """Jinja expressions that state something: all but the four calls, `site`, and quoted text in a heading."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in EXPRESSION.finditer(line):
            said = match[1]
            in_a_name = line.startswith("#") and re.fullmatch(r"\"\d+\"", said)
            if not (CALL.fullmatch(said) or said == "site" or in_a_name):
                yield Fault(number, match[0])


def numbers(text: str) -> list[Fault]:
    """Every digit in a template's prose that belongs to no name and no unit, and every expression that hides one."""
    prose = blanked(UNITS, blanked(NO_PROSE, text))
    faults = list(bad_expressions(prose))
    for number, line in enumerate(blanked(EXPRESSION, prose).splitlines(), start=1):
        for token in TOKEN.findall(line):
            if any(map(str.isdecimal, token)) and not is_name(token):
                faults.append(Fault(number, token))
    return faults


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_chapters_state_no_numbers(path: Path) -> None:
    found = [f"{path.name}:{fault.line}: {fault.token}" for fault in numbers(path.read_text(encoding="utf-8"))]
    assert found == [], "numbers come from tables and findings; names go into NAMES of this test"


@pytest.mark.parametrize(
    "text",
    [
        "A pass takes 3.4 ms.",
        "It is 2× as fast.",
        "After 10 steps it is steady.",
        "about 5% slower",
        "12GB of memory",
        "on an H201",
        "under fp17",
        "in CS336-2",
        "| size | 4096 |",
        "1. first",
        "(2)",
        "**3**",
        "MB (10^7)",
        "GiB (2^31)",
        "10^6 of them",
        "at {{ 5 }} GB/s",
        'at {{ "5" }} GB/s',
        "{{ 2 * 3 }}",
        '## At {{ "5 GB/s" }}',
        '{{ table("a.b") | replace("1", "2") }}',
        "{% if 3 %}x{% endif %}",
        "the ³ and 4",
        "[7 times](https://example.org)",
    ],
)
def test_lint_refuses(text: str) -> None:
    assert numbers(f"# Chapter\n\n{text}\n"), text
    assert {fault.line for fault in numbers(f"# Chapter\n\n{text}\n")} == {3}


@pytest.mark.parametrize(
    "text",
    [
        "An N² matrix has no digits.",
        "CS336's tables, in fp16, bf16 and TF32; L2 overwritten, HDF5.",
        "fp16/bf16 and ZeRO-1, fp32-weights of the 2.7B model.",
        "`x[3]` and\n```python\ny = 4\n```",
        "<!-- 5 -->{# 6 #}",
        "[their text](https://example.org/2024/7) and <https://example.org/8>",
        "MB (10^6), GiB (2^30) and GB/s (10^9)",
        '{{ table("cs336.x1") }} of {{ site }}',
        '# CS336, assignment {{ "2" }}',
    ],
)
def test_lint_allows(text: str) -> None:
    assert numbers(text) == []


def test_lint_names_the_line() -> None:
    assert numbers("# A\n\n```\n1\n2\n```\n\nat 9 GB/s\n") == [Fault(8, "9")]
