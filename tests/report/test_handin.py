"""The hand-in of every committed site: the course's problems, headers and limits."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from workspace import ROOT

from perfscribe.base import registry
from perfscribe.config import resolve
from perfscribe.experiments.custom_multi_gpu import show
from perfscribe.experiments.custom_multi_gpu.measure import cells
from perfscribe.records.records import Record
from perfscribe.report import cs336_devices, fsdp, handin
from perfscribe.report.site import Row, Site
from perfscribe.verbs.fill import verb

SITES = sorted(path.parent.name for path in ROOT.glob("results/*/published.json"))
MOST_WORDS, MOST_FIGURES = 60, 6  # of an answer
MOST_FIRST = 62


@cache
def text_of(site: str) -> str:
    return (ROOT / "report" / site / "report.md").read_text(encoding="utf-8")


def problems(site: str) -> dict[str, str]:
    """Each problem's text by its heading."""
    parts = re.split(r"(?m)^### ", text_of(site).split("\n## Not measured here")[0])[1:]
    return {part.split("\n", 1)[0]: re.split(r"(?m)^## ", part.split("\n", 1)[1])[0] for part in parts}


def test_nodes_of_one_machine_are_marked() -> None:
    """However they are called: what tells them apart is the kernel, which name spaces share."""
    made = Site("made", Path("nowhere"), "cpu")
    test = {"status": "ok", "on_nodes": "2", "nodes": "node1, node2"}
    for machines, mark in (("1", "†"), ("2", ""), ("not recorded", "")):
        made._read = {"fsdp.preflight": [test | {"on_nodes": "1", "machines": "1"}, test | {"machines": machines}]}
        assert fsdp.several_nodes(made, 2) == mark and fsdp.several_nodes(made, 1) == ""
        assert made.emulated == bool(mark)
    summary = {"nodes": 2, "emulated": True}
    assert handin.nodes(summary) == "2 nodes of a cluster emulated on this machine"
    assert handin.nodes(summary | {"emulated": False}) == "2 nodes of a cluster"


@pytest.mark.parametrize("site", SITES)
def test_problems_and_headers_are_the_courses_and_the_first_page_is_short(site: str) -> None:
    chapters = json.loads((ROOT / "results" / site / "plan" / "report.json").read_text())["chapters"]
    wanted = [problem.heading for *_, of in handin.chapters(chapters) for problem in of]
    assert list(problems(site)) == wanted
    linked = re.findall(r"\]\(#([^)]*)\)", text_of(site))
    assert set(linked) <= {handin.anchor(heading) for heading in [*wanted, "Not measured here"]}
    beside = re.findall(r"\]\(((?:details/|figures/|appendix)[^)]*)\)", text_of(site))
    assert beside and all((ROOT / "report" / site / name).is_file() for name in beside)
    known = yaml.safe_load(Path(__file__).with_name("handin_headers.yaml").read_text(encoding="utf-8"))
    for heading, text in problems(site).items():
        for header in re.findall(r"(?m)^(\|.*\|)\n\| ?-", text):
            assert re.sub(r" *(?<!\\)\| *", " | ", header).strip() in known[heading], heading
    first = re.split(r"(?m)^## (?:CS336 a|Polaris h|FSDP w)", text_of(site))[0]
    assert len(first.splitlines()) <= MOST_FIRST
    for line in re.findall(r"(?m)^\d\. (.*)$", first):
        assert len(line.split(" [")[0].split()) <= 25, line


UNITS = "GB|GiB|MB|MiB|s|ms|μs|%|×|x|TFLOP/s|GB/s|samp/s|samples/s|samples"
FIGURE = rf"([-+]?[\d.,]+( ± [\d.,]+)?( - [\d.,]+)?( ?({UNITS}))?|100% \(baseline\))[†‡]{{0,2}}"
RANKS = r"\d+-\d+"
COUNTED = "cells?|GPUs?|all-reduces|rows|MB|process(?:es)?|ranks?|nodes?"
MOST_OF_A_CELL = 5  # words; a cell of more is a sentence


@pytest.mark.parametrize("site", SITES)
def test_a_figure_is_written_as_the_specification_says(site: str) -> None:
    for known in verb.known(ROOT, site):
        for row in known.table.rows:
            assert len(row) == len(known.table.header) <= 10 and all(cell.text for cell in row), known.name
            texts = [cell.text for cell in row if cell.able]
            figures = [text for text in texts if re.match(r"[-+±]?[\d.]", text) and len(text.split()) <= MOST_OF_A_CELL]
            assert not [text for text in figures if not re.fullmatch(f"{FIGURE}|{RANKS}", text)], known.name
            assert not [text for text in texts if re.search(r"\b(nan|inf|None|skipped|unsupported|not_run)\b", text)]


@pytest.mark.parametrize("site", SITES)
def test_answers_are_short(site: str) -> None:
    assert not re.search(r"\b(Answered|Confirmed|Contradicted|Supported|Refuted|nan|None)\b", text_of(site))
    folder = ROOT / "results" / site
    gpus = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["gpus"]
    tables = Site(site, folder / "tables", "cuda" if gpus else "cpu")
    for kind in (kind for *_, kinds in handin.chapters(registry.CHAPTERS) for kind in kinds):
        problem = kind(tables)
        texts = [table.title + table.setup + " ".join(table.header) for table in problem.made]
        texts += [cell.text for table in problem.made for row in table.rows for cell in row if not cell.able]
        levels = set(re.findall(r"\d(?:[\d,]*\d)?", " ".join(texts)))
        for answer in problem.answered if problem.measured else []:
            text = answer.text()
            words = re.sub(r"\]\([^)]*\)", "]", text).split()
            # The figures that it quotes: no levels, counts, formulas or names.
            rest = re.sub(r"`[^`]*`|\]\([^)]*\)|\S+(?: · \S+)+|\S+ ?= ?\S+|arXiv:\S+|\b\d-\d\b|\b00\d:", " ", text)
            rest = re.sub(rf"\b[\d.]+ (?:{COUNTED})\b", " ", rest)
            quoted = re.findall(r"(?<![\w.,/-])-?\d(?:[\d,]*\d)?(?:\.\d+)?(?!\w)", rest)
            most = MOST_FIGURES + sum(one in levels for one in quoted)
            assert len(words) <= MOST_WORDS and len(quoted) <= most, (problem.name, text)


def test_answers_speak_of_what_was_measured() -> None:
    """Gloo alone where a GPU has no other, and what is pen and paper where nothing was measured."""
    gloo = {"backend": "gloo", "device": "cpu", "status": "ok", "time_ms_n": "20"}
    rows: list[Row] = [
        {**gloo, "world_size": str(world), "message": message, "host_ms": str(ms * world)}
        for world in (2, 4)
        for message, ms in (("1 MB", 1), ("100 MB", 100), ("1 GB", 1000))
    ]
    site = Site("demo", Path("nowhere"), "cuda", {"cs336.all_reduce": rows})
    problem = cs336_devices.DistributedCommunication(site)
    assert problem.answered[0].text() == (
        "On 4 processes Gloo takes 4000 ms for 1GB. From 100MB to 1GB Gloo's time grows 10.0 times. "
        "For 1GB Gloo takes 100 % longer on 4 processes than on 2."
    )
    assert problem.shown_title == "Gloo takes 1000 times as long for 1GB as for 1MB (4 processes)"
    assert not problem.findings
    text = cs336_devices.BucketedBenchmarking(site).markdown(())
    assert "\n(a): [not measured here](#not-measured-here)\n\n**(b)** overhead = s/(n_b·w)" in text


def test_the_workshop_speaks_of_the_ranks_epochs_and_dtypes_that_were_trained() -> None:
    own = {"device": "cpu", "status": "ok", "reason": "none", "world_size": "2", "wrapped_by": "FSDP1", "nodes": "1"}
    train = {"model_name": "bloom-tiny", "dtype": "bf16", "batch_size": "1", "grad_acc": "1", "loop": "bare loop"}
    train |= {"num_epochs": "2", "train_size": "6", "max_length": "48", "labels": "source", "hidden_size": "24"}
    step = {"model": "bloom-tiny", "strategy": "FULL_SHARD", "api": "FSDP2", "offload": "no", "checkpointing": "no"}
    step |= {"step_ms_n": "5"}
    tables: dict[str, list[Row]] = {
        "fsdp.multi_gpu": [{**own, **train, "train_samples_per_second": "20", "samples_scale": "1"}],
        "fsdp.preflight": [
            {**own, "world_size": "5", "on_nodes": "1", "backend": "gloo", "size_mib": "1", "busbw_gb_per_s": "3"}
        ],
        "fsdp.strategies": [{**own, **step, "dtype": "bf16", "batch": "2", "seq_len": "40", "samples_per_s": "7"}],
        "fsdp.weak_setup": [{**own, "variant": "source", "num_layers": "1", "batch_size": "4", "ran_parameters": "64"}],
        "fsdp.weak_scaling": [{**own, **train, "variant": "source", "step_ms": "9", "total_params": "64"}],
        "fsdp.baseline_losses": [{**own, "labels": "source", "epoch": "1.0"}],
    }
    made = Site("made", Path("nowhere"), "cpu", tables)
    tables["fsdp.multi_node"] = [{**tables["fsdp.multi_gpu"][0], "nodes": "3", "world_size": "3"}]
    asked = (fsdp.MultiNode, fsdp.MultiGpu, fsdp.LinkTest, fsdp.Strategies, fsdp.WeakScaling, fsdp.Baseline)
    said = {one: one(made).made[0].markdown() for one in asked}
    bloom = said[fsdp.MultiGpu]
    assert "| 2 processes | 2 | 20.0 |" in bloom and "the first measured" in bloom
    assert "bloom-tiny, BF16, batch 1, accumulation 1, 48 tokens, 6 rows, the scripts' labels" in bloom
    assert "| 5 | 1 | 3.00 |" in said[fsdp.LinkTest] and "| 3 Node | 3 | 20.0 |" in said[fsdp.MultiNode]
    of_six: dict[str, list[Row]] = {"fsdp.multi_gpu": [{**own, "device": "cuda", "world_size": "6"}]}
    assert fsdp.counts(Site("made", Path("nowhere"), "cuda", of_six), "fsdp.multi_gpu") == [1, 2, 4, 6, 8]
    assert "bloom-tiny, BF16, batch 2 per rank, 40 tokens, median ± half IQR of 5 steps" in said[fsdp.Strategies]
    assert "| FULL_SHARD | no | no | 7.00 |" in said[fsdp.Strategies]
    assert "d 24, BF16, 48 tokens, 2 epochs" in said[fsdp.WeakScaling] and "1 epoch, " in said[fsdp.Baseline]


def test_the_custom_models_tables_are_of_the_first_loop() -> None:
    section = resolve({"experiments": {"custom_multi_gpu": {"loop": ["trainer", "bare loop"]}}}, "tiny")
    planned = cells(section["experiments"]["custom_multi_gpu"] | {"seed": 0, "workshop": section["workshop"]})
    records = [Record("custom_multi_gpu", cell.factors, "not_run", "", "measured") for cell in planned]
    found = {table.id: set(table.frame["loop"]) for table in show.tables({"custom_multi_gpu": records})}
    assert found["fsdp.custom_multi_gpu"] == {"trainer"} and "bare loop" in found["fsdp.custom_loops"]


def test_it_takes_nothing_from_experiments() -> None:
    """An experiment can be deleted, and what it allows is said where it is asked for."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "perfscribe" / "report").glob("*.py")]
    assert texts and not [text for text in texts if "perfscribe.experiments" in text]
    from perfscribe.experiments.flash_benchmarking import correctness
    from perfscribe.report import cs336_kernels

    assert {name: correctness.TOLERANCE[name] for name in cs336_kernels.TOLERANCE} == cs336_kernels.TOLERANCE
