"""The report: a whole one compared with a committed one, its parts, notes of people, and faults in templates.

`PERFSCRIBE_UPDATE=1 pytest tests/test_report.py` writes the committed one anew; read its difference.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT, Workspace

from perfscribe import files, findings, left_out, records, report, tables
from perfscribe.markdown_tables import prose
from perfscribe.measured_by import figure_footer
from perfscribe.records import Record

FIXTURE = Path(__file__).parent / "fixtures" / "report"
EXPECTED = FIXTURE / "report.md"
NOW = datetime.datetime(2026, 3, 4, 5, 6, tzinfo=datetime.UTC)
CAPTION = "Median forward time over sequence length, host clock; bars: interquartile range."


@pytest.fixture
def sources(tmp_path: Path) -> report.Sources:
    """The fixture as a project's tree, with tables made of its records."""
    results = tmp_path / "results" / "demo"
    shutil.copytree(FIXTURE / "environments", results / "environments")
    shutil.copytree(FIXTURE / "templates", tmp_path / "report" / "templates")
    shutil.copytree(FIXTURE / "notes", tmp_path / "report" / "notes" / "demo")
    made = records.load_by_experiment(sorted((FIXTURE / "records").glob("*/*.jsonl")))
    write_shown(results / "tables", made)
    return report.Sources(tmp_path, "demo", files.read_json(FIXTURE / "plan.json"), made)


def write_shown(folder: Path, made: dict[str, list[Record]]) -> None:
    """Tables, captions and findings, as present.py of two experiments would make them."""
    times = [
        tables.factor("seq_len", "Sequence length"),
        tables.factor("dtype", "Dtype"),
        tables.median("forward_ms", "Forward (ms)"),
        tables.iqr("forward_ms", "IQR (ms)"),
        tables.count("forward_ms"),
        tables.value("peak_bytes", "Peak (GiB)", 1 / tables.GIB, "peak_gib"),
    ]
    dtypes = [tables.factor("part", "Part"), tables.value("loss_dtype", "Loss")]
    tables.write(tables.make("demo.times", "Times of a probe", made["probe"], times, ["Host clock."]), folder)
    tables.write(tables.make("demo.dtypes", "Dtypes", made["dtypes"], dtypes), folder)
    lacking = findings.find("demo.lacking", ["demo.dtypes"], lambda: _cannot_tell())
    findings.write([lacking], folder / "dtypes.findings.json")
    fast = findings.Finding("demo.fast", "It takes 1.24 ms.", "confirmed", ("demo.times",))
    findings.write([fast], folder / "probe.findings.json")
    files.write_json(folder / "probe.figures.json", {"demo.times": CAPTION})
    files.write_json(folder / "dtypes.figures.json", {})


def _cannot_tell() -> str:
    raise findings.CannotTell("dtypes: 1 measured, 2 needed")


def section(text: str, title: str) -> str:
    """The report's text below a top-level heading."""
    return text.split(f"\n# {title}\n")[1].split("\n# ")[0]


def edit_template(sources: report.Sources, text: str) -> None:
    (sources.root / "report" / "templates" / "demo.md").write_text(text)


def test_the_whole_report_is_as_committed(sources: report.Sources) -> None:
    text = report.write(sources, NOW)
    if os.environ.get("PERFSCRIBE_UPDATE"):
        EXPECTED.write_text(text)
    committed = EXPECTED.read_text()
    assert text == committed, "\n".join(difflib.unified_diff(committed.splitlines(), text.splitlines(), lineterm=""))


def test_only_the_date_line_depends_on_the_time(sources: report.Sources) -> None:
    first, second = (report.write(sources, NOW + datetime.timedelta(days=n)).splitlines() for n in (0, 400))
    differing = [(one, other) for one, other in zip(first, second, strict=True) if one != other]
    assert differing == [("Written on 2026-03-04 05:06 UTC", "Written on 2027-04-08 05:06 UTC")]


def test_cells_that_are_not_ok_are_grouped_by_reason(sources: report.Sources) -> None:
    rows = [line for line in section(report.write(sources, NOW), "Cells that are not ok").splitlines() if "`" in line]
    assert [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows] == [
        ["`dtypes`", "timeout", "longer than 600 s", "2", "part b; mean 0.5; dtype fp16"],
        ["`probe`", "failed", r"TypeError: unsupported operand int \| &lt;NoneType>", "1", "seq_len 4096; dtype fp32"],
        ["`probe`", "oom", "asked for 64.0 GiB, 11.5 GiB free", "1", "seq_len 16384; dtype fp32"],
        ["`probe`", "unsupported", "no CUDA device", "1", "seq_len 4096; dtype tf32"],
        ["`probe`", "skipped", "preset cpu", "3", "seq_len 256, 1024, 4096; dtype bf16"],
    ]


def test_cells_that_are_too_large_for_the_machine_say_what_they_ask_for(sources: report.Sources) -> None:
    small = [
        Record("dtypes", factors, "skipped", reason, "measured")
        for factors, reason in (
            ({"world_size": 6}, "4 GPUs"),
            ({"world_size": 8}, "4 GPUs"),
            ({"nodes": 2}, "1 node"),
            ({"target_gpu": 1}, "1 GPU"),
        )
    ]
    sources.records = {**sources.records, "dtypes": small}
    text = section(report.write(sources, NOW), "Cells that are not ok")
    assert "| 4 GPUs here, the cells ask for 6 to 8 " in text and "| 1 node here, the cell asks for 2 " in text
    assert "| 1 GPU here, the cell asks for more " in text


def test_a_host_that_was_busy_says_how_that_is_read(sources: report.Sources) -> None:
    text = section(report.write(sources, NOW), "What was unusual")
    assert "host busy (" in text and report.HOST_BUSY_NOTE in text
    for cells in sources.records.values():
        for record in cells:
            record.flags = ["throttled 7 % of the time"]
    assert report.HOST_BUSY_NOTE not in report.write(sources, NOW)


def test_completeness_counts_every_cell(sources: report.Sources) -> None:
    text = report.write(sources, NOW)
    [row] = [line for line in text.splitlines() if line.startswith("| `probe`") and line.count("|") == 10]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["9", "3", "1", "1", "0", "1", "3", "0"]


def test_cells_of_older_code_are_counted(sources: report.Sources) -> None:
    def older(text: str) -> dict[str, str]:
        rows = [line.split("|") for line in section(text, "Environment").splitlines() if line.startswith("| `")]
        return {row[1].strip(" `"): row[-2].strip() for row in rows}

    assert older(report.write(sources, NOW)) == {"dtypes": "0", "probe": "1"}
    sources.plan["current_fingerprints"]["probe"] = "3" * 16
    assert older(report.write(sources, NOW)) == {"dtypes": "0", "probe": "3"}


def test_environments_name_who_measured_what(sources: report.Sources) -> None:
    text = section(report.write(sources, NOW), "Environment")
    for name, users in (("a", "`probe`"), ("b", "`dtypes`, `probe`")):
        assert f"Environment `{name * 12}`, of {users}:" in text
    assert not re.search(r"\bNone\b|\bnan\b|not recorded|\| +\|", text)
    assert "| gpu_power_limit_w   | not told" in text and "| gpu_model           | no GPU" in text
    assert "| libraries           | torch 2.13.0, triton not installed" in text


def test_what_was_told_by_variables_stands_with_the_environment(sources: report.Sources) -> None:
    assert "| variables" not in section(report.write(sources, NOW), "Environment")
    told = {"NCCL_NVLS_ENABLE": "0", "NCCL_VERSION": "2.28", "OMP_NUM_THREADS": "2", "TORCH_SYMM_MEM_DISABLE": "1"}
    for record in sources.records["dtypes"]:
        record.provenance["variables"] = told
    text = section(report.write(sources, NOW), "Environment")
    assert text.count("| variables ") == 1
    assert "| NCCL_NVLS_ENABLE=0, TORCH_SYMM_MEM_DISABLE=1 " in text


def test_nodes_of_a_cluster_are_named_with_what_they_measured(sources: report.Sources) -> None:
    assert "cluster" not in report.write(sources, NOW)
    for place, record in enumerate(sources.records["probe"]):
        if record.provenance:
            record.provenance |= {"node": f"n{place % 2 + 1}", "cluster": {"executor": "slurm"}}
    text = report.write(sources, NOW)
    measured = [place for place, record in enumerate(sources.records["probe"]) if record.provenance]
    counts = [sum(place % 2 == parity for place in measured) for parity in (0, 1)]
    ok = [sum(sources.records["probe"][place].ok for place in measured if place % 2 == parity) for parity in (0, 1)]
    assert min(ok) > 0 and counts != ok
    assert "; 2 nodes of a cluster. Preset: `cpu`." in text
    said = section(text, "Environment")
    assert "Measured by Slurm jobs, 2 nodes:" in said
    for number, (all_cells, good) in enumerate(zip(counts, ok, strict=True), start=1):
        assert re.search(rf"\| n{number} +\| {all_cells} +\| {good} +\| `probe` +\|", said)


def test_nothing_measured_is_a_report_too(sources: report.Sources) -> None:
    skipped = Record("probe", {"seq_len": 256, "dtype": "fp32"}, "skipped", "preset cpu", "measured")
    sources.records = {"probe": [skipped], "dtypes": []}
    text = report.write(sources, NOW)
    assert "Machine: nothing was measured. Preset: `cpu`." in text
    assert section(text, "What was unusual").strip() == "No cell is flagged."
    assert section(text, "Environment").strip() == "Nothing was measured.\n\nNothing was measured."
    sources.records = {}
    assert section(report.write(sources, NOW), "Cells that are not ok").strip() == "Every cell is ok."


def test_the_foot_of_a_figure_says_who_measured(sources: report.Sources) -> None:
    folder = sources.results / "environments"
    foot = figure_footer(sources.records["probe"], "demo", folder, "forward_ms")
    assert foot == (
        "site demo: 1 × NVIDIA H200; AMD EPYC, 2 cores, no GPU · n = 3 to 6 a cell · "
        f"environment {'a' * 12}, {'b' * 12} · commit 0123456789, fedcba9876+"
    )
    assert "n =" not in figure_footer(sources.records["probe"], "demo", folder, "")
    assert figure_footer([], "demo", folder, "forward_ms") == "site demo: no cell was measured"


# --- notes ------------------------------------------------------------------------------------------------------


def test_notes_are_taken_as_they_are(sources: report.Sources) -> None:
    text = report.write(sources, NOW)
    assert "A note by people: {{ not a template }} | <b>kept</b> as it is." in text
    assert "A remark on the chapter,\nin two lines." in text


@pytest.mark.parametrize("chapter", ["cs336", "polaris", "fsdp"])
def test_every_chapter_has_a_place_for_notes(chapter: str) -> None:
    text = (ROOT / "report" / "templates" / f"{chapter}.md").read_text(encoding="utf-8")
    assert text.count(f'{{{{ notes("{chapter}") }}}}') == 1


def test_names_of_kernels_in_sentences_are_no_html() -> None:
    assert prose("copy<at::Half>, in `results/<site>/x`: 1 < 2") == "copy&lt;at::Half>, in `results/<site>/x`: 1 &lt; 2"


def test_a_note_that_is_no_text_is_named(sources: report.Sources) -> None:
    (sources.root / "report" / "notes" / "demo" / "introduction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"^report/notes/demo/introduction\.md: not UTF-8 text \(.*\)$"):
        report.write(sources, NOW)


# --- templates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ('{{ table("demo.nothing") }}', r"demo\.md: no experiment makes the table demo\.nothing"),
        ('{{ figure("demo.nothing") }}', r"demo\.md: no experiment makes the figure demo\.nothing"),
        ('{{ finding("demo.nothing") }}', r"demo\.md: no experiment makes the finding demo\.nothing"),
        ("{{ tabel('demo.times') }}", r"demo\.md: 'tabel' is undefined"),
        ("{{ site.colour }}", r"demo\.md: .* has no attribute 'colour'"),
        ("{{ table() }}", r"demo\.md: .*missing 1 required positional argument: 'table_id'"),
        ("{{ 1 + site }}", r"demo\.md: unsupported operand .*"),
        ("# Title\n\n{{ table('demo.times') }\n", r"demo\.md, line 3: unexpected '}'"),
        ("{% if site %}\n", r"demo\.md, line 1: Unexpected end of template\..*"),
        ('{% include "other.md" %}', r"there is no report/templates/other\.md"),
    ],
)
def test_a_fault_in_a_template_is_one_line(sources: report.Sources, template: str, line: str) -> None:
    edit_template(sources, template)
    with pytest.raises(ValueError) as caught:
        report.write(sources, NOW)
    assert re.fullmatch(r"(report/templates/)?" + line, str(caught.value))


def test_a_chapter_without_a_template_is_named(sources: report.Sources) -> None:
    sources.plan["chapters"].append("other")
    with pytest.raises(ValueError, match=r"^there is no report/templates/other\.md$"):
        report.write(sources, NOW)


def test_what_the_site_did_not_measure_is_said(sources: report.Sources) -> None:
    """Also where files of an earlier run still lie there."""
    folder = sources.root / "perfscribe" / "experiments"
    for name in ("probe", "dtypes"):
        files.write_text(folder / name / "present.py", f'TABLES = ("demo.{name}",)\n')
    files.write_text(folder / "later" / "present.py", 'TABLES = ("demo.later",)\nfind("demo.answer")\n')
    files.write_text(sources.results / "tables" / "demo.later.json", "{}")
    edit_template(sources, '{{ table("demo.later") }}\n\n{{ figure("demo.later") }}\n\n{{ finding("demo.answer") }}\n')
    text = report.write(sources, NOW)
    assert text.count("*Not measured at this site: experiment `later`* ([who measured it](../README.md#") == 1


NOT_A, NOT_B = map(left_out.notice, "ab")


@pytest.mark.parametrize(
    ("blocks", "kept"),
    [
        ([f"**Why?**\n{NOT_A}", NOT_A, f"**How?**\n{NOT_A}"], [f"**Why?**\n{NOT_A}"]),
        ([NOT_A, NOT_B, NOT_A], [NOT_A, NOT_B]),
        ([NOT_A, "# C", NOT_A, "## D", NOT_A], [NOT_A, "# C", NOT_A, "## D", NOT_A]),
        ([NOT_A, "### E", NOT_A, "### F", "Prose.", NOT_A], [NOT_A, "### F", "Prose."]),
        ([NOT_A, "### E", NOT_A, NOT_B], [NOT_A, "### E", NOT_B]),
        (["### Written", "", "### E"], ["### Written", "", "### E"]),
        ([NOT_A, f"**Why?**\n{NOT_A} And more.", "### E", NOT_A], [NOT_A, f"**Why?**\n{NOT_A} And more."]),
    ],
)
def test_a_section_says_once_what_was_not_measured(blocks: list[str], kept: list[str]) -> None:
    assert left_out.once_a_section("\n\n".join(["## A section", *blocks])).split("\n\n") == ["## A section", *kept]


# --- in the workflow --------------------------------------------------------------------------------------------

MEASURE = '''"""Cells that cost nothing."""
from perfscribe.cells import Cell, Measurement


def cells(config):
    return [Cell({"n": n}) for n in config["n"]]


def run(cell):
    return Measurement(samples={"time_ms": [1.0, 2.0]}, timers={"time_ms": "host clock"})
'''


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project of two light experiments."""
    made = Workspace(tmp_path_factory.mktemp("report"))
    made.only()
    made.add_experiment("one", MEASURE, n=[1, 2, 3])
    made.add_experiment("two", MEASURE, n=[1])
    return made


def read(path: Path) -> tuple[Any, ...]:
    return path.read_bytes(), path.stat().st_mtime_ns


def test_notes_survive_and_faults_are_told(space: Workspace) -> None:
    note = space.root / "report" / "notes" / "local" / "cs336.md"
    note.parent.mkdir(parents=True)
    note.write_text("Written by hand: {{ 1 }}.\n")
    template = space.root / "report" / "templates" / "cs336.md"
    good = template.read_text()
    template.write_text(good.replace("# Chapter", '# Chapter\n\n{{ notes("cs336") }}'))
    before = read(note)
    done = space.run("report")
    assert done.returncode == 0, done.stdout
    assert "Written by hand: {{ 1 }}." in space.report()

    template.write_text(good + '{{ table("cs336.none") }}\n')
    failed = space.run("report")
    fault = "report/templates/cs336.md: no experiment makes the table cs336.none"
    assert failed.returncode == 1
    assert failed.stdout.splitlines() == [fault, "log: logs/local/report.log"] and read(note) == before

    (space.root / "config.yaml").write_text("experiments: {one: {enabled: true}, two: {enabled: false}}\n")
    template.write_text(good)
    done = space.run("report")
    assert done.returncode == 0, done.stdout
    assert space.report().count("*Not measured at this site: experiment `two`*") == 1
    assert "3 cells" in space.report() and read(note) == before
