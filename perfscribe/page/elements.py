"""Parts of a page: texts with links to who measured, links that hold files, figures, tables with their remarks."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from perfscribe.page import embedded
from perfscribe.page.grid import grid
from perfscribe.records import STATUSES

# What the renderer hands on: the report's folders, ids of environments and tables, how many links are open, and of
# how many links only the words are shown.
Env = MutableMapping[str, Any]
# An environment's id, and a line below a table that marks in its cells stand for.
ID = re.compile(r"\b[0-9a-f]{12}\b")
REMARK = re.compile(r"\[(\d+)\] ")
_STATUS = re.compile(rf"(?:{'|'.join(STATUSES[1:])})(?= \[\d+\]$|$)")
_MARK = re.compile(r" \[(\d+)\]$")


def inline(tokens: Sequence[Token], engine: MarkdownIt, env: dict[str, Any]) -> str:
    """HTML of what stands within a block."""
    return cast(Renderer, engine.renderer).renderInline(tokens, engine.options, env)


def environment_link(name: str) -> str:
    """A link to the section of an environment."""
    return f'<a href="#environment-{name}">{name}</a>'


@dataclass
class Table:
    """One table being written. id: unique in the page; remarks: the lines below it."""

    engine: MarkdownIt
    env: dict[str, Any]
    id: str
    remarks: list[str]

    def html(self, tokens: Sequence[Token]) -> str:
        """Header and rows, and the remarks as a list that the cells' marks lead to."""
        rows: list[list[tuple[str, str]]] = []
        for place, token in enumerate(tokens):
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open"):
                cell = tokens[place + 1]
                rows[-1].append((cell.content, self._cell(cell, token.tag)))
        listed = "".join(f"<li{self._place(line)}>{self._line(line)}</li>" for line in self.remarks)
        return grid(rows[0], rows[1:]) + (f'<ul class="remarks">{listed}</ul>\n' if listed else "")

    def _cell(self, cell: Token, tag: str) -> str:
        text = inline(cell.children or [], self.engine, self.env)
        if tag == "th":
            return f'<span class="status">{text}</span>' if text in STATUSES else text
        if status := _STATUS.match(text):
            text = f'<span class="status">{status[0]}</span>{text[status.end() :]}'
        found = _MARK.search(text)
        if not found or not self.remarks:
            return text
        return f'{text[: found.start()]} <a class="mark" href="#{self.id}-{found[1]}">[{found[1]}]</a>'

    def _place(self, line: str) -> str:
        found = REMARK.match(line)
        return f' id="{self.id}-{found[1]}"' if found else ""

    def _line(self, line: str) -> str:
        rendered: str = self.engine.renderInline(line, self.env)
        return rendered


class Renderer(RendererHTML):
    """Tokens as HTML; a method has the name of the tokens that it writes."""

    def made_html(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        """HTML of this module's own making."""
        return tokens[idx].content

    def text(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        """Text; ids of environments are links to their sections."""
        escaped = escapeHtml(tokens[idx].content)
        if env["links"] or not env["environments"]:
            return escaped
        known = env["environments"]
        return ID.sub(lambda found: environment_link(found[0]) if found[0] in known else found[0], escaped)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        """Code; the id of a table is a link to it."""
        name = tokens[idx].content
        shown = f"<code>{escapeHtml(name)}</code>"
        return f'<a href="#{name}">{shown}</a>' if name in env["tables"] and not env["links"] else shown

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        """A link; one to a table's CSV file holds the file."""
        env["links"] += 1
        target = str(tokens[idx].attrGet("href") or "")
        path = env["folders"].table(target)
        if path:
            name = escapeHtml(path.name)
            return f'<a class="csv" download="{name}.gz" href="{embedded.compressed(path)}">'
        if not re.match(r"https?:|mailto:|#", target):
            # A file beside the report leads nowhere once the page is sent: its words stay.
            env["links"] -= 1
            env["unlinked"] += 1
            return ""
        return f'<a href="{escapeHtml(target)}" rel="noreferrer">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        """The end of a link; links do not nest."""
        if env["unlinked"]:
            env["unlinked"] -= 1
            return ""
        env["links"] -= 1
        return "</a>"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        """A figure of this report; of any other image its name, since a page loads nothing."""
        alt = escapeHtml(tokens[idx].content)
        path = env["folders"].figure(str(tokens[idx].attrGet("src") or ""))
        if path is None:
            return f"[image: {alt}]"
        shown = embedded.picture(path)
        size = f' width="{shown.width}" height="{shown.height}"' if shown.width else ""
        return f'<img alt="{alt}"{size} src="{shown.uri}">'
