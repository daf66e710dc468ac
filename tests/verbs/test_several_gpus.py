"""Cells that need several GPUs: skipped, with the number at hand, before anything starts."""

from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from shards import ShardJob

from perfscribe.base.cells import Cell
from perfscribe.records import environment

SOURCE = """
from perfscribe.base.cells import Measurement


def run(cell):
    return Measurement(values={"gpus": cell["world_size"]})
"""


def test_the_worker_skips_them_and_takes_them_up_on_more_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = ShardJob(tmp_path, SOURCE)
    probe.plan([Cell({"world_size": n}, requires=(f"cuda:{n}",), cost=float(n)) for n in (2, 4, 6)])
    monkeypatch.setattr(environment, "_version_file", lambda name: {"cuda": "13.0"})
    monkeypatch.setattr(environment, "_installed", lambda module: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = []
    for gpus in (0, 2, 2, 4):
        monkeypatch.setattr(environment, "open_nvml", lambda gpus=gpus: FakeNvml(gpus) if gpus else None)
        told.append([(row["status"], row["reason"]) for row in probe.measure()])
    few, ok = ("skipped", "2 GPUs"), ("ok", "")
    none = [("unsupported", "no CUDA device")] * 3
    assert told == [none, [ok, few, few], [ok, few, few], [ok, ok, ("skipped", "4 GPUs")]]
    assert [event["event"] for event in probe.events()].count("record") == 8, "nothing new, nothing written"
