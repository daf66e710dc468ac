"""calibration on GPUs. Run by hand on such a machine: python -m pytest -s tests/calibration_gpu.py

Not collected by name. Every cell of the gpu preset runs that the machine can run, in this process; prints the tables
and how long each cell took. One GPU is enough; links need two.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import unmeasured

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.experiments.calibration import measure, show
from perfscribe.plan import plan
from perfscribe.records import environment
from perfscribe.records.records import Record
from perfscribe.run import child

GPUS = torch.cuda.device_count()
LONGEST_S = 40.0  # of calibration on one GPU


def record(cell: Cell, data_folder: str) -> Record:
    found = Record("calibration", dict(cell.factors), "ok", "", "measured", gpu=torch.cuda.get_device_name())
    lacking = environment.shortfall(cell.requires)
    if lacking:
        found.status, found.reason = lacking
        return found
    child.reset_state(0)
    try:
        measurement = measure.run(Cell(cell.factors, data_folder=data_folder))
    except Unsupported as why:  # a temporary folder's file system may keep its pages
        found.status, found.reason = "unsupported", str(why)
        return found
    child.check(measurement)
    found.samples = {sample: [values] for sample, values in measurement.samples.items()}
    found.values, found.timers = measurement.values, measurement.timers
    return found


@pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
def test_ceilings(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    records, began = [], time.monotonic()
    for cell in sorted(plan.planned_cells(unmeasured.raw_config(), "calibration", "gpu"), key=lambda one: one.cost):
        records.append(record(cell, str(tmp_path / "data")))
        print(f"{time.monotonic() - began:6.2f} s", *cell.factors.values(), flush=True)
    assert time.monotonic() - began < LONGEST_S * GPUS
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "no file is left"
    tables = show.tables({"calibration": records})[:2]
    for table in tables:
        print(table.frame.to_csv())
        assert len(table.ok) >= 3, table.id
    shares = [float(one) for table in tables for one in table.ok["share_percent"] if isinstance(one, float)]
    assert shares and max(shares) <= 102, "a rate above its data sheet was not measured right"
    for link in (one for one in records if one.ok and "rated_gb_per_s" in one.values):
        rate = link.values["bytes"] / sorted(link.samples["time_ms"][0])[len(link.samples["time_ms"][0]) // 2] / 1e6
        assert 0.5 * link.values["rated_gb_per_s"] < rate <= 1.02 * link.values["rated_gb_per_s"]
