"""`./run fill`: which table is meant and what disproves it, what a cell gets, what stays, what the verb says."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from workspace import ROOT

from perfscribe.base import chapters, files, registry
from perfscribe.records.records import Record
from perfscribe.report.page import HandinTable, TableCell, problems
from perfscribe.report.rows import Site, of_name
from perfscribe.show import tables as t
from perfscribe.verbs.fill import document, verb
from perfscribe.verbs.fill.matching import Known, choose

SEEDS = ROOT.parent / "shared" / "seeds"
NOT_MEASURED = TableCell("-", filled=False)
HEAD = "| Setup | Total GPUs | Time (ms) |\n|---|---|---|\n"


def label(text: str) -> TableCell:
    return TableCell(text, able=False, filled=False)


def known(title: str = "Times, ms", heading: str = "Baseline") -> Known:
    rows = [
        [label("One GPU"), label("1"), TableCell("12.3 ± 0.1")],
        [label("Two GPUs"), label("2"), TableCell("5.5†")],
        [label("Four GPUs"), label("4"), NOT_MEASURED],
    ]
    return Known(heading, HandinTable(title, "Median.", ["Setup", "Total GPUs", "Time (ms)"], rows))


def lines(text: str) -> list[str]:
    """Without padding, which stays as wide as it was."""
    return [re.sub(" +", " ", line) for line in text.splitlines()]


def filled(text: str, *tables: Known, overwrite: bool = False, site: Site | None = None) -> tuple[str, list[str]]:
    found = document.parse(text)
    told, _ = verb.fill(found, tables or [known()], overwrite, site)
    return "".join(found.lines), told


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("| One GPU |  |  |", "| One GPU | 1 | 12.3 |"),
        ("| Two GPUs | 2 | - |", "| Two GPUs | 2 | 5.5† |"),  # as filled before it was measured
        ("| Two GPUs | 2 |  |", "| Two GPUs | 2 | 5.5† |"),
        ("| **Four** `GPUs` | 4 |  |", "| **Four** `GPUs` | 4 | - |"),
        ("| Four GPUs | 4", "| Four GPUs | 4 | - |"),
        ("| One GPU | 1 | by hand: 15 |", "| One GPU | 1 | by hand: 15 |"),
    ],
)
def test_what_a_cell_gets(row: str, expected: str) -> None:
    text, told = filled(HEAD + row + "\n")
    assert lines(text) == [*HEAD.splitlines(), expected] and "set-up: Median." in told[0]
    again, _ = filled(text)
    assert again == text


@pytest.mark.parametrize(
    ("cell", "overwritten"),
    [
        *[(text, True) for text in ("15", "≈ 15 ms", "0.11 (±0.02)", "OOM", "1.2x", "**15**")],
        *[(text, True) for text in ("TODO", "TBD", "?", "…", "N/A", "–", "&nbsp;", "<br>", "``", "___")],
        *[(text, False) for text in ("see [15](a.png)", "15 <!-- mine -->", "![15](b.png)", "OOM on my T4, 15 GB")],
        *[(text, False) for text in ("<!-- todo -->", "my own note", r"$\approx 0.3$", "[15](log)", "100% (baseline)")],
    ],
)
def test_text_stays_and_is_counted(cell: str, overwritten: bool) -> None:
    asked = f"{HEAD}| One GPU | 1 | {cell} |\n"
    text, told = filled(asked)
    assert text == asked and "0 cells filled, 1 hold text and were left" in told[0]
    text, told = filled(asked, overwrite=True)
    assert lines(text)[2:] == [f"| One GPU | 1 | {'12.3' if overwritten else cell} |"]
    assert ("1 hold text" in told[0]) != overwritten
    # A cell without a figure takes none away.
    assert filled(f"{HEAD}| Four GPUs | 4 | 15 |\n", overwrite=True)[0].endswith("| 15 |\n")


def test_a_mark_of_the_whole_table_is_on_each_of_its_figures() -> None:
    text, told = filled(HEAD + "| One GPU | 1 | |\n| Four GPUs | 4 | |\n", known("Times, ms‡"))
    assert "| 12.3‡ |" in text and "| - |" in text
    assert "marked: settings other than the homework's" in told[0]


def test_the_heading_above_decides_between_like_tables() -> None:
    tables = [known(heading="Baseline without FSDP"), known("Other times", heading="Custom Model (Single Node)")]
    row = "| One GPU | 1 | |\n"
    for heading, place in (("🚀 2. Custom Model (Single Node)", 1), ("Baseline without FSDP:", 0)):
        found = document.parse(f"# {heading}\n\n## Results\n\n{HEAD}{row}")
        assert choose(found.tables[0], tables).known is tables[place]
    assert "it may be Baseline without FSDP: Times, ms or Custom" in filled(HEAD + row, *tables)[1][0]


def attention() -> list[Known]:
    rows = [[label(n), label(d), TableCell(n + d), TableCell(d)] for n in ("16", "1024") for d in ("16", "32")]
    header = ["seq_len", "d_model", "forward_ms", "mem_gb"]
    setup = "Median, ms; memory before backward in GB; FP32, batch 8, one GPU, 5 warm-up steps, no heads."
    one = Known("Problem (plain_attention)", HandinTable("(a) Attention.", setup, header, rows), machines="NVIDIA H200")
    rows = [[label(size), TableCell("1"), TableCell("2"), TableCell("1.5x")] for size in ("small", "xl")]
    header = ["Model Size", "FP32", "BF16", "BF16 Speedup"]
    other = HandinTable("(c) Forward and backward by dtype, ms.", "Context 512.", header, rows)
    rows = [
        [label("DDP"), label("yes"), label("a log has it"), TableCell("3")],
        [label("DDP"), label("no"), label("x"), TableCell("4")],
    ]
    offload = HandinTable("Strategies.", "", ["Strategy", "Off-load", "Extraction", "Samples/s"], rows)
    return [one, Known("Problem (by_dtype)", other), Known("Strategies of sharding", offload)]


def page(*rows: str, header: str = "seq_len | d_model | forward_ms | mem_gb", above: str = "") -> str:
    body = "".join(f"| {row} |\n" for row in rows or ("16 | 16 | | ",))
    return f"{above}\n\n| {header} |\n|{'---|' * (header.count('|') + 1)}\n{body}"


OWN = "seq_len | d_model | {} | forward_ms"
BY_DTYPE = "Model Size | FP32 | BF16"


LEFT = [
    # The text above says another thing.
    (page(above="## by_dtype"), "no table of the hand-in under 'Problem (by_dtype)' has these headings"),
    (
        page(above="# 2\n\nCompiled by torch.compile:"),
        "line 3 says compiled (implementation), the set-up of the figures",
    ),
    (page(above="All in bfloat16.\n\nThen.\n\nHere:"), "line 1 says BF16"),
    (page(above="<details><summary>Triton</summary>"), "line 1 says flash"),
    (page(above="## plain_attention on 4 GPUs"), "says 4 (number of GPUs), the figures are 1"),
    (page(above="# Attention, batch size 4"), "says 4 (batch), the figures are 8"),
    (page(above="# Attention on an A100"), "says a100 (device), the figures are h200"),
    (page(above="# Attention without warm-up"), "says 0 (warm-up steps), the figures are 5"),
    (page(above="# Attention, 16 heads"), "says 16 (heads), the figures are 0"),
    (page(above="# Attention, 10 epochs"), "says 10 (epochs), the set-up of the figures does not"),
    (page(above="# Attention of bloom-1b7"), "says 1b7 (model)"),
    (page(above="# Attention with CPU off-load"), "says offload (strategy)"),
    (page("small | |", header=BY_DTYPE, above="# by_dtype: forward only"), "says forward"),
    (page("small | |", header=BY_DTYPE, above="# by_dtype (seconds)"), "says s (unit), the figures are ms"),
    (page("small | |", header=BY_DTYPE, above="# by_dtype, context 128"), "says 128"),
    (page("small | |", header=BY_DTYPE, above="# Accuracy"), "name by_dtype in a heading above"),
    # A column that the hand-in lacks tells rows apart, or says another thing.
    (page("16 | 16 | False |", "16 | 16 | True |", header=OWN.format("compile")), "compile (False, True) tells rows"),
    (page("16 | 16 | |", "1024 | 16 | x |", header=OWN.format("")), "(x) tells rows apart"),
    (page("16 | 16 | bf16 |", header=OWN.format("dtype")), "says BF16 (precision), the figures are FP32"),
    # Labels are the hand-in's.
    (page("DDP | yes, optimizer state |", header="Strategy | Off-load | Samples/s"), "none of its rows: DDP / yes"),
    *[
        (page(f"{text} | 16 |", header="seq_len | d_model | forward_ms"), "has none of its rows")
        for text in ("1*6", "-16", "1_6", "1.024", "16†", "1 024", "")
    ],
    # Two columns, or two tables, are the same.
    (
        page("16 | 16 | | ", header="seq_len | d_model | forward_ms | forward_ms"),
        "forward_ms, forward_ms: the same col",
    ),
    (page("16 | 16 | 16 |", header="seq_len | d_model | d_model | forward_ms"), "several of its columns are d_model"),
    (page(above="# Ours") + page("1024 | 16 | |", above="# Theirs"), "as in line 8, and no heading tells them apart"),
    (page() + "\nTable 2: compiled.\n", "says compiled"),
]


@pytest.mark.parametrize(("text", "why"), LEFT)
def test_a_table_is_left_that_is_not_the_hand_ins_for_sure(text: str, why: str) -> None:
    after, told = filled(text, *attention())
    assert after == text and all("left as it is" in line for line in told) and why in told[0]


@pytest.mark.parametrize(
    "text",
    [
        page(above="# Problem (plain_attention)"),
        page(above="# Attention: forward time (ms), memory (GB), FP32, batch size 8, one H200"),
        page("1,024 | **16** | |"),
        page("16 | 16 | fp32 |", "1024 | 16 | fp32 |", header=OWN.format("dtype")),
        page("0 | 16 | 16 |", "1 | 1024 | 16 |", header=" | seq_len | d_model | forward_ms"),
        page("16 | 16 | slow |", "1024 | 16 | |", header=OWN.format("Notes")),
        page("16 | 16 | | 1.2", "1024 | 16 | | 3.4", header="seq_len | d_model | forward_ms | paper (ms)"),
        page("small | |", header=BY_DTYPE, above="# by_dtype (ms)"),
        page("DDP | yes | First `eval_loss` | ", header="Strategy | Off-load | Extraction | Samples/s"),
        page(above="# plain_attention") + page("1024 | 16 | |", above="## Longer"),
    ],
)
def test_what_fits_is_filled(text: str) -> None:
    after, told = filled(text, *attention())
    assert after != text and not [line for line in told if "left as it is" in line]


def test_rows_that_are_none_or_the_same_are_told_and_stay() -> None:
    text, told = filled(page("16 | 16 | | ", "16 | 16 | | ", "16 | 64 | | ", "1024 | 32 | | "), *attention())
    assert lines(text)[4:] == ["| 16 | 16 | | |", "| 16 | 16 | | |", "| 16 | 64 | | |", "| 1024 | 32 | 102432 | 32 |"]
    assert "no such row in the hand-in: line 7 (16 / 64)" in told[0]
    assert "another row of the page is the same row: line 5 (16 / 16), line 6 (16 / 16)" in told[0]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site of one table: 1, 2, ... ms and GiB; in FP32 length 1024 does not fit in memory."""
    figures = {"forward_ms": 1, "backward_ms": 10, "peak_gib": 1, "held_gb": 1}
    cells = []
    for at, level in enumerate(product((256, 1024), (16, 32), ("fp32", "bf16")), start=1):
        factors = {**dict(zip(("seq_len", "head_dim", "dtype"), level, strict=True)), "batch": 8}
        is_oom = level[0] == 1024 and level[2] == "fp32"
        values = {} if is_oom else {name: float(times * at) for name, times in figures.items()}
        cells.append(Record("probe", factors, "oom" if is_oom else "ok", "why", "measured", values=values))
    columns = [*t.factors(seq_len="seq_len", head_dim="d_model", dtype="dtype"), *t.settings("batch")]
    columns += t.values(**{name: "Held (GiB)" if name == "held_gb" else name for name in figures})
    columns.append(t.quoted("forward_ms_theirs", "forward_ms_theirs", lambda record: 99.0))
    t.write(t.make("probe.times", "Times", cells, columns), tmp_path)
    return Site("probe", tmp_path, "cuda")


BOUND = "probe.times, dtype=bf16"


@pytest.mark.parametrize(
    ("comment", "header", "rows"),
    [  # what is filled is in angle brackets
        (
            f"{BOUND}; Fwd duration (s)=forward_ms",
            "seq_len | d_model | Fwd duration (s)",
            ["256 | 16 | <0.00200>", "1,024 | 32 | <0.00800>"],
        ),
        (
            f"{BOUND}; Fwd (µs)=forward_ms; GB=peak_gib",
            "seq_len | d_model | Fwd (µs) | GB",
            ["256 | 16 | <2000> | <2.15>"],
        ),
        (f"{BOUND}; Held=held_gb; GB=held_gb", "seq_len | d_model | Held | GB", ["256 | 16 | <2.00> | <2.15>"]),
        (
            "probe.times; n=seq_len; d=head_dim; type=dtype; t=forward_ms",
            "n | d | type | t",
            ["1024 | 16 | FP32 | <OOM>"],
        ),
        (f"{BOUND}; n \\ d=seq_len; d{{head_dim}}=forward_ms", "n \\ d | d16 | d32", ["256 | <2.00> | <4.00>"]),
        (
            "probe.times, head_dim=16; n=seq_len; half=forward_ms[dtype=bf16]; {dtype} back=backward_ms",
            "n | half | fp32 back | bf16 back",
            ["256 | <2.00> | <10.0> | <20.0>", "1024 | <6.00> | <OOM> | <60.0>"],
        ),
        (
            f"{BOUND}, seq_len=256; Width=head_dim[slim=16, wide=32]; Pass=[Fwd=forward, Bwd=backward]; ms={{Pass}}_ms",
            "Width | Pass | ms",
            ["slim | Fwd | <2.00>", "wide | Bwd | <40.0>"],
        ),
    ],
)
def test_a_comment_binds_a_table_to_the_site_s_own(comment: str, header: str, rows: Sequence[str], site: Site) -> None:
    blank = [re.sub("<.*?>", "", row) for row in rows]
    text, told = filled(page(*blank, header=header, above=f"<!-- perfscribe: {comment} -->"), site=site)
    assert lines(text)[4:] == [f"| {re.sub('[<>]', '', row)} |" for row in rows], told
    assert "set-up: " in told[0] and "batch 8" in told[0]


def test_what_sections_above_the_problem_say_is_not_compared(site: Site) -> None:
    above = (
        f"# FlashAttention\n\n## Problem (attention)\n\nMixed precision:\n\n<!-- perfscribe: {BOUND}; F=forward_ms -->"
    )
    assert filled(page("256 | 16 | ", header="seq_len | d_model | F", above=above), site=site)[0].endswith("| 2.00 |\n")


def test_a_unit_may_be_in_the_text_above_or_in_cells(site: Site) -> None:
    above = f"<!-- perfscribe: {BOUND}; F=forward_ms -->"
    asked = page("256 | 16 | 0.01 ± 0.002 s", "256 | 32 | ", header="seq_len | d_model | F", above=above)
    assert filled(asked, site=site)[0].endswith("| 0.00400 |\n")
    _, told = filled(asked.replace(" s ", " GB "), site=site)
    assert "F is in GB, forward_ms in ms" in told[0]
    above = f"## Times in seconds\n\n<!-- perfscribe: {BOUND}; {{head_dim}}=forward_ms -->"
    text, told = filled(page("256 | |", header="seq_len | 16 | 32", above=above), site=site)
    assert lines(text)[-1] == "| 256 | 0.00200 | 0.00400 |" and "forward_ms in s" in told[0]


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("probe.time", r"site probe has no table 'probe.time'; did you mean 'probe.times'\?"),
        ("probe.times, dtype=fp64; F=forward_ms", "probe.times has no dtype fp64, only fp32, bf16"),
        ("probe.times; F=forwards_ms", "has no column 'forwards_ms'; did you mean 'forward_ms'"),
        ("probe.times; F=forward_ms_theirs", "has no column 'forward_ms_theirs'"),
        ("probe.times; G=forward_ms", "the comment's 'G' is no heading of the table"),
        ("probe.times; F", "'F' is not heading=column"),
        ("probe.times; F=?", "say in the comment what 'F' is, or F=- to leave it"),
        ("probe.times; F=forward_ms", "several rows fit; say in the comment which dtype: fp32, bf16"),
        (f"{BOUND}; F=forward_ms; Mem (MB)=backward_ms", r"Mem \(MB\) is in MB, backward_ms in ms"),
        ("by_dtyp; F=FP32", "the hand-in has no problem 'by_dtyp'; did you mean 'by_dtype'"),
        ("plain_attention; F=forward_ms; Mem (MB)=mem_gb", r"Mem \(MB\) is in another unit than mem gb \(GB\)"),
    ],
)
def test_a_comment_that_leads_nowhere_is_one_line(comment: str, why: str, site: Site) -> None:
    asked = page("256 | 16 | |", header="seq_len | d_model | F | Mem (MB)", above=f"<!-- perfscribe: {comment} -->")
    tables = [Known(one.heading, one.table, one.problem) for one in attention()]
    text, told = filled(asked, *tables, site=site)
    assert text == asked and len(told) == 1 and re.search(why, told[0]), told


BOUND_TABLE = "seq_len | d_model | F"
COMMENT = f"<!-- perfscribe: {BOUND}; F=forward_ms -->"


@pytest.mark.parametrize(
    ("above", "header", "row", "why"),
    [
        (f"# Batch size 4\n\n{COMMENT}", BOUND_TABLE, "256 | 16 | ", "says 4 (batch), the figures are 8"),
        (f"# FP32\n\n{COMMENT}", BOUND_TABLE, "256 | 16 | ", "line 1 says fp32, the comment dtype=bf16"),
        (f"# Backward\n\n{COMMENT}", BOUND_TABLE, "256 | 16 | ", "says backward (pass), the figures are f"),
        (f"# On an A100\n\n{COMMENT}", BOUND_TABLE, "256 | 16 | ", "line 1 says a100 (device)"),
        (COMMENT.replace("F=", "Bwd="), "seq_len | d_model | Bwd", "256 | 16 | ", "Bwd says backward (pass)"),
        (COMMENT.replace("F=", "JIT="), "seq_len | d_model | JIT", "256 | 16 | ", "JIT says compiled (implementation)"),
        (COMMENT.replace("F=", "GB/s="), "seq_len | d_model | GB/s", "256 | 16 | ", "GB/s is in gb, forward_ms in ms"),
        (COMMENT, f"{BOUND_TABLE} | Size", "256 | 16 | | 4", "say in the comment what Size (4) is, or Size=-"),
        ("# Forward only\n\n<!-- perfscribe: by_dtype -->", BY_DTYPE, "xl | | ", "line 1 says forward (pass)"),
    ],
)
def test_what_a_comment_does_not_say_may_not_be_another_thing(
    above: str, header: str, row: str, why: str, site: Site
) -> None:
    asked = page(row, header=header, above=above)
    text, told = filled(asked, *attention(), site=site)
    assert text == asked and why in told[0], told


def test_a_comment_without_a_table_is_told(site: Site) -> None:
    _, told = filled(f"<!-- perfscribe: {BOUND} -->\n\nText.\n\n{HEAD}| One GPU | 1 | |\n", site=site)
    assert told[0] == "line 1: no table is right below this comment" and "1 cells filled" in told[1]


def test_the_comment_that_is_printed_fills_the_table(site: Site) -> None:
    asked = page("0 | 256 | 16 | | ", "1 | 256 | 32 | | ", header=" | Seq Len | d_model | Fwd Time (s) | Verdict")
    text, told = filled(asked, *attention(), site=site)
    assert text == asked and "headings that differ: Verdict" in told[0]
    [comment] = re.findall("<!-- perfscribe: .* -->", told[0])
    assert comment == (
        "<!-- perfscribe: probe.times, dtype=fp32|bf16; d_model=head_dim; Fwd Time (s)=forward_ms; Verdict=? -->"
    )
    assert "say in the comment what 'Verdict' is" in filled(f"{comment}\n{asked.strip()}\n", site=site)[1][0]
    comment = comment.replace("?", "-")
    assert "has no dtype fp32|bf16" in filled(f"{comment}\n{asked.strip()}\n", site=site)[1][0]
    text, _ = filled(f"{comment.replace('fp32|', '')}\n{asked.strip()}\n", site=site)
    assert lines(text)[3:] == ["| 0 | 256 | 16 | 0.00200 | |", "| 1 | 256 | 32 | 0.00400 | |"]
    _, told = filled(page(above="# Machines", header="Name | Owner"), *attention(), site=site)
    assert "perfscribe:" not in told[0]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_nothing_else_of_the_file_changes(end: str) -> None:
    text_lines = ["# T", "", "> | Setup | Total GPUs | Time (ms) |", "> |---|---|---|", "> | One GPU | 1 |  |", "x"]
    before = end.join(text_lines)
    text, _ = filled(before)
    assert text == before.replace("| One GPU | 1 |  |", "| One GPU | 1 | 12.3 |")


@pytest.mark.parametrize("name", ["h200x4", "cpu2"])
def test_a_blanked_report_is_filled_again(name: str) -> None:
    of_site = of_name(ROOT, name)
    made = [problem for name in registry.CHAPTERS for problem in problems(chapters.read(name), of_site)]
    tables = [Known(problem.heading, table, problem.key) for problem in made for table in problem.tables]
    report = document.parse("\n\n".join(problem.markdown((), False, "") for problem in made) + "\n")
    wanted = list(report.lines)
    for table in report.tables:
        match = choose(table, tables)
        mark = "".join(re.findall("[†‡]", match.known.table.title))
        for number, cells in match.cells.items():
            row = table.rows[number]
            texts = {
                at: verb.written(cell.text, mark if cell.filled else "") for at, cell in cells.items() if cell.able
            }
            wanted[row.line] = document.filled_line(report.lines[row.line], row, texts)
            report.lines[row.line] = document.filled_line(report.lines[row.line], row, dict.fromkeys(texts, ""))
    blank = document.parse("".join(report.lines))
    told, total = verb.fill(blank, tables)
    assert total and lines("".join(blank.lines)) == lines("".join(wanted))
    assert not [line for line in told if "left as it is" in line or "no such row" in line]


def test_a_site_without_a_gpu_says_so() -> None:
    of_site, tables = of_name(ROOT, "cpu2"), tables_of("cpu2")
    header = "Setup | Total GPUs | Samples/s | Runtime (s)"
    text, told = filled(page("Single Node, 2 GPUs | 2 | |", header=header), *tables, site=of_site)
    assert lines(text)[-1] == "| Single Node, 2 GPUs | 2 | - | - |" and "set-up: site cpu2 has no GPU" in told[0]


@cache
def tables_of(name: str) -> list[Known]:
    return verb.known(ROOT, name)


# How many tables of each source are the hand-in's.
OF_SEED = {"000": 2, "002": 4, "003": 8, "004": 1}


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the sources are not here")
@pytest.mark.parametrize("number", OF_SEED)
@pytest.mark.parametrize("site_name", sorted(path.parent.name for path in ROOT.glob("results/*x4/published.json")))
def test_tables_of_the_sources_are_known(site_name: str, number: str) -> None:
    [path] = SEEDS.glob(f"{number}_*.txt")
    told, _ = verb.fill(document.parse(path.read_text(encoding="utf-8")), tables_of(site_name))
    names = [match[1] for line in told if (match := re.match(r"line \d+: (.*): \d+ cells filled", line))]
    assert len(names) == len({*names}) == OF_SEED[number]
    assert not [line for line in told if "no such row" in line or "several rows" in line]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], r"run: fill: the following arguments are required: FILE\.md \(\./run fill --help\)"),
        (["notes.md", "--site", "../x"], r"fill: there is no report of site '\.\./x'; there are local"),
        (["empty.md"], r"fill: .*empty\.md: there is no table in it"),
        (["latin.md"], r"fill: .*latin\.md: not UTF-8 text .*"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_json(tmp_path / "results" / "local" / "summary.json", {"gpus": 0})
    (tmp_path / "notes.md").write_text("| a | b |\n|---|---|\n| 1 | |\n")
    (tmp_path / "empty.md").write_text("# Nothing\n")
    (tmp_path / "latin.md").write_bytes(b"\xe9|")
    with pytest.raises((ValueError, SystemExit), match=rf"^{line}$"):
        verb.main(tmp_path, words, dict)


def test_shapes_of_the_documentation_are_filled() -> None:
    text = (ROOT / "docs" / "fill.md").read_text(encoding="utf-8")
    for shape in re.findall(r"```markdown\n(.*?)```", text, re.DOTALL):
        blank = re.sub(r"(?<= )(\d+\.\d+|9012|TODO)(?= \|)", "", shape)
        after, told = filled(blank, *tables_of("h200x4"), site=of_name(ROOT, "h200x4"))
        assert not re.search(r"\| +\|", after) and len(told) == 1 and "left" not in told[0], told
