"""memory_profiling: cells measured for real on the CPU against the prediction, and what is kept without memory."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measured_cells import as_record, with_tokens

from perfscribe.analytic import memory
from perfscribe.base.cells import Measurement
from perfscribe.base.partial import of_error
from perfscribe.experiments.memory_profiling import measure, show
from perfscribe.instruments.profiling.memory_timeline import KINDS
from perfscribe.models.training_step import Step
from perfscribe.plan import plan_cells
from perfscribe.run import child, processes

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 12


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    return with_tokens(tmp_path_factory.mktemp("site") / "data", 4, CONTEXT)


def cell(data_folder, mode, dtype="fp32"):
    factors = {"device": "cpu", "size": "nano", "seq_len": CONTEXT, "mode": mode, "dtype": dtype, "batch": 4}
    return replace(measure._cell(factors), data_folder=str(data_folder))


@pytest.fixture(scope="module")
def process():
    """A process of its own, where no tensor of another test counts."""
    started = processes.Child("memory_profiling", ROOT, 0)
    yield started
    started.stop()


@pytest.mark.parametrize(("mode", "dtype"), [("inference", "bf16"), ("forward", "fp32"), ("full_step", "bf16")])
def test_a_cell_on_the_cpu(data_folder, process, mode, dtype):
    if mode == "inference" and torch.cpu._is_amx_tile_supported():
        dtype = "fp32"  # oneDNN packs bf16 weights for AMX, in memory of its own
    one = cell(data_folder, mode, dtype)
    request = {"cell": plan_cells.cell_to_json(one), "seed": 0, "data_folder": str(data_folder)}
    answer = process.run(request, 120)
    assert answer["status"] == "ok", answer
    measurement = Measurement(**answer["measurement"])
    child.check(measurement)
    record = as_record("memory_profiling", one, measurement)
    predicted = show.predicted(record)
    assert tuple(predicted) == measure.PHASES[mode]
    for phase, items in predicted.items():
        # kernels' scratch space apart, to the byte: 5 % is what is promised
        assert memory.total_bytes(items) == pytest.approx(record.values[f"{phase}_peak_bytes"], rel=0.01)
        kinds = dict(zip(KINDS, record.series[f"{phase}_kinds_bytes"], strict=True))
        assert kinds["weight copies"] == items.get("low-precision weight copies", 0)
        assert kinds["gradients"] == items.get("parameter gradients", 0)
        assert kinds["optimizer state"] == items.get("AdamW state", 0)
    assert record.values["peak_unrecorded_bytes"] == pytest.approx(record.values["peak_bytes"], rel=0.001)
    assert record.values["residual_bytes"] == 4 * CONTEXT * 32 * 4
    assert len(measurement.series["change"]) <= measure.TIMELINE_POINTS
    assert len(json.dumps(child.as_answer(measurement))) < 7.5 * 1024
    # the history lies beside the journal, and names nothing of the machine
    path = data_folder.parent / "memory" / f"cpu-nano-{CONTEXT}-{mode}-{dtype}-4.json.gz"
    history = json.loads(gzip.decompress(path.read_bytes()))
    assert len(history["changes"]) == measurement.values["changes"]
    assert [mark["name"] for mark in history["marks"]] == list(measure.PHASES[mode])
    frames = {frame for origin in history["origins"] for frame in origin["frames"]}
    assert frames and not any(frame.startswith("/") for frame in frames)
    assert any(origin["operator"].startswith("aten::") for origin in history["origins"])


@pytest.mark.parametrize("warmed", [True, False])
def test_what_was_recorded_before_memory_ran_out_is_kept(data_folder, monkeypatch, warmed):
    one, calls, full = cell(data_folder, "full_step"), [], Step.full

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
    record = replace(as_record("memory_profiling", one, kept), status="oom", reason="why")
    made = {table.id: table.frame for table in show.tables({"memory_profiling": [record]})}
    peaks = made["cs336.memory_peaks"].iloc[0]
    assert peaks["forward_gib"] > 0 and peaks["backward_gib"] is None  # the CSV says oom
    assert made["cs336.memory_timelines"]["timeline"][0].startswith("{")
