"""Writes docs/config.md and docs/config.schema.json from the declared keys: `python -m perfscribe.config.reference`."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from perfscribe.base import registry
from perfscribe.config import keys
from perfscribe.config.keys import PRESETS
from perfscribe.config.schema import Schema, properties, schema

INTRODUCTION = """\
# Config reference

<!-- Made by `python -m perfscribe.config.reference`. -->

Every key with its default; where presets differ, as tiny/cpu/gpu. An empty meaning: the last that the page has for
a key of this name. A value that is not allowed, or an unknown key, stops the run with one line that names it. A value
below `experiments` holds for every preset, unless it is given by preset:

```yaml
experiments:
  attention:
    batch: 4
    seq_len: {cpu: [64, 128], gpu: [1024, 65536]}
```

Editors with the YAML language server complete and explain keys from [config.schema.json](config.schema.json), which
`config.yaml` names in its first line.
"""

# Last meaning printed for a key, by its name.
Meanings = dict[str, str]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
LONGEST_LINE = 500  # characters of JSON
COMMON = "Each section of `experiments` has these keys, listed below only where the default differs.\n"


def reference() -> str:
    """Return the whole page in Markdown."""
    printed: Meanings = {}
    root = properties(schema())
    common = properties(keys.experiment(""))
    parts = [
        INTRODUCTION,
        "## Top level\n",
        _table({key: node for key, node in root.items() if not properties(node)}, printed),
    ]
    for name, section in root.items():
        if properties(section) and name != "experiments":
            parts += _section(name, section, printed)
    parts += ["## Every experiment\n", COMMON, _table(common, printed)]
    for name, section in properties(root["experiments"]).items():
        parts += _section(f"experiments.{name}", section, printed, common)
    return "\n".join(parts)


def _section(name: str, section: Schema, printed: Meanings, common: Mapping[str, Schema] | None = None) -> list[str]:
    known = common or {}
    keys_of = properties(section).items()
    nodes = {key: node for key, node in keys_of if key not in known or _default(node) != _default(known[key])}
    return [f"## {name}\n", f"{section['description']}.\n", *([_table(nodes, printed)] if nodes else [])]


def _table(nodes: Mapping[str, Schema], printed: Meanings) -> str:
    """Return a Markdown table, compact because people read it rendered; a | within a cell becomes a /."""
    rows = [["key", "default", "meaning"], ["---"] * 3, *_rows(nodes, printed)]
    return "\n".join(f"|{'|'.join(cell.replace('|', '/') for cell in row)}|" for row in rows) + "\n"


def _rows(nodes: Mapping[str, Schema], printed: Meanings, above: str = "") -> Iterator[list[str]]:
    """Yield rows for keys and the keys below them; the meaning is empty if it repeats the last one of this name."""
    for key, node in nodes.items():
        meaning = node["description"]
        yield [f"`{above}{key}`", _default(node), "" if printed.get(key) == meaning else meaning]
        printed[key] = meaning
        yield from _rows(properties(node), printed, f"{above}{key}.")


def _default(node: Schema) -> str:
    """Return the default, by preset where they differ; empty for a section."""
    texts = [f"`{_flow(value)}`" for value in node.get("x-default", {}).values()]
    return "/".join(texts if len(set(texts)) > 1 else texts[:1])


def _flow(value: Any) -> str:
    """Return the value as YAML on one line."""
    if isinstance(value, list):
        return f"[{','.join(_flow(item) for item in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


def editor_schema() -> dict[str, Any]:
    """Return the JSON schema of a config file, where values below `experiments` may be given by preset."""
    kinds: dict[str, Schema] = {}
    node = {"$schema": DRAFT, **_for_editors(schema(), "#", kinds), "$defs": kinds}
    return dict(json.loads(json.dumps(node), object_hook=lambda part: {k: part[k] for k in part if k[:2] != "x-"}))


def _for_editors(node: Schema, place: str, kinds: dict[str, Schema]) -> Schema:
    """Return the schema of the key at `place` (as "#/properties/seed") for editors.

    A value below experiments becomes a reference to kinds[name], added here, which allows the value or an object of
    such values by preset; name: the allowed values in words (x-expected). Raises ValueError if two different schemas
    have the same words.
    """
    by_preset = place.startswith("#/properties/experiments/")
    if keys_of := properties(node):
        presets = {preset: {"$ref": place} for preset in PRESETS} if by_preset else {}
        inner = {key: _for_editors(keys_of[key], f"{place}/properties/{key}", kinds) for key in keys_of}
        return {**node, "properties": inner | presets}
    tiny, cpu, gpu = node["x-default"].values()
    shown = {"description": node["description"], "default": cpu if tiny == cpu == gpu else node["x-default"]}
    if not by_preset:
        return {**node, **shown}
    kind = re.sub(r"\W+", "-", node["x-expected"])
    presets = {preset: {"$ref": f"#/$defs/{kind}/anyOf/0"} for preset in PRESETS}
    value = {name: rule for name, rule in node.items() if name not in ("description", "x-default")}
    levels = {"type": "object", "additionalProperties": False, "properties": presets}
    if kinds.setdefault(kind, {"anyOf": [value, levels]})["anyOf"][0] != value:
        raise ValueError(f"{place}: other values are called {node['x-expected']} too")
    return {**shown, "$ref": f"#/$defs/{kind}"}


def json_lines(value: Any, end: str = "\n") -> str:
    """Return JSON on one line, or, for an object of LONGEST_LINE characters or more, with one line per key.

    The same holds for each value, one space further in. end: line break and indentation of the closing brace.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or len(text) < LONGEST_LINE:
        return text
    return "{" + ",".join(f"{end} {json.dumps(key)}: {json_lines(value[key], end + ' ')}" for key in value) + end + "}"


if __name__ == "__main__":
    docs = registry.ROOT / "docs"
    (docs / "config.md").write_text(reference(), encoding="utf-8")
    (docs / "config.schema.json").write_text(json_lines(editor_schema()) + "\n", encoding="utf-8")
