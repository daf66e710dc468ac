"""Data sets of kind "chunked": the homework's sequences in HDF5 files by chunk shape and compression."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base.atomic import replacing

if TYPE_CHECKING:
    import numpy as np

CONTIGUOUS, GUESS, WHOLE = "contiguous", "guess", "whole"


def file_name(layout: str) -> str:
    """Return the file of a layout (CHUNK-COMPRESSION), relative to the data set's folder."""
    return f"{layout}.h5"


def _chunk_shape(chunk: str, shape: tuple[int, ...]) -> tuple[int, ...] | bool | None:
    """Return h5py's `chunks` for an array of (samples, positions, features).

    `chunk` is a number of whole samples, limited to all of them. contiguous: None; guess: True (h5py chooses).
    """
    if chunk in (CONTIGUOUS, GUESS):
        return True if chunk == GUESS else None
    return (shape[0] if chunk == WHOLE else min(int(chunk), shape[0]), *shape[1:])


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write the arrays of plan["parameters"] in the layouts plan["formats"]; returns the file names and the arrays."""
    from perfscribe.data import hdf5, synthetic

    arrays = synthetic.arrays(**plan["parameters"])
    for layout in plan["formats"]:
        chunk, _, compression = layout.rpartition("-")  # gzip level 4, h5py's default
        with replacing(folder / file_name(layout)) as temporary, hdf5.writing(temporary) as file:
            for name, array in arrays.items():
                chunks = _chunk_shape(chunk, array.shape)
                packing = None if compression == "none" else compression
                file.create_dataset(name, data=array, chunks=chunks, compression=packing)
    return [file_name(layout) for layout in plan["formats"]], arrays
