"""Weights in a folder of the user's as a data set: what they are goes into keys, where they lie stays in one file.

So a path is no factor of a cell, and the weights may lie elsewhere on the next machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscribe.base.atomic import replacing
from perfscribe.data.squad_sets import from_checkout

if TYPE_CHECKING:
    import numpy as np

KIND = "weights"
LOCATION = "location.json"
ENDS_BYTES = 2**20


def _digest(folder: Path) -> str:
    """SHA-256 over config.json and, of each file of weights, name, length, first and last MiB: reading GB takes long.

    ValueError with one line where the folder has no weights in safetensors form.
    """
    found = sorted(folder.glob("*.safetensors"))
    if not found or not (folder / "config.json").is_file():
        raise ValueError(f"workshop.weights: {folder}: expected a folder with config.json and model.safetensors")
    whole = hashlib.sha256((folder / "config.json").read_bytes())
    for path in found:
        size = path.stat().st_size
        whole.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            whole.update(stream.read(ENDS_BYTES))
            stream.seek(max(0, size - ENDS_BYTES))
            whole.update(stream.read(ENDS_BYTES))
    return whole.hexdigest()


def datasets(path: str) -> dict[str, dict[str, Any]]:
    """The data set of the weights in a folder, as an experiment's datasets(config) gives it."""
    digest = _digest(from_checkout(path))
    parameters = {"path": path, "sha256": digest}
    return {f"{KIND}_{digest[:8]}": {"kind": KIND, "parameters": parameters, "files": [LOCATION]}}


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write where they lie; the digest is over what they are."""
    import numpy as np

    place = {"folder": str(from_checkout(plan["parameters"]["path"]))}
    with replacing(folder / LOCATION) as temporary:
        temporary.write_text(json.dumps(place) + "\n", encoding="utf-8")
    return [LOCATION], {KIND: np.frombuffer(bytes.fromhex(plan["parameters"]["sha256"]), dtype=np.uint8)}


def location(folder: Path, dataset: str) -> str:
    """The folder of the weights that a data set below `folder` stands for."""
    return str(json.loads((folder / dataset / LOCATION).read_text(encoding="utf-8"))["folder"])
