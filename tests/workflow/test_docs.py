"""The pages: links resolve, commands exist, and the project speaks of itself alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from workspace import ROOT

from perfscribe import cli

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Made by runs; what is linked there may be absent in a checkout.
GENERATED = ("results/local/", "report/local/")

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
SOURCES = r"(?:perfscribe|tests|bench|docs|workflow|rules|references|report/method|slurm)"
VERB = re.compile(r"\./run (?:--system )?([a-z][a-z-]*)(?![a-z/-])")  # files are named by their path


def prose(text: str) -> str:
    """A page without code blocks, comments and code spans."""
    return CODE.sub("`code`", COMMENT.sub("", FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    """What GitHub calls the page's headings."""
    found = set()
    for heading in HEADING.findall(COMMENT.sub("", FENCED.sub("", text))):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        found.add(words.replace(" ", "-"))
    return found


def broken_links(page: Path, text: str) -> list[str]:
    """Targets of the page's links within the project that are not there."""
    broken = []
    for target in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.is_relative_to(ROOT):
            broken.append(target)
        elif file.relative_to(ROOT).as_posix().startswith(GENERATED):
            continue
        elif not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = LINK.findall(prose(page.read_text(encoding="utf-8")))
        files = [(page.parent / target.partition("#")[0]).resolve() for target in targets]
        waiting += [file for file in files if file.suffix == ".md" and file.is_file()]
    assert set(PAGES) <= reached


# --- commands ---------------------------------------------------------------------------------------------------


def test_verbs_of_readme_help_and_command_line_are_the_same() -> None:
    told = set(VERB.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    helped = set(re.findall(r"^\./run ([a-z][a-z-]*)", cli.HELP, re.MULTILINE))
    assert told == helped == set(cli.VERBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_verbs_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert broken_links(page, text) == []
    assert set(VERB.findall(text)) <= set(cli.VERBS)
    made = set(re.findall(r"^```\w+ file=(\S+)", text, re.MULTILINE)) | {"references/copy_bandwidth.csv"}
    named = re.findall(rf"`({SOURCES}/[\w./-]+)`", COMMENT.sub("", FENCED.sub("", text)))
    assert [path for path in named if not (ROOT / path).exists() and path not in made] == []


# --- the project speaks of itself alone ---------------------------------------------------------------------------


class Foreign(NamedTuple):
    """Words that belong to a workplace and not into the project; allowed_in: folders that have a use for them."""

    name: str
    pattern: re.Pattern[str]
    allowed_in: str = ""


# Each pattern is written so that it does not match itself. Tests may look for these folders, and published figures cite
# the threads of other projects.
FOREIGN = [
    Foreign("a folder beside the checkout", re.compile(r"\.\./share[d]\b"), "tests"),
    Foreign("a folder of one machine", re.compile(r"(?<![\w.])/(?:wor[k]|opt/(?:pyp[i]|wheel[s]))(?![\w.])"), "tests"),
    Foreign("a numbered issue", re.compile(r"\b[Ii]ssu[e] ?#?\d|(?<=\s)#\d{1,4}\b"), "references"),
    Foreign("a host of packages", re.compile(r"(?i)\b(?:pyp[i]|pythonhoste[d]|anacond[a]|npmj[s])\.(?:org|com)\b")),
    Foreign("a host of wheels or images", re.compile(r"(?i)\bdownload\.pytorc[h]\.org\b|\b(?:ghcr|quay)\.i[o]\b")),
]


def tracked_files() -> list[Path]:
    """What git tracks or would add, or every file where there is no git."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        hidden = {".git", ".venv", ".snakemake", "__pycache__"}
        return [path for path in ROOT.rglob("*") if path.is_file() and not hidden & set(path.parts)]
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def foreign_words(path: Path, text: str) -> list[str]:
    """Where and what; a line each."""
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}: {words.name}: {found[0]}"
        for words in FOREIGN
        if not (words.allowed_in and path.is_relative_to(ROOT / words.allowed_in))
        for found in words.pattern.finditer(text)
    ]


def test_no_words_of_a_workplace() -> None:
    texts = {path: path.read_bytes() for path in tracked_files() if path.suffix != ".svg"}
    assert len(texts) > 100
    found = [
        line
        for path, content in texts.items()
        if b"\0" not in content
        for line in foreign_words(path, content.decode(errors="replace"))
    ]
    assert found == []
