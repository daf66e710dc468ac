"""Makes a folder of model weights a data set, named by a digest; its one file says where the folder is.

So results do not depend on the path, and the weights may be elsewhere on another machine.
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
    """Return the SHA-256 of config.json and of name, length, first and last MiB of each weights file.

    Not the whole files: reading GB takes long. Raises ValueError (one line) if the folder has no safetensors weights.
    """
    weights_files = sorted(folder.glob("*.safetensors"))
    if not weights_files or not (folder / "config.json").is_file():
        raise ValueError(f"workshop.weights: {folder}: expected a folder with config.json and model.safetensors")
    whole = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights_files:
        size = path.stat().st_size
        whole.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            whole.update(stream.read(ENDS_BYTES))
            stream.seek(max(0, size - ENDS_BYTES))
            whole.update(stream.read(ENDS_BYTES))
    return whole.hexdigest()


def datasets(path: str) -> dict[str, dict[str, Any]]:
    """Return {name: kind, parameters, files} of a folder's weights; ValueError if it has none."""
    digest = _digest(from_checkout(path))
    parameters = {"path": path, "sha256": digest}
    return {f"{KIND}_{digest[:8]}": {"kind": KIND, "parameters": parameters, "files": [LOCATION]}}


def generate(plan: Mapping[str, Any], folder: Path) -> tuple[list[str], Mapping[str, np.ndarray]]:
    """Write the location into `folder`; return the file's name and the plan's digest, {KIND: uint8 (32,)}."""
    import numpy as np

    place = {"folder": str(from_checkout(plan["parameters"]["path"]))}
    with replacing(folder / LOCATION) as temporary:
        temporary.write_text(json.dumps(place) + "\n", encoding="utf-8")
    return [LOCATION], {KIND: np.frombuffer(bytes.fromhex(plan["parameters"]["sha256"]), dtype=np.uint8)}


def location(folder: Path, dataset: str) -> str:
    """Return the folder of weights that folder/dataset points to."""
    return str(json.loads((folder / dataset / LOCATION).read_text(encoding="utf-8"))["folder"])
