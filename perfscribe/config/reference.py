"""Generates docs/config.md from the declared keys: `python -m perfscribe.config.reference > docs/config.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from perfscribe.config import keys
from perfscribe.config.schema import Schema, properties, schema

INTRODUCTION = """\
# Config reference

<!-- Made by `python -m perfscribe.config.reference > docs/config.md`. -->

Every key with its default; where presets differ, as tiny/cpu/gpu. An empty meaning: the last that the page has for
a key of this name. A value that is not allowed, or an unknown key, stops the run with one line that names it. A value
below `experiments` holds for every preset, unless it is given by preset:

```yaml
experiments:
  attention:
    batch: 4
    seq_len: {cpu: [64, 128], gpu: [1024, 65536]}
```
"""

# Last meaning printed for a key, by its name.
Meanings = dict[str, str]

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
    """Return a Markdown table without spaces around the bars: the page is only read rendered."""
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


if __name__ == "__main__":
    print(reference(), end="")
