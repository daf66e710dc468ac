"""calibration: what its cells measure on this machine, what they refuse, and the tables of ceilings."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
import unmeasured
from measured_cells import as_record

from perfscribe.analytic import peaks
from perfscribe.analytic.peaks import peak_bandwidth
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.experiments.calibration import measure
from perfscribe.plan import plan
from perfscribe.show import ceilings

H200 = "NVIDIA H200"


def cells(preset: str) -> list[Cell]:
    return plan.planned_cells(unmeasured.raw_config(), "calibration", preset)


# --- data sheets ------------------------------------------------------------------------------------------------


def test_bandwidths_of_data_sheets() -> None:
    found = [peak_bandwidth(H200, kind) for kind in ("memory", "pcie")]
    assert [one.bytes_per_s / 1e9 for one in found if one] == [4800, 64]
    assert peak_bandwidth("NVIDIA H200 MIG 1g.18gb", "memory") is None
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA L40S", "Tesla V100-PCIE-32GB"):
        assert peaks.peak_flops(name, "fp16") is not None and peak_bandwidth(name, "memory") is not None


# --- cells ------------------------------------------------------------------------------------------------------


def test_rates_are_of_all_bytes_that_move_and_of_right_products() -> None:
    for cell in cells("tiny"):
        if cell["workload"] in ("product", "memory") and not cell.skip and not cell.requires:
            found = measure.run(cell)
            made = as_record("calibration", cell, found)
            if cell["workload"] == "product":
                assert found.values["relative_error"] < 2e-2 and ceilings.product_flop_per_s(made) > 1e6
            else:
                accesses = {"copy": 2, "triad": 3}[cell["operation"]]
                assert found.values["bytes"] == accesses * cell["size_mib"] * 2**20
                assert ceilings.bytes_per_s(made) > 1e6


def test_a_wrong_triad_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = torch.add
    monkeypatch.setattr(torch, "add", lambda first, second, **more: add(first, second, **{**more, "alpha": 2.0}))
    factors = {"workload": "memory", "device": "cpu", "operation": "triad", "size_mib": 1, "samples": 3}
    with pytest.raises(ValueError, match="triad is off by"):
        measure.run(Cell(factors))


# --- disk -------------------------------------------------------------------------------------------------------


def run_disk(tmp_path: Path, operation: str) -> Any:
    (tmp_path / "data").mkdir(exist_ok=True)
    factors = {"workload": "disk", "operation": operation, "size_mib": 9, "samples": 2}
    return measure.run(Cell(factors, data_folder=str(tmp_path / "data")))


def test_a_full_disk_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = types.SimpleNamespace(free=100 * 2**20)
    monkeypatch.setattr(measure.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(Unsupported, match=r"^the disk of the results has 100 MiB free, 274 MiB are asked for$"):
        run_disk(tmp_path, "write")


def test_a_file_that_holds_something_else_fails_and_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_write", lambda path, blocks: path.write_bytes(bytes(9 * 2**20)))
    with pytest.raises(ValueError, match="the file does not hold what was written"):
        run_disk(tmp_path, "write")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
