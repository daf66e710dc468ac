"""Cold and warm files: drop a data set from the kernel's page cache, or read it in, and check which it is.

Only this machine's page cache is meant: a disk's own cache, a hypervisor's or a file server's stay as they are.
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

COLD_SHARE = 0.05  # what may be left of a file that counts as cold
READ_BYTES = 8 * 2**20
DROP_TRIES = 3


def _mincore(address: int, length_bytes: int) -> np.ndarray:
    """One byte a page, whose lowest bit says that the page is in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = np.zeros(-(-length_bytes // mmap.PAGESIZE), dtype=np.uint8)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    if libc.mincore(address, length_bytes, pages.ctypes.data) != 0:
        raise Unsupported(f"mincore: {os.strerror(ctypes.get_errno())}")
    return pages & 1


def _resident_pages(path: Path) -> tuple[int, int]:
    """Pages of the file in the page cache, and all its pages."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        view = np.frombuffer(mapping, dtype=np.uint8)
        pages = _mincore(view.ctypes.data, len(view))
        del view  # a mapping cannot be closed while something points into it
        return int(pages.sum()), len(pages)


def resident_share(paths: Sequence[Path]) -> float:
    """Share (0 to 1) of the files' pages that lie in the page cache; Unsupported where the kernel does not tell.

    Linux since 5.2 calls every page of other people's files resident.
    """
    counts = [_resident_pages(path) for path in paths]
    pages = sum(count[1] for count in counts)
    return sum(count[0] for count in counts) / pages if pages else 0.0


def _advise_dont_need(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())  # dirty pages would stay
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def drop(paths: Sequence[Path]) -> float:
    """Drop the files from the page cache; returns the share of their pages that is left all the same (≤ 0.05).

    Nobody may have the files mapped into memory, this process included: mapped pages stay. Raises Unsupported where
    the kernel keeps them (as tmpfs must), does not tell, or has no posix_fadvise.
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
