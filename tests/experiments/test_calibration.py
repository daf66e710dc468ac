"""calibration: what its cells measure on this machine, what they refuse, and the tables of ceilings."""

from __future__ import annotations

import importlib
import types
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import unmeasured

from perfscribe.analytic import peaks
from perfscribe.analytic.peaks import peak_bandwidth
from perfscribe.base.cells import Cell, Unsupported
from perfscribe.experiments.calibration import measure, show
from perfscribe.instruments.timing import Timing
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.run import child
from perfscribe.show import ceilings

H200 = "NVIDIA H200"


def cells(preset: str) -> list[Cell]:
    return plan.planned_cells(unmeasured.raw_config(), "calibration", preset)


# --- data sheets ------------------------------------------------------------------------------------------------


def test_bandwidths_of_data_sheets() -> None:
    found = [peak_bandwidth(H200, kind) for kind in ("memory", "nvlink", "pcie")]
    assert [one.bytes_per_s / 1e9 for one in found if one] == [4800, 450, 64]
    assert peak_bandwidth("NVIDIA H200 MIG 1g.18gb", "memory") is None
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA L40S", "Tesla V100-PCIE-32GB"):
        assert peaks.peak_flops(name, "fp16") is not None and peak_bandwidth(name, "memory") is not None


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_tiny_preset_fills_every_table() -> None:
    records = []
    for cell in cells("tiny"):
        factors = dict(cell.factors)
        if cell.skip or cell.requires:
            records.append(Record("calibration", factors, "unsupported", "no CUDA device", "measured"))
            continue
        found = measure.run(cell)
        child.check(found)
        samples = {name: [values] for name, values in found.samples.items()}
        made = Record("calibration", factors, "ok", "", "measured", samples, values=found.values, timers=found.timers)
        records.append(made)
        if cell["workload"] == "product":
            assert found.values["relative_error"] < 2e-2 and ceilings.product_flop_per_s(made) > 1e6
        if cell["workload"] == "memory":
            accesses = {"copy": 2, "triad": 3}[cell["operation"]]
            assert found.values["bytes"] == accesses * cell["size_mib"] * 2**20 and ceilings.bytes_per_s(made) > 1e6
    for table in show.tables({"calibration": records})[:2]:
        assert len(table.ok) >= 3, table.id


def test_a_wrong_triad_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = torch.add
    monkeypatch.setattr(torch, "add", lambda first, second, **more: add(first, second, **{**more, "alpha": 2.0}))
    factors = {"workload": "memory", "device": "cpu", "operation": "triad", "size_mib": 1, "samples": 3}
    with pytest.raises(ValueError, match="triad is off by"):
        measure.run(Cell(factors))


def test_a_link_is_timed_on_the_sources_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs are pretended: tensors stay on the CPU, and what would be asked of CUDA is noted."""
    asked: list[str] = []
    zeros, random = torch.zeros_like, torch.randn

    def timed(fn: Any, **more: Any) -> Timing:
        fn()
        asked.append(f"flushed {more['flush_l2']}")
        return Timing([2.0] * more["timed"], [2.0], "CUDA events", 0.0, 0.0)

    monkeypatch.setattr(torch, "randn", lambda *size, device: asked.append(device) or random(*size))
    monkeypatch.setattr(torch, "zeros_like", lambda like, device: asked.append(device) or zeros(like))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(asked.append(f"current {device}")))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    monkeypatch.setattr(measure, "time_device", timed)
    link = types.SimpleNamespace(first=0, second=1, kind="NV18", gb_per_s=478.1, by="driver")
    rates = importlib.import_module("perfscribe.distributed.link_rates")
    monkeypatch.setattr(rates, "visible_rates", lambda count: [link] if count == 2 else [])
    factors = {"workload": "link", "source_gpu": 1, "target_gpu": 0, "size_mib": 1, "samples": 4}
    found = measure.run(Cell(factors))
    assert asked == ["cuda:1", "cuda:0", "current 1", "flushed False"]
    rated = {"link": "NV18", "rated_gb_per_s": 478.1, "rated_by": "driver"}
    assert found.values == {"bytes": 2**20, "peer_access": True, **rated}
    assert found.samples["time_ms"] == [2.0] * 4


@pytest.mark.parametrize(("operation", "host_memory"), [("host to device", "pinned"), ("device to host", "pageable")])
def test_a_transfer_is_checked(operation: str, host_memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and device are the CPU; the second time nothing but the first copy is made."""
    random, empty, copy = torch.randn, torch.empty, torch.Tensor.copy_
    pinned: list[bool] = []
    monkeypatch.setattr(torch, "randn", lambda *size, device: random(*size))
    monkeypatch.setattr(torch, "empty", lambda shape, pin_memory: pinned.append(pin_memory) or empty(shape))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measure, "time_host", lambda fn, **more: Timing([1.0], [], more["device"], 0.0, 0.0))
    factors = {"workload": "transfer", "operation": operation, "host_memory": host_memory, "size_mib": 1, "samples": 1}
    found = measure.run(Cell(factors))
    assert pinned == [host_memory == "pinned"] and found.values["bytes"] == 2**20
    calls: list[Any] = []

    def first_alone(self: Any, other: Any, **more: Any) -> Any:
        calls.append(self)
        return copy(self, other) if len(calls) == 1 else self

    monkeypatch.setattr(torch.Tensor, "copy_", first_alone)
    with pytest.raises(ValueError, match="the copy differs from its source"):
        measure.run(Cell(factors))


# --- disk -------------------------------------------------------------------------------------------------------


def run_disk(tmp_path: Path, operation: str) -> Any:
    (tmp_path / "data").mkdir(exist_ok=True)
    factors = {"workload": "disk", "operation": operation, "size_mib": 9, "samples": 2}
    return measure.run(Cell(factors, data_folder=str(tmp_path / "data")))


@pytest.mark.parametrize("operation", ["write", "cold read"])
def test_the_disk(tmp_path: Path, operation: str) -> None:
    try:
        measurement = run_disk(tmp_path, operation)
    except Unsupported as why:
        assert operation == "cold read"
        pytest.skip(str(why))
    assert measurement.values["bytes"] == 9 * 2**20 and len(measurement.samples["time_ms"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "the file is gone"


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


def test_the_innermost_mount_names_the_file_system(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/b {tmp_path} nfs4 rw 0 0\n/dev/c {tmp_path}x xfs rw 0 0\n")
    assert measure.file_system(tmp_path, mounts) == "nfs4" and measure.file_system(Path("/"), mounts) == "ext4"
    assert measure.file_system(tmp_path, tmp_path / "none") == "not told"


# --- what is shown ----------------------------------------------------------------------------------------------


def made(workload: str, ms: float, **factors: Any) -> Record:
    """A cell by hand: a product, or 10^9 bytes moved."""
    sample = "product_ms" if workload == "product" else "time_ms"
    values = {"relative_error": 1e-4} if workload == "product" else {"bytes": 10**9}
    values |= {name: factors.pop(name) for name in ("link", "rated_gb_per_s", "rated_by") if name in factors}
    samples = {sample: [[0.9 * ms, ms, 1.1 * ms]]}
    found = Record(
        "calibration", {"workload": workload, **factors}, "ok", "", "measured", samples, {}, values, gpu=H200
    )
    found.timers[sample] = "CUDA events"
    return found


def bandwidths(*records: Record) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = show.tables({"calibration": list(records)})[1].frame.to_dict("records")
    return found


def test_rates_stand_beside_the_data_sheet() -> None:
    product = made("product", 1.4, device="cuda", dtype="bf16", matrix_size=8192)
    (row,) = show.tables({"calibration": [product]})[0].frame.to_dict("records")
    assert row["rate"] == pytest.approx(2 * 8192**3 / 1.4e-3 / 1e12)
    assert row["share_percent"] == pytest.approx(100 * row["rate"] / 989)
    memory, to_1, to_0, transfer, disk = bandwidths(
        made("memory", 0.25, device="cuda", operation="copy", size_mib=4096),
        made(
            "link", 2.5, source_gpu=0, target_gpu=1, size_mib=1024, link="NV18", rated_gb_per_s=450.0, rated_by="driver"
        ),
        made("link", 20.0, source_gpu=1, target_gpu=0, size_mib=1024, link="SYS"),
        made("transfer", 20.0, device="cuda", operation="host to device", host_memory="pinned", size_mib=256),
        made("disk", 500.0, operation="write", size_mib=512),
    )
    assert memory["rate"] == pytest.approx(4000) and memory["printed"] == 4800
    assert memory["share_percent_spread"] == pytest.approx(memory["share_percent"] * memory["rate_iqr"] / 4000)
    assert (to_1["work"], to_1["rate"], to_1["printed"]) == ("GPU 0 to GPU 1", pytest.approx(400), 450.0)
    assert (to_0["rate"], to_0["printed"]) == (pytest.approx(50), 64), "by the PCIe slot"
    assert transfer["share_percent"] == pytest.approx(100 * 50 / 64)
    assert (disk["work"], disk["printed"]) == ("disk, write", "not known")


def test_a_copy_counts_by_the_quickest_way_to_start_it() -> None:
    replayed = made("memory", 2.0, device="cuda", operation="copy", size_mib=1024)
    quick, slow = (
        replace(replayed, samples=replayed.samples | {"time_launched_ms": [times]}) for times in ([1.0, 1.1], [3.0])
    )
    by_replay, by_launch, by_slow_launch = bandwidths(replayed, quick, slow)
    assert (by_replay["rate"], by_replay["rate_by"], by_replay["launched_ms_n"]) == (500, "one timer", "one timer")
    assert (by_launch["time_ms"], by_launch["launched_ms_n"], by_launch["rate_by"]) == (2.0, 2, "launched by itself")
    assert by_launch["rate"] == pytest.approx(1000 / 1.05) and by_launch["launched_ms_iqr"] == pytest.approx(0.05)
    assert (by_slow_launch["rate"], by_slow_launch["rate_by"]) == (500, "CUDA events")
