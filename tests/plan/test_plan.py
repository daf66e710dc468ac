"""The plan: which cells, in which units, written only where their content changes."""

import inspect
import re
import subprocess
import sys
import types
from collections.abc import Callable

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.base import chapters, registry
from perfscribe.base.cells import Cell
from perfscribe.plan import capabilities, plan
from perfscribe.run import session

RAW = config.load(ROOT / "config.yaml")
EXPERIMENTS = registry.measured()


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_tables_of_every_preset_have_the_cells_of_the_full_grid(experiment: str) -> None:
    full = plan.planned_cells(RAW, experiment, "gpu")
    elsewhere = {cell.skip for cell in full if "nodes are needed" in cell.skip}  # cells across nodes, on one machine
    assert full and {cell.skip for cell in full} <= {"", *elsewhere}
    for preset in ("tiny", "cpu"):
        cells = plan.planned_cells(RAW, experiment, preset)
        own = [dict(cell.factors) for cell in cells if cell.skip != f"preset {preset}"]
        left_out = [dict(cell.factors) for cell in cells if cell.skip == f"preset {preset}"]
        assert own and {cell.skip for cell in cells} <= {"", f"preset {preset}", *elsewhere}
        assert [dict(cell.factors) for cell in full if dict(cell.factors) not in own] == left_out


def test_what_is_left_out_is_not_planned() -> None:
    without = plan.build({"experiments": {"attention": {"enabled": False}}}, "tiny", ROOT)
    assert not [name for name in without.units if "attention" in name]
    assert "attention" not in without.units["report"]["experiments"]
    cs336 = plan.build({"chapters": ["cs336"]}, "tiny", ROOT)
    assert not [name for name in cs336.units if "io_formats" in name]
    assert all(name.startswith("tokens_") for name in cs336.datasets)
    assert cs336.units["report"]["chapters"] == ["cs336"]
    with pytest.raises(ValueError, match=r"^config: only: io_formats: not enabled, or shown by no chapter of cs336$"):
        plan.build({"chapters": ["cs336"], "only": ["io_formats"]}, "tiny", ROOT)


def test_the_references_of_what_an_experiment_reads_are_its_own() -> None:
    units = plan.build({"chapters": list(chapters.names())}, "tiny", ROOT).units
    assert {"mixed_precision.csv", "end_to_end.csv"} <= set(units["present-end_to_end"]["references"])
    assert {"attention.csv", "flash_benchmarking.csv"} <= set(units["present-calibration"]["references"])
    for name in EXPERIMENTS:  # so that an edit of what a table shows makes it again
        text = inspect.getsource(registry.module(name, "show"))
        asked = {f"{file}.csv" for file in re.findall(r'\.(?:published|load)\(\s*"(\w+)"', text)}
        assert asked <= set(units[f"present-{name}"]["references"]), name


@pytest.mark.parametrize(("lacking", "preset"), [("no CUDA device", "cpu"), (None, "gpu")])
def test_auto_takes_the_preset_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, lacking: str | None, preset: str
) -> None:
    monkeypatch.setattr(capabilities, "missing", lambda requires: lacking if "cuda" in requires else None)
    assert session.make_plan(ROOT, {"preset": "auto"}).preset == preset


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (lambda _: [Cell({"a": 1, "b": 2}), Cell({"b": 2, "a": 1})], "attention: two cells have the same factors"),
        (lambda section: [section["width"]], "attention: cells() asks for 'width', which levels.py does not declare"),
        (lambda _: [Cell({"a": int("x")})], "experiments.attention, preset tiny: invalid literal for int"),
    ],
)
def test_cells_that_cannot_be_planned_are_one_line(
    monkeypatch: pytest.MonkeyPatch, cells: Callable[[dict], list[Cell]], message: str
) -> None:
    module = types.ModuleType("perfscribe.experiments.cs336.attention.levels")
    module.cells, module.SHOWN = cells, registry.shown("attention")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        plan.planned_cells(RAW, "attention", "tiny")


def test_planning_identity_and_provenance_import_nothing_heavy() -> None:
    """A plan is made each time that Snakemake starts."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom perfscribe import config\n"
        "from perfscribe.plan import capabilities, plan\n"
        "from perfscribe.records import machine, provenance, scrub\nfrom perfscribe.run import monitor\n"
        "from perfscribe.verbs import doctor\nraw = config.load(Path('config.yaml'))\n"
        "plan.build(raw, 'tiny', Path.cwd())\nmachine.identity(['torch'])\ndoctor.report([])\n"
        "capabilities.missing(capabilities.CAPABILITIES)\nprovenance.collect(Path('.'))\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'matplotlib', 'h5py', 'snakemake'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
