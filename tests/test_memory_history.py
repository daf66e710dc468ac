"""Memory histories: torch's snapshots read, replayed, reduced and grouped; on the CPU recorded for real."""

from __future__ import annotations

import random
import site
from types import SimpleNamespace

import pytest
import torch

from perfscribe.instruments.memory import PeakMemory
from perfscribe.instruments.profiling import memory_frames, memory_history
from perfscribe.instruments.profiling.memory_history import Change, Held, History, Mark, Origin
from perfscribe.instruments.profiling.memory_recorder import Recorder, from_cuda
from perfscribe.instruments.profiling.memory_timeline import (
    AFTER,
    COPIES,
    GRADIENTS,
    KINDS,
    NO_FRAME,
    OTHER,
    PARAMETERS,
    REST,
    SAVED,
    TEMPORARY,
    Timeline,
    where,
)

MIB = 2**20
START_NS = 1_700_000_000_000_000_000
PHASES = ("forward", "backward", "optimizer")
LIBRARY = site.getsitepackages()[0]
LINEAR = {"filename": f"{LIBRARY}/torch/nn/modules/linear.py", "name": "forward", "line": 134}


def model_frame(name="forward", line=1):
    return {"filename": str(memory_frames.PROJECT / "perfscribe/models/transformer.py"), "name": name, "line": line}


def entry(action, address, size, at_us, frames=(), **more):
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": START_NS // 1000 + at_us,
        "frames": list(frames),
        **more,
    }


# As torch.cuda.memory._snapshot() gives them, with what is not read left out.
SEGMENTS = [
    {
        "device": 0,
        "address": 4096,
        "total_size": 4 * MIB,
        "blocks": [
            {"address": 4096, "size": 2 * MIB, "requested_size": 2 * MIB - 100, "state": "active_allocated"},
            {"address": 4096 + 2 * MIB, "size": MIB, "requested_size": MIB, "state": "inactive"},
            {"size": MIB, "requested_size": 600_000, "state": "active_allocated"},
        ],
    }
]
PARAMETER, WORKSPACE = 4096, 4096 + 3 * MIB
TRACE = [
    entry("segment_alloc", 10**9, 20 * MIB, 5),
    entry("alloc", 100, 1000, 10, [LINEAR, model_frame()]),  # a weight copy, by its size
    entry("alloc", 200, 3000, 20, [model_frame()]),  # kept until backward has used it
    entry("alloc", 300, 5000, 30, [model_frame()]),  # a temporary
    entry("free_requested", 300, 5000, 40),
    entry("free_completed", 300, 5000, 40),
    entry("alloc", 300, 700, 60),  # in backward, where there is no Python frame: a gradient
    entry("alloc", 400, 9000, 65),
    entry("free_requested", 400, 9000, 70),
    entry("free_requested", 200, 3000, 75),
    entry("free_completed", 200, 3000, 76),
    entry("free_requested", 100, 1000, 77),
    entry("oom", 0, 10 * MIB, 80, device_free=MIB),
    entry("snapshot", 0, 0, 90),
]


def cuda_timeline():
    history = from_cuda(SEGMENTS, TRACE, START_NS)
    history.held = [Held(h.address, h.size_bytes, h.rest_bytes, labels(h.address)) for h in history.held]
    history.marks = [Mark("forward", 50), Mark("backward", 78)]
    history.labels = {PARAMETER: PARAMETERS, 300: GRADIENTS}
    return Timeline(history, PHASES, {1000})


def labels(address):
    return PARAMETERS if address == PARAMETER else ""


# --- places -----------------------------------------------------------------------------------------------------------


def test_places_are_relative_and_methods_carry_their_class():
    source = (memory_frames.PROJECT / "perfscribe/models/transformer.py").read_text().splitlines()
    line = next(n for n, text in enumerate(source, 1) if "x = x + self.attention(" in text)
    absolute = str(memory_frames.PROJECT / "perfscribe/models/transformer.py")
    for file in (absolute, "perfscribe/models/transformer.py"):
        place = memory_frames.place(file, "forward", line)
        assert place == f"perfscribe/models/transformer.py:Block.forward:{line}"
    own_environment = memory_frames.PROJECT / ".venv/lib/python3.12/site-packages"
    for library in (LIBRARY, own_environment, "/usr/lib/python3/dist-packages"):
        torch_file = f"{library}/torch/optim/adam.py"
        assert memory_frames.place(torch_file, "step", 7) == "torch/optim/adam.py:step:7"
    assert memory_frames.place("/opt/build/torch/nn/functional.py", "silu", 7) == "torch/nn/functional.py:silu:7"
    assert memory_frames.place("/home/someone/secret/train.py", "main", 3) == "train.py:main:3"
    assert memory_frames.place("<frozen importlib>", "load", 3) == "<frozen importlib>:load:3"


def test_a_line_in_no_such_function_keeps_the_name():
    assert memory_frames.place("perfscribe/models/transformer.py", "nowhere", 1).endswith(":nowhere:1")


# --- torch's snapshots ------------------------------------------------------------------------------------------------


def test_a_cuda_snapshot_is_read():
    history = from_cuda(SEGMENTS, TRACE, START_NS)
    rounded = -(-600_000 // 512) * 512
    assert history.held == [Held(PARAMETER, 2 * MIB - 100, 0), Held(WORKSPACE, 600_000, MIB - rounded)]
    assert [change.size_bytes for change in history.changes] == [
        1000,
        3000,
        5000,
        -5000,
        700,
        9000,
        -9000,
        -3000,
        -1000,
    ]
    assert history.changes[0].time_us == 10
    assert history.origins[history.changes[0].origin].frames[0] == "torch/nn/modules/linear.py:forward:134"
    assert history.out_of_memory == [(10 * MIB, MIB)]


def test_kinds_and_phases_of_a_replayed_snapshot():
    timeline = cuda_timeline()
    lives = {(life.asked_bytes, life.phase): life.kind for life in timeline.lifetimes}
    assert lives == {
        (2 * MIB - 100, ""): PARAMETERS,
        (600_000, ""): OTHER,
        (1000, "forward"): COPIES,
        (3000, "forward"): SAVED,
        (5000, "forward"): TEMPORARY,
        (700, "backward"): GRADIENTS,
        (9000, "backward"): TEMPORARY,
    }
    assert timeline.phase_of(len(timeline.history.changes)) == "optimizer"
    assert set(timeline.phase_ranges()) == {"forward", "backward"}


def test_totals_round_up_as_the_allocator_does():
    timeline = cuda_timeline()
    held = 3 * MIB  # both blocks with their rests
    assert timeline.totals[0] == held
    assert timeline.totals[1:4] == [held + 1024, held + 1024 + 3072, held + 1024 + 3072 + 5120]
    assert timeline.totals[-1] == held + 1024  # 700 bytes of gradient
    at_peak = timeline.by_kind([timeline.peak_index("backward")])[0]
    assert at_peak[TEMPORARY] == 9216
    assert at_peak[GRADIENTS] == 1024
    assert at_peak[REST] == MIB - -(-600_000 // 512) * 512
    assert sum(at_peak.values()) == max(timeline.totals)
    assert list(at_peak) == list(KINDS)


def test_a_pass_that_was_cut_short_has_its_unfinished_phase():
    history = cuda_timeline().history
    history.marks = history.marks[:1]
    timeline = Timeline(history, PHASES)
    assert set(timeline.phase_ranges()) == {"forward", "backward"}
    history.marks = []
    assert Timeline(history, ("forward",)).phase_ranges() == {"forward": (0, 9)}


def test_changes_behind_the_last_mark_belong_to_no_phase():
    timeline = Timeline(cuda_timeline().history, ("forward", "backward"))
    assert timeline.phase_of(9) == AFTER
    assert "optimizer" not in timeline.phase_ranges()


def test_a_block_whose_end_went_unseen_ends_where_its_address_is_given_again():
    changes = [Change(1, 8, 100, 0), Change(2, 8, 40, 0), Change(3, 8, -40)]
    timeline = Timeline(History("", 1, changes=changes, origins=[Origin("", ())], marks=[Mark("forward", 9)]), PHASES)
    assert timeline.totals == [0, 100, 40, 0]


def test_free_of_an_unknown_block_changes_nothing():
    history = History("", 1, changes=[Change(1, 8, -100)], marks=[Mark("forward", 9)])
    assert Timeline(history, PHASES).totals == [0, 0]


# --- reduction --------------------------------------------------------------------------------------------------------


def walk(n):
    """A history of n random allocations and frees in two phases."""
    choose, changes, alive = random.Random(1), [], []
    for at in range(n):
        if alive and choose.random() < 0.5:
            address, size = alive.pop(choose.randrange(len(alive)))
            changes.append(Change(at, address, -size))
        else:
            alive.append((at, choose.randrange(1, 1000)))
            changes.append(Change(at, *alive[-1], 0))
    return History(
        "", 1, changes=changes, origins=[Origin("", ())], marks=[Mark("forward", n // 3), Mark("backward", n)]
    )


@pytest.mark.parametrize("at_most", [20, 100, 400])
def test_reduction_keeps_what_stands_out(at_most):
    timeline = Timeline(walk(5000), ("forward", "backward"))
    kept = timeline.points(at_most)
    assert len(kept) <= at_most
    totals = [timeline.totals[index] for index in kept]
    assert max(totals) == max(timeline.totals)
    assert {0, 5000, timeline.ends[0]} <= set(kept)
    for phase, (first, last) in timeline.phase_ranges().items():
        shown = [timeline.totals[index] for index in kept if first <= index <= last]
        assert max(shown) == timeline.totals[timeline.peak_index(phase)]
    width = 5001 // ((at_most - 8) // 2) + 1
    for first in range(0, 5001 - width, 97):  # nothing higher than what is shown near it
        near = [timeline.totals[i] for i in kept if first - 2 * width <= i <= first + 2 * width]
        assert max(timeline.totals[first : first + width]) <= max(near)


def test_a_short_history_is_kept_whole():
    timeline = Timeline(walk(30), ("forward", "backward"))
    assert timeline.points(200) == list(range(31))


def test_kinds_at_several_moments_are_those_at_each():
    timeline = cuda_timeline()
    moments = list(range(len(timeline.totals)))
    assert [sum(kinds.values()) for kinds in timeline.by_kind(moments)] == timeline.totals
    assert timeline.by_kind([4])[0] == timeline.by_kind([0, 2, 4])[-1]


# --- groups -----------------------------------------------------------------------------------------------------------


def test_groups_are_by_size_phase_kind_and_place_largest_first():
    groups = cuda_timeline().groups()
    assert [(group.size_bytes, group.count) for group in groups] == [
        (9000, 1),
        (5000, 1),
        (3000, 1),
        (1000, 1),
        (700, 1),
    ]
    assert groups[0].frame == NO_FRAME
    assert groups[1].frame.startswith("perfscribe/models/transformer.py:")
    twice = cuda_timeline()
    twice.lifetimes += [life for life in twice.lifetimes if life.asked_bytes == 5000]
    assert twice.groups()[1].count == 2


def test_where_tells_the_project_s_frame_from_the_library_s():
    frames = (
        "torch/nn/modules/linear.py:forward:134",
        "torch/nn/modules/module.py:_call_impl:1",
        "perfscribe/a.py:f:2",
    )
    assert where(Origin("aten::linear", frames)) == ("perfscribe/a.py:f:2", f"{frames[0]} aten::linear")
    assert where(Origin("aten::mul", frames[2:])) == ("perfscribe/a.py:f:2", "aten::mul")
    assert where(Origin("", frames[2:]))[1] == "called there directly"
    assert where(Origin("", frames[:2]))[0] == frames[0]


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_history_is_the_same_after_its_file(tmp_path):
    history = cuda_timeline().history
    memory_history.write(history, tmp_path / "memory" / "cell.json.gz")
    assert memory_history.read(tmp_path / "memory" / "cell.json.gz") == history
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["cell.json.gz"]


def test_a_file_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_history, "FORMAT", 2)
    memory_history.write(History("", 1), tmp_path / "cell.json.gz")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 2, expected 1"):
        memory_history.read(tmp_path / "cell.json.gz")


# --- recording --------------------------------------------------------------------------------------------------------


def test_the_cpu_recorder_agrees_with_the_peak_counter():
    weight = torch.nn.Parameter(torch.ones(256, 256))
    x = torch.ones(64, 256)

    def passes(mark):
        loss = torch.nn.functional.linear(x, weight).exp().sum()
        mark("forward")
        loss.backward()
        mark("backward")

    with PeakMemory("cpu") as peak:
        passes(lambda name: None)
    weight.grad = None
    known = {PARAMETERS: [weight], GRADIENTS: [weight]}
    recorder = Recorder(
        "cpu", lambda: {PARAMETERS: [weight], GRADIENTS: [p.grad for p in [weight] if p.grad is not None]}
    )
    with recorder:
        passes(recorder.mark)
    timeline = Timeline(recorder.history, ("forward", "backward"))
    assert max(timeline.totals) - timeline.totals[0] == peak.peak_allocated_bytes - peak.allocated_before_bytes
    kinds = timeline.by_kind([len(timeline.totals) - 1])[0]
    assert kinds[PARAMETERS] == kinds[GRADIENTS] == known[PARAMETERS][0].numel() * 4
    saved = timeline.by_kind([timeline.ends[0]])[0][SAVED]
    assert saved == 64 * 256 * 4 + 4  # exp's result, and the loss
    assert any("test_memory_history.py:passes" in group.frame for group in timeline.groups())
    assert any("ExpBackward0" in group.below for group in timeline.groups())


def test_a_history_is_there_after_an_error():
    recorder = Recorder("cpu", dict)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"), recorder:
        held = torch.ones(1000)
        recorder.mark("forward")
        torch.empty(2**52, dtype=torch.uint8)
    timeline = Timeline(recorder.history, PHASES)
    assert held.numel() * 4 in {life.asked_bytes for life in timeline.lifetimes}
    assert [mark.name for mark in recorder.history.marks] == ["forward"]


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="meta"):
        Recorder("meta", dict)


def test_the_cuda_recorder_asks_torch_in_this_order(monkeypatch, tmp_path):
    log, snapshots = [], iter([{"segments": SEGMENTS}, {"segments": [], "device_traces": [TRACE]}])
    numbers = {"memory_allocated": 10, "max_memory_allocated": 20, "max_memory_reserved": 30, "current_device": 0}
    for name, answer in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: log.append(name))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: log.append("snapshot") or next(snapshots))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: log.append(file))
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda enabled, **options: log.append((enabled, options))
    )
    viewer = tmp_path / "memory" / "cell.pickle"
    recorder = Recorder("cuda", dict, viewer)
    with recorder:
        log.append("body")
        recorder.mark("forward")
    begins = ("all", {"context": "alloc", "stacks": "python"})
    assert log == [
        *("synchronize", "empty_cache", "snapshot", begins, "reset_peak_memory_stats"),
        *("body", "synchronize", "reset_peak_memory_stats"),
        *("snapshot", str(viewer), (None, {})),
    ]
    assert viewer.parent.is_dir()
    mark = recorder.history.marks[0]
    assert (mark.allocated_bytes, mark.peak_bytes, mark.reserved_bytes) == (10, 20, 30)
    assert len(recorder.history.changes) == 9


def test_a_mark_lies_in_the_middle_of_the_wait_for_the_device(monkeypatch):
    clock = iter([START_NS, START_NS + 5_000_000, START_NS + 7_000_000])  # entry, and around the wait
    monkeypatch.setattr("perfscribe.instruments.profiling.memory_recorder.time.time_ns", lambda: next(clock))
    recorder = Recorder("cpu", dict)
    recorder._source = SimpleNamespace(start=lambda: None, counters=dict, stop=lambda start_ns: History("", 1))
    with recorder:
        recorder.mark("forward")
    assert [mark.time_us for mark in recorder.history.marks] == [6000]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_cuda_recorder_for_real(tmp_path):
    weight = torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
    viewer = tmp_path / "cell.pickle"
    recorder = Recorder("cuda", lambda: {PARAMETERS: [weight]}, viewer)
    with recorder:
        loss = (weight * 2).sum()
        recorder.mark("forward")
        loss.backward()
        recorder.mark("backward")
    timeline = Timeline(recorder.history, ("forward", "backward"))
    for phase, mark in zip(("forward", "backward"), recorder.history.marks, strict=True):
        assert timeline.totals[timeline.peak_index(phase)] == pytest.approx(mark.peak_bytes, abs=2 * MIB)
    assert timeline.totals[timeline.ends[0]] == pytest.approx(recorder.history.marks[0].allocated_bytes, abs=2 * MIB)
    assert any("test_memory_history.py" in group.frame for group in timeline.groups())
    assert viewer.stat().st_size > 0
