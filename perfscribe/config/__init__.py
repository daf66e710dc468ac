"""Reads, checks and resolves the config.

Below `experiments`, a value may be plain, or a mapping by preset with only the keys tiny, cpu and gpu; a preset that
the mapping omits has the default. The schema describes the config after one preset was chosen.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfscribe.config import reading, schema, top
from perfscribe.config.errors import ConfigError, dotted, fault, nearest
from perfscribe.config.keys import PRESETS

__all__ = ["PRESETS", "ConfigError", "check", "load", "merged", "resolve"]

Levels = Mapping[str, Mapping[str, Mapping[str, Any]]]


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the raw config of a YAML file, with overrides merged into it key by key; not checked against the schema.

    Text in overrides is read as an unquoted YAML scalar, because Snakemake's --config gives nested values as text.
    In paths, ~ becomes the home folder. Raises ConfigError if reading.read rejects the file, or if overrides are
    cyclic, nested too deeply or contain an integer of thousands of digits.
    """
    base = reading.read(path)
    raw = merged(base, _reread(_plain(overrides))) if overrides else base
    return dict(_with_home(raw, schema.schema()))


def _with_home(value: Any, node: schema.Schema) -> Any:
    """Return the value with ~ expanded in its paths."""
    if isinstance(value, dict):
        inner = schema.properties(node)
        others = node.get("additionalProperties") or {}
        return {key: _with_home(held, inner.get(key, others)) for key, held in value.items()}
    is_path = isinstance(value, str) and node.get("pattern") == top.PATH.pattern
    return os.path.expanduser(value) if is_path else value


def check(raw: Mapping[str, Any]) -> None:
    """Raise ConfigError with one line on the first fault; a fault of only some presets names them."""
    presets_by_fault: dict[str, list[str]] = {}
    for preset in PRESETS:
        try:
            resolve(raw, preset)
        except ConfigError as error:
            presets_by_fault.setdefault(str(error), []).append(preset)
    for text, presets in presets_by_fault.items():
        raise ConfigError(text if len(presets) == len(PRESETS) else f"{text} (preset {' and '.join(presets)})")


def resolve(raw: Mapping[str, Any], preset: str, levels: Levels | None = None) -> dict[str, Any]:
    """Return a new config for preset tiny, cpu or gpu: values chosen, defaults filled in, `preset` set.

    levels: values of a chapter, by experiment and key, then by preset. Each replaces the default of its key, but not
    another value that `raw` gives. Raises ConfigError if the resulting config is not valid.
    """
    given = _chosen(_plain(raw), schema.schema(), preset, ())
    _replace_levels(given, levels or {}, preset)
    if text := schema.first_fault(given):
        raise ConfigError(text)
    config = schema.filled(schema.schema(), preset, given)
    if text := _relation_fault(config):
        raise ConfigError(text)
    return {**config, "preset": preset}


def _replace_levels(given: dict[str, Any], levels: Levels, preset: str) -> None:
    """Set a chapter's levels in `given`, in place, where a key is missing or has the preset's default.

    A key of an inner section is written `section.key`.
    """
    for experiment, keys in levels.items():
        for key, by_preset in keys.items():
            *folders, name = f"experiments.{experiment}.{key}".split(".")
            section, node = given, schema.schema()
            for folder in folders:
                section, node = section.setdefault(folder, {}), schema.properties(node)[folder]
            default = schema.properties(node)[name]["x-default"][preset]
            if section.get(name, default) == default:  # config.yaml states many defaults
                section[name] = by_preset.get(preset, default)


def _chosen(value: Any, node: schema.Schema, preset: str, path: tuple[str, ...]) -> Any:
    """Return the value with every mapping by preset in it replaced by the preset's value, or the default.

    path: of the value, in the config. Raises ConfigError for a mapping with other keys than presets where a plain value
    belongs; other invalid values stay, for the schema check to find.
    """
    known = schema.properties(node)
    if path[:1] == ("experiments",) and len(path) > 1 and isinstance(value, Mapping) and value:
        if set(value) <= set(PRESETS):
            value = value.get(preset, {} if known else node["x-default"][preset])
        elif not known:
            raise ConfigError(_unknown_preset(value, path))
    if not isinstance(value, Mapping) or not known:
        return value
    return {
        key: _chosen(inner, known[key], preset, (*path, key)) if key in known else inner for key, inner in value.items()
    }


def _unknown_preset(value: Mapping[str, Any], path: tuple[str, ...]) -> str:
    odd = next(key for key in value if key not in PRESETS)
    near = nearest(odd, PRESETS)
    expected = f"presets as keys ({', '.join(PRESETS)})" + (f"; nearest is {near}" if near else "")
    return fault(dotted((*path, odd)), value[odd], expected)


def _relation_fault(config: Mapping[str, Any]) -> str | None:
    """Return a message for the first value above the key that limits it, by pairs in x-at-most; None if there is none.

    null is neither a limit nor above one.
    """
    for name, section in schema.properties(schema.properties(schema.schema())["experiments"]).items():
        given = config["experiments"][name]
        for key, other in section["x-at-most"]:
            value, limit = given[key], given[other]
            if value is not None and limit is not None and value > limit:
                path, bound = ("experiments", name, key), ("experiments", name, other)
                return fault(dotted(path), value, f"at most {limit}, the value of {dotted(bound)}")
    return None


def _plain(raw: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a deep copy of JSON types only: keys, dates and other objects become text.

    Raises ConfigError for cyclic or too deeply nested values, and for integers of thousands of digits.
    """
    try:
        return dict(json.loads(json.dumps(raw, default=str)))
    except (ValueError, RecursionError) as error:  # numbers with thousands of digits, cyclic values
        raise ConfigError(f"config: {error}; expected plain values") from None


def _reread(value: Any) -> Any:
    """Return overrides with each text parsed as an unquoted YAML scalar; text that does not parse stays text."""
    if isinstance(value, dict):
        return {key: _reread(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_reread(item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return reading.scalar(value)
    except ValueError:
        return value


def merged(base: Any, top: Any) -> Any:
    """Return `top` merged into `base`: sections key by key, anything else replaced."""
    if not (isinstance(base, dict) and isinstance(top, dict)):
        return top
    return base | {key: merged(base[key], inner) if key in base else inner for key, inner in top.items()}
