"""Memory of training steps: what is in a peak is what its column is called."""

from __future__ import annotations

import pandas as pd

from perfscribe.counters import memory
from perfscribe.experiments.end_to_end import answers, predictions, present
from perfscribe.records import Record


def cell(**values: float) -> Record:
    factors = {"size": "nano", "seq_len": 16, "batch": 4, "dtype": "fp32", "device": "cpu"}
    return Record("end_to_end", factors, "ok", "", "measured", values=dict(values))


def test_a_peak_that_holds_the_optimizer_s_state_is_called_so() -> None:
    held = {phase: memory.STATE in predictions.items(cell(), phase) for phase in ("forward_no_grad", "forward_graph")}
    assert held == {"forward_no_grad": False, "forward_graph": True}
    titles = {column.name: column.title for column in present._memory_columns()}
    assert titles["peak_forward_graph_gib"] == "Forward of a training step, AdamW's state held, peak (GiB)"
    assert "state" not in titles["peak_forward_no_grad_gib"]
    assert "Forward under no_grad is measured before AdamW has a state" in present.MEMORY_NOTE


def test_the_sentence_calls_it_as_its_column_does() -> None:
    names = [f"{kind}_{phase}_gib" for phase in predictions.PHASES for kind in ("peak", "predicted")]
    figures = dict.fromkeys(names, 2.0) | {"peak_forward_graph_gib": 2.1}
    row = {**cell().factors, "parameters": 8, "predicted_parameters": 8, **figures}
    text, verdict = answers.memory(pd.DataFrame([row]))
    assert "(forward of a training step, AdamW's state held, nano, context 16, fp32)" in text and verdict == "confirmed"
