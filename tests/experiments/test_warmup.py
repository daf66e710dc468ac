"""Tables of training steps after few warm-up steps."""

from __future__ import annotations

import pytest

from perfscribe.experiments.warmup import show
from perfscribe.records.records import Record

FIRST, WARM = (100.0, 30.0, 70.0), (10.0, 20.0, 4.0)


@pytest.mark.parametrize("phase", show.PHASES)
def test_the_table_has_the_first_steps_parts(phase: str) -> None:
    factors = {"size": "nano", "seq_len": 16, "dtype": "fp32", "device": "cpu", "warmup_steps": 0, "batch": 4}
    samples = {f"{name}_ms": [[first, *[warm] * 9]] for name, first, warm in zip(show.PHASES, FIRST, WARM, strict=True)}
    samples["full_step_ms"] = [[sum(FIRST), *[sum(WARM)] * 9]]
    (table, steps) = show.tables({"warmup": [Record("warmup", factors, "ok", "", "measured", samples)]})
    assert table.ok.iloc[0][f"first_{phase}_ms"] == dict(zip(show.PHASES, FIRST, strict=True))[phase]
    assert list(steps.ok["step_ms"]) == [200.0, *[34.0] * 9]
