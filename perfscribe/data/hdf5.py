"""Writes HDF5 files that a full disk cannot leave open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import h5py


@contextmanager
def writing(path: Path) -> Iterator[h5py.File]:
    """Yield a new HDF5 file in memory and write it to the path in the end, byte for byte as h5py would.

    Where HDF5 itself meets a full disk it cannot close the file: h5py prints tracebacks, and processes have crashed.
    """
    import h5py

    with h5py.File(path, "w", driver="core", backing_store=False) as file:
        yield file
        file.flush()
        image = file.id.get_file_image()
    path.write_bytes(image)
