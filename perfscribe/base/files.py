"""Atomic writing of files (temporary file, flush, rename), and JSON."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file's content atomically; creates the folder if it is missing."""
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
    """Replace the file's content atomically with UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def canonical(value: Any) -> str:
    """Return JSON with sorted keys; equal values give equal text. Raises ValueError for NaN or infinity."""
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def dump_json(value: Any) -> str:
    """Return readable JSON, keys in insertion order. Raises ValueError for NaN or infinity."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON (dump_json) atomically."""
    write_text(path, dump_json(value))


def write_json_if_changed(path: Path, value: Any) -> bool:
    """Write only if the content differs, so that mtime is the time of the last change; returns whether it wrote."""
    text = dump_json(value)
    if path.is_file() and path.read_bytes() == text.encode():
        return False
    write_text(path, text)
    return True


def read_json(path: Path) -> Any:
    """Return the file's JSON value; raises ValueError (one line naming the file) if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file, or {} if there is none: for files that are optional or can be regenerated."""
    try:
        value = read_json(path)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_json_lines(path: Path) -> list[Any]:
    """Return all values of a JSON-lines file; raises ValueError (one line naming the file) if one is broken."""
    try:
        # Splits only at line feeds: texts may contain other characters that str.splitlines() takes for line ends.
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as JSON lines ({error})") from error
