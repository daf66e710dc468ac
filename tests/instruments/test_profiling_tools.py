"""Search for tools, and the way of the config's section `tools` to the processes that need it."""

import json

import pytest
from shards import ShardJob

from perfscribe.base.cells import Cell
from perfscribe.instruments import tools
from perfscribe.plan import capabilities

PROBE = """
import os
from perfscribe.base.cells import Measurement
def cells(config): return []
def run(cell):
    from perfscribe.instruments import tools
    libraries = os.environ.get("PERFSCRIBE_NSYS_LIBRARIES", "")
    return Measurement(values={"found": str(tools.find_tool("nsys")), "libraries": libraries})
"""


@pytest.fixture(autouse=True)
def no_configured_tools(monkeypatch):
    for name in (tools.NSYS_VARIABLE, tools.NSYS_LIBRARIES_VARIABLE, "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def test_places_from_the_config_to_nvidias_folders(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert tools.find_tool("nsys", tmp_path) is None
    for place in (  # each before the one above it
        "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys",
        "opt/nvidia/nsight-systems/2024.9.1/bin/nsys",
        "opt/nvidia/nsight-systems/2024.10.2/bin/nsys",
        "cuda/bin/nsys",
        "bin/nsys",
        "mine/nsys",
    ):
        nsys = program(tmp_path / place)
        if place == "mine/nsys":
            tools.use({"nsys": place, "nsys_libraries": None}, tmp_path)
        assert tools.find_tool("nsys", tmp_path) == nsys
    program(tmp_path / "cuda/bin/git")  # only NVIDIA's tools are looked for in NVIDIA's folders
    assert tools.find_tool("git", tmp_path) is None


def test_no_other_program_stands_in_for_a_configured_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(program(tmp_path / "bin/nsys").parent))
    (tmp_path / "no_program").write_text("text")
    for wrong in ("absent", "no_program", "bin"):
        tools.use({"nsys": wrong}, tmp_path)
        assert capabilities.missing(["nsys"]) == "nsys (Nsight Systems) is missing"


def test_the_section_reaches_cells(tmp_path) -> None:
    job = ShardJob(tmp_path / "job", PROBE)
    job.plan([Cell({"n": 1}, requires=("nsys",))])
    nsys = program(tmp_path / "job" / "tool" / "nsys")
    options = job.plan_file.with_name("options.json")
    written = json.loads(options.read_text())
    written["probe"]["tools"] = {"nsys": "tool/nsys", "nsys_libraries": "/libraries"}
    options.write_text(json.dumps(written))
    (record,) = job.measure()
    assert record["status"] == "ok" and record["values"] == {"found": str(nsys), "libraries": "/libraries"}
