"""Declarations of config keys: meaning, allowed values, default by preset.

A key is declared by the kind of its values: `whole("samples in a batch", 1, 65_536, 32, tiny=8)`. The default applies
to every preset that is not given. Each declaration is a node of a JSON schema. `constant(128, tiny=64)` is no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Key = dict[str, Any]
PRESETS = ("tiny", "cpu", "gpu")
DTYPES = ("fp32", "tf32", "bf16", "fp16")
SIZES = ("nano", "micro", "mini", "small", "medium", "large", "xl", "2.7B", "10B")
LONGEST = 1_048_576  # tokens


def _key(meaning: str, node: Key, default: Any, by: dict[str, Any]) -> Key:
    if unknown := set(by) - set(PRESETS):
        raise TypeError(f"{meaning}: no such presets: {', '.join(sorted(unknown))}")
    levels = {preset: by.get(preset, default) for preset in PRESETS}
    return {"description": meaning, **node, "default": default} | ({"x-default-by-preset": levels} if by else {})


def _several(items: Key, empty: bool, repeats: bool = False) -> Key:
    node = {"type": "array", "items": items, "uniqueItems": not repeats}
    return node | ({} if empty else {"minItems": 1})


def _bounded(kind: str, low: float, high: float, multiple: int | None, above: bool) -> Key:
    node = {"type": kind, "exclusiveMinimum" if above else "minimum": low, "maximum": high}
    return node | ({"multipleOf": multiple} if multiple else {})


def _or_null(node: Key, optional: bool) -> Key:
    return node | ({"type": [node["type"], "null"]} if optional else {})


def flag(meaning: str, default: bool, **by: Any) -> Key:
    """Key that is true or false."""
    return _key(meaning, {"type": "boolean"}, default, by)


def flags(meaning: str, default: Sequence[bool], **by: Any) -> Key:
    """Key whose values are levels of a true-or-false factor."""
    return _key(meaning, _several({"type": "boolean"}, False), default, by)


def whole(
    meaning: str,
    low: int,
    high: int,
    default: int | None,
    *,
    multiple: int | None = None,
    optional: bool = False,
    **by: Any,
) -> Key:
    """Key for an integer from low to high; optional: or null."""
    return _key(meaning, _or_null(_bounded("integer", low, high, multiple, False), optional), default, by)


def wholes(
    meaning: str,
    low: int,
    high: int,
    default: Sequence[int],
    *,
    multiple: int | None = None,
    empty: bool = False,
    repeats: bool = False,
    **by: Any,
) -> Key:
    """Key for a list of integers from low to high; repeats: duplicates are allowed; empty: so is an empty list."""
    return _key(meaning, _several(_bounded("integer", low, high, multiple, False), empty, repeats), default, by)


def lengths(meaning: str, default: Sequence[int], *, empty: bool = False, **by: Any) -> Key:
    """Key for a list of sequence lengths, in tokens."""
    return wholes(meaning, 1, LONGEST, default, empty=empty, **by)


def pairs(
    meaning: str, low: int, high: int, default: Sequence[Sequence[int]], *, empty: bool = False, **by: Any
) -> Key:
    """Key for a list of different pairs of integers from low to high."""
    pair = {"type": "array", "items": _bounded("integer", low, high, None, False), "minItems": 2, "maxItems": 2}
    return _key(meaning, _several(pair, empty), default, by)


def number(
    meaning: str,
    low: float,
    high: float,
    default: float | None,
    *,
    above: bool = False,
    optional: bool = False,
    **by: Any,
) -> Key:
    """Key for a number from low to high; above: low itself is excluded."""
    return _key(meaning, _or_null(_bounded("number", low, high, None, above), optional), default, by)


def numbers(
    meaning: str,
    low: float,
    high: float,
    default: Sequence[float],
    *,
    above: bool = False,
    **by: Any,
) -> Key:
    """Key for a list of different numbers from low to high; above: low itself is excluded."""
    return _key(meaning, _several(_bounded("number", low, high, None, above), False), default, by)


def choice(meaning: str, options: Sequence[Any], default: Any, **by: Any) -> Key:
    """Key for one of the given options."""
    return _key(meaning, {"enum": list(options)}, default, by)


def choices(
    meaning: str, options: Sequence[Any], default: Sequence[Any] | None = None, *, empty: bool = False, **by: Any
) -> Key:
    """Key for a list of different options; without a default, all of them."""
    return _key(meaning, _several({"enum": list(options)}, empty), options if default is None else default, by)


def dtypes(meaning: str, default: Sequence[str], *, empty: bool = False, **by: Any) -> Key:
    """Key for a list of dtypes: tf32 is fp32 with TF32 matrix products, bf16 and fp16 are autocast."""
    return choices(meaning, DTYPES, default, empty=empty, **by)


def sizes(meaning: str, default: Sequence[str], *, empty: bool = False, **by: Any) -> Key:
    """Key for a list of sizes of the language model."""
    return choices(meaning, SIZES, default, empty=empty, **by)


def devices(default: Sequence[str], **by: Any) -> Key:
    """Key for a list of devices to measure on."""
    return choices(
        "cpu | cuda; cuda cells are unsupported where there is no CUDA device", ("cpu", "cuda"), default, **by
    )


def text(meaning: str, pattern: str, default: str | None, *, optional: bool = False) -> Key:
    """Key for text that matches a pattern as a whole; optional: or null."""
    return _key(meaning, _or_null({"type": "string"}, optional) | {"pattern": pattern}, default, {})


def texts(meaning: str, pattern: str, default: Sequence[str], *, empty: bool = True, **by: Any) -> Key:
    """Key for a list of different texts; empty: an empty list is allowed."""
    return _key(meaning, _several({"type": "string", "pattern": pattern}, empty), default, by)


def mapping(meaning: str, names: str, pattern: str) -> Key:
    """Key for texts or integers by name; names and texts must match their pattern as a whole."""
    values = _bounded("integer", -(10**9), 10**9, None, False) | {"type": ["string", "integer"], "pattern": pattern}
    node = {"type": "object", "propertyNames": {"type": "string", "pattern": names}, "additionalProperties": values}
    return _key(meaning, node, {}, {})


def constant(value: Any, **by: Any) -> Key:
    """Constant that cells read as they read keys, but no config can set."""
    return _key("", {"x-constant": True}, value, by)


def constants(follows: Sequence[str] = (), /, **values: Key) -> Key:
    """Section of constants. follows: those replaced by the experiment's key of the same name where a config sets it."""
    return {"x-constant": True, "properties": values, "x-follows": follows}


def section(meaning: str, /, **keys: Key) -> Key:
    """Key that contains keys, and constants next to them."""
    settable = {name: key for name, key in keys.items() if "x-constant" not in key}
    node = {"type": "object", "additionalProperties": False, "properties": settable}
    return _key(meaning, node, {}, {}) | {"x-constants": {name: keys[name] for name in keys if name not in settable}}


def isolation(default: str, **by: Any) -> Key:
    """Key for whether cells share a process."""
    return choice("job: a shard's cells share a process | cell: a fresh process each", ("job", "cell"), default, **by)


def timeout(default: float, **by: Any) -> Key:
    """Key for the time limit of one cell."""
    return number("seconds that one cell may take", 0, 604_800, default, above=True, **by)


def alone(why: str) -> Key:
    """Key of an experiment that shares a resource with all jobs: none may run next to it. Editing it reruns nothing."""
    return flag(f"beside no job on another GPU, {why}", True)


def experiment(meaning: str, at_most: Sequence[tuple[str, str]] = (), /, **keys: Key) -> Key:
    """Key for an experiment's section, with the common keys. at_most: pairs of keys, the first not above the second."""
    common = {
        "enabled": flag("false: neither measured nor shown", True),
        "rounds": whole("times that the whole grid is measured, each in fresh processes", 1, 100, 1),
        "shards": whole("jobs that the cells are dealt out to", 1, 64, 1),
        "isolation": isolation("job"),
        "timeout_s": timeout(600),
    }
    return section(meaning, **(common | keys)) | {"x-at-most": at_most}
