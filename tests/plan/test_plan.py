"""The plan: which cells, in which units, written only where their content changes."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.base import registry
from perfscribe.base.cells import Cell
from perfscribe.plan import plan
from perfscribe.plan.plan_cells import cell_key
from perfscribe.records import environment
from perfscribe.run import session

RAW = config.load(ROOT / "config.yaml")
EXPERIMENTS = registry.measured(ROOT)


def raw(**top: Any) -> dict[str, Any]:
    """config.yaml with other top-level values."""
    return {**copy.deepcopy(RAW), **top}


def own_keys(experiment: str = "attention", **keys: Any) -> dict[str, Any]:
    """config.yaml with other values in one experiment's section."""
    changed = raw()
    changed["experiments"].setdefault(experiment, {}).update(keys)
    return changed


@pytest.fixture(scope="module")
def tiny() -> plan.Plan:
    return plan.build(RAW, "tiny", ROOT)


def factors(unit: dict[str, Any], skipped: bool = False) -> list[dict[str, Any]]:
    return [cell["factors"] for cell in unit["cells"] if bool(cell["skip"]) == skipped]


# --- what is planned --------------------------------------------------------------------------------------------


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
    without = plan.build(own_keys(enabled=False), "tiny", ROOT)
    assert not [name for name in without.units if "attention" in name]
    assert "attention" not in without.units["report"]["experiments"]
    cs336 = plan.build(raw(chapters=["cs336"]), "tiny", ROOT)
    assert not [name for name in cs336.units if "io_formats" in name]
    assert all(name.startswith("tokens_") for name in cs336.datasets)
    assert cs336.units["report"]["chapters"] == ["cs336"]
    with pytest.raises(ValueError, match=r"^config: only: io_formats: not enabled, or shown by no chapter of cs336$"):
        plan.build(raw(chapters=["cs336"], only=["io_formats"]), "tiny", ROOT)


# --- what experiments declare -----------------------------------------------------------------------------------


def test_the_references_of_what_an_experiment_reads_are_its_own(tiny: plan.Plan) -> None:
    assert {"mixed_precision.csv", "end_to_end.csv"} <= set(tiny.units["present-end_to_end"]["references"])
    assert {"attention.csv", "flash_benchmarking.csv"} <= set(tiny.units["present-calibration"]["references"])


# --- files ------------------------------------------------------------------------------------------------------


def test_a_key_depends_on_all_that_a_figure_depends_on() -> None:
    base: tuple[Any, ...] = ("attention", {"a": 1, "b": 2}, "f" * 16, "d", 0)
    assert cell_key(*base) == cell_key("attention", {"b": 2, "a": 1}, *base[2:])
    others = [("other", *base[1:]), (base[0], {"a": 1}, *base[2:]), (*base[:2], "0" * 16, "d", 0)]
    others += [(*base[:3], "e", 0), (*base[:4], 1), (base[0], {"a": 1, "b": "2"}, *base[2:])]
    keys = {cell_key(*arguments) for arguments in (base, *others)}
    assert len(keys) == 7 and all(len(key) == 16 for key in keys)


# --- site and preset --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lacking", "preset"), [("no CUDA device", "cpu"), (None, "gpu")])
def test_auto_takes_the_preset_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, lacking: str | None, preset: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(environment, "missing", lambda requires: asked.append(tuple(requires)) or lacking)
    assert session.resolve_preset("auto") == preset and asked == [("cuda",)]
    assert [session.resolve_preset(name) for name in config.PRESETS] == list(config.PRESETS) and len(asked) == 1
    assert session.make_plan(ROOT, raw(preset="auto")).preset == preset


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            lambda section: [Cell({"a": 1, "b": 2}), Cell({"b": 2, "a": 1})],
            "attention: two cells have the same factors",
        ),
        (
            lambda section: [Cell({"a": section["width"]})],
            "attention: cells() asks for 'width', which levels.py does not declare",
        ),
        (lambda section: [Cell({"a": int("x")})], "experiments.attention, preset tiny: invalid literal for int"),
    ],
)
def test_cells_that_cannot_be_planned_are_one_line(
    monkeypatch: pytest.MonkeyPatch, cells: Callable[[dict], list[Cell]], message: str
) -> None:
    module = types.ModuleType("perfscribe.experiments.attention.measure")
    module.cells = cells  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        plan.planned_cells(RAW, "attention", "tiny")


def test_planning_imports_nothing_heavy(tmp_path: Path) -> None:
    """A plan is made each time that Snakemake starts."""
    script = tmp_path / "probe.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom perfscribe import config; from perfscribe.plan import plan\n"
        "raw = config.load(Path('config.yaml'))\nplan.build(raw, 'tiny', Path.cwd())\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'matplotlib', 'h5py', 'snakemake'} & set(sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
