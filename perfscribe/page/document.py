"""A report's Markdown as HTML: contents, tables that scroll and sort, figures taken in, links to who measured.

The text comes from records, notes and templates. Nothing in it is taken for HTML: what looks like a tag is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from perfscribe import left_out
from perfscribe.page import elements, embedded

# Sections of environments, as report.py writes them; elsewhere the id is a link to it.
_ENVIRONMENT = re.compile(r"^Environment `([0-9a-f]{12})`, of ", re.MULTILINE)
_TABLE = re.compile(r"\]\([^()\s]*/([\w.-]+)\.csv\)")
_IMAGE = re.compile(r"!\[(.*)\]\((\S+)\)", re.DOTALL)
# Most cells of tables: nothing in them that Markdown reads. A footnote mark at the end is not read either.
_PLAIN = re.compile(r"[^\\`*_\[\]<>&!\n]*(?: \[\d+\])?")
DEEPEST_CONTENTS = 4


@dataclass(frozen=True)
class Heading:
    """One line of the contents. level: of its HTML heading; text: Markdown taken away."""

    level: int
    id: str
    text: str


@dataclass
class Document:
    """What a page is filled with. body: HTML."""

    title: str
    contents: list[Heading]
    body: str


def read(text: str, folders: embedded.Folders) -> Document:
    """The document that a report's Markdown makes, with the figures and tables of its folders taken in."""
    text = text.replace(left_out.ASIDE, "")  # leads to another page, which is not there once this one is sent
    engine = MarkdownIt("commonmark", {"html": False}, renderer_cls=elements.Renderer).enable("table")
    engine.core.ruler.at("inline", _read_inline)
    environments = frozenset(_ENVIRONMENT.findall(text))
    known = frozenset(name for name in _TABLE.findall(text) if (folders.tables / f"{name}.csv").is_file())
    env: dict[str, Any] = {"folders": folders, "environments": environments, "tables": known, "links": 0, "unlinked": 0}
    tokens = engine.parse(text, env)
    headings = _number_headings(tokens)
    body = engine.renderer.render(_arranged(tokens, engine, env), engine.options, env)
    title = headings[0].text if headings else "Lab report"
    contents = [heading for heading in headings[1:] if heading.level <= DEEPEST_CONTENTS]
    return Document(title, contents, body)


def _read_inline(state: StateCore) -> None:
    """The rule of this name, without reading what holds no Markdown."""
    for token in state.tokens:
        if token.type == "inline":
            if _PLAIN.fullmatch(token.content):
                token.children = [Token("text", "", 0, content=token.content)]
            else:
                token.children = []
                state.md.inline.parse(token.content, state.md, state.env, token.children)


def _number_headings(tokens: Sequence[Token]) -> list[Heading]:
    """Give each heading the id that GitHub gives it, and one level more to all below the title."""
    found: list[Heading] = []
    taken: dict[str, int] = {}
    for opening, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opening.type != "heading_open":
            continue
        text = "".join(child.content for child in inline.children or [])
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        taken[slug] = taken.get(slug, -1) + 1
        level = min(6, int(opening.tag[1]) + bool(found))
        found.append(Heading(level, f"{slug}-{taken[slug]}" if taken[slug] else slug, text))
        opening.tag = closing.tag = f"h{level}"
        opening.attrSet("id", found[-1].id)
    return found


def _arranged(tokens: list[Token], engine: MarkdownIt, env: dict[str, Any]) -> list[Token]:
    """The tokens with tables and figures as one token of HTML each, and with places to link to."""
    made: list[Token] = []
    at = tables = 0
    while at < len(tokens):
        token, inline = tokens[at], tokens[min(at + 1, len(tokens) - 1)]
        if token.type == "table_open":
            tables += 1
            end = _closing(tokens, at)
            table = elements.Table(engine, env, f"t{tables}", _remarks(tokens, end + 1))
            made.append(_html(table.html(tokens[at + 1 : end])))
            at = end + (4 if table.remarks else 1)
        elif token.type == "paragraph_open" and _is_figure(tokens, at):
            made.append(_html(_figure(tokens, at, engine, env)))
            at += 6
        else:
            if token.type == "paragraph_open":
                _mark_place(token, inline, env)
            made.append(token)
            at += 1
    return made


def _html(text: str) -> Token:
    return Token("made_html", "", 0, content=text)


def _closing(tokens: Sequence[Token], opening: int) -> int:
    return next(at for at in range(opening, len(tokens)) if tokens[at].type == "table_close")


def _remarks(tokens: Sequence[Token], at: int) -> list[str]:
    """The lines below a table that its cells' marks stand for; none where another paragraph follows it."""
    if at + 1 >= len(tokens) or tokens[at].type != "paragraph_open":
        return []
    lines = [line.strip() for line in tokens[at + 1].content.split("\n")]
    return lines if all(elements.REMARK.match(line) for line in lines) else []


def _mark_place(paragraph: Token, inline: Token, env: dict[str, Any]) -> None:
    """Ids for the title of a table and for the section of an environment; an answer goes below its question."""
    if found := _ENVIRONMENT.match(inline.content):
        paragraph.attrSet("id", f"environment-{found[1]}")
    children = [child for child in inline.children or [] if child.content or child.type != "text"]
    for before, child, after in zip(children, children[1:], children[2:], strict=False):
        if (before.type, child.type, after.type) == ("strong_close", "softbreak", "strong_open"):
            child.type, child.tag = "hardbreak", "br"
    for child in children:
        if child.type == "link_open" and (path := env["folders"].table(str(child.attrGet("href")))):
            paragraph.attrs |= {"class": "title", "id": path.stem}


def _is_figure(tokens: Sequence[Token], at: int) -> bool:
    """Whether a paragraph of one image begins here, and the next paragraph is its caption again."""
    if at + 5 >= len(tokens) or tokens[at + 3].type != "paragraph_open":
        return False
    found = _IMAGE.fullmatch(tokens[at + 1].content)
    return found is not None and tokens[at + 4].content == f"*{found[1]}*"


def _figure(tokens: Sequence[Token], at: int, engine: MarkdownIt, env: dict[str, Any]) -> str:
    """A figure with its caption once, and below it a link to each environment that the picture itself names."""
    image = elements.inline(tokens[at + 1].children or [], engine, env)
    caption = elements.inline((tokens[at + 4].children or [])[1:-1], engine, env)
    found = _IMAGE.fullmatch(tokens[at + 1].content)
    path = env["folders"].figure(found[2]) if found else None
    named = elements.ID.findall(path.read_text(encoding="utf-8")) if path else []
    links = ", ".join(map(elements.environment_link, sorted(env["environments"] & set(named))))
    measured = f'<span class="by">Measured in environment {links}.</span>' if links else ""
    name = f' id="figure-{escapeHtml(path.stem)}"' if path else ""
    return f"<figure{name}>{image}<figcaption>{caption} {measured}</figcaption></figure>\n"
