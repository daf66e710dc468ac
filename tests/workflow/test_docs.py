"""The pages: links resolve, commands exist, and the project speaks of itself alone."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from workspace import ROOT

from perfscribe import __version__, cli
from perfscribe.instruments.graph_timing import GRAPH_REPLAY
from perfscribe.instruments.timing import CUDA_EVENTS, HOST_CLOCK
from perfscribe.verbs import launch

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Made by runs; what is linked there may be absent in a checkout.
GENERATED = ("results/local/", "report/local/")

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](docs/none.md)", ["docs/none.md"]),
        ("![a](report/none.png)", ["report/none.png"]),
        ("[a](docs/config.md#nowhere)", ["docs/config.md#nowhere"]),
        ("[a](#nowhere)", ["#nowhere"]),
        ("[a](../outside.md)", ["../outside.md"]),
        ("[a](docs/config.md#top-level), [b](docs/config.md), [c](https://example.org/none)", []),
        ("<!-- [a](none) -->, `[a](none)`\n```\n[a](none)\n```\n", []),
    ],
)
def test_broken_links_are_found(text: str, broken: list[str]) -> None:
    assert broken_links(ROOT / "README.md", text) == broken


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
def test_pages_name_no_verb_that_does_not_exist(page: Path) -> None:
    assert set(VERB.findall(page.read_text(encoding="utf-8"))) <= set(cli.VERBS)


def named_paths(text: str) -> Iterator[str]:
    """Code spans that read like a path of this project's own sources."""
    sources = r"(?:perfscribe|tests|bench|docs|workflow|rules|references|report/method|slurm)"
    for span in re.findall(r"`([^`\n]+)`", COMMENT.sub("", FENCED.sub("", text))):
        if re.fullmatch(rf"{sources}/[\w./-]+", span):
            yield span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_pages_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    made = set(re.findall(r"^```\w+ file=(\S+)", text, re.MULTILINE)) | {"references/copy_bandwidth.csv"}
    assert [path for path in named_paths(text) if not (ROOT / path).exists() and path not in made] == []


# --- files beside the pages ---------------------------------------------------------------------------------------


def test_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software" and citation["license"] == "MIT"
    assert citation["title"] == "Perfscribe" and citation["message"]
    assert str(citation["version"]) == __version__
    assert all(set(author) == {"name"} for author in citation["authors"]) and citation["authors"]


def test_license_names_the_holder() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License\n\nCopyright (c) 2026 The Perfscribe developers\n")


def test_dependencies_explains_each_package() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    missing = []
    for name in ("requirements.in", "requirements-dev.in", "requirements-torch.txt"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            package = re.match(r"[A-Za-z][\w.-]*", line)
            if package and not package[0].startswith("types-") and package[0].lower() not in text:
                missing.append(package[0])
    # What all builds of torch need is named by example.
    assert set(missing) <= {"setuptools", "typing-extensions"}


def test_the_libraries_for_tests_are_those_that_running_does_not_need() -> None:
    wanted, besides = (
        set(re.findall(r"^[a-z][\w.-]*", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))
        for file in ("requirements.in", "requirements-dev.in")
    )
    assert not wanted & besides


def test_the_method_names_every_timer() -> None:
    text = " ".join((ROOT / "report" / "method.md").read_text(encoding="utf-8").split()).lower()
    assert [name for name in (HOST_CLOCK, CUDA_EVENTS, GRAPH_REPLAY) if name.lower() not in text] == []
    assert "only over rounds" in text and "or over turns" in text


def test_defects_name_pages_that_exist() -> None:
    rows = csv.DictReader((ROOT / "docs" / "defects.csv").read_text(encoding="utf-8").splitlines())
    pages = {row["finding"] for row in rows if row["finding"].startswith("docs/")}
    assert pages and [page for page in pages if not (ROOT / page).is_file()] == []


def test_launch_explains_each_option() -> None:
    text = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")
    options = [word for action in launch._parser()._actions for word in action.option_strings]
    assert [one for one in options if one.startswith("--") and one != "--help" and one not in text] == []


def test_every_module_has_an_owner() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    owners = text[text.index("## Who owns what") : text.index("## What runs where")]
    modules = [path for path in (ROOT / "perfscribe").iterdir() if path.suffix == ".py" or path.is_dir()]
    names = {f"{path.name}/" if path.is_dir() else path.name for path in modules} - {"__init__.py", "__pycache__/"}
    assert sorted(name for name in names if f"`{name}" not in owners) == []


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


@cache
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


@pytest.mark.parametrize(
    "text",
    [
        "see " + "issue" + " 12",
        "see issue" + "#3",
        "as #" + "12 says",
        "from .." + "/shared/seeds",
        "in /wo" + "rk/main",
        "https://py" + "pi.org/simple",
        "https://download.pyto" + "rch.org/whl",
    ],
)
def test_words_of_a_workplace_are_found(text: str) -> None:
    assert foreign_words(ROOT / "docs" / "page.md", text)


@pytest.mark.parametrize("text", ["# 1. Heading", "colour #0072B2", "an issue of 3 GB", "work/main", "page.md#3-plan"])
def test_other_words_are_allowed(text: str) -> None:
    assert foreign_words(ROOT / "docs" / "page.md", text) == []


def test_tests_may_look_for_the_folder_beside_the_checkout() -> None:
    text = "from .." + "/shared/seeds"
    assert foreign_words(ROOT / "tests" / "test_x.py", text) == [] and foreign_words(ROOT / "perfscribe" / "x.py", text)
