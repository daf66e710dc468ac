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
from perfscribe.experiments.calibration import copies, disk, measure, show
from perfscribe.instruments.timing import Timing
from perfscribe.plan import plan
from perfscribe.records.records import Record
from perfscribe.run import child
from perfscribe.show import ceilings

H200 = "NVIDIA H200"


def cells(preset: str) -> list[Cell]:
    return plan.planned_cells(unmeasured.raw_config(), "calibration", preset)


def as_record(cell: Cell, measurement: Any, gpu: str = "") -> Record:
    child.check(measurement)
    return Record(
        "calibration",
        dict(cell.factors),
        "ok",
        "",
        "measured",
        samples={name: [values] for name, values in measurement.samples.items()},
        values=dict(measurement.values),
        timers=dict(measurement.timers),
        environments=["e"],
        gpu=gpu,
    )


def made(workload: str, ms: float, gpu: str = H200, **factors: Any) -> Record:
    """A cell by hand: a product, or 10^9 bytes moved."""
    sample, values = (
        ("product_ms", {"relative_error": 1e-4}) if workload == "product" else ("time_ms", {"bytes": 10**9})
    )
    more = {name: factors.pop(name) for name in ("link", "rated_gb_per_s", "rated_by") if name in factors}
    samples = {sample: [[0.9 * ms, ms, 1.1 * ms]]}
    levels = {"workload": workload, "samples": 3, **factors}
    timers = {sample: "CUDA events"}
    return Record("calibration", levels, "ok", "", "measured", samples, {}, values | more, timers=timers, gpu=gpu)


def shown(*records: Record) -> dict[str, Any]:
    return {table.id: table for table in show.tables({"calibration": list(records)})}


# --- data sheets ------------------------------------------------------------------------------------------------


def test_bandwidths_of_data_sheets() -> None:
    def gb_per_s(name: str, kind: str) -> float | None:
        found = peak_bandwidth(name, kind)
        return None if found is None else found.bytes_per_s / 1e9

    assert [gb_per_s(H200, kind) for kind in ("memory", "nvlink", "pcie")] == [4800, 450, 64]
    assert gb_per_s("NVIDIA A100-SXM4-80GB", "memory") == 2039 and gb_per_s("A100-PCIE-40GB", "memory") == 1555
    assert gb_per_s("NVIDIA H200 MIG 1g.18gb", "memory") is None and gb_per_s("NVIDIA L40S", "nvlink") is None


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB", H200, "NVIDIA H100 NVL", "NVIDIA H200 NVL"),
        *("NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "A100-PCIE-80GB"),
        *("NVIDIA A100 80GB PCIe", "NVIDIA L40S", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"),
        *("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-32GB"),
    ],
)
def test_every_gpu_with_a_peak_rate_has_a_bandwidth(name: str) -> None:
    assert peaks.peak_flops(name, "fp16") is not None and peak_bandwidth(name, "memory") is not None


# --- cells ------------------------------------------------------------------------------------------------------


def test_the_grid() -> None:
    gpu = cells("gpu")
    links = [(cell["source_gpu"], cell["target_gpu"], cell.requires) for cell in gpu if cell["workload"] == "link"]
    assert len(links) == 12 and links[0] == (0, 1, ("cuda:2",)) and (3, 1, ("cuda:4",)) in links
    transfers = [cell for cell in gpu if cell["workload"] == "transfer"]
    assert {cell.requires for cell in transfers} == {("cuda",)} and len(transfers) == 4
    tf32 = next(cell for cell in gpu if cell.factors.get("dtype") == "tf32")
    assert tf32.requires == ("cuda", "tf32")
    cold = next(cell for cell in gpu if cell.factors.get("operation") == "cold read")
    assert cold.requires == ("posix_fadvise",) and cold["samples"] == 3


def tiny(**levels: Any) -> Cell:
    return next(cell for cell in cells("tiny") if not cell.skip and levels.items() <= cell.factors.items())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_product(dtype: str) -> None:
    cell = tiny(workload="product", dtype=dtype, matrix_size=128)
    record = as_record(cell, measure.run(cell))
    assert record.values["relative_error"] < 2e-2 and len(record.samples["product_ms"][0]) == 3
    assert ceilings.product_flop_per_s(record) > 1e6


@pytest.mark.parametrize(("operation", "accesses"), [("copy", 2), ("triad", 3)])
def test_memory(operation: str, accesses: int) -> None:
    cell = tiny(workload="memory", operation=operation, size_mib=1)
    record = as_record(cell, measure.run(cell))
    assert record.values["bytes"] == accesses * 2**20
    assert record.timers == {"time_ms": "host clock"} and ceilings.bytes_per_s(record) > 1e6


def test_a_wrong_triad_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "TRIAD_FACTOR", 3.0)
    add = torch.add

    def wrong(first: Any, second: Any, **more: Any) -> Any:
        return add(first, second, **{**more, "alpha": 2.0})

    monkeypatch.setattr(torch, "add", wrong)
    with pytest.raises(ValueError, match="triad is off by"):
        measure.run(tiny(workload="memory", operation="triad", size_mib=1))


def test_contents_that_differ_are_told() -> None:
    one = torch.randn(1 << 18)
    copies.same_content(one.clone(), one)
    other = one.clone()
    other[1 << 17] += 1.0  # in the middle: neither end shows it
    with pytest.raises(ValueError, match="the copy differs from its source"):
        copies.same_content(other, one)


# --- GPUs that are pretended ------------------------------------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tensors stay on the CPU; what would be asked of CUDA is noted."""
    asked: list[str] = []
    zeros, random = torch.zeros_like, torch.randn

    def noted(device: int) -> Any:
        asked.append(f"current {device}")
        return nullcontext()

    def timed(fn: Any, **more: Any) -> Timing:
        fn()
        asked.append(f"flushed {more['flush_l2']}")
        return Timing([2.0] * more["timed"], [2.0], "CUDA events", 0.0, 0.0)

    monkeypatch.setattr(torch, "randn", lambda *size, device: asked.append(device) or random(*size))
    monkeypatch.setattr(torch, "zeros_like", lambda like, device: asked.append(device) or zeros(like))
    monkeypatch.setattr(torch.cuda, "device", noted)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    monkeypatch.setattr(copies, "time_device", timed)
    link = types.SimpleNamespace(first=0, second=1, kind="NV18", gb_per_s=478.1, by="driver")
    rates = importlib.import_module("perfscribe.distributed.link_rates")
    monkeypatch.setattr(rates, "visible_rates", lambda count: [link] if count == 2 else [])
    return asked


def test_a_link(two_gpus: list[str]) -> None:
    factors = {"workload": "link", "source_gpu": 1, "target_gpu": 0, "size_mib": 1, "samples": 4}
    measurement = measure.run(Cell(factors))
    assert two_gpus == ["cuda:1", "cuda:0", "current 1", "flushed False"], "timed on the source's stream"
    assert measurement.values == {
        "bytes": 2**20,
        "peer_access": True,
        "link": "NV18",
        "rated_gb_per_s": 478.1,
        "rated_by": "driver",
    }
    assert measurement.samples["time_ms"] == [2.0] * 4


@pytest.fixture
def one_memory(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Host and device are the CPU; notes what is pinned, and what is timed."""
    random, empty = torch.randn, torch.empty
    noted: list[Any] = []

    def time_host(fn: Any, **more: Any) -> Timing:
        noted.append(more["device"])
        return Timing([1.0], [], "host clock", 0.0, 0.0)

    monkeypatch.setattr(torch, "randn", lambda *size, device: random(*size))
    monkeypatch.setattr(torch, "empty", lambda shape, pin_memory: noted.append(pin_memory) or empty(shape))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(copies, "time_host", time_host)
    return noted


def transfer(operation: str, host_memory: str) -> Cell:
    factors = {"workload": "transfer", "operation": operation, "host_memory": host_memory, "size_mib": 1, "samples": 1}
    return Cell(factors)


@pytest.mark.parametrize("operation", ["host to device", "device to host"])
@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
def test_a_transfer(operation: str, host_memory: str, one_memory: list[Any]) -> None:
    measurement = measure.run(transfer(operation, host_memory))
    assert one_memory == [host_memory == "pinned", "cuda"] and measurement.values["bytes"] == 2**20


@pytest.mark.parametrize("operation", ["host to device", "device to host"])
def test_a_transfer_that_copies_nothing_is_not_timed(
    operation: str, one_memory: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, calls = torch.Tensor.copy_, []

    def first_alone(self: Any, other: Any, **more: Any) -> Any:
        calls.append(self)
        return copy(self, other) if len(calls) == 1 else self

    monkeypatch.setattr(torch.Tensor, "copy_", first_alone)
    with pytest.raises(ValueError, match="the copy differs from its source"):
        measure.run(transfer(operation, "pinned"))
    assert one_memory == [True]


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
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(Unsupported, match=r"^the disk of the results has 100 MiB free, 274 MiB are asked for$"):
        run_disk(tmp_path, "write")


def test_a_file_that_holds_something_else_fails_and_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "write", lambda path, blocks: path.write_bytes(bytes(9 * 2**20)))
    with pytest.raises(ValueError, match="the file does not hold what was written"):
        run_disk(tmp_path, "write")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_the_innermost_mount_names_the_file_system(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/b {tmp_path} nfs4 rw 0 0\n/dev/c {tmp_path}x xfs rw 0 0\n")
    assert disk.file_system(tmp_path, mounts) == "nfs4" and disk.file_system(Path("/"), mounts) == "ext4"
    assert disk.file_system(tmp_path, tmp_path / "none") == "not told"


# --- what is shown ----------------------------------------------------------------------------------------------

SITE = (
    made("product", 1.0, device="cuda", dtype="bf16", matrix_size=4096),
    made("product", 1.4, device="cuda", dtype="bf16", matrix_size=8192),
    made("memory", 0.1, device="cuda", operation="copy", size_mib=256),
    made("memory", 0.25, device="cuda", operation="copy", size_mib=4096),
    made("link", 2.5, source_gpu=0, target_gpu=1, size_mib=1024, link="NV18", rated_gb_per_s=450.0, rated_by="driver"),
    made("link", 20.0, source_gpu=1, target_gpu=0, size_mib=1024, link="SYS"),
    made("transfer", 20.0, device="cuda", operation="host to device", host_memory="pinned", size_mib=256),
    made("disk", 500.0, operation="write", size_mib=512),
)


def test_rates_stand_beside_the_data_sheet() -> None:
    tables = shown(*SITE)
    _, product = (row for _, row in tables["cs336.ceilings_products"].ok.iterrows())
    assert product["rate"] == pytest.approx(2 * 8192**3 / 1.4e-3 / 1e12)
    assert product["share_percent"] == pytest.approx(100 * product["rate"] / 989)
    frame = tables["cs336.ceilings_bandwidths"].ok
    rows = {(row["work"], row["size_mib"]): row for _, row in frame.iterrows()}
    memory = rows["copy in memory", 4096]
    assert memory["rate"] == pytest.approx(4000) and memory["printed"] == 4800
    to_1, to_0 = rows["GPU 0 to GPU 1", 1024], rows["GPU 1 to GPU 0", 1024]
    assert (to_1["rate"], to_1["printed"]) == (pytest.approx(400), 450.0)
    assert (to_0["rate"], to_0["printed"]) == (pytest.approx(50), 64), "by the PCIe slot"
    assert rows["host to device, pinned", 256]["share_percent"] == pytest.approx(100 * 50 / 64)
    assert rows["disk, write", 512]["printed"] == "not known"
    assert memory["share_percent_spread"] == pytest.approx(memory["share_percent"] * memory["rate_iqr"] / 4000)


def test_the_tiny_preset_fills_every_table() -> None:
    records = []
    for cell in cells("tiny"):
        if cell.skip or cell.requires:
            records.append(Record("calibration", dict(cell.factors), "unsupported", "no CUDA device", "measured"))
        else:
            records.append(as_record(cell, measure.run(cell)))
    for table in show.tables({"calibration": records}):
        assert len(table.ok) >= 3, table.id


def test_a_copy_counts_by_the_quickest_way_to_start_it() -> None:
    slow, quick = (made("memory", ms, device="cuda", operation="copy", size_mib=1024) for ms in (2.0, 1.0))
    both = replace(slow, samples=slow.samples | {"time_launched_ms": quick.samples["time_ms"]})
    assert ceilings.bytes_per_s(slow) == 0.5e12 and ceilings.bytes_per_s(both) == 1e12
    row = shown(both)["cs336.ceilings_bandwidths"].frame.iloc[0]
    assert (row["time_ms"], row["launched_ms"], row["rate"]) == (2.0, 1.0, 1000)
    fewer = replace(slow, samples=slow.samples | {"time_launched_ms": [[1.0, 1.1]]})
    row = shown(fewer)["cs336.ceilings_bandwidths"].frame.iloc[0]
    assert (row["time_ms_n"], row["launched_ms_n"], row["rate_by"]) == (3, 2, "launched by itself")
    assert row["launched_ms_iqr"] == pytest.approx(0.05)
    row = shown(slow)["cs336.ceilings_bandwidths"].frame.iloc[0]
    assert (row["launched_ms_n"], row["rate_by"]) == ("one timer", "one timer")
    other = replace(slow, samples=slow.samples | {"time_launched_ms": [[3.0]]})
    assert ceilings.bytes_per_s(other) == 0.5e12
    assert shown(other)["cs336.ceilings_bandwidths"].frame.iloc[0]["rate_by"] == "CUDA events"
