"""Declarations of config keys: meaning, allowed values, default by preset.

A key is declared by the kind of its values: `whole("samples in a batch", 1, 65_536, 32, tiny=8)`. The default applies
to every preset that is not given. Each declaration is a node of a JSON schema, with `x-expected`, the allowed values in
words, and `x-default`, the default by preset. `constant(128, tiny=64)` is no key.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

Key = dict[str, Any]
PRESETS = ("tiny", "cpu", "gpu")
DTYPES = ("fp32", "tf32", "bf16", "fp16")
SIZES = ("nano", "micro", "mini", "small", "medium", "large", "xl", "2.7B", "10B")
LONGEST = 1_048_576  # tokens
FLAG = {"type": "boolean", "x-expected": "true or false"}


class Form(NamedTuple):
    """Pattern that a text matches as a whole, and the same in words."""

    pattern: str
    words: str


def constant(value: Any, **by: Any) -> Key:
    """Constant that cells read as they read keys, but no config can set."""
    if unknown := set(by) - set(PRESETS):
        raise TypeError(f"no such presets: {', '.join(sorted(unknown))}")
    return {"x-default": {preset: by.get(preset, value) for preset in PRESETS}}


def _key(meaning: str, node: Key, default: Any, *, optional: bool = False, **by: Any) -> Key:
    """Key for values of a node; optional: or null, as wherever the default is null (options list it themselves)."""
    if optional or (default is None and "enum" not in node):
        node = node | {"type": [node["type"], "null"], "x-expected": f"{node['x-expected']} or null"}
    return {"description": meaning, **node} | constant(default, **by)


def _list(
    meaning: str, items: Key, default: Sequence[Any], *, empty: bool = False, repeats: bool = False, **by: Any
) -> Key:
    """Key for a list of values of a node; empty: an empty list is allowed; repeats: so are equal values."""
    words = f"a list of {'any number of' if empty else 'one or more'}{'' if repeats else ' different'} values, each "
    node = {"type": "array", "items": items, "minItems": 0 if empty else 1, "uniqueItems": not repeats}
    return _key(meaning, node | {"x-expected": words + items["x-expected"]}, list(default), **by)


def _bounded(kind: str, low: float, high: float, *, multiple: int | None = None, above: bool = False) -> Key:
    bounds = f"above {low} and up to {high}" if above else f"from {low} to {high}"
    words = f"a{' whole' if kind == 'integer' else ''} number {bounds}"
    node = {"type": kind, "exclusiveMinimum" if above else "minimum": low, "maximum": high, "x-expected": words}
    return node | ({"multipleOf": multiple, "x-expected": f"{words}, a multiple of {multiple}"} if multiple else {})


def _one_of(options: Sequence[Any]) -> Key:
    return {"enum": list(options), "x-expected": f"one of {', '.join(map(str, options))}"}


def _text(form: Form) -> Key:
    return {"type": "string", "pattern": form.pattern, "x-expected": form.words}


def flag(meaning: str, default: bool, **by: Any) -> Key:
    """Key that is true or false."""
    return _key(meaning, FLAG, default, **by)


def flags(meaning: str, default: Sequence[bool]) -> Key:
    """Key whose values are levels of a true-or-false factor."""
    return _list(meaning, FLAG, default)


def whole(meaning: str, low: int, high: int, default: int | None, *, multiple: int | None = None, **more: Any) -> Key:
    """Key for an integer from low to high; more: as of `_key`, optional and presets."""
    return _key(meaning, _bounded("integer", low, high, multiple=multiple), default, **more)


def wholes(
    meaning: str, low: int, high: int, default: Sequence[int], *, multiple: int | None = None, **more: Any
) -> Key:
    """Key for a list of integers from low to high; more: as of `_list`, empty, repeats and presets."""
    return _list(meaning, _bounded("integer", low, high, multiple=multiple), default, **more)


def lengths(meaning: str, default: Sequence[int], **more: Any) -> Key:
    """Key for a list of sequence lengths, in tokens."""
    return wholes(meaning, 1, LONGEST, default, **more)


def number(meaning: str, low: float, high: float, default: float | None, *, above: bool = False, **more: Any) -> Key:
    """Key for a number from low to high; above: low itself is excluded."""
    return _key(meaning, _bounded("number", low, high, above=above), default, **more)


def numbers(meaning: str, low: float, high: float, default: Sequence[float], *, above: bool = False, **by: Any) -> Key:
    """Key for a list of different numbers from low to high; above: low itself is excluded."""
    return _list(meaning, _bounded("number", low, high, above=above), default, **by)


def choice(meaning: str, options: Sequence[Any], default: Any, **by: Any) -> Key:
    """Key for one of the given options."""
    return _key(meaning, _one_of(options), default, **by)


def choices(meaning: str, options: Sequence[Any], default: Sequence[Any] | None = None, **more: Any) -> Key:
    """Key for a list of different options; without a default, all of them."""
    return _list(meaning, _one_of(options), options if default is None else default, **more)


def dtypes(meaning: str, default: Sequence[str], **more: Any) -> Key:
    """Key for a list of dtypes: tf32 is fp32 with TF32 matrix products, bf16 and fp16 are autocast."""
    return choices(meaning, DTYPES, default, **more)


def sizes(meaning: str, default: Sequence[str], **more: Any) -> Key:
    """Key for a list of sizes of the language model."""
    return choices(meaning, SIZES, default, **more)


def devices(default: Sequence[str], **by: Any) -> Key:
    """Key for a list of devices to measure on."""
    meaning = "cpu | cuda; cuda cells are unsupported where there is no CUDA device"
    return choices(meaning, ("cpu", "cuda"), default, **by)


def text(meaning: str, form: Form, default: str | None, **more: Any) -> Key:
    """Key for text of a form."""
    return _key(meaning, _text(form), default, **more)


def texts(meaning: str, form: Form, default: Sequence[str], *, empty: bool = True, **by: Any) -> Key:
    """Key for a list of different texts of a form; empty: an empty list is allowed."""
    return _list(meaning, _text(form), default, empty=empty, **by)


def mapping(meaning: str, names: Form, values: Form) -> Key:
    """Key for texts or integers by name."""
    node = _text(values) | _bounded("integer", -(10**9), 10**9) | {"type": ["string", "integer"]}
    names_and_values = {"propertyNames": _text(names), "additionalProperties": node | {"x-expected": values.words}}
    words = f"values by name, each name {names.words}"
    return _key(meaning, {"type": "object", **names_and_values, "x-expected": words}, {})


def constants(follows: Sequence[str] = (), /, **values: Key) -> Key:
    """Section of constants. follows: those replaced by the experiment's key of the same name where a config sets it."""
    return {"x-constants": values, "x-follows": follows}


def section(meaning: str, /, **keys: Key) -> Key:
    """Key that contains keys, and constants next to them."""
    known = {name: key for name, key in keys.items() if "description" in key}
    node = {"type": "object", "additionalProperties": False, "properties": known}
    words = f"a section with keys among {', '.join(known)}"
    others = {name: key for name, key in keys.items() if name not in known}
    return {"description": meaning, **node, "x-expected": words, "x-constants": others}


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
