"""Data sets of the kind "samples": the homework's sequences, written in several file formats."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.data import formats, synthetic
from perfscribe.data.layout import file_names, format_path

if TYPE_CHECKING:
    import numpy as np


COMPRESSED = ("npz_compressed", "hdf5_gzip")


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write plan["formats"] of the arrays of plan["parameters"] below the folder; returns its files and the arrays."""
    names = file_names(plan["formats"])
    arrays = synthetic.arrays(**plan["parameters"])
    # Two at a time: zlib and writes to disk leave the interpreter to the other.
    with ThreadPoolExecutor(max_workers=2) as pool:
        slowest_first = sorted(plan["formats"], key=lambda name: name not in COMPRESSED)
        for written in [pool.submit(formats.write, name, arrays, format_path(folder, name)) for name in slowest_first]:
            written.result()
    return names, arrays
