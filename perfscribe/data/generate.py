"""Generates a data set, and last the digest file that marks it complete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfscribe.base.files import write_json
from perfscribe.data import formats, model_weights, squad_tokenised, synthetic, tokens
from perfscribe.data.digest_file import describe_file

KINDS = {
    "samples": formats.generate,
    "tokens": tokens.generate,
    "squad": squad_tokenised.generate,
    "weights": model_weights.generate,
}


def _without_paths(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without paths, which are private to a machine; the digests of the files are kept."""
    return {
        name: _without_paths(value) if isinstance(value, Mapping) else value
        for name, value in parameters.items()
        if name != "path"
    }


def generate(plan: Mapping[str, Any], folder: Path) -> Path:
    """Write the data set of plan["kind"] and plan["parameters"] below the folder; returns the digest file's path.

    The digest file is deleted first and written last: if it exists, the files are complete. Its content depends on the
    plan and the arrays; the file checksums also on the versions of the libraries that write them.
    """
    result = folder.parent / f"{plan['dataset']}.digest"
    result.unlink(missing_ok=True)
    names, arrays = KINDS[plan.get("kind", "samples")](plan, folder)
    content = {
        "dataset": plan["dataset"],
        "parameters": _without_paths(plan["parameters"]),
        "arrays": synthetic.digest(arrays),
        "raw_bytes": sum(array.nbytes for array in arrays.values()),
        "files": {name: describe_file(folder / name) for name in names},
    }
    write_json(result, content)
    return result
