"""The file formats of the Polaris homework's I/O question: one small class each, by name in FORMATS.

A format saves arrays under a path, loads them whole, and opens them for reading one sample at a time. Nothing is
unpickled: numpy.load with allow_pickle=False, torch.load with weights_only=True.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfscribe.base.atomic import replacing
from perfscribe.data import npz_members

Arrays = Mapping[str, np.ndarray]


def _nothing() -> None:
    """What closing means where dropping the last reference closes."""


@dataclass
class Opened:
    """Arrays that give one sample an index, by name; each has a shape. close() once they are not read any more."""

    arrays: Mapping[str, Any]
    close: Callable[[], None] = _nothing


class Format(ABC):
    """What every format can do. `path` is a file, or a folder where the format has a file an array."""

    @abstractmethod
    def save(self, path: Path, arrays: Arrays) -> None:
        """Write all arrays; the caller makes it atomic."""

    @abstractmethod
    def load(self, path: Path) -> dict[str, np.ndarray]:
        """All arrays, copied into memory."""

    @abstractmethod
    def open(self, path: Path) -> Opened:
        """The arrays without reading them."""

    def decoded_bytes_per_sample(self, path: Path) -> int:
        """Bytes of array content decoded to get one sample of every array: its own, where no other is touched."""
        opened = self.open(path)
        try:
            # float32 in every data set here
            return sum(math.prod(array.shape[1:]) * np.dtype(np.float32).itemsize for array in opened.arrays.values())
        finally:
            opened.close()


class Hdf5(Format):
    """HDF5, contiguous, or gzip (level 4, h5py's default) in chunks of the shape that h5py guesses."""

    def __init__(self, compression: str | None) -> None:
        self._compression = compression

    def save(self, path: Path, arrays: Arrays) -> None:
        """See Format."""
        import h5py

        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, compression=self._compression)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        """See Format."""
        import h5py

        with h5py.File(path, "r") as file:
            return {name: file[name][...] for name in file}

    def open(self, path: Path) -> Opened:
        """Datasets of the open file, read by slicing, with h5py's default chunk cache."""
        import h5py

        file = h5py.File(path, "r")
        return Opened({name: file[name] for name in file}, file.close)

    def decoded_bytes_per_sample(self, path: Path) -> int:
        """Every chunk that a sample touches, whole; a contiguous dataset has none."""
        opened = self.open(path)
        try:
            return sum(_touched_bytes(dataset) for dataset in opened.arrays.values())
        finally:
            opened.close()


def _touched_bytes(dataset: Any) -> int:
    chunk = dataset.chunks or (1, *dataset.shape[1:])
    touched = math.prod(math.ceil(length / side) for length, side in zip(dataset.shape[1:], chunk[1:], strict=True))
    return int(touched * math.prod(chunk) * dataset.dtype.itemsize)


class TorchTensors(Format):
    """torch.save of a dictionary of tensors (.pt)."""

    def save(self, path: Path, arrays: Arrays) -> None:
        """See Format."""
        import torch

        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        """See Format."""
        import torch

        return {name: tensor.numpy() for name, tensor in torch.load(path, weights_only=True).items()}

    def open(self, path: Path) -> Opened:
        """Arrays over the memory of tensors that are mapped from the file."""
        import torch

        tensors = torch.load(path, weights_only=True, mmap=True)
        return Opened({name: tensor.numpy() for name, tensor in tensors.items()})


class Npz(Format):
    """numpy.savez: a ZIP archive whose members are stored plain."""

    def save(self, path: Path, arrays: Arrays) -> None:
        """See Format."""
        with path.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        """See Format; ZIP's checksums are verified."""
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def open(self, path: Path) -> Opened:
        """Memory maps at the members' offsets, which numpy.load itself does not offer."""
        return Opened(npz_members.memory_maps(path))


class NpzCompressed(Npz):
    """numpy.savez_compressed: a ZIP archive whose members are deflated."""

    def save(self, path: Path, arrays: Arrays) -> None:
        """See Format."""
        with path.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)

    def open(self, path: Path) -> Opened:
        """Members that are inflated whole for each sample: nothing else is possible."""
        archive = np.load(path, allow_pickle=False)
        return Opened({name: npz_members.InflatedMember(archive, name) for name in archive.files}, archive.close)

    def decoded_bytes_per_sample(self, path: Path) -> int:
        """All bytes of all arrays."""
        opened = self.open(path)
        try:
            return sum(math.prod(array.shape) * array.dtype.itemsize for array in opened.arrays.values())
        finally:
            opened.close()


class NpyFolder(Format):
    """A folder with one .npy file an array."""

    def save(self, path: Path, arrays: Arrays) -> None:
        """See Format."""
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array, allow_pickle=False)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        """See Format."""
        return {file.stem: np.load(file, allow_pickle=False) for file in sorted(path.glob("*.npy"))}

    def open(self, path: Path) -> Opened:
        """Memory maps of the files."""
        files = sorted(path.glob("*.npy"))
        return Opened({file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files})


FORMATS: dict[str, Format] = {
    "hdf5_gzip": Hdf5("gzip"),
    "hdf5": Hdf5(None),
    "pt": TorchTensors(),
    "npz_compressed": NpzCompressed(),
    "npz": Npz(),
    "npy": NpyFolder(),
}


def write(name: str, arrays: Arrays, path: Path) -> None:
    """Save the arrays in the format, whole or not at all."""
    with replacing(path) as temporary:
        FORMATS[name].save(temporary, arrays)
