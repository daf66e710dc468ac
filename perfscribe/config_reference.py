"""docs/config.md, made of the schema of the config: `python -m perfscribe.config_reference > docs/config.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from perfscribe.config_schema import PRESETS, Schema, expectation, properties, schema

INTRODUCTION = """\
# Config reference

<!-- Made of workflow/schemas/config.schema.yaml by `python -m perfscribe.config_reference > docs/config.md`. -->

All of it stands, with its defaults, in `config.yaml`. A key that is left out has its default; a key that does not
exist, a value that is not allowed, a key given twice and a value that YAML readers take differently (`010`, `yes`,
`1e-3`, a date) are refused with one line.

Any value below `experiments` may be given plainly, and then holds for every preset, or by preset:

```yaml
experiments:
  attention:
    batch: 4
    seq_len: {cpu: [64, 128], gpu: [1024, 65536]}
```

A preset that such a mapping leaves out has the default. All three presets are checked, whichever is in use.
"""


def reference() -> str:
    """The whole page in Markdown."""
    root = schema()
    experiments = properties(root)["experiments"]
    common = _common(experiments)
    values = {key: node for key, node in properties(root).items() if not properties(node)}
    parts = [INTRODUCTION, "## Top level\n", _table(values)]
    for name, section in properties(root).items():
        if properties(section) and name != "experiments":
            parts += [
                f"## {name}\n",
                f"{section['description']}\n",
                _table({f"{name}.{key}": node for key, node in properties(section).items()}),
            ]
    parts.append("## Every experiment\n")
    parts += ["These keys stand in each section of `experiments`.\n", _table(common)]
    for name, section in properties(experiments).items():
        own = {key: node for key, node in properties(section).items() if key not in common}
        parts += [f"## experiments.{name}\n", f"{section['description']}\n", _table(own)]
    return "\n".join(parts)


def _common(experiments: Schema) -> dict[str, Schema]:
    """The keys that all experiments have with the same meaning, default and allowed values."""
    first, *others = [properties(section) for section in properties(experiments).values()]
    return {key: node for key, node in first.items() if all(other.get(key) == node for other in others)}


def _table(nodes: dict[str, Schema]) -> str:
    lines = ["| key | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for key, node in _keys(nodes):
        lines.append(f"| `{key}` | {_default(node)} | {_allowed(node)} | {node['description']} |")
    return "\n".join(lines) + "\n"


def _keys(nodes: dict[str, Schema], above: str = "") -> Iterator[tuple[str, Schema]]:
    for key, node in nodes.items():
        yield above + key, node
        yield from _keys(dict(properties(node)), f"{above}{key}.")


def _allowed(node: Schema) -> str:
    if properties(node):
        return "a section"
    text = expectation(node)
    return text.replace(node["pattern"], f"`{node['pattern']}`") if "pattern" in node else text


def _default(node: Schema) -> str:
    by_preset = node.get("x-default-by-preset")
    if properties(node):
        return "the defaults below"
    if not by_preset:
        return f"`{_flow(node['default'])}`"
    return "<br>".join(f"{preset} `{_flow(by_preset[preset])}`" for preset in PRESETS)


def _flow(value: Any) -> str:
    """The value as config.yaml writes it."""
    if isinstance(value, list):
        return f"[{', '.join(_flow(item) for item in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    print(reference(), end="")
