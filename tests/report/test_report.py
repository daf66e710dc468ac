"""The report: its machines, people's notes, pages of details, and what the workflow does with them."""

import re
import shutil
from pathlib import Path

import pytest
from workspace import CHEAP, ROOT, Workspace

from perfscribe.base import files
from perfscribe.records import records
from perfscribe.report import report

FIXTURE = ROOT / "tests" / "fixtures" / "report"


@pytest.fixture
def sources(tmp_path: Path) -> report.Sources:
    """The fixture as a project's tree."""
    results = tmp_path / "results" / "demo"
    shutil.copytree(FIXTURE / "environments", results / "environments")
    (tmp_path / "report" / "notes" / "demo").mkdir(parents=True)
    made = records.load_by_experiment(sorted((FIXTURE / "records").glob("*/*.jsonl")))
    for name in made:
        files.write_json(results / "tables" / f"{name}.figures.json", {})
    return report.Sources(tmp_path, "demo", files.read_json(FIXTURE / "plan.json"), made)


def environments(sources: report.Sources) -> str:
    """The appendix's text on machines, without padding."""
    return re.sub(" +", " ", report.write(sources)[0]["appendix.md"].split("\n## Environment\n")[1].split("\n## ")[0])


def test_a_machine_is_described_once(sources: report.Sources) -> None:
    first, second = (sources.results / "environments" / f"{letter * 12}.json" for letter in "ab")
    said = environments(sources)
    assert said.count("| cpu_model ") == 2 and "not installed" in said
    files.write_json(second, files.read_json(first) | {"libraries": {"h5py": "3"}})
    said = environments(sources)
    assert said.count("| cpu_model ") == 1
    assert re.search(rf"\| `{second.stem}` \| `.*` \| h5py 3 \|", said) and f"| `{first.stem}` |" in said
    second.unlink()
    assert "| lost " in environments(sources)


def test_a_machine_on_which_nothing_was_measured_is_not_on_the_first_page(sources: report.Sources) -> None:
    both = "1 × NVIDIA H200 (141 GB), 16 cores (2 cells); AMD EPYC, 2 cores, no GPU (2 cells); driver"
    assert f"\n{both}" in report.write(sources)[0]["report.md"]
    for of in sources.records.values():
        of[:] = [record for record in of if not record.ok or "a" * 12 in record.environments]
    assert "\n1 × NVIDIA H200 (141 GB), 16 cores; driver" in report.write(sources)[0]["report.md"]


def test_what_the_machine_lacked_is_measured_by_no_commit(sources: report.Sources) -> None:
    (lacking,) = [record for record in sources.records["probe"] if record.status == "unsupported"]
    lacking.values["before_start"] = True
    lacking.provenances[0] |= {"commit": "a" * 40, "time": "2026-01-01T10:00:00+00:00"}
    page, summary = report.write(sources)
    assert "; 2026-02-01 to 2026-03-02; 2 commits." in page["report.md"] and len(summary["commits"]) == 2


def test_variables_that_change_times_are_remarks_and_part_of_the_environment(sources: report.Sources) -> None:
    """One left in a shell from debugging slows every launch: its cells are marked, wherever they are shown."""
    rows = [row for number in (0, 1) for row in records.rows_of(FIXTURE / "records" / "probe" / f"{number}.jsonl")]
    slow = {"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    harmless = {"CUDA_HOME": "/usr/local/cuda", "OMP_NUM_THREADS": "2", "TORCH_COMPILE_DISABLE": "0"}
    for row in rows:
        row |= {"watch": {"samples": 1}, "flags": ["with yesterday's rules"]}
        row["provenance"]["variables"] = harmless | (slow if row["status"] == "ok" else {})
    sources.records["probe"] = records.merge_rounds(rows)
    told = "CUDA_LAUNCH_BLOCKING=1, NVIDIA_TF32_OVERRIDE=0, PYTORCH_ALLOC_CONF=expandable_segments:True"
    appendix = report.write(sources)[0]["appendix.md"]
    assert appendix.count(f"with {told}") == 1 and "yesterday" not in appendix, "one remark for all cells alike"
    assert f"| variables | {told} |" in environments(sources)


def test_notes_stand_under_their_problem_as_they_are(sources: report.Sources) -> None:
    problem = "Problem (pytorch_attention)"
    kept = (
        "# A comment\n{{ no template }} | <b>kept</b>\n### Problem (no such)\nToo.\n```\n# Problem (naive_ddp)\n```\n"
    )
    page = sources.root / "report" / "notes" / "demo" / "cs336.md"
    files.write_text(page, f"On the chapter.\n\n### {problem}\n{kept}")
    text = report.write(sources)[0]["report.md"]
    assert "## CS336 assignment 2 (systems)\n\nOn the chapter.\n" in text
    assert kept in text.split(f"### {problem}\n")[1]
    for wrong, why in (
        ("### Problem (flash_benchmark)\nMine.\n", r"no problem .* did you mean .Problem \(flash_benchmarking"),
        ("### 1. Single GPU\nMine.\n", "'1. Single GPU' belongs in polaris.md"),
        (f"### {problem}\n```python\nn = 1\n", "a block of code that begins with ``` has no end"),
    ):
        files.write_text(page, wrong)
        with pytest.raises(ValueError, match=rf"demo/cs336\.md: {why}"):
            report.notes(sources.root, "demo", "cs336")


def test_notes_survive_and_pages_of_what_is_gone_go(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    space.only()
    space.add_experiment("one", CHEAP, n=[1, 2, 3])
    space.add_experiment("two", CHEAP, n=[1])
    note = space.root / "report" / "notes" / "local" / "polaris.md"
    files.write_text(note, "### 1. Single GPUs\nMine.\n")
    told = space.run("report")
    assert told.returncode == 1 and "notes/local/polaris.md: no problem '1. Single GPUs'; did" in told.stdout
    assert not (space.root / "results" / "local" / "journal").exists(), "told before anything is measured"
    files.write_text(note, "Written by hand: {{ 1 }}.\n")
    space.succeed("report")
    more = space.root / "report" / "local" / "details" / "more.md"
    assert "Written by hand: {{ 1 }}." in space.report()
    assert "## one" in more.read_text() and "## two" in more.read_text()
    more.unlink()
    (space.root / "config.yaml").write_text("experiments: {one: {enabled: true}, two: {enabled: false}}\n")
    space.succeed("report")
    assert "## one" in more.read_text() and "## two" not in more.read_text()
    assert note.read_text() == "Written by hand: {{ 1 }}.\n"
    note.rename(note.with_name("polars.md"))
    told = space.run("report")
    assert told.returncode and "report/notes/local/polars.md: expected the name of a chapter: cs336" in told.stdout


MINE = """\
---
tables:
  cells: cs336.one
let: |
  last = cells.ok.largest("n")
  many = last.n > 2
---
### A problem

Up to {{ last.n }} it takes {{ last.time_ms }} ms{% reason many %}, because it does nothing{% endreason %}.

| n | time_ms |
| --- | --- |
{% for row in cells.grid(n=homework.n) %}
| {{ row.n }} | {{ row.time_ms }} |
{% endfor %}
"""


def test_a_chapter_of_ones_own_is_measured_and_shown_and_its_edits_render_pages_alone(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    space.only("attention")
    space.add_experiment("one", CHEAP, n=[1, 2, 3])
    index = space.root / "mine" / "index.yaml"
    files.write_text(index, "title: My course\nproblems:\n  p: {n: [1, 8]}\n")
    problem = space.root / "mine" / "p.md"
    files.write_text(problem, MINE)
    space.set_config("preset: tiny\nchapters: [mine]\n")
    space.succeed("report")
    assert not (space.root / "results" / "local" / "journal" / "attention").exists(), "no chapter here names its tables"
    text = space.report()
    assert "## My course" in text and "Up to 3 it takes 1.5 ms, because it does nothing." in text
    assert "| 1 | 1.5 ± 0.2 |" in text and "[A problem](#a-problem) 3 of 3" in text
    problem.write_text(MINE.replace("it takes", "a call takes").replace("last.n > 2", "last.n > 3"))
    assert space.planned_jobs() == {"write_report", "write_html", "verdict"}
    space.succeed("report")
    assert "Up to 3 a call takes 1.5 ms." in space.report()
    index.write_text(index.read_text() + "  q: {n: [1]}\n")
    files.write_text(problem.with_name("q.md"), MINE.replace("### A problem", "### Another"))
    problem.write_text(MINE.replace("last.n > 2", "1 / (last.n - last.n) > 2"))
    told = space.run("report")
    assert told.returncode and "mine/p.md:6: division by zero" in told.stdout
    of_p, of_q = re.split("\n### A", space.report())[1:]
    assert "Not written, because of a mistake in its file: `mine/p.md:" in of_p and "| 1 | 1.5 ± 0.2 |" in of_q
