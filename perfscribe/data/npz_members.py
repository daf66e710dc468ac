"""Members of .npz archives: read in place where they are stored plain, inflated where they are not."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

# Local file header of ZIP (APPNOTE.TXT 4.3.7): 26 bytes, then the lengths of name and extra field.
LOCAL_HEADER_BYTES = 30
LOCAL_HEADER_LENGTHS_AT = 26
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

Header = tuple[tuple[int, ...], bool, np.dtype]


def _read_header(stream: IO[bytes], where: str) -> Header:
    """Shape, Fortran order and dtype of the array that begins here; ValueError for objects and unknown versions."""
    version = np.lib.format.read_magic(stream)
    if version not in HEADER_READERS:
        raise ValueError(f"{where}: .npy version {version}, expected 1.0 or 2.0")
    shape, fortran_order, dtype = HEADER_READERS[version](stream)
    if dtype.hasobject:
        raise ValueError(f"{where}: holds Python objects, expected numbers")
    return shape, fortran_order, dtype


def _content_offset(stream: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Byte at which the member's content begins; the local header's lengths count, the directory's may differ."""
    stream.seek(member.header_offset + LOCAL_HEADER_LENGTHS_AT)
    name_length, extra_length = struct.unpack("<HH", stream.read(4))
    return member.header_offset + LOCAL_HEADER_BYTES + int(name_length) + int(extra_length)


def memory_maps(path: Path) -> dict[str, np.ndarray]:
    """Read-only memory maps of an uncompressed archive's arrays, by name; ValueError where a member is compressed."""
    maps: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            where = f"{path}: {member.filename}"
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{where}: compressed, cannot be mapped into memory")
            stream.seek(_content_offset(stream, member))
            shape, fortran_order, dtype = _read_header(stream, where)
            order: Any = "F" if fortran_order else "C"
            maps[member.filename.removesuffix(".npy")] = np.memmap(
                path, dtype=dtype, mode="r", offset=stream.tell(), shape=shape, order=order
            )
    return maps


class InflatedMember:
    """An array of a compressed archive: each index inflates the whole member, since deflate has no entry points."""

    def __init__(self, archive: Any, name: str) -> None:
        """archive: what numpy.load gives for the file; shape and dtype are read from the member's first bytes."""
        self._archive, self._name = archive, name
        with archive.zip.open(f"{name}.npy") as stream:
            self.shape, _, self.dtype = _read_header(stream, name)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(self._archive[self._name][index])
