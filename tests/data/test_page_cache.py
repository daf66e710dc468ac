"""Dropping files from the page cache, and knowing whether they are gone. Skipped where the kernel does not allow it."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from perfscribe.base.cells import Unsupported
from perfscribe.data import page_cache

FILE_BYTES = 4 * 2**20


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_bytes(np.random.default_rng(0).bytes(FILE_BYTES))
        with path.open("rb") as stream:
            os.fsync(stream.fileno())  # so that a drop() that forgets it is not taken for a kernel that cannot
    return paths


@pytest.fixture
def droppable(files):
    try:
        page_cache.drop(files)
    except Unsupported as reason:
        pytest.skip(f"the page cache here cannot be dropped: {reason}")
    return files


def test_share_counts_pages_over_all_files(droppable):
    assert page_cache.drop(droppable) <= page_cache.COLD_SHARE
    page_cache.warm(droppable[:1])
    assert page_cache.resident_share(droppable) == pytest.approx(0.5, abs=0.05)
    assert page_cache.resident_share(droppable[:1]) == 1.0


def test_mapped_files_cannot_be_dropped_and_it_is_said(droppable):
    with droppable[0].open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert len(bytes(mapping)) == FILE_BYTES
        with pytest.raises(Unsupported, match="the kernel kept 50% of the files"):
            page_cache.drop(droppable)
    assert page_cache.drop(droppable) <= page_cache.COLD_SHARE
