"""Where the formats of one data set lie below its folder. Imports nothing heavy: the planner reads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ARRAY_NAMES = ("source", "target")
FILES: dict[str, tuple[str, ...]] = {
    "memory": (),
    "hdf5_gzip": ("hdf5_gzip.h5",),
    "hdf5": ("hdf5.h5",),
    "pt": ("tensors.pt",),
    "npz_compressed": ("npz_compressed.npz",),
    "npz": ("npz.npz",),
    "npy": tuple(f"npy/{name}.npy" for name in ARRAY_NAMES),
}


def file_names(formats: Iterable[str]) -> list[str]:
    """Files of the formats, relative to the data set's folder; ValueError for an unknown format."""
    names: list[str] = []
    for name in formats:
        if name not in FILES:
            raise ValueError(f"format: {name!r}: expected one of {', '.join(FILES)}")
        names.extend(FILES[name])
    return names


def format_path(folder: Path, name: str) -> Path:
    """The one file, or the folder where the format has a file an array, that holds the data set in the format."""
    return folder / file_names([name])[0].split("/")[0]


def members(path: Path) -> list[Path]:
    """The files that a format's path stands for."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def size_bytes(path: Path) -> int:
    """Bytes of a format's files as their lengths say, not as blocks on disk."""
    return sum(member.stat().st_size for member in members(path))
