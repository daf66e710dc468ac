"""Files that are either whole or not there: written under a temporary name, flushed, then renamed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file's content in one step; its folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """write_bytes for UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def canonical(value: Any) -> str:
    """JSON with sorted keys and no NaN or infinity (ValueError): equal values give equal text."""
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def dump_json(value: Any) -> str:
    """Readable JSON, keys in their own order, no NaN or infinity (ValueError)."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """write_text of dump_json."""
    write_text(path, dump_json(value))


def write_json_if_changed(path: Path, value: Any) -> bool:
    """Write only where the content differs, so that the file's time tells when its content last changed."""
    text = dump_json(value)
    if path.is_file() and path.read_bytes() == text.encode():
        return False
    write_text(path, text)
    return True


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """One compact JSON object a line."""
    write_text(path, "".join(json.dumps(v, allow_nan=False, ensure_ascii=False) + "\n" for v in values))


def read_json(path: Path) -> Any:
    """The file's JSON value; ValueError with one line that names the file where it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that the file holds, empty where there is none: for what can be made again, or done without."""
    try:
        found = read_json(path)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_json_lines(path: Path) -> list[Any]:
    """All values of a JSON-lines file; ValueError with one line that names the file where one is broken."""
    try:
        # At line feeds alone: texts may hold other signs that Unicode takes for the end of a line.
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as JSON lines ({error})") from error
