"""The homework's own tables: each entry of homework.yaml against the tables that experiments make, then whole pages."""

from __future__ import annotations

import re
import string
from pathlib import Path

import fill_site
import pytest
from workspace import ROOT

from perfscribe import tables
from perfscribe.filling import document, homework, matching, units
from perfscribe.filling.comments import Asked
from perfscribe.filling.homework import Entry, Rule
from perfscribe.filling.looking_up import LookUp
from perfscribe.filling.site_tables import Site, same_level, stored_unit
from perfscribe.statistics import format_figure

KNOWN = homework.load()
FIXTURES = Path(__file__).parent / "fixtures" / "fill"
SEEDS = ROOT.parent / "shared" / "seeds"
WORKSHOP = [FIXTURES / "workshop.md", *sorted(SEEDS.glob("003_*.txt"))]
# The workshop's seven tables to fill, in its order, and the one that describes the weak scaling.
SEVEN = [
    "fsdp.baseline",
    "fsdp.multi_gpu",
    "fsdp.multi_node",
    "fsdp.custom_single_node",
    "fsdp.custom_multi_gpu",
    "fsdp.custom_multi_node",
    "fsdp.weak_scaling",
]


def read(path: Path) -> str:
    return path.read_bytes().decode()


# --- entries against tables -------------------------------------------------------------------------------------


def readings(entry: Entry, text: str) -> list[str]:
    """What a text with parameters in it may become."""
    names = [name for name in entry.parameters if f"${name}" in text]
    if not names:
        return [text]
    return [string.Template(text).safe_substitute({names[0]: choice}) for choice in entry.parameters[names[0]]]


def rules(entry: Entry) -> list[Rule]:
    return [*entry.columns, *entry.rows]


@pytest.mark.parametrize("entry", KNOWN.entries, ids=lambda entry: entry.id)
def test_an_entry_names_columns_of_its_table(entry: Entry) -> None:
    names = {column.name for column in fill_site.planned(entry.table).columns if column.kind != "unshown"}
    named = [*entry.where, *(name for one in entry.prefer for name in (*one.where, *one.mark))]
    for rule in rules(entry):
        named += [*rule.where, rule.level, *readings(entry, rule.column), rule.until, rule.beside]
        named += [group for group in re.compile(rule.pattern).groupindex if group != "unit"]
    assert {name for name in named if name} <= names


@pytest.mark.parametrize("entry", KNOWN.entries, ids=lambda entry: entry.id)
def test_levels_of_an_entry_are_those_of_its_table(entry: Entry) -> None:
    frame = fill_site.planned(entry.table).frame
    every = [*entry.where.items(), *(pair for rule in rules(entry) for pair in rule.where.items())]
    for one in entry.prefer:
        every += [pair for pair in one.where.items() if pair != ("device", "cpu") or "cpu" in set(frame["device"])]
    for name, level in every:
        for reading in readings(entry, level):
            assert any(same_level(reading, str(there)) for there in frame[name]), (name, reading)


@pytest.mark.parametrize("entry", KNOWN.entries, ids=lambda entry: entry.id)
def test_units_of_an_entry_can_be_told_in_each_other(entry: Entry) -> None:
    columns = {column.name: column for column in fill_site.planned(entry.table).columns}
    for rule in rules(entry):
        for name in readings(entry, rule.column) if rule.column else []:
            title = {"name": name, "title": columns[name].title}
            stored = rule.stored or stored_unit(title, KNOWN.stored)
            asked = rule.unit or ("GB" if "B)" in rule.pattern and "<unit>" in rule.pattern else "")
            assert not asked or (stored and units.scale(stored, asked)), name


def test_columns_that_are_not_in_the_unit_of_their_title_are_there_and_say_another_one() -> None:
    ids = {entry.table for entry in KNOWN.entries} | {"fsdp.custom_twins"}
    titles = {column.name: column.title for one in ids for column in fill_site.planned(one).columns}
    for name, unit in KNOWN.stored.items():
        assert units.in_heading(titles[name]) not in ("", unit) or titles[name] == name, name


def headings(path: Path) -> list[tuple[str, str]]:
    """Heading of the page and title of the report's column, of each column that is filled."""
    pairs = []
    for table in document.parse(read(path)).tables:
        for entry in KNOWN.entries:
            rules = [homework.first_reading(entry.columns, header) for header in table.headers]
            if entry.table in SEVEN and all(rules) and len(rules) == len(entry.columns):
                titles = {column.name: column.title for column in fill_site.planned(entry.table).columns}
                pairs += [
                    (header, titles[rule.column])
                    for header, rule in zip(table.headers, rules, strict=True)
                    if rule is not None and rule.column and "$" not in rule.column
                ]
    return pairs


def test_the_workshops_headings_are_the_reports_own_titles() -> None:
    pairs = headings(FIXTURES / "workshop.md")
    assert len(pairs) > 30 and [pair for pair in pairs if pair[0] != pair[1]] == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("table: fsdp.baseline", "tabel: x"),
        ("- {header: 'metric', is_label: true}", "- {is_label: true}"),
        ("GiB:", "Gi:"),
        ("stored:", "stored: ["),
        ("header: 'metric'", "header: '(metric'"),
    ],
)
def test_a_fault_in_the_list_is_one_line(tmp_path: Path, change: str, fault: str) -> None:
    path = tmp_path / "homework.yaml"
    path.write_text(homework.FILE.read_text().replace(change, fault, 1))
    with pytest.raises(ValueError, match=r"^homework\.yaml: .+$"):
        homework.load(path)


# --- whole pages ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a site that measured every table of the list, on whatever the tiny and the full grid have."""
    root = tmp_path_factory.mktemp("homework")
    fill_site.write(root, *(fill_site.measured(name) for name in {entry.table for entry in KNOWN.entries}))
    return root


def expected(table: tables.Table, column: str, unit: float = 1.0, **levels: object) -> str:
    """The figure of the one row with these levels, as it is shown."""
    frame = table.frame
    for name, level in levels.items():
        frame = frame[frame[name].map(lambda there, level=level: str(there) == str(level))]
    [figure] = frame[column]
    return format_figure(figure * unit)


@pytest.mark.parametrize("page", WORKSHOP, ids=lambda page: page.suffix)
def test_the_workshops_seven_tables_are_filled(site: Path, page: Path) -> None:
    text, outcomes = fill_site.filled(site, read(page))
    assert [one.what.split()[0] for one in outcomes if one.cells] == SEVEN
    assert not any(one.failed or one.lacking for one in outcomes)
    described = next(one for one in outcomes if one.what.startswith("fsdp.weak_setup"))
    assert described.told()[0].endswith("nothing to fill")
    again, outcomes = fill_site.filled(site, text)
    assert again == text and sum(one.cells for one in outcomes) == 0


@pytest.mark.parametrize("page", WORKSHOP, ids=lambda page: page.suffix)
def test_each_row_has_its_own_figures(site: Path, page: Path) -> None:
    text, _ = fill_site.filled(site, read(page))
    *_, nine, gpus, nodes, custom, custom_gpus, custom_nodes, _, weak = fill_site.cells(text)
    gib = 2**30 / 1e9
    values = fill_site.measured("fsdp.baseline")
    for row, metric in zip(nine, ("Train Loss (Final)", "Eval Loss (Epoch 1)"), strict=False):
        assert row[2] == expected(values, "answer", device="cuda", metric=metric)
    assert nine[7][2] == expected(values, "answer", device="cuda", metric="Memory Allocated (MB), peak")
    assert custom[8][2] == expected(
        fill_site.measured("fsdp.custom_single_node"), "answer", device="cuda", metric="GPU Utilization (%)"
    )
    for rows, name in ((gpus, "fsdp.multi_gpu"), (nodes, "fsdp.multi_node")):
        for row, ranks in zip(rows, (1, 2, 4, 8), strict=True):
            own = {"device": "cuda", "world_size": ranks, "nodes": ranks if name.endswith("node") else 1}
            table = fill_site.measured(name)
            assert row[1] == str(ranks)
            assert row[3] == expected(table, "samples_scale", **own)
            assert row[5] == expected(table, "runtime_scale", **own)
            assert row[7] == expected(table, "avg_mem_total_gb", gib, **own)
    for rows, name in ((custom_gpus, "fsdp.custom_multi_gpu"), (custom_nodes, "fsdp.custom_multi_node")):
        for row, ranks in zip(rows, (1, 2, 4, 8), strict=True):
            own = {"device": "cuda", "world_size": ranks, "nodes": ranks if name.endswith("node") else 1}
            table = fill_site.measured(name)
            assert row[2] == expected(table, "train_samples_per_second", **own)
            assert row[3] == expected(table, "samples_per_s_callback", **own)
            assert row[5] == expected(table, "avg_mem_alloc_gb", gib, **own)
    for row, ranks in zip(weak, (2, 4, 8, 16), strict=True):
        own = {"device": "cuda", "world_size": ranks, "variant": "source"}
        table = fill_site.measured("fsdp.weak_scaling")
        assert row[3].isdecimal() and row[7] == expected(table, "train_loss", **own)
        percent = expected(table, "runtime_efficiency", **own)
        assert row[9] == ("100% (baseline)" if ranks == 2 else percent)


def test_what_the_sources_formula_gives_is_told(site: Path) -> None:
    _, outcomes = fill_site.filled(site, read(FIXTURES / "workshop.md"))
    table = fill_site.measured("fsdp.weak_scaling")
    own = {"device": "cuda", "world_size": 4, "variant": "source"}
    right, inverted = (expected(table, name, **own) for name in ("runtime_efficiency", "inverted"))
    [told] = [line for line in outcomes[-1].told() if line.startswith("  4 / 6 / 4, Efficiency (%)")]
    assert told == f"  4 / 6 / 4, Efficiency (%): {right}; by the source's formula {inverted}"


def test_a_comment_may_ask_for_the_workshops_labels_and_the_memory_at_rest(site: Path) -> None:
    comment = '    <!-- perfscribe: labels=source memory="at rest" -->\n    | **Metric**'
    page = read(FIXTURES / "workshop.md").replace("    | **Metric**", comment, 1)
    text, _ = fill_site.filled(site, page)
    nine = next(table for table in fill_site.cells(text) if len(table) == 9)
    values = fill_site.measured("fsdp.baseline")
    assert nine[0][2] == expected(values, "source", device="cuda", metric="Train Loss (Final)")
    assert nine[7][2] == expected(values, "source", device="cuda", metric="Memory Allocated (MB), at rest")


SETUP = "| Setup | Samples/s |\n|---|---|\n| Single Node, 2 GPUs | |\n| Single Node, 8 GPUs | |\n"


@pytest.mark.parametrize(
    ("without", "asked", "cells"),
    [
        ((), "", ["{cuda2}", "{cuda8}"]),
        (("cuda",), "", ["{cpu2} (bloom-micro, cpu)", "unsupported (no CUDA device)"]),
        (("cuda",), " device=cuda", ["unsupported (no CUDA device)", "unsupported (no CUDA device)"]),
        ((), " device=cpu", ["{cpu2} (bloom-micro, cpu)", "not measured"]),
        (("cuda", "cpu"), "", ["unsupported (no CUDA device)", "unsupported (no CUDA device)"]),
    ],
)
def test_what_a_cpu_gave_stands_in_and_says_so(
    tmp_path: Path, without: tuple[str, ...], asked: str, cells: list[str]
) -> None:
    rows: list[dict[str, object]] = []
    for device, model, ranks in (("cpu", "bloom-micro", 2), ("cuda", "bloom-560m", 2), ("cuda", "bloom-560m", 8)):
        row = {"device": device, "model_name": model, "world_size": ranks, "origin": "measured"}
        lacking = {"train_samples_per_second": "unsupported", "status": "unsupported", "reason": "no CUDA device"}
        figure = {"train_samples_per_second": 100 * ranks + (device == "cuda")}
        rows.append(row | (lacking if device in without else figure))
    own = fill_site.planned("fsdp.multi_gpu").columns
    columns = [(column.name, column.title, column.kind) for column in own]
    fill_site.write_rows(
        tmp_path, "fsdp.multi_gpu", columns, [{name: "x" for name, _, _ in columns} | row for row in rows]
    )
    text, [outcome] = fill_site.filled(tmp_path, f"<!-- perfscribe: fsdp.multi_gpu{asked} -->\n{SETUP}")
    figures = {"cuda2": "201", "cuda8": "801", "cpu2": "200"}
    assert [row[1] for row in fill_site.cells(text)[0]] == [cell.format(**figures) for cell in cells]
    told = "  model_name and device behind a figure: it is of device cpu, for want of one of device cuda"
    assert (told in outcome.told()) == ("bloom-micro" in text and not asked)


def test_a_level_that_the_list_does_not_foresee_is_one_like_any_other(tmp_path: Path) -> None:
    """A site of a machine without GPU has other levels than the homework."""
    (entry,) = (one for one in homework.load().entries if one.table == "cs336.memory_by_context")
    assert "micro" not in entry.parameters["size"]
    own = fill_site.planned(entry.table).columns
    frame = fill_site.measured(entry.table).frame
    look = {"size": "micro", "status": "ok", "reason": "none", "flags": "none"}
    rows = [{c.name: str(frame.iloc[0][c.name]) for c in own} | look]
    fill_site.write_rows(tmp_path, entry.table, [(c.name, c.title, c.kind) for c in own], rows)
    site = Site(tmp_path, fill_site.SITE)
    fit = matching.Fit(entry, entry.columns)
    found = LookUp(fit, site.table(entry.table), {"size": "micro"}, [])
    assert len(found.rows) == 1 and found.asked == {"size"}
    with pytest.raises(ValueError, match=r"^size: got 'nothing', expected|no row of .* has size 'nothing'"):
        LookUp(fit, site.table(entry.table), {"size": "nothing"}, [])


def test_the_polaris_tables_are_filled(site: Path) -> None:
    text, outcomes = fill_site.filled(site, read(FIXTURES / "polaris.md"))
    assert not any(one.failed or one.lacking for one in outcomes)
    wider, communication = fill_site.cells(text)
    sizes = fill_site.measured("polaris.tensor_dims_scale")
    large = {"device": "cuda", "d_model": 4096, "dtype": "bf16", "weights": "bf16", "samples": 10000}
    assert [row[2] for row in wider[:3]] == ["4096", "bf16", "10000 samples"]
    assert wider[3][2] == f"{expected(sizes, 'peak_gb', **large)} GB"
    low, high = (expected(sizes, name, **large) for name in ("lowest_per_s", "highest_per_s"))
    assert wider[4][2] == f"{low} to {high} samples/s"
    costs = fill_site.measured("polaris.communication")
    own = {"backend": "nccl", "tool": "torch_profiler", "metric": "Total communication time (ms)"}
    figures = [expected(costs, name, **own) for name in ("inter", "intra", "impact")]
    assert communication[0][1:] == [f"{figures[0]} ms", f"{figures[1]} ms", f"{figures[2]}×"]
    assert [row[3] for row in communication[1:]] == ["Severe Bottleneck", "High Latency"]


def test_the_cs336_tables_are_filled(site: Path) -> None:
    text, outcomes = fill_site.filled(site, read(FIXTURES / "cs336.md"))
    assert not any(one.failed or one.lacking for one in outcomes) and len(outcomes) == 6
    passes, attention, models, compiled, flash, memory = fill_site.cells(text)
    own = {"model_size": "2.7B", "precision": "bf16", "pass_type": "forward+backward", "device": "cuda"}
    assert passes[1][3] == expected(fill_site.measured("cs336.mixed_precision_passes"), "avg_time_ms", **own)
    own = {"seq_len": 16384, "head_dim": 128, "device": "cuda"}
    table = fill_site.measured("cs336.pytorch_attention")
    assert attention[1][3] == expected(table, "backward_ms", **own)
    assert attention[1][4] == expected(table, "memory_before_backward_gib", 2**30 / 1e9, **own)
    models_own = {"size": "large", "seq_len": 512, "dtype": "fp32", "device": "cuda", "implementation": "compiled"}
    table = fill_site.measured("cs336.compiled_models")
    assert models[1][4] == expected(table, "compiled_full_step_ms", **models_own)
    table = fill_site.measured("cs336.compiled_attention")
    compiled_own = own | {"backend": "inductor", "implementation": "compiled"}
    assert compiled[1][5] == expected(table, "compiled_backward_ms", **compiled_own)
    assert flash[1][8] == expected(fill_site.measured("cs336.flash_benchmarking"), "ours_both_ms", **own, dtype="bf16")
    context = {"size": "2.7B", "dtype": "fp32", "seq_len": 512, "device": "cuda"}
    full = expected(fill_site.measured("cs336.memory_by_context"), "full_step_gib", 2**30 / 1e9, **context)
    assert memory[1][2] == f"{full} GB"


@pytest.mark.parametrize("name", ["h200", "h200x4"])
def test_pages_are_filled_from_committed_sites(name: str) -> None:
    """A cell without a figure says why; none is blank, and none of another site's stands in for it."""
    for page in sorted(FIXTURES.glob("*.md")):
        text, outcomes = fill_site.filled(ROOT, read(page), name)
        assert not any(one.failed for one in outcomes)
        reasons = {reason for one in outcomes for reason in one.lacking}
        assert all(re.fullmatch(r"not measured|(skipped|oom|unsupported) \(.+\)", reason) for reason in reasons)
        known = [
            table for table, one in zip(document.parse(text).tables, outcomes, strict=True) if one.known and one.cells
        ]
        assert all(all(row.texts) for table in known for row in table.rows)


# --- two that look alike ----------------------------------------------------------------------------------------

NINE = "| Metric | Log Location | Value |\n|---|---|---|\n| Train Loss (Final) | x | |\n"


@pytest.mark.parametrize(
    ("label", "table", "ranks", "device"),
    [
        ("Single Node, Single GPU", "fsdp.multi_gpu", 1, "cuda"),
        ("**Single   Node,Single GPU**", "fsdp.multi_gpu", 1, "cuda"),
        ("Single Node with Single GPU", "fsdp.multi_gpu", 1, "cuda"),
        ("single-node, 1 GPU", "fsdp.multi_gpu", 1, "cuda"),
        ("Single Node,2 GPUs", "fsdp.multi_gpu", 2, "cuda"),
        ("8GPUs", "fsdp.multi_gpu", 8, "cuda"),
        ("2 processes", "fsdp.multi_gpu", 2, "cpu"),
        ("Single Node", "fsdp.multi_node", 1, "cuda"),
        ("`4  Nodes`", "fsdp.multi_node", 4, "cuda"),
        ("8-node", "fsdp.multi_node", 8, "cuda"),
        ("single node with single process", "fsdp.multi_node", 1, "cpu"),
    ],
)
def test_labels_of_a_row_however_they_are_written(site: Path, label: str, table: str, ranks: int, device: str) -> None:
    page = f"<!-- perfscribe: {table} -->\n| Setup | Loss |\n|---|---|\n|  {label} | |\n"
    text, _ = fill_site.filled(site, page)
    own = {"world_size": ranks, "device": device, "nodes": ranks if table.endswith("node") else 1}
    assert fill_site.cells(text)[0][0][1] == expected(fill_site.measured(table), "train_loss", **own)


@pytest.mark.parametrize(
    ("above", "table"),
    [
        ("# Baseline: BLOOM Fine-tuning without FSDP:\n\n## Results\n\n", "fsdp.baseline"),
        ("# Baseline\n\n# Custom Model Fine-Tuning (Single Node)\n\n### Results Table\n\n", "fsdp.custom_single_node"),
        ("# Custom models\n\n## Baseline\n\n", "fsdp.baseline"),
        ("<!-- perfscribe: fsdp.custom_single_node -->\n", "fsdp.custom_single_node"),
        ("# Baseline\n<!-- perfscribe: fsdp.custom_single_node -->\n\n", "fsdp.custom_single_node"),
    ],
)
def test_headings_and_comments_tell_the_two_tables_of_nine_apart(site: Path, above: str, table: str) -> None:
    _, [outcome] = fill_site.filled(site, above + NINE)
    assert outcome.what == f"{table} of site made" and outcome.cells == 1


def test_a_table_of_older_code_is_one_line(tmp_path: Path) -> None:
    columns = [("metric", "Metric", "factor"), ("answer", "Value", "figure")]
    fill_site.write_rows(tmp_path, "fsdp.baseline", columns, [{"metric": "Train Loss (Final)", "answer": 1}])
    text, [outcome] = fill_site.filled(tmp_path, "<!-- perfscribe: fsdp.baseline -->\n" + NINE)
    told = "fsdp.baseline of this site has no device, model_name; `./run report` draws it anew"
    assert text.endswith(NINE) and outcome.faults == [told]


def test_two_candidates_are_named(site: Path) -> None:
    text, [outcome] = fill_site.filled(site, NINE)
    told = (
        "it may be fsdp.baseline, fsdp.custom_single_node: name one above it, as in <!-- perfscribe: fsdp.baseline -->"
    )
    assert text == NINE and outcome.told() == ["line 1: not filled", f"  {told}"]


def test_every_fixture_table_fits_one_entry_at_most_by_headings_and_rows() -> None:
    for path in sorted(FIXTURES.glob("*.md")):
        for table in document.parse(read(path)).tables:
            try:
                fit = matching.choose(table, Asked(), Site(ROOT, "h200"), KNOWN)
            except matching.NoMatch:
                assert table.headers[0] == "Component"
            else:
                assert fit.entry.id
