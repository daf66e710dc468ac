"""The text of `./run doctor`."""

import re

import pytest

from perfscribe.base.cells import Cell
from perfscribe.instruments import nvml
from perfscribe.plan import capabilities
from perfscribe.records import libraries
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
    monkeypatch.setattr(nvml, "load", lambda: None)
    monkeypatch.setattr(libraries, "constants", lambda name: {"cuda": None})


def test_machine_without_gpu(cpu_machine):
    text = doctor.report(UNITS)
    assert any(line.split(maxsplit=1) == ["GPU", "no CUDA device"] for line in rows(text, "Machine"))
    assert "driver" not in "".join(rows(text, "Machine"))
    assert rows(text, "What is measured here") == ["3 of 6 cells, those of preset gpu counted"]
    assert rows(text, "What is missing") == [
        "no CUDA device: run on a machine with an NVIDIA GPU and its driver; for attention",
        "torch is a build without CUDA: install a CUDA build of torch; for attention",
    ]


def test_an_nsys_that_does_not_run_is_told_with_the_reason(cpu_machine, tmp_path, monkeypatch):
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\necho libx.so: cannot open shared object file\nexit 127\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PERFSCRIBE_NSYS", str(fake))
    why = f"{fake} does not run: nsys --version: exit status 127: libx.so: cannot open shared object file"
    assert [line for line in rows(doctor.report(UNITS), "Tools") if line.startswith("nsys") and line.endswith(why)]


def test_one_line_for_what_several_experiments_lack(cpu_machine):
    """It asks for as much as the most demanding of them."""
    on_nodes = [(name, [Cell({"n": n}, requires=(f"nodes:{n}",)) for n in (2, 16)]) for name in ("one", "two")]
    text = doctor.report([*on_nodes, ("three", [Cell({"n": 1})])])
    assert rows(text, "What is measured here")[0].endswith("nothing of one, two")
    (line,) = rows(text, "What is missing")
    assert "jobs may have 16 nodes" in line and line.endswith("; for all but three")


def test_recorded_h200(h200):
    text = doctor.report(UNITS)
    pairs = dict(re.split(r" {2,}", line, maxsplit=1) for line in rows(text, "Machine"))
    assert pairs["GPU"] == "2 × NVIDIA H200" and pairs["GPU memory"] == "140.4 GiB"  # 143771 MiB
    assert pairs["power limit"] == "700 W" and pairs["driver"] == "580.159.04, CUDA 13.0"
    assert rows(text, "What is measured here") == ["6 of 6 cells, those of preset gpu counted"]
    assert rows(text, "What is missing") == ["nothing"]


def test_a_folder_that_python_takes_for_a_package_is_named(tmp_path, monkeypatch):
    """By the trainings' rows before a cell starts, and by the doctor."""
    monkeypatch.setattr(capabilities, "ROOT", tmp_path)
    assert capabilities.missing(("transformers",)) in (None, "transformers is missing")
    (tmp_path / "datasets").mkdir()
    reason = "'datasets' in the checkout is taken for the Python package datasets"
    assert capabilities.shortfall(("transformers",)) == ("unsupported", reason, "unsupported")
    told = doctor.report([("baseline", [Cell({"model_name": "bloom"}, ("transformers",))])])
    assert "'datasets' in the checkout is taken for" in told
    assert "rename the folder or file datasets in the checkout; for all" in told
