"""fsdp_step: a step measured for real with gloo; its parts are those of a whole, and the page says them."""

from __future__ import annotations

import pytest
from measured_cells import as_record
from unmeasured import raw_config
from workspace import ROOT

from perfscribe import config
from perfscribe.distributed.launch import dismiss
from perfscribe.experiments.fsdp_step import measure, show
from perfscribe.plan import plan
from perfscribe.report.fsdp import MultiGpu
from perfscribe.report.site import Site

NAME = "fsdp_step"


def test_the_parts_of_a_traced_step_are_the_whole() -> None:
    section = plan.own_section(config.resolve(raw_config(), "tiny"), NAME) | {"batch": [1]}
    records = [as_record(NAME, cell, measure.run(cell)) for cell in measure.cells(section)]
    dismiss()
    [table] = show.tables({NAME: records})
    rows = table.frame.to_dict("records")
    assert [(row["api"], record.values["units"]) for row, record in zip(rows, records, strict=True)] == [
        ("FSDP2", 4),  # three blocks and what is around them
        ("FSDP1", 1),
    ]
    for row in rows:
        parts = [row[f"traced_{name}_ms"] for name in ("compute", "communication", "both", "step")]
        computing, communicating, both, step = parts
        assert min(computing, communicating) > both >= 0 and row["idle_ms"] > 0
        assert row["sends_ms"] == pytest.approx(communicating - both)
        assert computing + row["sends_ms"] + row["idle_ms"] == pytest.approx(step)


def test_the_page_says_what_a_step_waits_for() -> None:
    site = Site("h200x4", ROOT / "results" / "h200x4" / "tables", "cuda")
    levels = {"status": "ok", "world_size": "4", "wrapping": "per block", "traced_step_ms": "200", "mfu": "5"}
    few = levels | {"batch": "1", "idle_ms": "150", "sends_ms": "20"}
    full = levels | {"batch": "64", "status": "oom"}
    site._read["fsdp.step"] = [few, full]
    said = "With 1 row per GPU a traced step on 4 GPUs is 75.0 % idle."
    assert said in MultiGpu(site).answered[0].text()
    site._read["fsdp.step"] = [full]
    assert "traced step" not in MultiGpu(site).answered[0].text()
