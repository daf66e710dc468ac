"""The config's JSON schema, and its uses: list paths of keys, fill in defaults, find the first fault of a config."""

import copy
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfscribe.base import registry
from perfscribe.config import keys
from perfscribe.config.errors import dotted, fault, nearest, shown
from perfscribe.config.keys import PRESETS
from perfscribe.config.top import TOP

Schema = Mapping[str, Any]


@functools.cache
def schema() -> Schema:
    """Return the schema of a config whose values are chosen for one preset, without defaults; cached: do not modify."""
    levels = registry.levels()
    only = keys.choices("experiments to measure and show; []: all that are enabled", list(levels), [], empty=True)
    return keys.section("Perfscribe's config", **TOP, only=only, experiments=keys.section("What is measured", **levels))


def properties(node: Schema) -> Mapping[str, Schema]:
    """Return the keys of a section with their schemas; empty for a value."""
    children: Mapping[str, Schema] = node.get("properties", {})
    return children


def paths(node: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key in or below a section."""
    for key, inner in properties(node).items():
        yield (*path, key)
        yield from paths(inner, (*path, key))


def filled(node: Schema, preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's values, as given or else the preset's defaults, and its constants, nested as in the schema.

    given: values for this preset, without faults; copied. A section of constants may name keys next to it (x-follows):
    a value given for such a key replaces the constant of the same name, unless it equals the key's default.
    """
    values = {}
    for name, inner in {**properties(node), **node["x-constants"]}.items():
        if "x-default" in inner:
            values[name] = copy.deepcopy(given[name] if name in given else inner["x-default"][preset])
        else:  # config.yaml states many defaults, which constants do not follow
            defaults = {key: properties(node)[key]["x-default"][preset] for key in inner.get("x-follows", ())}
            followed = {key: given[key] for key in defaults if given.get(key, defaults[key]) != defaults[key]}
            values[name] = filled(inner, preset, given.get(name, followed))
    return values


def first_fault(config: Any) -> str | None:
    """Return a message for the first violation of the schema in a config for one preset, or None.

    Unknown keys come first, because a misspelt key explains other faults.
    """
    errors = sorted(
        _validator().iter_errors(config),
        key=lambda e: (e.validator != "additionalProperties", [str(step) for step in e.absolute_path]),
    )
    if not errors:
        return None
    error = errors[0]
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        key = next(key for key in error.instance if key not in properties(error.schema))
        return _unknown_key((*path, key), error.instance, error.schema)
    misspelt = "enum" in error.schema and isinstance(error.instance, str)
    near = nearest(error.instance, map(str, error.schema["enum"])) if misspelt else None
    if error.validator_value == "array" and isinstance(error.instance, str | int):
        near = f"[{error.instance}]"
    return fault(dotted(path), error.instance, error.schema["x-expected"]) + (f"; nearest is {near}" if near else "")


def _unknown_key(path: Sequence[str | int], section: Mapping[str, Any], node: Schema) -> str:
    """Return the message for a key that the schema does not know, with the nearest known one."""
    key = str(path[-1])
    got = f"{dotted(path)}: got {shown(section[key])} for an unknown key"
    if key in PRESETS:
        return f"{got}, expected presets ({', '.join(PRESETS)}) alone, without other keys beside them"
    known = properties(node)
    if "." in key and len(path) == 1:
        first, *others = key.split(".")
        nested = functools.reduce(lambda value, name: f"{{{name}: {value}}}", reversed(others), shown(section[key]))
        return f"{got}, expected keys within keys: '{first}={nested}'"
    if near := nearest(key, known):
        return f"{got}, expected a known one; nearest is {dotted([*path[:-1], near])}"
    elsewhere = [dotted(other) for other in paths(schema()) if other[-1] == key]
    if elsewhere:
        return f"{got}, expected a known one; {key} stands at {', '.join(elsewhere[:3])}"
    return f"{got}, expected one of {', '.join(known)}"


@functools.cache
def _validator() -> Any:
    import jsonschema

    def pattern(_: Any, wanted: str, value: Any, __: Schema) -> Iterator[jsonschema.ValidationError]:
        if isinstance(value, str) and not re.fullmatch(wanted, value):  # re.search's $ allows a line break
            yield jsonschema.ValidationError("no match")

    base = jsonschema.Draft202012Validator
    # JSON schema accepts 4.0 as an integer, but range(4.0) fails. NaN passes any bounds.
    checker = base.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: type(value) is int,
            "number": lambda _, value: type(value) is int or (type(value) is float and math.isfinite(value)),
        }
    )
    return jsonschema.validators.extend(base, {"pattern": pattern}, type_checker=checker)(schema())
