"""The fifteen defects of the FSDP workshop's material: each has findings with a figure of ours, or a page of docs."""

from __future__ import annotations

import csv
import re

import pytest
from test_questions import CHAPTERS, made_findings, questions_of
from workspace import ROOT

REFERENCE = ROOT.parent / "shared" / "reference" / "fsdp-polaris.md"
DEFECTS = 15


def listed() -> list[dict[str, str]]:
    with open(ROOT / "docs" / "defects.csv", encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        assert reader.fieldnames == ["number", "defect", "finding"]
        return list(reader)


def test_each_defect_has_findings_of_its_own() -> None:
    rows = listed()
    numbers = [int(row["number"]) for row in rows]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, DEFECTS + 1))
    findings = [row["finding"] for row in rows if not (ROOT / row["finding"]).is_file()]  # or a page of docs
    assert len(set(findings)) == len(findings) and set(findings) <= set(made_findings())
    answers = {question["finding"] for path in CHAPTERS for question in questions_of(path)}
    assert set(findings) <= answers, "a defect's finding answers a question of the chapter"
    assert all(row["defect"].strip() for row in rows)


def test_the_source_lists_as_many() -> None:
    if not REFERENCE.is_file():
        pytest.skip("the reference is not here")
    section = REFERENCE.read_text(encoding="utf-8").split("### 1.8 ")[1].split("### ")[0]
    assert len(re.findall(r"^\d+\. ", section, re.M)) == DEFECTS
