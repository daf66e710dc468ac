"""Sequential writing and cold reading of one file on the disk that holds the results; the file is removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfscribe.base.cells import Measurement, Unsupported
from perfscribe.data import page_cache
from perfscribe.instruments.timing import record, time_host

MIB = 2**20
BLOCK_BYTES = 8 * MIB
KEPT_FREE_BYTES = 256 * MIB
WRITE, READ = "write", "cold read"
MOUNTS = Path("/proc/self/mounts")


def measure(factors: Mapping[str, Any], data_folder: str) -> Measurement:
    """Time writing with fsync, or reading after the file was dropped from the page cache, in blocks of 8 MiB.

    Unsupported: too little free space, or the kernel keeps the file in its cache. ValueError: what was read is not
    what was written.
    """
    folder = Path(data_folder).parent if data_folder else Path(tempfile.gettempdir())
    size_bytes = factors["size_mib"] * MIB
    refuse_where_full(folder, size_bytes)
    # One name a cell: what a killed run has left is overwritten by the next.
    path = folder / f"calibration-{factors['operation'].replace(' ', '-')}-{factors['size_mib']}.tmp"
    blocks = [os.urandom(min(BLOCK_BYTES, size_bytes - at)) for at in range(0, size_bytes, BLOCK_BYTES)]
    measurement = Measurement(values={"bytes": size_bytes, "file_system": file_system(folder)})
    try:
        write(path, blocks)
        if read(path, size_bytes) != checksum(blocks):
            raise ValueError("the file does not hold what was written")
        call, prepare = _work(factors["operation"], path, blocks, size_bytes)
        timing = time_host(call, warmup=0, timed=factors["samples"], device="cpu", prepare=prepare)
    finally:
        path.unlink(missing_ok=True)
    record(measurement, "time_ms", timing)
    return measurement


def _work(
    operation: str, path: Path, blocks: list[bytes], size_bytes: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """What is timed, and what goes before it, untimed."""
    if operation == WRITE:
        return lambda: write(path, blocks), path.unlink
    buffer = bytearray(BLOCK_BYTES)
    return lambda: _read_into(path, buffer), lambda: page_cache.drop([path])


def refuse_where_full(folder: Path, size_bytes: int) -> None:
    """Unsupported where the disk has not room for the file twice and something to spare."""
    free, needed = shutil.disk_usage(folder).free, 2 * size_bytes + KEPT_FREE_BYTES
    if free < needed:
        raise Unsupported(f"the disk of the results has {free // MIB} MiB free, {needed // MIB} MiB are asked for")


def write(path: Path, blocks: list[bytes]) -> None:
    """Write the blocks into a new file, which is on the disk in the end, as far as the kernel can tell."""
    with path.open("wb", buffering=0) as stream:
        for block in blocks:
            stream.write(block)
        os.fsync(stream.fileno())


def _read_into(path: Path, buffer: bytearray) -> None:
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def read(path: Path, size_bytes: int) -> int:
    """CRC-32 of the file's content; ValueError where it has another size."""
    found, total = 0, 0
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            found, total = zlib.crc32(block, found), total + len(block)
    if total != size_bytes:
        raise ValueError(f"the file holds {total} bytes, {size_bytes} were written")
    return found


def checksum(blocks: list[bytes]) -> int:
    """CRC-32 of what is written."""
    found = 0
    for block in blocks:
        found = zlib.crc32(block, found)
    return found


def file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """Type of the file system that holds the folder (ext4, xfs, nfs4, tmpfs, …); `not told` outside Linux."""
    if not mounts.is_file():
        return "not told"
    whole, best = folder.resolve(), (0, "not told")
    for line in mounts.read_text(errors="replace").splitlines():
        place, kind = line.split()[1:3]
        if whole.is_relative_to(place.replace("\\040", " ")):
            best = max(best, (len(place), kind))  # the innermost mount
    return best[1]
