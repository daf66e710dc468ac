"""The report as one HTML file: its structure, what it takes in, that nothing in the text becomes HTML and nothing is
loaded; where Chromium is found, sorting, contents and width in it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe import left_out
from perfscribe.page import write
from perfscribe.records import STATUSES
from perfscribe.statuses import MEANINGS

FIXTURE = ROOT / "tests" / "fixtures" / "report" / "report.md"
COMMITTED = sorted(path.parent.name for path in ROOT.glob("results/*/published.json"))
VOID = {"meta", "link", "img", "br", "hr"}
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 504 259"><script>alert(1)</script>'
    "<text>site demo · environment {} · commit 0123456789</text></svg>"
)
A, B = "a" * 12, "b" * 12


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Elements below this one, in their order."""
        found = []
        for child in self.children:
            if tag in ("", child.tag) and all(
                child.attributes.get(name) == value for name, value in attributes.items()
            ):
                found.append(child)
            found += child.all(tag, **attributes)
        return found


class Tree(HTMLParser):
    """A page as a tree; AssertionError where a tag is closed that is not open, or left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.top = Element("", {})
        self.open = [self.top]
        self.feed(text)
        self.close()
        assert [element.tag for element in self.open] == [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def made(folder: Path, text: str) -> tuple[str, Element]:
    """The page of this report, beside a figure and a table's file."""
    report, tables = folder / "report" / "demo", folder / "results" / "demo" / "tables"
    for path, content in {
        report / "report.md": text,
        report / "figures" / "demo.times.svg": SVG.format(A),
        tables / "demo.times.csv": "n,time_ms\n1,2.5\n",
        tables / "secret.txt": "not for a page",
        report / "other.svg": SVG.format("not for a page"),
        report / "other.csv": "not for a page",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    page = write.write(report / "report.md", tables)
    return page, Tree(page).top


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Element]:
    return made(tmp_path_factory.mktemp("page"), FIXTURE.read_text(encoding="utf-8"))


# --- structure --------------------------------------------------------------------------------------------------


def test_headings_and_contents(demo: tuple[str, Element]) -> None:
    _, top = demo
    assert [heading.text for heading in top.all("h1")] == ["Lab report: demo"] == [top.all("title")[0].text]
    chapters = [heading.text for heading in top.all("h2")]
    assert chapters[0] == "A chapter about demo" and chapters[-1] == "Method"
    assert [heading.text for heading in top.all("h3")] == ["In short"]
    assert [link.text for link in top.all("nav")[0].all("a")] == ["In short", *chapters]


def test_every_link_within_the_page_leads_somewhere(demo: tuple[str, Element]) -> None:
    _, top = demo
    ids = [element.attributes["id"] for element in top.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    targets = [a.attributes["href"][1:] for a in top.all("a") if a.attributes["href"].startswith("#")]
    assert len(targets) > 20 and set(targets) <= set(ids)


def test_tables_have_their_rows_and_scroll_by_themselves(demo: tuple[str, Element]) -> None:
    _, top = demo
    rules = re.findall(r"(?m)^\|[:| -]+\|$\n((?:\|.*\n)+)", FIXTURE.read_text(encoding="utf-8"))
    assert [len(table.all("tbody")[0].all("tr")) for table in top.all("table")] == [
        len(rows.splitlines()) for rows in rules
    ]
    boxes = [box for box in top.all("div") if box.attributes["class"].split()[0] == "scroll"]
    assert [box.children[0].tag for box in boxes] == ["table"] * len(rules)
    assert all(box.attributes["tabindex"] == "0" for box in boxes)  # so that a keyboard scrolls it
    for table in top.all("table"):
        width = len(table.all("thead")[0].all("th"))
        assert {len(row.all("td")) for row in table.all("tbody")[0].all("tr")} == {width}


def test_columns_of_figures_are_told_from_words(tmp_path: Path) -> None:
    rows = [
        f"| 1.5 [1] | oom [2] | {'a' * 50} | 3 % | 1 |",
        "| 2e-05 | 7 | 2 | one sample | x |",
        "| 3 | skipped | b | 4 | y |",
    ]
    text = "\n".join(["| n | t | w | s | m |", "|---|---|---|---|---|", *rows, ""])
    _, top = made(tmp_path, text)
    assert top.all("table")[0].attributes["class"] == "n1 n2 n4 s1 s2 s4 s5 l3"


def test_marks_lead_to_the_lines_below_their_table(demo: tuple[str, Element]) -> None:
    _, top = demo
    [cell] = [td for td in top.all("td") if td.text == "1.24 [1]"]
    target = cell.all("a")[0].attributes["href"][1:]
    [line] = top.all("li", id=target)
    assert line.text == f"[1] environment {A}"


def test_a_figure_is_there_once_with_caption_and_environment(demo: tuple[str, Element]) -> None:
    page, top = demo
    [figure] = top.all("figure")
    [image] = figure.all("img")
    kind, _, content = image.attributes["src"].partition(",")
    assert kind == "data:image/svg+xml;base64" and base64.b64decode(content).decode() == SVG.format(A)
    assert (image.attributes["width"], image.attributes["height"]) == ("672", "345")
    caption = image.attributes["alt"]
    assert page.count(caption) == 2 and figure.all("figcaption")[0].text.startswith(caption)
    assert [a.attributes["href"] for a in figure.all("a")] == [f"#environment-{A}"]
    assert top.all("p", id=f"environment-{A}")[0].text.startswith(f"Environment {A}, of probe")


def test_a_table_s_file_is_in_the_page(demo: tuple[str, Element]) -> None:
    _, top = demo
    [link] = [a for a in top.all("a") if "download" in a.attributes]
    kind, _, content = link.attributes["href"].partition(",")
    assert (kind, link.attributes["download"]) == ("data:application/gzip;base64", "demo.times.csv.gz")
    assert gzip.decompress(base64.b64decode(content)) == b"n,time_ms\n1,2.5\n"


def test_the_name_of_a_table_leads_to_it(tmp_path: Path) -> None:
    text = "`demo.times`, `demo.none`\n\n**Times** ([CSV](../../results/demo/tables/demo.times.csv))\n"
    _, top = made(tmp_path, text)
    [link] = [a for a in top.all("a") if a.attributes["href"] == "#demo.times"]
    assert link.text == "demo.times" and [p.text for p in top.all("p", id="demo.times")] == ["Times (CSV)"]


def test_what_was_not_measured_leads_to_no_page_that_is_not_there(tmp_path: Path) -> None:
    page, top = made(tmp_path, f"# Lab report: demo\n\n{left_out.notice('slow')}\n")
    assert [p.text for p in top.all("main")[0].all("p")][-1] == "Not measured at this site: experiment slow."
    assert "README" not in page


def test_a_question_stands_above_its_answer(demo: tuple[str, Element]) -> None:
    assert "<strong>How fast is it?</strong><br" in demo[0]


def test_statuses_mean_what_the_architecture_says(demo: tuple[str, Element]) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (\w+) \| ([^|]+) \| [^|]+ \|$", text.split("## Statuses")[1].split("\n## ")[0])
    assert {status: meaning for status, meaning in rows if status in STATUSES} == MEANINGS
    assert tuple(MEANINGS) == STATUSES
    _, top = demo
    legend = top.all("details", id="statuses")[0]
    told = dict(zip([dt.text for dt in legend.all("dt")], [dd.text for dd in legend.all("dd")], strict=True))
    assert told == {status: meaning.replace("`", "") for status, meaning in MEANINGS.items()}
    shown = {span.text for span in top.all("span") if span.attributes.get("class") == "status"}
    assert shown == set(STATUSES)


def test_the_same_report_gives_the_same_page(tmp_path: Path, demo: tuple[str, Element]) -> None:
    assert made(tmp_path, FIXTURE.read_text(encoding="utf-8"))[0] == demo[0]


def test_a_report_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"^.*report\.md: not UTF-8 text \(.*\)$"):
        write.write(tmp_path / "report.md", tmp_path)


# --- nothing in the text becomes HTML, and nothing is loaded ----------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "&lt;script>alert(1)&lt;/script>",
    '<img src="https://example.org/x.png" onerror="alert(1)">',
    "![x](https://example.org/x.png)",
    "![x](//example.org/x.png)",
    "![x](data:image/png;base64,AAAA)",
    "![x](file:///etc/passwd)",
    "![x](figures/../../../results/demo/tables/secret.txt)",
    "![x](figures/../report.md)",
    "![x](other.svg)",
    "[x](other.csv)",
    "[x](../../results/demo/tables/../../../report/demo/report.md)",
    "[x](javascript:alert(1))",
    "[x](data:text/html,<b>)",
    '[x](https://example.org "a" onclick="alert(1)")',
    '"><b onclick=alert(1)>',
    "</table></main><iframe src=https://example.org>",
    "<!-- --><style>@import 'https://example.org'</style>",
    "{{ 1 + 1 }} {% raw %}",
]
PLACES = ["{}", "# {}", "- {}", "> {}", "| a |\n|---|\n| {} |", "| {} |\n|---|\n| a |", "**T** ({})", "`{}`", "    {}"]
ALLOWED = {"href", "id", "class", "tabindex", "scope", "rel", "alt", "src", "width", "height", "download", "start"}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(tmp_path: Path, place: str, text: str) -> None:
    page, top = made(tmp_path, f"# Lab report: demo\n\n{place.format(text)}\n")
    main = top.all("main")[0]
    assert len(top.all("script")) == len(top.all("style")) == 1
    assert not {element.tag for element in main.all()} & {"script", "style", "iframe", "img", "b", "object", "link"}
    for element in main.all():
        assert set(element.attributes) <= ALLOWED | {"open"}
        assert not re.match(r"(?i)\s*(javascript|data|file|vbscript):", element.attributes.get("href", ""))
    assert loads(page) == [] and "not for a page" not in page and "data:application" not in page


def loads(page: str) -> list[str]:
    """All that a browser would fetch from elsewhere."""
    found = [
        src
        for src in re.findall(r"""<[^>]*\ssrc=["']?([^"'\s>]+)""", page)
        if not src.startswith("data:image/svg+xml;")
    ]
    found += [link for link in re.findall(r"<link\b[^>]*>", page) if 'href="data:,"' not in link]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    found += re.findall(r"@import|@font-face|url\(|image-set\(", style)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    found += re.findall(r"fetch\(|XMLHttpRequest|WebSocket|import\(|https?:", script)
    return found + re.findall(r"<(?:iframe|object|embed|video|audio|source|base|form)\b", page)


def test_loads_are_found() -> None:
    empty = "<style></style><script></script>"
    assert loads(empty) == []
    for bad in ('<img src="https://example.org/a.png">', '<link rel="stylesheet" href="a.css">', "<iframe >"):
        assert loads(bad + empty)
    assert loads("<style>@import 'a'; b { background: url(c) }</style><script>fetch('a')</script>") == [
        "@import",
        "url(",
        "fetch(",
    ]


def test_nothing_is_loaded_and_nothing_else_may_be(demo: tuple[str, Element]) -> None:
    page, top = demo
    assert loads(page) == []
    [policy] = [m.attributes["content"] for m in top.all("meta") if m.attributes.get("http-equiv")]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    for kind in ("style", "script"):
        text = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)[1]
        assert rules[f"{kind}-src"] == f"'{write._digest(text)}'"
    assert not [element for element in top.all() if "style" in element.attributes]  # the policy would not take it


@pytest.mark.parametrize("name", COMMITTED or [pytest.param("", marks=pytest.mark.skip(reason="no site is committed"))])
def test_a_committed_site_s_page(name: str) -> None:
    report = ROOT / "report" / name / "report.md"
    begun = time.process_time()
    page = write.write(report, ROOT / "results" / name / "tables")
    assert time.process_time() - begun < 3
    top = Tree(page).top
    text = report.read_text(encoding="utf-8")
    assert loads(page) == [] and len(top.all("img")) == len(re.findall(r"(?m)^!\[", text))
    assert len([a for a in top.all("a") if "download" in a.attributes]) == text.count("([CSV](")
    ids = {element.attributes["id"] for element in top.all() if "id" in element.attributes}
    assert {a.attributes["href"][1:] for a in top.all("a") if a.attributes["href"].startswith("#")} <= ids
    figures = [figure for figure in top.all("figure") if figure.all("img")]
    assert len([figure for figure in figures if figure.all("a")]) >= len(figures) - 1  # all but what was not measured


# --- in a browser -------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=3000"]
PROBE = """
addEventListener("load", () => {
  const table = document.querySelectorAll("main table")[%d];
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const seen = [column()];
  const header = table.tHead.rows[0].querySelector("[role=button]");
  for (let turn = 0; turn < 3; turn++) { header.click(); seen.push(column()); }
  const root = document.documentElement;
  const title = (choice) => document.querySelector(choice).title;
  document.body.textContent = JSON.stringify({
    seen, contents: document.getElementById("contents").open, over: root.scrollWidth - innerWidth,
    status: title("td .status"), mark: title("td a.mark"), here: document.querySelectorAll("nav [aria-current]").length,
  });
});
"""


def in_browser(page: str, folder: Path, width: int, table: int) -> dict[str, object]:
    """What the page does in Chromium in a window of this width, by a script beside its own."""
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    longer = script + PROBE % table
    probed = page.replace(f"<script>{script}</script>", f"<script>{longer}</script>")
    probed = probed.replace(write._digest(script), write._digest(longer))
    (folder / "probe.html").write_text(probed, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run([*command, f"file://{folder}/probe.html"], capture_output=True, text=True, timeout=120)
    found: dict[str, object] = json.loads(Tree(done.stdout).top.all("body")[0].text)
    return found


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
@pytest.mark.parametrize(("width", "opened"), [(1280, True), (500, False)])
def test_a_browser_sorts_and_folds(tmp_path: Path, demo: tuple[str, Element], width: int, opened: bool) -> None:
    page, top = demo
    headers = [table.all("th")[0].text for table in top.all("table")]
    found = in_browser(page, tmp_path, width, headers.index("Sequence length"))
    written = ["256", "512", "1024", "4096", "16384", "4096", "256, 1024, 4096"]
    ascending = ["256", "256, 1024, 4096", "512", "1024", "4096", "4096", "16384"]
    descending = ["16384", "4096", "4096", "1024", "512", "256, 1024, 4096", "256"]
    assert found["seen"] == [written, ascending, descending, written]
    assert found["contents"] is opened and found["over"] <= 0 and found["here"] == 1
    assert found["status"] == MEANINGS["failed"] and found["mark"] == "[1] host busy (others use 31 % of the cores)"
