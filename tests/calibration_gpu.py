"""calibration on GPUs. Run by hand on such a machine: python -m pytest -s tests/calibration_gpu.py

Not collected by name. Every cell of the gpu preset runs that the machine can run, in this process; prints the tables
and how long each cell took. One GPU is enough; links need two.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import unmeasured

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.experiments.calibration import measure as calibration
from perfscribe.experiments.calibration import show as ceilings
from perfscribe.plan import plan
from perfscribe.records import environment
from perfscribe.records.records import Record
from perfscribe.run import child

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
LONGEST_S = 40.0  # of calibration on one GPU


def measured(name: str, module: Any, folder: Path) -> tuple[list[Record], float]:
    """Records of the gpu preset's cells, and the seconds that they took."""
    found, spent = [], 0.0
    (folder / "data").mkdir(exist_ok=True)
    for cell in sorted(plan.planned_cells(unmeasured.raw_config(), name, "gpu"), key=lambda one: one.cost):
        lacking = environment.shortfall(cell.requires)
        began = time.monotonic()
        if lacking:
            found.append(Record(name, dict(cell.factors), *lacking, "measured"))
            continue
        child.reset_state(0)
        placed = Cell(cell.factors, cell.requires, cell.cost, cell.data, str(folder / "data"))
        try:
            measurement = module.run(placed)
        except Unsupported as why:  # a temporary folder's file system may keep its pages
            found.append(Record(name, dict(cell.factors), "unsupported", str(why), "measured"))
            continue
        child.check(measurement)
        took = time.monotonic() - began
        spent += took
        print(f"{took:6.2f} s", *cell.factors.values(), flush=True)
        samples = {sample: [values] for sample, values in measurement.samples.items()}
        found.append(
            Record(
                name,
                dict(cell.factors),
                "ok",
                "",
                "measured",
                samples,
                values=measurement.values,
                timers=measurement.timers,
                environments=["e"],
                gpu=torch.cuda.get_device_name(),
            )
        )
    return found, spent


def test_ceilings(tmp_path: Path) -> None:
    records, spent = measured("calibration", calibration, tmp_path)
    tables = {table.id: table for table in ceilings.tables({"calibration": records})}
    for table in tables.values():
        print(table.frame.to_csv())
        assert len(table.ok) >= 3, table.id
    shares = [float(one) for table in tables.values() for one in table.ok["share_percent"] if isinstance(one, float)]
    assert shares and max(shares) <= 102, "a rate above its data sheet was not measured right"
    print(f"{spent:.1f} s in all")
    assert spent < LONGEST_S * max(1, GPUS)
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "no file is left"


def test_links_are_those_of_the_pairs(tmp_path: Path) -> None:
    if GPUS < 2:
        pytest.skip("needs two GPUs")
    found = calibration.run(
        Cell({"workload": "link", "source_gpu": 0, "target_gpu": 1, "size_mib": 256, "samples": 10})
    )
    print(found.values, found.samples)
    rated = found.values.get("rated_gb_per_s")
    rate = found.values["bytes"] / sorted(found.samples["time_ms"])[5] / 1e6
    assert rated is None or 0.5 * rated < rate <= 1.02 * rated
