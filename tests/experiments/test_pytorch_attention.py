"""pytorch_attention: published figures beside ours."""

from __future__ import annotations

import pytest

from perfscribe.base.cells import Cell
from perfscribe.experiments.attention import measure, show
from perfscribe.records.records import Record


def cell(device: str) -> Record:
    """A cell as a write-up has it, whose memory is as predicted."""
    factors = {"seq_len": 256, "head_dim": 16, "batch": 8, "dtype": "fp32", "device": device}
    held = {moment: sum(items.values()) for moment, items in show.predicted_items(factors).items()}
    values = {"memory_before_backward_bytes": held["before_backward"], "peak_allocated_bytes": held["peak"]}
    samples = {"forward_ms": [[0.2, 0.3, 0.4]], "backward_ms": [[0.5, 0.6, 0.7]]}
    return Record("attention", factors, "ok", "", "measured", samples=samples, values=values)


def test_published_figures_stand_beside_ours() -> None:
    frame = show.tables({"attention": [cell("cpu"), cell("cuda")]})[0].frame
    on_cpu, on_gpu = frame["memory_before_backward_gib"]
    assert on_gpu - on_cpu == pytest.approx(0.0625), "cuBLAS's workspaces"
    assert on_gpu == pytest.approx(frame["memory_before_backward_gib_brandon-snider"][1], rel=0.01)
    assert list(frame["forward_ms_yyin-dev"]) == [0.312, 0.312] and frame["backward_ms_brandon-snider"][0] == 0.45


def test_the_peak_of_forward_is_below_that_of_both_passes() -> None:
    levels = {"device": "cpu", "implementation": "eager", "dtype": "fp32", "seq_len": 256, "head_dim": 16, "batch": 4}
    found = measure.run(Cell({**levels, "warmup_passes": 0, "passes": 1})).values
    assert 0 < found["peak_forward_bytes"] < found["peak_allocated_bytes"]
