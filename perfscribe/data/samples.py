"""Map-style data sets for torch.utils.data.DataLoader: index -> (source, target) tensors of one sample.

Whole holds everything in memory, PerSample reads each sample when it is asked for, in every format.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from perfscribe.data.formats import FORMATS, Arrays
from perfscribe.data.layout import ARRAY_NAMES

Sample = tuple[torch.Tensor, ...]


class Whole:
    """Samples of arrays that lie in memory; the tensors share it."""

    def __init__(self, arrays: Arrays) -> None:
        self._tensors = [torch.from_numpy(arrays[name]) for name in ARRAY_NAMES]

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> Sample:
        return tuple(tensor[index] for tensor in self._tensors)

    def close(self) -> None:
        """Nothing is open."""


class PerSample:
    """Samples read from the files one at a time; each tensor is a copy, so that mapped bytes are truly read."""

    def __init__(self, name: str, path: Path) -> None:
        self._opened = FORMATS[name].open(path)
        self._arrays = [self._opened.arrays[array] for array in ARRAY_NAMES]

    def __len__(self) -> int:
        return int(self._arrays[0].shape[0])

    def __getitem__(self, index: int) -> Sample:
        return tuple(torch.from_numpy(np.array(array[index])) for array in self._arrays)

    def close(self) -> None:
        """Close the files and let go of their mappings, which would keep them in the page cache."""
        self._arrays = []
        self._opened.arrays = {}
        self._opened.close()


def whole(name: str, path: Path) -> Whole:
    """All samples of a format, read here."""
    return Whole(FORMATS[name].load(path))


def per_sample(name: str, path: Path) -> PerSample:
    """The samples of a format, read one at a time."""
    return PerSample(name, path)


def as_in_homework(name: str, path: Path) -> Whole | PerSample:
    """As the Polaris homework reads the format: HDF5 a sample at a time, everything else whole in the constructor."""
    return per_sample(name, path) if name.startswith("hdf5") else whole(name, path)
