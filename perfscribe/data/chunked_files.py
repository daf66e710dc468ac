"""Data sets of the kind "chunked": the homework's sequences in HDF5 files of several chunk shapes and compressions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base.atomic import replacing

if TYPE_CHECKING:
    import numpy as np

Chunk = int | str
COMPRESSIONS: dict[str, str | None] = {"none": None, "gzip": "gzip"}  # of level 4, h5py's default
CONTIGUOUS, GUESS, WHOLE = "contiguous", "guess", "whole"


def layout(chunk: Chunk, compression: str) -> str:
    """Name of a file's layout."""
    return f"{chunk}-{compression}"


def file_name(name: str) -> str:
    """The file of a layout, relative to the data set's folder."""
    return f"{name}.h5"


def chunk_shape(chunk: str, shape: tuple[int, ...]) -> tuple[int, ...] | bool | None:
    """What h5py is given as `chunks` for an array of (samples, positions, features).

    Whole samples in a chunk: as many as `chunk` says, at most all there are. contiguous: None; guess: True, by which
    h5py chooses. ValueError for anything else.
    """
    if chunk == CONTIGUOUS:
        return None
    if chunk == GUESS:
        return True
    if chunk != WHOLE and not (chunk.isdecimal() and int(chunk) > 0):
        raise ValueError(f"chunk: {chunk!r}: expected {CONTIGUOUS}, {GUESS}, {WHOLE} or a number of samples")
    samples = shape[0] if chunk == WHOLE else min(int(chunk), shape[0])
    return (samples, *shape[1:])


def write(path: Path, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays in the layout, whole or not at all."""
    import h5py

    chunk, _, compression = name.rpartition("-")
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression: {compression!r}: expected one of {', '.join(COMPRESSIONS)}")
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for array_name, array in arrays.items():
            chunks = chunk_shape(chunk, array.shape)
            file.create_dataset(array_name, data=array, chunks=chunks, compression=COMPRESSIONS[compression])


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write plan["formats"] (layouts) of the arrays of plan["parameters"] below the folder; its files, the arrays."""
    from perfscribe.data import synthetic

    arrays = synthetic.arrays(**plan["parameters"])
    for name in plan["formats"]:
        write(folder / file_name(name), name, arrays)
    return [file_name(name) for name in plan["formats"]], arrays
