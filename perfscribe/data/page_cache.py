"""Cold and warm files: drops files from the kernel's page cache or reads them in, and checks the result.

Only this machine's page cache is affected, not caches of a disk, a hypervisor or a file server.
Sources: posix_fadvise(2), mincore(2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from perfscribe.base.cells import Unsupported

COLD_SHARE = 0.05  # largest share of a cold file that may stay cached
READ_BYTES = 8 * 2**20
DROP_TRIES = 3


def _mincore(address: int, length_bytes: int) -> np.ndarray:
    """Return 0 or 1 for each page: 1 if it is in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = np.zeros(-(-length_bytes // mmap.PAGESIZE), dtype=np.uint8)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    if libc.mincore(address, length_bytes, pages.ctypes.data) != 0:
        raise Unsupported(f"mincore: {os.strerror(ctypes.get_errno())}")
    return pages & 1


def _resident_pages(path: Path) -> tuple[int, int]:
    """Return the number of the file's pages in the page cache, and of all its pages."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        view = np.frombuffer(mapping, dtype=np.uint8)
        pages = _mincore(view.ctypes.data, len(view))
        del view  # a mapping cannot be closed while a view of it exists
        return int(pages.sum()), len(pages)


def resident_share(paths: Sequence[Path]) -> float:
    """Return the share (0 to 1) of the files' pages in the page cache; raises Unsupported if mincore fails.

    Linux since 5.2 reports every page of files of other users as resident.
    """
    counts = [_resident_pages(path) for path in paths]
    pages = sum(count[1] for count in counts)
    return sum(count[0] for count in counts) / pages if pages else 0.0


def _advise_dont_need(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())  # dirty pages cannot be dropped
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def drop(paths: Sequence[Path]) -> float:
    """Drop the files from the page cache; returns the share of their pages that remains (≤ 0.05).

    No process, including this one, may have the files mapped into memory: mapped pages stay. Raises Unsupported if the
    kernel keeps the pages (as tmpfs must), does not report them, or has no posix_fadvise.
    """
    if not hasattr(os, "posix_fadvise"):
        raise Unsupported("this system has no posix_fadvise to drop files from the page cache")
    left = 1.0
    for _ in range(DROP_TRIES):
        for path in paths:
            try:
                _advise_dont_need(path)
            except OSError as error:
                raise Unsupported(f"{path.name}: cannot be dropped from the page cache ({error.strerror})") from error
        left = resident_share(paths)
        if left <= COLD_SHARE:
            return left
    raise Unsupported(f"the kernel kept {left:.0%} of the files in its page cache")


def warm(paths: Iterable[Path]) -> None:
    """Read every byte of the files, so that the page cache holds them as far as memory allows."""
    buffer = bytearray(READ_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
