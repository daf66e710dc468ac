"""Memory histories: torch's snapshots read, replayed, reduced and grouped; on the CPU recorded for real."""

import site

import pytest
import torch

from perfscribe.instruments.profiling import memory_recorder
from perfscribe.instruments.profiling import memory_timeline as kinds
from perfscribe.instruments.profiling.memory_recorder import Change, Held, History, Mark, Origin, from_cuda, place
from perfscribe.instruments.profiling.memory_timeline import PARAMETERS, Timeline

MIB = 2**20
START_NS = 1_700_000_000_000_000_000
PHASES = ("forward", "backward", "optimizer")
LIBRARY = site.getsitepackages()[0]
TRANSFORMER = memory_recorder.PROJECT / "perfscribe/models/transformer.py"
LINEAR = {"filename": f"{LIBRARY}/torch/nn/modules/linear.py", "name": "forward", "line": 134}
MODEL = {"filename": str(TRANSFORMER), "name": "forward", "line": 1}


def entry(action, address, size, at_us, *frames, **more):
    time_us = START_NS // 1000 + at_us
    return {"action": action, "addr": address, "size": size, "time_us": time_us, "frames": frames, **more}


# As torch.cuda.memory._snapshot() gives them, with what is not read left out.
BLOCKS = [
    {"address": 4096, "size": 2 * MIB, "requested_size": 2 * MIB - 100, "state": "active_allocated"},
    {"address": 4096 + 2 * MIB, "size": MIB, "requested_size": MIB, "state": "inactive"},
    {"size": MIB, "requested_size": 600_000, "state": "active_allocated"},
]
PARAMETER = 4096
REST_BYTES = MIB - -(-600_000 // 512) * 512
TRACE = [
    entry("segment_alloc", 10**9, 20 * MIB, 5),
    entry("alloc", 100, 1000, 10, LINEAR, MODEL),  # a weight copy, by its size
    entry("alloc", 200, 3000, 20, MODEL),  # kept until backward has used it
    entry("alloc", 300, 5000, 30, MODEL),  # a temporary
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


def cuda_timeline(marks=2):
    history = from_cuda([{"device": 0, "address": 4096, "blocks": BLOCKS}], TRACE, START_NS)
    history.held[0] = Held(PARAMETER, 2 * MIB - 100, 0, PARAMETERS)
    history.marks = [Mark("forward", 50), Mark("backward", 78)][:marks]
    history.labels = {PARAMETER: PARAMETERS, 300: kinds.GRADIENTS}
    return Timeline(history, PHASES, {1000})


def test_places_are_relative_and_methods_carry_their_class():
    source = TRANSFORMER.read_text().splitlines()
    line = next(n for n, text in enumerate(source, 1) if "x = x + self.attention(" in text)
    for file in (str(TRANSFORMER), "perfscribe/models/transformer.py"):
        assert place(file, "forward", line) == f"perfscribe/models/transformer.py:Block.forward:{line}"
    assert place("perfscribe/models/transformer.py", "nowhere", 1).endswith(":nowhere:1")
    own_environment = memory_recorder.PROJECT / ".venv/lib/python3.12/site-packages"
    for library in (LIBRARY, own_environment, "/usr/lib/python3/dist-packages"):
        assert place(f"{library}/torch/optim/adam.py", "step", 7) == "torch/optim/adam.py:step:7"
    assert place("/opt/build/torch/nn/functional.py", "silu", 7) == "torch/nn/functional.py:silu:7"
    assert place("/home/someone/secret/train.py", "main", 3) == "train.py:main:3"


def test_kinds_phases_and_totals_of_a_replayed_snapshot():
    timeline = cuda_timeline()
    assert {(life.asked_bytes, life.phase): life.kind for life in timeline.lifetimes} == {
        (2 * MIB - 100, ""): PARAMETERS,
        (600_000, ""): kinds.OTHER,
        (1000, "forward"): kinds.COPIES,
        (3000, "forward"): kinds.SAVED,
        (5000, "forward"): kinds.TEMPORARY,
        (700, "backward"): kinds.GRADIENTS,
        (9000, "backward"): kinds.TEMPORARY,
    }
    assert timeline.phase_of(len(timeline.history.changes)) == "optimizer"
    # a pass that was cut short has its unfinished phase
    assert set(timeline.phase_ranges()) == set(cuda_timeline(marks=1).phase_ranges()) == {"forward", "backward"}
    assert cuda_timeline(marks=0).phase_ranges() == {"forward": (0, 9)}
    held = 3 * MIB  # both blocks with their rests: totals round up as the allocator does
    assert timeline.totals[:4] == [held, held + 1024, held + 1024 + 3072, held + 1024 + 3072 + 5120]
    assert timeline.totals[-1] == held + 1024  # 700 bytes of gradient
    at_peak = {kind: sizes[timeline.peak_index("backward")] for kind, sizes in timeline.by_kind.items()}
    assert (at_peak[kinds.TEMPORARY], at_peak[kinds.GRADIENTS], at_peak[kinds.REST]) == (9216, 1024, REST_BYTES)
    assert sum(at_peak.values()) == max(timeline.totals)


def test_what_backward_frees_first_was_saved_for_it() -> None:
    changes = [Change(1, 8, 100, 0), Change(3, 8, -100)]
    history = History("", 1, changes=changes, origins=[Origin("", ())], marks=[Mark("forward", 2)])
    assert [life.kind for life in Timeline(history, PHASES).lifetimes] == [kinds.SAVED]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_cuda_recorder_for_real(tmp_path):
    weight = torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
    viewer = tmp_path / "cell.pickle"
    recorder = memory_recorder.Recorder("cuda", lambda: {PARAMETERS: [weight]}, viewer)
    with recorder:
        loss = (weight * 2).sum()
        recorder.mark("forward")
        loss.backward()
        recorder.mark("backward")
    timeline = Timeline(recorder.history, PHASES[:2])
    for phase, mark in zip(PHASES[:2], recorder.history.marks, strict=True):
        assert timeline.totals[timeline.peak_index(phase)] == pytest.approx(mark.peak_bytes, abs=2 * MIB)
    assert timeline.totals[timeline.ends[0]] == pytest.approx(recorder.history.marks[0].allocated_bytes, abs=2 * MIB)
    assert any("test_memory_history.py" in group.frame for group in timeline.groups())
    assert viewer.stat().st_size > 0
