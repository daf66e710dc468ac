"""A report's Markdown pages as one HTML file that loads nothing and runs nothing.

The text comes from records, notes and sources. Nothing in it is taken for HTML: what looks like a tag is shown.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from perfscribe import __version__
from perfscribe.base import called_from
from perfscribe.report.handin import anchor

Heading = dict[str, str]  # id, text, level
FOLDER = Path(__file__).parent
PROBLEM = re.compile(r"Problem \((.*)\)")
# A problem's link to its page of details, and what takes its place: the page itself.
DETAILS = '<p><a href="#{0}" rel="noreferrer">Details</a></p>'
FOLDED = '<details id="{id}"><summary>Details</summary>\n{body}\n</details>'
FIGURE = re.compile(r"(?:\.\./)?figures/([\w.-]+\.svg)")
# A figure's title in the line below it: here it is the figure's caption.
CAPTION = re.compile(r"(?m)^(!\[(.+)\]\([^()\n]+\)) *\n\*\2\*$")
PAGE = re.compile(r"(?:details/)?([\w-]+)\.md")
# A cell that holds a figure, which stands on the right.
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[+-]?\d+)?(?: ± [\d.,]+)?(?: ?[%×x]| [^\s\d]{1,10})?[†‡]*(?: \[\d+\])?")


def write(folder: Path) -> str:
    """The page of report/<site>: report.md, details/*.md, appendix.md; ValueError where one is no UTF-8."""
    report = called_from.text(folder / "report.md")
    title = report.partition("\n")[0].lstrip("# ")
    contents: list[Heading] = []
    body = _html(report, folder, contents)
    folded = []
    for path in [*sorted((folder / "details").glob("*.md")), folder / "appendix.md"]:
        if path.is_file():
            page_title, _, text = called_from.text(path).partition("\n")
            page = {"id": path.stem, "title": page_title.lstrip("# "), "body": _html(text, folder)}
            link = DETAILS.format(path.stem)
            if link in body:  # below its problem
                body = body.replace(link, FOLDED.format(**page), 1)
            else:
                folded.append(page)
    style = (FOLDER / "report.css").read_text(encoding="utf-8")
    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return engine.get_template("report.html").render(
        title=title, body=body, contents=contents, folded=folded, style=style, digest=digest, version=__version__
    )


def _html(text: str, folder: Path, contents: list[Heading] | None = None) -> str:
    """Markdown as HTML, figures taken in, links to other pages of the report as links within this one.

    contents: gets the headings of chapters and problems.
    """
    engine = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    tokens = engine.parse(CAPTION.sub(r"\1", text))
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            words = "".join(child.content for child in following.children or [])
            token.attrSet("id", anchor(words))
            if contents is not None and token.tag in ("h2", "h3"):
                contents.append({"id": anchor(words), "text": PROBLEM.sub(r"\1", words), "level": token.tag})
        elif token.type == "td_open" and NUMBER.fullmatch(following.content):
            token.attrSet("class", "n")
    made = str(engine.renderer.render(tokens, engine.options, {"folder": folder, "words_alone": 0}))
    # A table scrolls within itself where the screen is narrower.
    return made.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")


class _Renderer(RendererHTML):
    """Tokens as HTML; a method has the name of the tokens that it writes."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """A link; of one to a file that is not in the page the words stay."""
        target = str(tokens[idx].attrGet("href") or "")
        if found := PAGE.fullmatch(target):
            target = f"#{found[1]}"
        if not re.match(r"https?:|mailto:|#", target):
            env["words_alone"] += 1
            return ""
        return f'<a href="{escapeHtml(target)}" rel="noreferrer">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """The end of a link; links do not nest."""
        if env["words_alone"]:
            env["words_alone"] -= 1
            return ""
        return "</a>"

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """A figure of this report; of any other image its name: nothing else is read, whatever a text names."""
        alt = escapeHtml(tokens[idx].content)
        found = FIGURE.fullmatch(str(tokens[idx].attrGet("src") or ""))
        path = env["folder"] / "figures" / found[1] if found else None
        if path is None or not path.is_file():
            return f"[image: {alt}]"
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        shown = f'<img alt="{alt}" src="data:image/svg+xml;base64,{content}">'
        caption = f"<figcaption>{alt}</figcaption>" if alt else ""
        return f"<figure>{shown}{caption}</figure>"
