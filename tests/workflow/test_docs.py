"""The pages: links resolve, commands exist, and the project speaks of itself alone."""

import re
import subprocess
from pathlib import Path

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
    """GitHub's anchors of the page's headings."""
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


# Words that belong to a workplace and not into the project, and the folder that has a use for them: tests may look for
# these folders, and published figures cite the threads of other projects. No pattern matches itself.
FOREIGN = {
    r"\.\./share[d]\b": "tests",
    r"(?<![\w.])/(?:wor[k]|opt/(?:pyp[i]|wheel[s]))(?![\w.])": "tests",
    r"\b[Ii]ssu[e] ?#?\d|(?<!\S)#\d{1,4}\b": "references",
    r"(?i)\b(?:pyp[i]|pythonhoste[d]|anacond[a]|npmj[s])\.(?:org|com)\b": "",
    r"(?i)\bdownload\.pytorc[h]\.org\b|\b(?:ghcr|quay)\.i[o]\b": "",
}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout of git")
@pytest.mark.parametrize("pattern", FOREIGN)
def test_no_words_of_a_workplace(pattern: str) -> None:
    allowed = [f":!{folder}" for folder in [FOREIGN[pattern]] if folder]
    command = ["git", "grep", "--untracked", "-nIP", "-e", pattern, "--", ".", ":!*.svg", *allowed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
