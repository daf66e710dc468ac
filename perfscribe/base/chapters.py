"""Reads chapter files: an index for each course and edition, a Markdown file for each problem. Renders nothing.

The planner uses it to find out which tables a report needs, so it imports neither torch nor Jinja.
Format: docs/write-a-chapter.md.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from perfscribe.base import registry

ROOT = registry.ROOT / "chapters"
# Pages that belong to no course, and definitions that every page can use.
FIRST_PAGE, APPENDIX, COMMON = "first_page.md", "appendix.md", "common.yaml"
OWN_INDEX = "index.yaml"  # of a chapter outside chapters/
# libyaml's loaders if PyYAML was built with them: ten times as fast.
SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TEXTS = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.DOTALL)
HEADING = re.compile(r"(?m)^### (.+)$")
TABLE_ID = re.compile(r"\b[a-z]\w*\.[a-z]\w*\b")
PROBLEM_KEYS = ("name", "tables", "words", "let", "details", "part", "code_of", "on_paper")
TABLE_KEYS = ("id", "where", "columns", "yours")
INDEX_KEYS = (
    *("chapter", "short", "title", "intro", "names", "levels", "homework", "problems", "further", "drawn"),
    *("tables", "words", "let"),
)


@dataclass(frozen=True)
class Source:
    """A Markdown file of a chapter: path, text and front matter (all values as text)."""

    path: Path
    text: str
    front: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Path as messages show it."""
        return shown(self.path)

    @property
    def heading(self) -> str:
        """Heading of the problem; raises ValueError if the file has none."""
        return _heading(self.path, self.text)


@dataclass(frozen=True)
class Chapter:
    """A course in one edition. name: its key in the config; path: of its YAML index, whose content is `index`."""

    name: str
    path: Path
    index: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Title of the chapter's part of the report."""
        return str(self.index["title"])

    @property
    def short(self) -> str:
        """Short title for lists."""
        return str(self.index.get("short", self.title))

    @property
    def edition(self) -> str:
        """Name of the index file, which tells apart the editions of a course, e.g. 2026."""
        return self.path.stem

    @property
    def names(self) -> Mapping[str, Mapping[str, str]]:
        """Names that this edition gives to levels, by column and by name in tables, e.g. {"size": {"2.7B": "xl"}}."""
        return self.index.get("names") or {}

    @property
    def levels(self) -> Mapping[str, Mapping[str, Any]]:
        """Levels that this edition asks for instead of a preset's, by experiment, config key and preset."""
        return self.index.get("levels") or {}

    @property
    def further(self) -> Mapping[str, Any]:
        """Pages of details that belong to no problem: title and tables (or figures) by page name."""
        return self.index.get("further") or {}

    @property
    def problems(self) -> list[str]:
        """Keys of the problems in the course's order; they are also file names."""
        return list(self.index["problems"])

    def source(self, problem: str) -> Source:
        """Return the file of a problem; raises ValueError (file and line) if it has a mistake."""
        parsed = source(self.file(problem))
        check_keys(parsed.path, parsed.front, PROBLEM_KEYS)
        return parsed

    def headings(self) -> list[str]:
        """Return the problems' headings in the course's order."""
        return [_heading(path, _text(path)) for path in map(self.file, self.problems)]

    @property
    def drawn(self) -> list[str]:
        """Ids of tables that only figures use; no page shows them."""
        return list(self.index.get("drawn") or [])

    def file(self, problem: str) -> Path:
        """Return the path of a problem's Markdown file; a file in the edition's folder has precedence."""
        edition_file = self.path.parent / self.path.stem / f"{problem}.md"
        return edition_file if edition_file.is_file() else self.path.parent / f"{problem}.md"

    def homework(self, problem: str) -> dict[str, Any]:
        """Return the homework's values for a problem by name; the problem's own replace those of all problems."""
        return {**(self.index.get("homework") or {}), **(self.index["problems"][problem] or {})}

    def tables(self) -> frozenset[str]:
        """Return all words of a table id's form in the index and the problems' front matter; some are no tables."""
        texts = [self.path.read_text(encoding="utf-8")]
        texts += [matter[1] for key in self.problems if (matter := FRONT_MATTER.match(_text(self.file(key))))]
        return frozenset(TABLE_ID.findall("\n".join(texts)))


def digests(chosen: Collection[str], root: Path) -> dict[str, str]:
    """Return a digest (16 hex digits) of each chapter's files in checkout `root`; under "", of the common pages."""
    files = {"": [root / "chapters" / name for name in (COMMON, FIRST_PAGE, APPENDIX)]}
    for name in chosen:
        index = read(name).path
        index = root / index.relative_to(registry.ROOT) if index.is_relative_to(registry.ROOT) else index
        files[name] = [index, *sorted(index.parent.rglob("*.md"))]
    return {name: _digest(paths) for name, paths in files.items()}


def _digest(paths: Sequence[Path]) -> str:
    content = b"".join(b"%s\0%s\0" % (path.name.encode(), path.read_bytes()) for path in paths)
    return hashlib.sha256(content).hexdigest()[:16]


def wants(chosen: Collection[str], tables: Collection[str]) -> bool:
    """Return whether a report with these chapters shows any of an experiment's tables.

    Tables that no chapter names are in every report, so that a user's own experiment is shown without a chapter.
    """
    ids = frozenset(tables)
    named = {name: tables_of(name) for name in (*names(), *chosen)}
    return any(ids & named[name] for name in chosen) or not any(ids & table_ids for table_ids in named.values())


@cache
def tables_of(name: str) -> frozenset[str]:
    """Return the ids of a chapter's tables, read once."""
    return read(name).tables()


def shown(path: Path) -> str:
    """Return a path as messages show it: relative within the checkout, else unchanged."""
    return str(path.relative_to(registry.ROOT)) if path.is_relative_to(registry.ROOT) else str(path)


def read(name: str) -> Chapter:
    """Return a chapter by its name in chapters/ or by its folder; raises ValueError (one line) if there is none."""
    if name in (known := names()):
        return _chapter(known[name])
    path = registry.ROOT / name / OWN_INDEX
    if not path.is_file():
        raise ValueError(
            f"chapters: {name!r} is neither one of {', '.join(known)} nor a folder with a file {OWN_INDEX}"
        )
    return _chapter(path)


@cache
def names() -> dict[str, Path]:
    """Return the index files in chapters/ by the name that each declares, in the order of a report."""
    indices = {str(load(path)["chapter"]): path for path in sorted(ROOT.glob("*/*.yaml"))}
    order = [name for name in registry.CHAPTERS if name in indices]
    return {name: indices[name] for name in [*order, *sorted(set(indices) - set(order))]}


def _chapter(path: Path) -> Chapter:
    index = load(path)
    check_keys(path, index, INDEX_KEYS)
    for key in {"title", "problems"} - index.keys():
        raise ValueError(f"{shown(path)}: no key {key!r}")
    return Chapter(str(index.get("chapter", path.parent.name)), path, index)


def check_keys(path: Path, content: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ValueError (file and line) if a chapter's file, or an entry of its `tables`, has an unknown key."""
    tables = (content.get("tables") or {}).items() if isinstance(content.get("tables") or {}, dict) else ()
    entries = [(f"tables.{name}.", table, TABLE_KEYS) for name, table in tables if isinstance(table, dict)]
    for begin, part, keys in [("", content, known), *entries]:
        for key in part.keys() - set(keys):
            line = next(at for at, text in enumerate(_text(path).splitlines(), start=1) if f"{key}:" in text)
            raise ValueError(f"{shown(path)}:{line}: unknown key {begin}{key}, expected one of {', '.join(keys)}")


def load(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises ValueError (file and line) if it contains none."""
    return _load(path, path.stat().st_mtime_ns)


@cache
def _load(path: Path, _time_ns: int) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=SAFE)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        raise ValueError(_yaml_mistake(path, error, first_line=1)) from None
    if not isinstance(content, dict):
        raise ValueError(f"{shown(path)}:1: expected `key: value` lines")
    return content


def source(path: Path) -> Source:
    """Return a Markdown file with its front matter; raises ValueError (file and line) if it has a mistake."""
    text = _text(path)
    matter = FRONT_MATTER.match(text)
    try:
        # All values are text: `off` is a name, not false.
        front = (yaml.load(matter[1], Loader=TEXTS) if matter else None) or {}  # noqa: S506
    except yaml.MarkedYAMLError as error:
        raise ValueError(_yaml_mistake(path, error, first_line=2)) from None
    if not isinstance(front, dict):
        raise ValueError(f"{shown(path)}:2: expected `key: value` lines")
    if folded := re.search(r"(?m)^let:(?! *\|)", matter[1] if matter else ""):
        line = matter[1][: folded.start()].count("\n") + 2 if matter else 1
        raise ValueError(f"{shown(path)}:{line}: expected `let: |`, and a line for each name below it")
    return Source(path, text, front)


def _heading(path: Path, text: str) -> str:
    match = HEADING.search(text)
    if not match:
        raise ValueError(f"{shown(path)}: no heading that begins with ###")
    return match[1]


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{shown(path)}: no such file")
    return path.read_text(encoding="utf-8")


def _yaml_mistake(path: Path, error: yaml.MarkedYAMLError, first_line: int) -> str:
    line = error.problem_mark.line + first_line if error.problem_mark else first_line
    return f"{shown(path)}:{line}: {error.problem}"
