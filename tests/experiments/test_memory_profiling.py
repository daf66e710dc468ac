"""memory_profiling: what is kept of a cell that runs out of memory. Predictions: tests/workflow/test_workflow.py."""

from dataclasses import replace

import pytest
import torch
from measured_cells import as_record, with_tokens

from perfscribe.base.cells import Cell, Measurement
from perfscribe.base.partial import of_error
from perfscribe.experiments.cs336.attention import measure as attention
from perfscribe.experiments.cs336.memory_profiling import levels, measure, show
from perfscribe.models.training_step import Step


@pytest.mark.parametrize("warmed", [True, False])
def test_what_was_recorded_before_memory_ran_out_is_kept(tmp_path, monkeypatch, warmed):
    factors = {"device": "cpu", "size": "nano", "seq_len": 12, "mode": "full_step", "dtype": "fp32", "batch": 4}
    one = replace(levels._cell(factors), data_folder=str(with_tokens(tmp_path / "data", 4, 12)))
    calls, full = [], Step.full

    def fails_in_backward(step, mark):
        calls.append(mark)
        if warmed and len(calls) <= 2:  # the warm-up, and the pass without recording
            return full(step, mark)
        loss = step.loss()
        mark("forward")
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate 2.00 GiB. {loss}")

    monkeypatch.setattr(Step, "full", fails_in_backward)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        measure.run(one)
    kept = of_error(caught.value)
    assert isinstance(kept, Measurement)
    assert kept.values["forward_peak_bytes"] > kept.values["start_bytes"]
    assert "optimizer_peak_bytes" not in kept.values
    assert ("peak_unrecorded_bytes" in kept.values) is warmed
    # A run that failed has no peak, a phase that ended before has one; on CUDA its reserved bytes tell that it ended.
    ended = replace(kept, values={**kept.values, "forward_reserved_bytes": 1})
    for measured, forward in ((kept, "oom"), (ended, kept.values["forward_peak_bytes"] / 2**30)):
        record = replace(as_record("memory_profiling", one, measured), status="oom", reason="why")
        made = {table.id: table.frame for table in show.tables({"memory_profiling": [record]})}
        peaks = made["cs336.memory_peaks"].iloc[0]
        assert [peaks[f"{part}_gib"] for part in ("forward", "backward", "peak")] == [forward, "oom", "oom"]
        assert made["cs336.memory_timelines"]["timeline"][0].startswith("{")


def test_the_peak_of_forward_is_below_that_of_both_passes() -> None:
    levels = {"device": "cpu", "implementation": "eager", "dtype": "fp32", "seq_len": 256, "head_dim": 16, "batch": 4}
    found = attention.run(Cell({**levels, "warmup_passes": 0, "passes": 1})).values
    assert 0 < found["peak_forward_bytes"] < found["peak_allocated_bytes"]
