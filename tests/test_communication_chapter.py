"""communication_accounting in the report: the tables' arithmetic, changed inputs, what the config refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
from workspace import ROOT

from perfscribe import config
from perfscribe.analytic.communication import Inputs, account
from perfscribe.experiments.communication_accounting import measure, show
from perfscribe.experiments.communication_accounting.remedies import remedies
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.show.tables import Table

NAME = "communication_accounting"
RAW = config.load(ROOT / "config.yaml")


def section(**keys: Any) -> dict[str, Any]:
    return {**RAW, "experiments": {**RAW["experiments"], NAME: {**RAW["experiments"].get(NAME, {}), **keys}}}


def tables(preset: str = "cpu", **keys: Any) -> dict[str, Table]:
    """The tables of the cell that a config with these keys gives."""
    cells = [cell for cell in plan.planned_cells(section(**keys), NAME, preset) if not cell.skip]
    records = []
    for cell in cells:
        found = measure.run(cell)
        records.append(Record(NAME, dict(cell.factors), "ok", "", "measured", values=found.values, series=found.series))
    return {table.id: table for table in show.tables({NAME: records})}


def steps(made: dict[str, Table]) -> dict[str, Any]:
    return {row.step: row.value for table_id in show.SHOWN.tables[1:] for row in made[table_id].ok.itertuples()}


# --- arithmetic of the tables -----------------------------------------------------------------------------------


def test_every_line_is_a_row_of_its_part() -> None:
    made = tables()
    for part, (table_id, _) in show.PARTS.items():
        lines = [line for line in (*account(Inputs()), *remedies(Inputs())) if line.part == part]
        rows = made[table_id].ok
        assert list(rows["step"]) == [line.name for line in lines] and len(rows) >= 3
        assert list(rows["formula"]) == [line.formula for line in lines]
        for shown, line in zip(rows["value"], lines, strict=True):
            assert shown == "none" if line.value is None else shown == pytest.approx(line.value, rel=1e-5)


def test_by_hand() -> None:
    known = steps(tables())
    assert known["parameters"] == 2 * 126 * 16384 * 53248
    assert known["state"] == 3276 and known["saved"] == 2142 and known["saved_per_token"] == 2 * 126 * (16384 + 53248)
    assert (known["devices_state"], known["devices"]) == (41, 68)
    assert known["n_fsdp"] == "none" and known["undivided"] == 1071
    alpha = 4.6e14 / 1.8e11
    assert known["alpha"] == pytest.approx(alpha, rel=1e-5)
    assert known["best"] == pytest.approx(4 * alpha**2 / (2 * 53248), rel=1e-5)


@pytest.mark.parametrize("preset", plan.PRESETS)
def test_inputs_are_the_problems_on_every_preset(preset: str) -> None:
    (cell,) = plan.planned_cells(RAW, NAME, preset)
    assert not cell.skip and not cell.requires
    assert Inputs(**{name: cell[name] for name in cell.factors}) == Inputs()
    rows = tables(preset)[show.SHOWN.tables[0]].ok
    assert dict(zip(rows["key"], rows["value"], strict=True)) == dict(cell.factors)


def test_every_input_has_a_symbol_and_a_key() -> None:
    names = [field.name for field in fields(Inputs)]
    assert names == list(show.INPUTS)
    assert set(names) <= set(config.resolve(RAW, "gpu")["experiments"][NAME])


@pytest.mark.parametrize(("d_ff", "m_x", "m_y"), [(53248, 2, 1), (8192, 1, 2)])
def test_remedies_are_the_least_batches(d_ff: int, m_x: int, m_y: int) -> None:
    """Each is the least over X and Y of the batch at which the times of the counters' formulas are equal."""
    inputs = Inputs(d_ff=d_ff, fsdp_axes=m_x, tensor_axes=m_y)
    found = {line.name: line.value or 0.0 for line in remedies(inputs)}
    alpha = inputs.flop_per_s / inputs.bandwidth_bytes_per_s

    def least(at_once: bool, weight_bytes: float, faster: float = 1.0) -> float:
        tokens = []
        for step in range(1, 4001):
            y = step / 4000  # share of compute's time that tensor parallelism communicates
            devices_y = y * m_y * d_ff * faster / alpha
            fsdp = alpha / faster / (m_x * devices_y) * weight_bytes / 2
            tokens.append(fsdp if at_once else fsdp / (1 - y) if y < 1 else float("inf"))
        return min(tokens)

    assert found["overlapped"] == pytest.approx(least(True, 2), rel=1e-3)
    assert found["one_byte"] == pytest.approx(least(False, 1), rel=1e-3)
    assert found["both"] == pytest.approx(least(True, 1), rel=1e-3)
    assert found["bandwidth"] == pytest.approx(least(False, 2, faster=2), rel=1e-3)
    assert found["both_batch"] == found["both"] * 64
    assert found["pipeline"] == pytest.approx((2 * 16384 / 1.8e11) / (4 * 16384 * d_ff / 4.6e14))


def test_a_changed_key_changes_rows() -> None:
    made = tables(tokens=4096)
    assert steps(made)["n_fsdp"] == 54 and steps(made)["saved"] == 66.9375


def test_all_activations_divided() -> None:
    made = tables(sharded_activations=1)
    assert steps(made)["n_fsdp"] == steps(made)["n_fsdp_divided"] == 58 and steps(made)["most_tokens"] == "none"


def test_other_gigabytes() -> None:
    known = steps(tables(gb_bytes=10**9))
    assert (known["devices_state"], known["devices"]) == (44, 73)


# --- config and child -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("d_model", 0),
        ("d_ff", 1.5),
        ("blocks", 0),
        ("tokens", -1),
        ("device_memory_gb", 0),
        ("fsdp_memory_gb", "95 GB"),
        ("gb_bytes", 1024),
        ("sharded_activations", 1.01),
        ("bandwidth_bytes_per_s", 0),
        ("flop_per_s", -4.6e14),
        ("fsdp_devices", 0),
        ("tensor_devices", None),
        ("fsdp_axes", 17),
        ("tensor_axes", [1]),
    ],
)
def test_inputs_that_the_config_refuses(key: str, value: Any) -> None:
    with pytest.raises(config.ConfigError) as refused:
        config.resolve(section(**{key: value}), "cpu")
    assert f"experiments.{NAME}.{key}" in str(refused.value)


def test_the_child_needs_no_torch() -> None:
    (cell,) = plan.planned_cells(RAW, NAME, "tiny")
    code = (
        "import json, sys, time; from perfscribe.run import child; from perfscribe.plan.fingerprint import Sources\n"
        "from pathlib import Path\n"
        f"from perfscribe.experiments.{NAME} import measure\n"
        "request = json.loads(sys.argv[1]); answer = child.run_cell(measure, request)\n"
        "imported = set(sys.modules) | set(Sources(Path('.')).libraries(measure.__name__))\n"
        "heavy = {'torch', 'numpy', 'pandas'} & imported\n"
        "print(json.dumps([answer['status'] + answer['reason'], answer['run_s'], sorted(heavy)]))"
    )
    planned = {"factors": dict(cell.factors), "requires": [], "cost": 1.0, "data": [], "skip": ""}
    request = json.dumps({"cell": planned, "data_folder": "", "seed": 0})
    done = subprocess.run(
        [sys.executable, "-c", code, request], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    status, seconds, heavy = json.loads(done.stdout)
    assert (status, heavy) == ("ok", []) and seconds < 1
