"""The report as one HTML file: what it takes in, that nothing in the text becomes HTML, that nothing is loaded."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe.report import html

COMMITTED = [path.parent for path in ROOT.glob("report/*/report.md")]
LARGEST = sorted(COMMITTED, key=lambda folder: len(list(folder.rglob("*"))))[-1:]
VOID = {"meta", "link", "img", "br", "hr"}
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 504 259"><script>alert(1)</script></svg>'
REPORT = """# Perfscribe: demo

## Problems
- [Problem (a)](#problem-a) 1 of 1

### Problem (a)
**Times, ms.** Median.

| n | time | why |
| --- | --- | --- |
| 1 | 2.5 ± 0.1 | one |

![Times](figures/demo.times.svg)
*Times*

**(a)** Short. [code](../../perfscribe/a.py) [appendix](appendix.md)

[Details](details/a.md)
"""


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


class Parsed(HTMLParser):
    """Elements of a page; AssertionError where a tag is closed that is not open, or left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.feed(text)
        self.close()
        assert not self.open

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(self.elements[-1])

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def made(folder: Path, text: str = REPORT) -> str:
    """The page of this report, next to a figure, a page of details and files that are none of it."""
    report = folder / "report" / "demo"
    for path, content in {
        report / "report.md": text,
        report / "details" / "a.md": "# Problem (a)\n\n![Times](../figures/demo.times.svg)\n\n| a |\n|---|\n| 1 |\n",
        report / "appendix.md": "# Appendix: demo\n\n## Method\n",
        report / "figures" / "demo.times.svg": SVG,
        report / "other.svg": "not for a page",
        folder / "report" / "secret.svg": "not for a page",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return html.write(report)


def test_the_hand_in_is_open_and_the_rest_folded(tmp_path: Path) -> None:
    page = Parsed(made(tmp_path))
    assert page.all("title")[0].text == "Perfscribe: demo"
    assert [one.attributes for one in page.all("details")] == [{"id": "a"}, {"id": "appendix"}]
    assert [one.text for one in page.all("summary")] == ["Details", "Appendix: demo"]
    assert [link.text for link in page.all("a")][:3] == ["Problems", "a", "Further pages"]  # the list of contents
    assert [link.attributes["href"] for link in page.all("a")][3:] == ["#problem-a", "#appendix"]
    assert "code" in page.all("main")[0].text  # of a link to a file next to the report the words stay
    assert len(page.all("table")) == 2 and len(page.all("img")) == 2
    assert [cell.attributes.get("class") for cell in page.all("td")] == ["n", "n", None, "n"]
    kind, _, content = page.all("img")[0].attributes["src"].partition(",")
    assert kind == "data:image/svg+xml;base64" and base64.b64decode(content).decode() == SVG
    assert [one.text for one in page.all("figcaption")] == ["Times", "Times"] and not page.all("em")


HOSTILE = [
    "<script>alert(1)</script>",
    '<img src="https://example.org/x.png" onerror="alert(1)">',
    "![x](https://example.org/x.png)",
    "![x](figures/../../secret.svg)",
    "![x](other.svg)",
    "[x](javascript:alert(1))",
    "</table></main><iframe src=https://example.org>",
    "<!-- --><style>@import 'https://example.org'</style>",
]
PLACES = ["{}", "# {}", "| a |\n|---|\n| {} |", "`{}`"]
ALLOWED = {"href", "id", "class", "tabindex", "rel", "alt", "src", "start", "style"}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(tmp_path: Path, text: str) -> None:
    places = "\n\n".join(place.format(text) for place in PLACES)
    page = made(tmp_path, f"# Perfscribe: demo\n\n{places}\n")
    assert len(Parsed(page).all("style")) == 1
    for element in Parsed(page[page.index("<main") : page.index("</main>") + len("</main>")]).elements:
        assert element.tag not in {"script", "style", "iframe", "b", "object", "link"}
        assert set(element.attributes) <= ALLOWED
        assert not re.match(r"(?i)\s*(javascript|data|file|vbscript):", element.attributes.get("href", ""))
    assert loads(page) == [] and "not for a page" not in page
    assert base64.b64encode(b"not for a page").decode() not in page


def loads(page: str) -> list[str]:
    """All that a browser would fetch from elsewhere."""
    sources = re.findall(r"""<[^>]*\ssrc=["']?([^"'\s>]+)""", page)
    found = [src for src in sources if not src.startswith("data:image/svg+xml;")]
    found += [link for link in re.findall(r"<link\b[^>]*>", page) if 'href="data:,"' not in link]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    found += re.findall(r"@import|@font-face|url\(|image-set\(", style[1] if style else "")
    return found + re.findall(r"<(?:iframe|object|embed|video|audio|source|base|form|script)\b", page)


@pytest.mark.parametrize("folder", LARGEST, ids=lambda folder: folder.name)
def test_a_committed_site_s_page(folder: Path) -> None:
    text = html.write(folder)
    page = Parsed(text)
    pages = [folder / "report.md", *(folder / "details").glob("*.md")]
    pictures = sum(len(re.findall(r"(?m)^!\[", path.read_text(encoding="utf-8"))) for path in pages)
    assert loads(text) == [] and len(page.all("img")) == pictures
    ids = {element.attributes.get("id") for element in page.elements}
    targets = {link.attributes["href"] for link in page.all("a")}
    assert {target[1:] for target in targets if target.startswith("#")} <= ids
    (policy,) = [one.attributes["content"] for one in page.all("meta") if one.attributes.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-") and "script-src" not in policy
