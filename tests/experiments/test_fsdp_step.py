"""fsdp_step: a step measured for real with gloo; its parts are those of a whole, and the page says them."""

from __future__ import annotations

import pytest
from measured_cells import as_record
from unmeasured import raw_config

from perfscribe import config
from perfscribe.distributed.launch import dismiss
from perfscribe.experiments.fsdp_step import measure, show
from perfscribe.plan import plan

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
