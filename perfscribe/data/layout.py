"""File names of each format below a data set's folder. Imports nothing heavy, because the planner uses it."""

from __future__ import annotations

from collections.abc import Iterable

ARRAY_NAMES = ("source", "target")
FILES: dict[str, tuple[str, ...]] = {
    "memory": (),
    "hdf5_gzip": ("hdf5_gzip.h5",),
    "hdf5_gzip_samples": ("hdf5_gzip_samples.h5",),
    "hdf5": ("hdf5.h5",),
    "pt": ("tensors.pt",),
    "npz_compressed": ("npz_compressed.npz",),
    "npz": ("npz.npz",),
    "npy": tuple(f"npy/{name}.npy" for name in ARRAY_NAMES),
}


def file_names(formats: Iterable[str]) -> list[str]:
    """Return the files of the formats, relative to the data set's folder."""
    return [file for name in formats for file in FILES[name]]
