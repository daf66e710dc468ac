"""gradient_checkpointing: peaks as predicted, results as without recomputation, and what an end of memory leaves."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from allocations import LiveBytes
from measured_cells import as_record, with_tokens
from torch.utils.checkpoint import checkpoint

from perfscribe.base import chapters
from perfscribe.base.partial import of_error
from perfscribe.experiments.cs336.gradient_checkpointing import levels, measure, show
from perfscribe.instruments.correctness import WrongResult
from perfscribe.models.recomputed import Recomputed
from perfscribe.models.training_step import Step

CONFIG = {"device": ["cpu"], "size": ["nano"], "seq_len": [64], "dtype": ["fp32"], "batch": 4}
CONFIG |= {"block_size": ["none", 0.5, 1, 2], "warmup_steps": 0, "timed_steps": 2}


@pytest.fixture
def cells(tmp_path):
    folder = str(with_tokens(tmp_path / "data", 4, 64))
    return {one["block_size"]: replace(one, data_folder=folder) for one in levels.cells(CONFIG)}


def shown(*records):
    (table,) = show.tables({"gradient_checkpointing": list(records)})
    return table.frame.set_index("block_size")


def test_peaks_are_as_predicted_and_less_than_without(cells):
    records = [as_record("gradient_checkpointing", cell, measure.run(cell)) for cell in cells.values()]
    rows = shown(*records)
    assert rows["peak_gib"].tolist() == pytest.approx(rows["predicted_gib"].tolist(), abs=64 / 2**30)
    assert rows["peak_gib"].is_monotonic_decreasing and rows["full_step_gib"]["none"] > rows["full_step_gib"][2]
    # nano has two layers: inputs of four halves, of two layers, of one block of both
    inputs = [blocks * 4 * 64 * 32 * 4 / 2**30 for blocks in (4, 2, 1)]
    assert rows["inputs_gib"].tolist() == ["no blocks", *inputs]
    # four d × d matrices, three d × d_ff and two norms
    assert rows["gradients_gib"][1] == 4 * (4 * 32 * 32 + 3 * 32 * 128 + 2 * 32) / 2**30
    assert rows["step_ratio"]["none"] == 1 < rows["full_step_ms_n"][1]
    assert shown(records[-1])["step_ratio"][2] == "no step without recomputation"


def test_recomputation_that_gives_another_result_is_an_error(cells, monkeypatch):
    monkeypatch.setattr(Recomputed, "_run", lambda self, x, rotary, mask: self.blocks[0](x * 1.01, rotary, mask))
    with pytest.raises(WrongResult, match=r"loss or gradient off by .* at block size 1"):
        measure.run(cells[1])


def test_the_peak_is_kept_where_memory_ends_in_the_full_step(cells, monkeypatch):
    def ends(step, mark):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Step, "full", ends)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        measure.run(cells[1])
    record = as_record("gradient_checkpointing", cells[1], of_error(caught.value))
    rows = shown(replace(record, status="oom", reason="why"))
    assert rows["peak_gib"][1] == pytest.approx(rows["predicted_gib"][1], rel=1e-4)
    assert rows["full_step_ms"][1] == rows["step_ratio"][1] == "oom"


def test_the_sketch_of_the_chapter_runs_as_many_layers_as_it_says_within_one_input():
    """N · (N + 1) / 2 layers forward; the activations alive at once do not grow with N."""
    text = (chapters.ROOT / "cs336" / "2026" / "gradient_checkpointing.md").read_text(encoding="utf-8")
    calls, peaks = [], []
    for depth in (4, 16):
        calls.append(0)
        weights = [torch.zeros(8, 8, requires_grad=True) for _ in range(depth)]

        def layer(x, weight):
            calls[-1] += 1
            return torch.tanh(x @ weight)

        names = {"layers": [partial(layer, weight=weight) for weight in weights]}
        names["checkpoint"] = partial(checkpoint, use_reentrant=False)
        exec(re.search("`(def run.*?)`", text)[1], names)
        x = torch.zeros(4096, 8, requires_grad=True)
        with LiveBytes(x, *weights) as live:
            names["run"](x, depth).sum().backward()
        peaks.append(live.peak)
    assert calls == [4 * 5 / 2, 16 * 17 / 2] and peaks[1] < 1.1 * peaks[0]
