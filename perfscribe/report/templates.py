"""Renders chapters' Markdown over a site's tables; every mistake in a chapter is reported in one line with its place.

Jinja2, sandboxed, strict about undefined names. Names, columns and filters are checked in the whole file before
rendering, so also in branches that this site's numbers do not take.
"""

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from perfscribe.analytic.parallelism import device_limits
from perfscribe.base import chapters, registry
from perfscribe.base.chapters import Chapter, Source
from perfscribe.report import phrases
from perfscribe.report.quantities import END_REASON, REASON, Quantity, from_gib
from perfscribe.report.rows import Mistake, Row, Rows, Site

TAG = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)
LET = re.compile(r"(\w+) = (.+?)(  # .*)?")
PHRASES = {
    name: phrase
    for name, phrase in vars(phrases).items()
    if isfunction(phrase) and phrase.__module__ == phrases.__name__ and name[0] != "_"
}
# Errors whose text is enough; a chapter may raise any other, such as KeyError, whose text needs its name.
PLAIN = (Mistake, TemplateError, TypeError, AttributeError, ZeroDivisionError, ValueError)
# Attributes allowed after a dot, in addition to columns and levels of the homework.
ATTRIBUTES = {name for kind in (Rows, Row, Quantity, phrases.Extremes) for name in dir(kind) if name[0] != "_"}
ATTRIBUTES |= {"ok", "status", "reason", "flags", "least", "most", "same", "count", "value", "spread", "has_subject"}
# Attributes of loops, strings and mappings.
ATTRIBUTES |= {"last", "first", "index", "get", "split", "startswith", "endswith", "items"}


class Reason(Extension):
    """{% reason CONDITION %} … {% endreason %}: text printed only if the condition holds on this machine.

    A person's note under the same letter replaces it.
    """

    tags = {"reason"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse into an `if` around the text, delimited by private characters."""
        line = next(parser.stream).lineno
        condition = parser.parse_expression()
        if isinstance(condition, nodes.Const):
            parser.fail("a reason needs a condition on this machine's numbers", line)
        body = parser.parse_statements(("name:endreason",), drop_needle=True)
        begin, end = (nodes.Output([nodes.TemplateData(mark)]) for mark in (REASON, END_REASON))
        test = self.call_method("holds", [condition], lineno=line)
        return nodes.If(test, [begin, *body, end], [], [], lineno=line)

    @staticmethod
    def holds(condition: Any) -> bool:
        """Return whether a condition holds; Mistake if it is a text or a number."""
        missing = isinstance(condition, Quantity) and not condition
        if missing or isinstance(condition, bool | Row | Rows | phrases.Extremes):
            return bool(condition)
        raise Mistake("a reason needs a condition, got", str(condition))


class Loader(FileSystemLoader):
    """Turns `let` of the front matter into {% set %}, keeping line numbers, and keeps line ends after trailing tags."""

    def get_source(self, environment: Any, template: str) -> Any:
        """Return the preprocessed source in Jinja's format."""
        text, path, is_current = super().get_source(environment, template)
        text = chapters.FRONT_MATTER.sub(partial(_lets_alone, path), text)
        return TAG.sub(partial(_with_line_end, text), text), path, is_current


def _lets_alone(path: str, matter: re.Match[str]) -> str:
    """Replace each line of `let` in the front matter by a {% set %}, and all others by blank lines."""
    lines, is_let = [], False
    for number, line in enumerate(matter[0].splitlines(), start=1):
        is_let = line.startswith("let:") or (is_let and line[:1] in ("", " "))
        text = line.strip() if is_let and not line.startswith("let:") else ""
        match = LET.fullmatch(text)
        if text and text[0] != "#" and not match:
            raise TemplateSyntaxError("expected `name = expression`", number, filename=path)
        lines.append(f"{{% set {match[1]} = {match[2]} %}}" if match else "")
    return "\n".join(lines) + "\n"


def _with_line_end(text: str, tag: re.Match[str]) -> str:
    """Mark a tag that ends a line of text to keep its line end, which trim_blocks would remove."""
    begin = text.rfind("\n", 0, tag.start()) + 1
    end = text.find("\n", tag.end()) % (len(text) + 1)
    ends_line = not text[tag.end() : end].strip()
    return f"{tag[0][:-2]}+{tag[0][-2:]}" if ends_line and TAG.sub("", text[begin:end]).strip() else tag[0]


@cache
def environment(folder: Path | None = None) -> ImmutableSandboxedEnvironment:
    """Jinja environment for files in chapters/, or also for those in a chapter's folder elsewhere."""
    jinja = ImmutableSandboxedEnvironment(
        loader=Loader([chapters.ROOT] if folder is None else [folder, chapters.ROOT]),
        undefined=StrictUndefined,
        extensions=[Reason],
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # each template is rendered once
    )
    jinja.globals |= {"abs": abs, "device_limits": device_limits, **PHRASES}
    jinja.filters |= {name: PHRASES[name] for name in ("memory", "thousands", "basename", "spelt")}
    jinja.filters["full"] = lambda quantity: quantity.full
    jinja.filters["whole"] = lambda quantity: quantity.whole
    jinja.filters["plain"] = lambda quantity: replace(quantity, single=True)  # without the spread
    jinja.filters["gib"] = from_gib  # for columns in GiB without the suffix _gib
    jinja.filters["as_fine_as"] = Quantity.as_fine_as
    return jinja


class Machine:
    """Words for a machine: `one GPU` or `CPU`, `2 GPUs` or `2 processes`; how the host times."""

    def __init__(self, site: Site) -> None:
        self.gpu, self.kind = site.gpu, "gpu" if site.gpu else "cpu"
        self.device, self.one = ("GPU", "one GPU") if site.gpu else ("CPU", "CPU")
        self.clock = "host clock with synchronise" if site.gpu else "host clock"
        self.rank, self.ranks_are = ("GPU", "GPUs") if site.gpu else ("process", "processes")

    def ranks(self, count: Any) -> str:
        """Count of ranks in words: `2 GPUs`, or `2 processes` on a CPU."""
        return f"{count} {self.rank if str(count) == '1' else self.ranks_are}"


ATTRIBUTES |= {"gpu", "kind", "device", "one", "clock", "rank", "ranks_are", "ranks"}


class Template:
    """A Markdown file over a site: `names` are those its text may use, `render` returns its text with tokens.

    chapter: its index has tables, words and values shared by all its pages. names: further names.
    """

    def __init__(
        self, source: Source, site: Site, chapter: Chapter | None = None, names: Mapping[str, Any] | None = None
    ) -> None:
        self.source, self.site = source, site
        inside = source.path.is_relative_to(chapters.ROOT)
        folder = chapters.ROOT if inside else source.path.parent
        self._environment = environment(None if inside else folder)
        self._template = str(source.path.relative_to(folder))
        common = chapters.ROOT / chapters.COMMON
        layers: list[tuple[str, Mapping[str, Any]]] = [(chapters.shown(common), chapters.load(common))]
        layers += [(chapters.shown(chapter.path), chapter.index)] if chapter else []
        layers += [(source.name, source.front)]
        self.names: dict[str, Any] = {"machine": Machine(site), **self._helpers(), **(names or {})}
        for _, layer in layers:
            self.names |= (layer.get("words") or {}).get(self.names["machine"].kind, {})
        lets = [line for name, layer in layers[:-1] for line in let_lines(name, layer)]  # the file's are in its text
        self._lacking: set[str] = set()  # names of tables that this site lacks, so their columns are unknown
        for layer_name, layer in layers:
            for name, table in (layer.get("tables") or {}).items():
                self.names[name] = self._rows(layer_name, table)
                self._lacking |= set() if self.names[name].columns else {name}
        for where, text, name, expression in lets:
            self.names[name] = _at_line(where, text, partial(_value, expression, self.names))
        self._compiled = self._checked() if source.text else None

    @classmethod
    def shared(cls, site: Site) -> Mapping[str, Any]:
        """Names that every page can use, over a site."""
        return cls(chapters.Source(chapters.ROOT / chapters.COMMON, "", {}), site).names

    def _helpers(self) -> dict[str, Any]:
        site, machine = self.site, Machine(self.site)

        def elsewhere(*rows: Row) -> str:
            """Remark for a comparison of rows measured by different machines."""
            return " (machines differ)" * (len({site.machine(row) for row in rows if row.ok}) > 1)

        def machines(rows: Sequence[Row]) -> str:
            """List which machine measured how many ranks; "" if one machine measured all."""
            counts: dict[str, dict[str, None]] = {}
            for row in rows:
                if row.ok:
                    counts.setdefault(site.machine(row), {})[str(row.cells.get("world_size", 1))] = None
            several = len(counts) > 1 or any(" and " in name for name in counts)
            texts = [f"{machine.ranks(' and '.join(numbers))} on {name}" for name, numbers in counts.items()]
            return f"; machines: {', '.join(texts)}" * several

        return {"elsewhere": elsewhere, "machines": machines}

    def _rows(self, where: str, table: Any) -> Rows:
        """Read the rows of a table named in the front matter."""
        entry: dict[str, Any] = {"id": table} if isinstance(table, str) else table
        computed = {name: partial(_column, where, text) for name, text in entry.get("columns", {}).items()}
        levels = entry.get("where", {})
        read = partial(self.site.rows, entry["id"], computed, entry.get("yours", ""), **levels)
        rows: Rows = _at_line(where, entry["id"], read)
        return rows

    def render(self) -> tuple[str, dict[str, str]]:
        """Return the text, with numbers as tokens, and the texts of {% set NAME %} … {% endset %} blocks."""
        try:
            module = self._compiled.make_module(self.names)  # type: ignore[union-attr]
        except TemplateNotFound as error:
            raise ValueError(f"{self.source.name}: no template {error.name!r}") from None
        except Exception as error:
            raise ValueError(f"{self._place(error)}: {_one_line(error)}") from None
        return str(module), {name: str(value) for name, value in vars(module).items() if name[0] != "_"}

    def _place(self, error: Exception) -> str:
        """File and line of an error: Jinja names the file in the traceback."""
        if isinstance(error, TemplateError) and (line := getattr(error, "lineno", None)):
            path = Path(getattr(error, "filename", None) or self.source.path)
            return f"{chapters.shown(path)}:{line}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".md")]
        if not frames:
            return self.source.name
        path = Path(frames[-1].filename)
        template = self._compiled
        if path != self.source.path:
            roots = self._environment.loader.searchpath  # type: ignore[union-attr]
            root = next(Path(folder) for folder in roots if path.is_relative_to(folder))
            template = self._environment.get_template(str(path.relative_to(root)))
        assert template
        return f"{chapters.shown(path)}:{template.get_corresponding_lineno(frames[-1].lineno or 1)}"

    def _checked(self) -> jinja2.Template:
        """Compile the text; ValueError for unknown names, columns, filters or tests, also in unused branches."""
        jinja, path = self._environment, str(self.source.path)
        try:
            text = jinja.loader.get_source(jinja, self._template)[0]  # type: ignore[union-attr]
            body = jinja.parse(text, filename=path)
        except TemplateError as error:
            raise ValueError(f"{self._place(error)}: {_one_line(error)}") from None
        known = {*self.names, *jinja.globals, "loop"}
        known |= {macro.name for macro in body.find_all(nodes.Macro)}
        known |= {node.name for node in body.find_all(nodes.Name) if node.ctx != "load"}
        imported = [name for node in body.find_all(nodes.FromImport) for name in node.names]
        known |= {name if isinstance(name, str) else name[1] for name in imported}
        lacks_tables = any(node.name in self._lacking for node in body.find_all(nodes.Name))
        columns = self._columns() | {key.key for call in body.find_all(nodes.Call) for key in call.kwargs}
        for node in body.find_all(nodes.Node):
            problem, name, names = "", "", known
            if isinstance(node, nodes.Name):
                problem, name = "unknown name", node.name
            elif isinstance(node, nodes.Filter | nodes.Test):
                problem, name = f"unknown {type(node).__name__.lower()}", node.name
                names = set(jinja.filters if isinstance(node, nodes.Filter) else jinja.tests)
            elif isinstance(node, nodes.Getattr) and not lacks_tables:
                problem, name, names = "unknown column or attribute", node.attr, columns
            if problem and name not in names:
                raise ValueError(f"{self.source.name}:{node.lineno}: {Mistake(problem, name, sorted(names))}")
        code = jinja.compile(body, self._template, path)
        return jinja.template_class.from_code(jinja, code, jinja.make_globals(None))

    def _columns(self) -> set[str]:
        """Names allowed after a dot, as far as this site has the tables."""
        rows = [value for value in self.names.values() if isinstance(value, Rows)]
        columns = {column for table in rows for column in table.columns}
        return {*ATTRIBUTES, *columns, *(key for value in self.names.values() for key in _keys(value))}


def _keys(value: Any) -> Iterator[str]:
    """Yield keys of nested mappings and of mappings in lists."""
    if isinstance(value, Mapping):
        yield from value
    for child in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _keys(child)


def let_lines(where: str, layer: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield lines of `let`: file, text of the line, name, expression."""
    for line in (layer.get("let") or "").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (match := LET.fullmatch(line)):
            raise ValueError(f"{where}:{_line_of(where, line)}: expected `name = expression`")
        yield where, line, match[1], match[2]


def _value(expression: str, names: Mapping[str, Any]) -> Any:
    """Evaluate an expression, given names before globals; Mistake if it uses an unknown name."""
    used = names_in(expression)
    for name in used - set(names) - {*environment().globals}:
        raise Mistake("unknown name", name, sorted(names))
    return _compiled(expression)(**{name: names[name] for name in used & set(names)})


@cache
def _compiled(expression: str) -> Callable[..., Any]:
    return environment().compile_expression(expression, undefined_to_none=False)


@cache
def names_in(expression: str) -> set[str]:
    """Names that an expression uses."""
    return {node.name for node in environment().parse(f"{{{{ {expression} }}}}").find_all(nodes.Name)}


def _column(where: str, expression: str, row: Row) -> Any:
    """Compute a column from others of its row."""
    columns = names_in(expression) - {*environment().globals}
    return _at_line(where, expression, lambda: _value(expression, {name: row[name] for name in columns}))


def _at_line(where: str, text: str, call: Callable[[], Any]) -> Any:
    """Return the call's result; prefix an error with the front matter's file and the line that has this text."""
    try:
        return call()
    except Exception as error:
        message = _one_line(error)
        placed = re.match(r"\S+\.(?:md|yaml):\d+: ", message)
        raise ValueError(message if placed else f"{where}:{_line_of(where, text)}: {message}") from None


def _line_of(where: str, text: str) -> int:
    """Number of the first line of a chapter's file with this text; 1 if there is none."""
    path = registry.ROOT / where
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((at for at, line in enumerate(lines, start=1) if text in line), 1)


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, PLAIN) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
