"""Converts a report's Markdown pages to one HTML file without external resources and scripts.

Text from records, notes and sources is escaped, so that tags in it are shown, not interpreted.
"""

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
from perfscribe.report.anchors import anchor

Heading = dict[str, str]  # id, text, level
FOLDER = Path(__file__).parent
PROBLEM = re.compile(r"Problem \((.*)\)")
# A problem's link to its page of details, and its replacement: the folded page.
DETAILS = '<p><a href="#{0}" rel="noreferrer">Details</a></p>'
FOLDED = '<details id="{id}"><summary>Details</summary>\n{body}\n</details>'
FIGURE = re.compile(r"(?:\.\./)?figures/([\w.-]+\.svg)")
# A figure followed by its title: HTML shows the title as caption.
CAPTION = re.compile(r"(?m)^(!\[(.+)\]\([^()\n]+\)) *\n\*\2\*$")
PAGE = re.compile(r"(?:details/)?([\w-]+)\.md")
# A table cell with a number, which is right-aligned.
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[+-]?\d+)?(?: ± [\d.,]+)?(?: ?[%×x]| [^\s\d]{1,10})?[†‡]*(?: \[\d+\])?")


def write(folder: Path) -> str:
    """Convert report.md, details/*.md and appendix.md of report/<site>; ValueError if one is not UTF-8."""
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
            if link in body:  # put it below its problem
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
    """Convert Markdown, embedding figures and turning links between pages into links within the file.

    contents: list to which headings of chapters and problems are appended.
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
    html = str(engine.renderer.render(tokens, engine.options, {"folder": folder, "words_alone": 0}))
    # A table scrolls by itself on narrow screens.
    return html.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")


class _Renderer(RendererHTML):
    """Renders tokens as HTML; methods are named after token types."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Open a link; links to files outside of the page are reduced to their words."""
        target = str(tokens[idx].attrGet("href") or "")
        if match := PAGE.fullmatch(target):
            target = f"#{match[1]}"
        if not re.match(r"https?:|mailto:|#", target):
            env["words_alone"] += 1
            return ""
        return f'<a href="{escapeHtml(target)}" rel="noreferrer">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Close a link, unless link_open() kept only its words."""
        if env["words_alone"]:
            env["words_alone"] -= 1
            return ""
        return "</a>"

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Embed a figure of this report; other images, which could be any file, are replaced by their name."""
        alt = escapeHtml(tokens[idx].content)
        match = FIGURE.fullmatch(str(tokens[idx].attrGet("src") or ""))
        path = env["folder"] / "figures" / match[1] if match else None
        if path is None or not path.is_file():
            return f"[image: {alt}]"
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        shown = f'<img alt="{alt}" src="data:image/svg+xml;base64,{content}">'
        caption = f"<figcaption>{alt}</figcaption>" if alt else ""
        return f"<figure>{shown}{caption}</figure>"
