"""The file formats of the Polaris homework's I/O question, by name in FORMATS, and data sets of kind "samples".

Nothing is unpickled: numpy.load with allow_pickle=False, torch.load with weights_only=True.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from perfscribe.base.atomic import replacing
from perfscribe.data import hdf5, synthetic
from perfscribe.data.layout import FILES, file_names

Arrays = Mapping[str, np.ndarray]
COMPRESSED = ("npz_compressed", "hdf5_gzip", "hdf5_gzip_samples")
# Local file header of ZIP (APPNOTE.TXT 4.3.7): 26 bytes, then the lengths of name and extra field.
LOCAL_HEADER_BYTES = 30
LOCAL_HEADER_LENGTHS_AT = 26


@dataclass(frozen=True)
class Format:
    """A file format. Paths are files, or folders if the format has one file per array.

    save: writes all arrays; the caller makes it atomic. load: returns all arrays, copied into memory. open: returns the
    arrays unread (each has a shape, and an index reads one sample) and a function that closes them.
    """

    save: Callable[[Path, Arrays], Any]
    load: Callable[[Path], Arrays]
    open: Callable[[Path], tuple[Mapping[str, Any], Callable[[], Any]]]


def _nothing() -> None:
    """Close function of formats whose files close when the last reference is dropped."""


def _hdf5(compression: str | None, sample_chunks: bool = False) -> Format:
    """Return the HDF5 format: contiguous, or gzip (level 4, the default) in chunks of a sample or as h5py guesses."""

    def save(path: Path, arrays: Arrays) -> None:
        with hdf5.writing(path) as file:
            for name, array in arrays.items():
                chunks = (1, *array.shape[1:]) if sample_chunks else None
                file.create_dataset(name, data=array, compression=compression, chunks=chunks)

    def load(path: Path) -> Arrays:
        import h5py

        with h5py.File(path, "r") as file:
            return {name: file[name][...] for name in file}

    def open_(path: Path) -> tuple[Mapping[str, Any], Callable[[], Any]]:
        """Return datasets of the open file, read by slicing, with h5py's default chunk cache."""
        import h5py

        file = h5py.File(path, "r")
        return {name: file[name] for name in file}, file.close

    return Format(save, load, open_)


def _save_pt(path: Path, arrays: Arrays) -> None:
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


def _load_pt(path: Path, mmap: bool = False) -> Arrays:
    import torch

    return {name: tensor.numpy() for name, tensor in torch.load(path, weights_only=True, mmap=mmap).items()}


def _save_npz(save: Callable[..., None]) -> Callable[[Path, Arrays], None]:
    def saved(path: Path, arrays: Arrays) -> None:
        with path.open("wb") as stream:
            save(stream, allow_pickle=False, **arrays)

    return saved


def _load_npz(path: Path) -> Arrays:
    """Load all arrays; zipfile verifies the checksums."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of the C-ordered array at the current position; raises ValueError for objects."""
    np.lib.format.read_magic(stream)  # version 1.0, as numpy writes arrays of numbers
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("holds Python objects, expected numbers")
    return shape, dtype


def _map_npz(path: Path) -> Mapping[str, np.ndarray]:
    """Memory-map the members of an uncompressed archive at their offsets; numpy.load does not offer this."""
    maps: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            # The local header's lengths count; those in the central directory may differ.
            stream.seek(member.header_offset + LOCAL_HEADER_LENGTHS_AT)
            lengths = struct.unpack("<HH", stream.read(4))
            stream.seek(member.header_offset + LOCAL_HEADER_BYTES + sum(lengths))
            shape, dtype = _npy_header(stream)
            name = member.filename.removesuffix(".npy")
            maps[name] = np.memmap(path, dtype=dtype, mode="r", offset=stream.tell(), shape=shape)
    return maps


class _InflatedMember:
    """An array of a compressed archive: each index inflates the whole member, because deflate has no random access."""

    def __init__(self, archive: Any, name: str) -> None:
        self._archive, self._name = archive, name
        with archive.zip.open(f"{name}.npy") as stream:
            self.shape, self.dtype = _npy_header(stream)
        self.chunks = self.shape

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(self._archive[self._name][index])


def _open_compressed(path: Path) -> tuple[Mapping[str, Any], Callable[[], Any]]:
    archive = np.load(path, allow_pickle=False)
    return {name: _InflatedMember(archive, name) for name in archive.files}, archive.close


def _save_npy(path: Path, arrays: Arrays) -> None:
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array, allow_pickle=False)


def _load_npy(path: Path, mmap_mode: Any = None) -> Arrays:
    return {file.stem: np.load(file, mmap_mode=mmap_mode, allow_pickle=False) for file in sorted(path.glob("*.npy"))}


FORMATS: dict[str, Format] = {
    "hdf5_gzip": _hdf5("gzip"),
    "hdf5_gzip_samples": _hdf5("gzip", sample_chunks=True),
    "hdf5": _hdf5(None),
    "pt": Format(_save_pt, _load_pt, lambda path: (_load_pt(path, mmap=True), _nothing)),
    "npz_compressed": Format(_save_npz(np.savez_compressed), _load_npz, _open_compressed),
    "npz": Format(_save_npz(np.savez), _load_npz, lambda path: (_map_npz(path), _nothing)),
    "npy": Format(_save_npy, _load_npy, lambda path: (_load_npy(path, mmap_mode="r"), _nothing)),
}


def decoded_bytes_per_sample(name: str, path: Path) -> int:
    """Return the bytes of array content decoded to read one sample of every array: all chunks that it touches, whole.

    A compressed archive's member is one chunk; without chunks only the sample's own bytes count.
    """
    arrays, close = FORMATS[name].open(path)
    decoded = 0
    for array in arrays.values():
        chunk = getattr(array, "chunks", None) or (1, *array.shape[1:])
        sides = zip(array.shape[1:], chunk[1:], strict=True)
        decoded += (
            math.prod(math.ceil(length / side) for length, side in sides) * math.prod(chunk) * array.dtype.itemsize
        )
    close()
    return int(decoded)


def path_of(folder: Path, name: str) -> Path:
    """Return the file, or the folder if the format has one file per array, that contains the data set."""
    return folder / FILES[name][0].split("/")[0]


def write(name: str, arrays: Arrays, path: Path) -> None:
    """Save the arrays in the format, atomically."""
    with replacing(path) as temporary:
        FORMATS[name].save(temporary, arrays)


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Arrays]:
    """Write the arrays of plan["parameters"] in plan["formats"] below the folder; returns file names and arrays."""
    arrays = synthetic.arrays(**plan["parameters"])
    # Two threads overlap: zlib and disk writes release the interpreter lock.
    with ThreadPoolExecutor(max_workers=2) as pool:
        slowest_first = sorted(plan["formats"], key=lambda name: name not in COMPRESSED)
        list(pool.map(lambda name: write(name, arrays, path_of(folder, name)), slowest_first))
    return file_names(plan["formats"]), arrays
