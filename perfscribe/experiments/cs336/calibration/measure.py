"""Measures the machine's ceilings, each by the simplest work that it bounds.

The factor `workload` distinguishes the kinds of cells: product (a square product of random matrices), memory (a copy
and a triad within a device's memory), link (a copy from one GPU to another), transfer (between host and device),
disk (one file next to the results; it is removed) and host (what the CPU spends per call, see host.py).

Bytes by operation: a copy reads and writes each byte and counts twice within a memory, once over a link; a triad
a = b + s c reads two and writes one, so three times (as in STREAM: the read before an overwrite does not count).
Tensors are fp32, of random numbers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perfscribe.base.cells import Cell, Measurement, Unsupported
from perfscribe.experiments.cs336.calibration import host
from perfscribe.experiments.cs336.flash_benchmarking import products
from perfscribe.instruments import correctness
from perfscribe.instruments.graph_timing import Clocks
from perfscribe.instruments.timing import record, time_device, time_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

PRODUCT, MEMORY, LINK, TRANSFER, DISK, HOST = "product", "memory", "link", "transfer", "disk", "host"
MIB = 2**20
FP32_BYTES = 4
TRIAD_FACTOR = 3.0
ACCESSES = {"copy": 2, "triad": 3}
CHECKED_ELEMENTS = 2**16
TOLERANCE = 1e-6  # relative error of fp32 against float64 after one multiplication and one addition
WARMUP = 2
BLOCK_BYTES = 8 * MIB  # written or read at once
KEPT_FREE_BYTES = 256 * MIB
MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Ceiling:
    """Factors of a cell that is no product; those with a default are of some kinds of work."""

    workload: str
    samples: int
    device: str = ""
    operation: str = ""
    size_mib: int = 0
    host_memory: str = ""
    source_gpu: int = 0
    target_gpu: int = 0


def run(cell: Cell) -> Measurement:
    """Check the result of one kind of work, then time it.

    samples: product_ms, time_ms or call_us. values: bytes moved per call, by the convention of its kind;
    relative_error of a product; the machine's description of a link; the disk's file system.
    """
    of = cell.read(Ceiling)
    if of.workload == PRODUCT:
        return products.measure(cell.read(products.Product))
    if of.workload == DISK:
        return on_disk(of, cell.data_folder)
    if of.workload == HOST:
        return host.measure(of.operation, of.device, of.samples)
    return {MEMORY: within, LINK: between, TRANSFER: from_host}[of.workload](of)


def within(of: Ceiling) -> Measurement:
    """Time copy or triad in a device's memory: graph replay with L2 flushed on CUDA, host clock on a CPU."""
    device, operation, size_mib = of.device, of.operation, of.size_mib

    def make() -> Callable[[], Tensor]:
        return _operation_on(operation, _random(size_mib, device), _random(size_mib, device))

    _check(operation, *(_random(size_mib, device) for _ in range(2)))
    measurement = Measurement(values={"bytes": ACCESSES[operation] * size_mib * MIB})
    timers = Clocks(device, of.samples)
    timers.time(measurement, "time", make)
    measurement.values |= timers.values()
    return measurement


def _random(size_mib: int, device: str) -> Tensor:
    import torch

    return torch.randn(size_mib * MIB // FP32_BYTES, device=device)


def _operation_on(operation: str, first: Tensor, second: Tensor) -> Callable[[], Tensor]:
    """Return the call of an operation: copy of first, or triad of both, into a separate tensor."""
    import torch

    out = torch.zeros_like(first)  # zeros, not empty: a CPU's pages are mapped before anything is timed
    if operation == "copy":
        return lambda: out.copy_(first)
    return lambda: torch.add(first, second, alpha=TRIAD_FACTOR, out=out)


def _check(operation: str, first: Tensor, second: Tensor) -> None:
    """Raise WrongResult if the operation's ends differ from float64 by more than fp32's rounding."""
    out = _operation_on(operation, first, second)()
    a, b = (_ends(tensor).double() for tensor in (first, second))
    expected = a + (TRIAD_FACTOR * b if operation == "triad" else 0)
    correctness.require({operation: correctness.relative_error(_ends(out), expected)}, TOLERANCE)


def _ends(tensor: Tensor) -> Tensor:
    """Return the first and last elements: widening all of a large tensor takes more memory than the work itself."""
    import torch

    return torch.cat([tensor[:CHECKED_ELEMENTS], tensor[-CHECKED_ELEMENTS:]])


def same_content(one: Tensor, other: Tensor) -> None:
    """Raise ValueError if two tensors, on any devices, differ by the sum of their words or in their ends."""
    import torch

    words = [tensor.view(torch.int32) for tensor in (one, other)]
    sums = {int(each.sum(dtype=torch.int64)) for each in words}
    if len(sums) > 1 or not torch.equal(*(_ends(each).cpu() for each in words)):
        raise ValueError("the copy differs from its source")


def between(of: Ceiling) -> Measurement:
    """Time copies from one GPU to another by events on the source's stream, where torch queues them."""
    import torch

    from perfscribe.distributed import links

    source, target = of.source_gpu, of.target_gpu
    held = _random(of.size_mib, f"cuda:{source}")
    received = torch.zeros_like(held, device=f"cuda:{target}")
    same_content(received.copy_(held), held)
    values = {"bytes": held.numel() * FP32_BYTES, "peer_access": torch.cuda.can_device_access_peer(source, target)}
    measurement = Measurement(values=values | links.recorded(source, target))
    with torch.cuda.device(source):
        timing = time_device(
            lambda: received.copy_(held, non_blocking=True), warmup=WARMUP, timed=of.samples, flush_l2=False
        )
    record(measurement, "time_ms", timing)
    return measurement


def from_host(of: Ceiling) -> Measurement:
    """Time copies between host memory, pinned or pageable, and device, by the host clock with a synchronise."""
    import torch

    pinned = of.host_memory == "pinned"
    on_device = _random(of.size_mib, "cuda")
    on_host = torch.empty(on_device.shape, pin_memory=pinned).copy_(on_device)
    on_host.neg_()  # differs from the device's content
    held, received = (on_host, on_device) if of.operation == "host to device" else (on_device, on_host)

    def copy() -> Tensor:
        return received.copy_(held, non_blocking=pinned)

    copy()
    torch.cuda.synchronize()
    same_content(received, held)
    measurement = Measurement(values={"bytes": held.numel() * FP32_BYTES})
    record(measurement, "time_ms", time_host(copy, warmup=WARMUP, timed=of.samples, device="cuda"))
    return measurement


def on_disk(of: Ceiling, data_folder: str) -> Measurement:
    """Time writing with fsync, or reading after the file was dropped from the page cache, in blocks of 8 MiB.

    Raises Unsupported if there is too little free space or the kernel keeps the file cached, ValueError if the content
    read is not the content written.
    """
    from perfscribe.data import page_cache

    folder = Path(data_folder).parent if data_folder else Path(tempfile.gettempdir())
    size_bytes = of.size_mib * MIB
    free, needed = shutil.disk_usage(folder).free, 2 * size_bytes + KEPT_FREE_BYTES
    if free < needed:
        raise Unsupported(f"the disk of the results has {free // MIB} MiB free, {needed // MIB} MiB are asked for")
    # One name per cell, so that the next run overwrites a killed run's file.
    path = folder / f"calibration-{of.operation.replace(' ', '-')}-{of.size_mib}.tmp"
    blocks = [os.urandom(min(BLOCK_BYTES, size_bytes - at)) for at in range(0, size_bytes, BLOCK_BYTES)]
    call: Callable[[], object] = partial(_read, path, bytearray(BLOCK_BYTES))
    prepare: Callable[[], object] = partial(page_cache.drop, [path])
    if of.operation == "write":
        call, prepare = partial(_write, path, blocks), path.unlink
    measurement = Measurement(values={"bytes": size_bytes, "file_system": file_system(folder)})
    try:
        _write(path, blocks)
        _check_content(path, blocks)
        timing = time_host(call, warmup=0, timed=of.samples, device="cpu", prepare=prepare)
    finally:
        path.unlink(missing_ok=True)
    record(measurement, "time_ms", timing)
    return measurement


def _write(path: Path, blocks: list[bytes]) -> None:
    """Write the blocks into a new file and flush it to disk, as far as the kernel can tell."""
    with path.open("wb", buffering=0) as stream:
        for block in blocks:
            stream.write(block)
        os.fsync(stream.fileno())


def _read(path: Path, buffer: bytearray) -> None:
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def _check_content(path: Path, blocks: list[bytes]) -> None:
    found = expected = 0
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            found = zlib.crc32(block, found)
    for block in blocks:
        expected = zlib.crc32(block, expected)
    if found != expected or path.stat().st_size != sum(map(len, blocks)):
        raise ValueError("the file does not hold what was written")


def file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the folder's file system (ext4, xfs, nfs4, tmpfs, …); `not told` outside Linux."""
    if not mounts.is_file():
        return "not told"
    whole, best = folder.resolve(), (0, "not told")
    for line in mounts.read_text(errors="replace").splitlines():
        place, kind = line.split()[1:3]
        if whole.is_relative_to(place.replace("\\040", " ")):
            best = max(best, (len(place), kind))  # the innermost mount
    return best[1]
