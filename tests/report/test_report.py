"""The report: its appendix, people's notes, pages of details, and what the workflow does with them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from workspace import Workspace

from perfscribe.base import files, registry
from perfscribe.records import records
from perfscribe.report import handin, report
from perfscribe.show import tables
from perfscribe.show.provenance import figure_footer

FIXTURE = Path(__file__).parents[1] / "fixtures" / "report"


@pytest.fixture
def sources(tmp_path: Path) -> report.Sources:
    """The fixture as a project's tree, with tables made of its records."""
    results = tmp_path / "results" / "demo"
    shutil.copytree(FIXTURE / "environments", results / "environments")
    (tmp_path / "report" / "notes" / "demo").mkdir(parents=True)
    (tmp_path / "report" / "method.md").write_text("## Method\n")
    made = records.load_by_experiment(sorted((FIXTURE / "records").glob("*/*.jsonl")))
    times = [
        tables.factor("seq_len", "Sequence length"),
        tables.factor("dtype", "Dtype"),
        tables.median("forward_ms", "Forward (ms)"),
    ]
    tables.write(tables.make("cs336.times", "Times of a probe", made["probe"], times), results / "tables")
    for name in made:
        files.write_json(results / "tables" / f"{name}.figures.json", {})
    return report.Sources(tmp_path, "demo", files.read_json(FIXTURE / "plan.json"), made)


def section(sources: report.Sources, title: str) -> str:
    """The appendix's text below a heading."""
    return report.appendix(sources).split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_cells_that_are_not_ok_are_grouped_by_reason(sources: report.Sources) -> None:
    rows = [line for line in section(sources, "Cells that are not ok").splitlines() if "`" in line]
    assert [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows] == [
        ["`dtypes`", "timeout", "longer than 600 s", "2", "part b; mean 0.5; dtype fp16"],
        ["`probe`", "failed", r"TypeError: unsupported operand int \| &lt;NoneType>", "1", "seq_len 4096; dtype fp32"],
        ["`probe`", "oom", "asked for 64.0 GiB, 11.5 GiB free", "1", "seq_len 16384; dtype fp32"],
        ["`probe`", "unsupported", "no CUDA device", "1", "seq_len 4096; dtype tf32"],
        ["`probe`", "skipped", "preset cpu", "3", "seq_len 256, 1024, 4096; dtype bf16"],
    ]


def test_a_machine_that_is_too_small_is_no_requirement(sources: report.Sources) -> None:
    record = next(record for record in sources.records["probe"] if record.status == "skipped")
    record.reason = "4 GPUs"
    assert "| 4 GPUs here, fewer than asked for " in section(sources, "Cells that are not ok")


def test_a_machine_is_described_once(sources: report.Sources) -> None:
    folder = sources.results / "environments"
    first, second = "a" * 12, "b" * 12
    said = section(sources, "Environment")
    assert said.count("| cpu_model ") == 2 and "not installed" in said
    files.write_json(
        folder / f"{second}.json", files.read_json(folder / f"{first}.json") | {"libraries": {"h5py": "3"}}
    )
    said = re.sub(" +", " ", section(sources, "Environment"))
    assert said.count("| cpu_model ") == 1
    assert re.search(rf"\| `{second}` \| `.*` \| h5py 3 \|", said) and f"| `{first}` |" in said
    (folder / f"{second}.json").unlink()
    assert "| lost " in section(sources, "Environment")


def test_a_figures_title_is_its_caption() -> None:
    figures = "![One](figures/a.b.svg)\n![Two: 1 × 2](figures/c.svg)"
    captioned = "![One](figures/a.b.svg)  \n*One*\n\n![Two: 1 × 2](figures/c.svg)  \n*Two: 1 × 2*"
    assert report.captioned(f"{figures}\n\nText ![x](figures/y.svg)\n") == (
        f"{captioned}\n\nText ![x](figures/y.svg)\n"
    )


def test_nodes_of_a_cluster_are_named_with_what_they_measured(sources: report.Sources) -> None:
    assert "jobs:" not in report.appendix(sources)
    for place, record in enumerate(sources.records["probe"]):
        if record.provenance:
            record.provenance |= {"node": f"n{place % 2 + 1}", "cluster": {"executor": "slurm"}}
    measured = [place for place, record in enumerate(sources.records["probe"]) if record.provenance]
    said = section(sources, "Environment")
    assert "Measured by Slurm jobs:" in said
    for number in (1, 2):
        cells = [sources.records["probe"][place] for place in measured if place % 2 == number - 1]
        good = sum(record.ok for record in cells)
        assert re.search(rf"\| n{number} +\| {len(cells)} +\| {good} +\| `probe` +\|", said)


def test_the_foot_of_a_figure_says_who_measured(sources: report.Sources) -> None:
    folder = sources.results / "environments"
    foot = figure_footer(sources.records["probe"], "demo", folder, "forward_ms")
    assert foot == (
        "site demo: 1 × NVIDIA H200; AMD EPYC, 2 cores, no GPU · n = 3 to 6 a cell · "
        f"environment {'a' * 12}, {'b' * 12} · commit 0123456789, fedcba9876+"
    )
    assert "n =" not in figure_footer(sources.records["probe"], "demo", folder, "")
    assert figure_footer([], "demo", folder, "forward_ms") == "site demo: no cell was measured"


# --- notes and details ----------------------------------------------------------------------------------------------


def test_notes_stand_under_their_problem_as_they_are(sources: report.Sources) -> None:
    problem = "Problem (pytorch_attention)"
    kept = (
        "# A comment\n{{ no template }} | <b>kept</b>\n### Problem (no such)\nToo.\n```\n# Problem (naive_ddp)\n```\n"
    )
    note = f"On the chapter.\n\n### {problem}\n{kept}"
    files.write_text(sources.root / "report" / "notes" / "demo" / "cs336.md", note)
    text = report.write(sources)[0]["report.md"]
    assert "## CS336 assignment 2 (systems)\n\nOn the chapter.\n" in text
    assert kept in text.split(f"### {problem}\n")[1]
    files.write_text(sources.root / "report" / "notes" / "demo" / "cs336.md", "### Problem (flash_benchmark)\nMine.\n")
    with pytest.raises(ValueError, match=r"demo/cs336\.md: no problem .* did you mean .Problem \(flash_benchmarking"):
        report.notes(sources, "cs336")
    files.write_text(sources.root / "report" / "notes" / "demo" / "cs336.md", f"### {problem}\n```python\nn = 1\n")
    with pytest.raises(ValueError, match=r"demo/cs336\.md: a block of code that begins with ``` has no end"):
        report.notes(sources, "cs336")


def test_a_table_and_a_figure_of_one_name_are_both_on_a_page(sources: report.Sources) -> None:
    from perfscribe.report import details

    page = details.pages([], ["cs336"], sources.results / "tables", {"cs336.roofline": "Rates."})["ceilings"]
    assert page.endswith("![](../figures/cs336.roofline.svg)\n\n*Rates.*\n") and "##" not in page[2:]
    table = sources.results / "tables" / "cs336.times"
    for kind in (".csv", ".json"):
        shutil.copy(f"{table}{kind}", table.with_name(f"cs336.roofline{kind}"))
    page = details.pages([], ["cs336"], sources.results / "tables", {"cs336.roofline": "Rates."})["ceilings"]
    assert "## Times of a probe" in page and page.endswith("*Rates.*\n")


def test_every_kept_table_and_figure_is_on_a_page() -> None:
    """Of all experiments; a page names nothing that none makes."""
    from perfscribe.report import details

    shown = [registry.shown(name, report_root()) for name in registry.known(report_root())]
    made = {one for presentation in shown for one in (*presentation.tables, *presentation.figures)}
    problems = [problem for *_, of in handin.chapters(registry.CHAPTERS) for problem in of]
    named = {one for problem in problems for one in (*problem.details, problem.figure, problem.figure_of_yours)} - {""}
    named |= {one for *_, ids in details.OTHERS for one in ids}
    assert made == named


def report_root() -> Path:
    return Path(__file__).resolve().parents[2]


# --- in the workflow --------------------------------------------------------------------------------------------

MEASURE = '''"""Cells that cost nothing."""
from perfscribe.base.cells import Cell, Measurement


def cells(config):
    return [Cell({"n": n}) for n in config["n"]]


def run(cell):
    return Measurement(samples={"time_ms": [1.0, 2.0]}, timers={"time_ms": "host clock"})
'''


def test_notes_survive_and_pages_of_what_is_gone_go(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    space.only()
    space.add_experiment("one", MEASURE, n=[1, 2, 3])
    space.add_experiment("two", MEASURE, n=[1])
    note = space.root / "report" / "notes" / "local" / "cs336.md"
    files.write_text(note, "Written by hand: {{ 1 }}.\n")
    done = space.run("report")
    assert done.returncode == 0, done.stdout
    more = space.root / "report" / "local" / "details" / "more.md"
    assert "Written by hand: {{ 1 }}." in space.report()
    assert "## one" in more.read_text() and "## two" in more.read_text()
    more.unlink()
    (space.root / "config.yaml").write_text("experiments: {one: {enabled: true}, two: {enabled: false}}\n")
    assert space.run("report").returncode == 0
    assert "## one" in more.read_text() and "## two" not in more.read_text()
    assert note.read_text() == "Written by hand: {{ 1 }}.\n"
    note.rename(note.with_name("cs366.md"))
    told = space.run("report")
    assert told.returncode and "report/notes/local/cs366.md: expected the name of a chapter: cs336" in told.stdout
