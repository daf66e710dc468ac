"""calibration: what its cells measure on this machine, what they refuse, and the tables of ceilings."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_cells import as_record

from perfscribe.base.cells import Cell, Unsupported
from perfscribe.experiments.cs336.calibration import host, measure
from perfscribe.plan import plan
from perfscribe.show import ceilings


def test_rates_are_of_all_bytes_that_move_and_of_right_products() -> None:
    for cell in plan.planned_cells({}, "calibration", "tiny"):
        if cell["workload"] in ("product", "memory") and not cell.skip and not cell.requires:
            found = measure.run(cell)
            made = as_record("calibration", cell, found)
            if cell["workload"] == "product":
                assert found.values["relative_error"] < 2e-2 and ceilings.product_flop_per_s(made) > 1e6
            else:
                accesses = {"copy": 2, "triad": 3}[cell["operation"]]
                assert found.values["bytes"] == accesses * cell["size_mib"] * 2**20
                assert ceilings.bytes_per_s(made) > 1e6


def test_what_the_host_spends_per_call_is_timed_where_the_result_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = {"workload": "host", "device": "cpu", "samples": 3}
    times = {}
    for operation in ("Python call", "launch", "autograd"):
        samples = measure.run(Cell({**factors, "operation": operation})).samples["call_us"]
        assert len(samples) == 3
        times[operation] = min(samples)
    assert 0 < times["Python call"] < times["launch"] < times["autograd"] < 10_000
    monkeypatch.setattr(host, "_backward", lambda w: (w * 3).backward())
    with pytest.raises(ValueError, match=r"^autograd: "):
        measure.run(Cell({**factors, "operation": "autograd"}))


def test_a_wrong_triad_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = torch.add
    monkeypatch.setattr(torch, "add", lambda first, second, **more: add(first, second, **{**more, "alpha": 2.0}))
    factors = {"workload": "memory", "device": "cpu", "operation": "triad", "size_mib": 1, "samples": 3}
    with pytest.raises(ValueError, match="triad is off by"):
        measure.run(Cell(factors))


def test_a_full_disk_is_unsupported_and_a_wrong_file_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "data").mkdir()
    factors = {"workload": "disk", "operation": "write", "size_mib": 9, "samples": 2}
    cell, usage = Cell(factors, data_folder=str(tmp_path / "data")), types.SimpleNamespace(free=100 * 2**20)
    with monkeypatch.context() as full:
        full.setattr(measure.shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(Unsupported, match=r"^the disk of the results has 100 MiB free, 274 MiB are asked for$"):
            measure.run(cell)
    monkeypatch.setattr(measure, "_write", lambda path, blocks: path.write_bytes(bytes(9 * 2**20)))
    with pytest.raises(ValueError, match="the file does not hold what was written"):
        measure.run(cell)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
