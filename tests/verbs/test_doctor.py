"""The text of `./run doctor`."""

from __future__ import annotations

import re

import pytest
from fake_nvml import FakeNvml

from perfscribe.base.cells import Cell
from perfscribe.records import environment
from perfscribe.verbs import doctor


def rows(text, title):
    section = text.split(f"{title}\n{'-' * len(title)}\n")[1].split("\n\n")[0]
    return section.splitlines()


UNITS = [
    ("attention", [Cell({"d": d}, requires=("cuda",)) for d in (16, 32, 64)] + [Cell({"d": 128})]),
    ("io_formats", [Cell({"format": "npy"}), Cell({"format": "hdf5"}, requires=("hdf5",))]),
]


@pytest.fixture
def cpu_machine(monkeypatch):
    monkeypatch.setattr(environment, "open_nvml", lambda: None)
    monkeypatch.setattr(environment, "_version_file", lambda name: {"cuda": None})


def test_machine_without_gpu(cpu_machine):
    text = doctor.report(UNITS)
    assert any(line.split(maxsplit=1) == ["GPU", "no CUDA device"] for line in rows(text, "Machine"))
    assert "driver" not in "".join(rows(text, "Machine"))
    table = rows(text, "What this machine leaves unsupported")
    assert table[2].split()[:3] == ["attention", "4", "3"]
    assert "no CUDA device; torch is a build without CUDA" in table[2]
    assert "install a CUDA build of torch" in " ".join(" ".join(table[2:4]).split())
    assert [line.split() for line in table if line.startswith("io_formats")] == [["io_formats", "2", "0"]]


def test_recorded_h200(monkeypatch):
    nvml = FakeNvml(1)
    monkeypatch.setattr(environment, "open_nvml", lambda: nvml)
    monkeypatch.setattr(environment, "_version_file", lambda name: {"cuda": "13.0"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    text = doctor.report(UNITS)
    pairs = dict(re.split(r" {2,}", line, maxsplit=1) for line in rows(text, "Machine"))
    assert pairs["GPU"] == "1 × NVIDIA H200" and pairs["GPU memory"] == "140.4 GiB"  # 143771 MiB
    assert pairs["power limit"] == "700 W" and pairs["driver"] == "580.159.04, CUDA 13.0"
    table = rows(text, "What this machine leaves unsupported")[2:]
    assert [line.split() for line in table] == [["attention", "4", "0"], ["io_formats", "2", "0"]]


def test_a_folder_that_python_takes_for_a_package_is_named(tmp_path, monkeypatch):
    """By the trainings' rows before a cell starts, and by the doctor."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.shortfall(("transformers",)) in (None, ("unsupported", "transformers is missing"))
    (tmp_path / "datasets").mkdir()
    reason = "'datasets' in the checkout is taken for the Python package datasets"
    assert environment.shortfall(("transformers",)) == ("unsupported", reason)
    told = doctor.report([("baseline", [Cell({"model_name": "bloom"}, ("transformers",))])])
    assert "'datasets' in the checkout is taken for" in told
    assert "rename the folder or file datasets in the" in told  # the table breaks lines
