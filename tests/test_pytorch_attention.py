"""pytorch_attention: what its tables say of published figures beside ours."""

from __future__ import annotations

import pandas as pd
import pytest

from perfscribe.experiments.attention import answers, present
from perfscribe.records import Record
from perfscribe.tables import Table


def cell(device: str, status: str = "ok") -> Record:
    """A cell as a write-up has it, whose memory is as predicted."""
    factors = {"seq_len": 256, "head_dim": 16, "batch": 8, "dtype": "fp32", "device": device}
    if status != "ok":
        return Record("attention", factors, status, "no CUDA device", "measured")
    held = {moment: sum(items.values()) for moment, items in answers.predicted_items(factors).items()}
    values = {"memory_before_backward_bytes": held["before_backward"], "peak_allocated_bytes": held["peak"]}
    samples = {"forward_ms": [[0.2, 0.3, 0.4]], "backward_ms": [[0.5, 0.6, 0.7]]}
    return Record("attention", factors, "ok", "", "measured", samples=samples, values=values)


def published(*cells: Record) -> Table:
    return next(table for table in present.tables({"attention": list(cells)}) if table.id == present.TABLES[1])


@pytest.mark.parametrize(
    ("predicted_gib", "said"),
    [
        ([2.0, 8.0], "Of all 2 cells that peak at 1 GiB or more, the memory model gives the peak exactly."),
        ([2.0, 8.08], "the memory model is off by at most +1.0% (N = 8192, d_model 16)."),
    ],
)
def test_a_prediction_without_an_error_is_said_to_be_exact(predicted_gib: list[float], said: str) -> None:
    rows = pd.DataFrame({"seq_len": [4096, 8192], "head_dim": [16, 16], "peak_allocated_gib": [2.0, 8.0]})
    text, verdict = answers.prediction(rows.assign(predicted_peak_gib=predicted_gib))
    assert text.endswith(said) and verdict == "confirmed"


def test_memory_of_a_cpu_is_not_compared_with_that_of_a_gpu() -> None:
    [note] = published(cell("cuda"), cell("cpu", "unsupported")).notes
    assert "memory on a CUDA device differs for that reason" in note
    table = published(cell("cpu"), cell("cuda"))
    assert table.notes[0] == note
    assert "Rows of a CPU hold no workspaces of cuBLAS, which take 0.0625 GiB of a CUDA device" in table.notes[1]
    on_cpu, on_gpu = table.frame["memory_before_backward_gib"]
    assert on_gpu - on_cpu == pytest.approx(0.0625), "that is what sets them apart"
    assert on_cpu < table.frame["memory_before_backward_gib_brandon-snider"][0] / 20
