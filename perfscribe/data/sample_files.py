"""Data sets of the kind "samples": the homework's sequences, written in several file formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.data import formats, synthetic
from perfscribe.data.layout import file_names, format_path

if TYPE_CHECKING:
    import numpy as np


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write plan["formats"] of the arrays of plan["parameters"] below the folder; returns its files and the arrays."""
    names = file_names(plan["formats"])
    arrays = synthetic.arrays(**plan["parameters"])
    for name in plan["formats"]:
        formats.write(name, arrays, format_path(folder, name))
    return names, arrays
