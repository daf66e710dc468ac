"""docs/config.md, made of the schema of the config: `python -m perfscribe.config_reference > docs/config.md`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from perfscribe.config_schema import PRESETS, Schema, properties, schema

INTRODUCTION = """\
# Config reference

<!-- Made of workflow/schemas/config.schema.yaml by `python -m perfscribe.config_reference > docs/config.md`. -->

`config.yaml` states every key with its default. [The schema](../workflow/schemas/config.schema.yaml) has the allowed
values, the full descriptions and the defaults of nested keys. A value that is not allowed, or an unknown key, stops the
run with one line that names it.

A value below `experiments` holds for every preset, unless it is given by preset:

```yaml
experiments:
  attention:
    batch: 4
    seq_len: {cpu: [64, 128], gpu: [1024, 65536]}
```

Where presets differ, the tables list the defaults as tiny/cpu/gpu.
"""

COMMON = "These keys stand in each section of `experiments`; a section below states another default.\n"
SHARED = (
    "Keys that several experiments have, with the most frequent default. A section below states another default or "
    "meaning, and names the keys that are as here.\n"
)
# Experiments that have a key with the same meaning, from which on it is explained once.
SEVERAL = 2
# A longer clause ends at the comma before what is said by the way.
MOST_WORDS = 12
_CLAUSE = re.compile(r"[;:]|\.(?=\s|$)|,? (?:so that|although|as far as) |, (?:where|which|since|whose) ")
_ASIDE = re.compile(r", (?=(?:relative|with|one|as|a|an|each|in|on|at|by|or|from|before|until) )")


def reference() -> str:
    """The whole page in Markdown."""
    root = schema()
    sections = properties(properties(root)["experiments"])
    values = {key: node for key, node in properties(root).items() if not properties(node)}
    parts = [INTRODUCTION, "## Top level\n", _table(values)]
    for name, section in properties(root).items():
        if properties(section) and name != "experiments":
            keys = {f"{name}.{key}": node for key, node in properties(section).items()}
            parts += [f"## {name}\n", f"{_clause(section)}.\n", _table(keys)]
    common = _common(sections)
    own = {
        name: {
            key: node
            for key, node in properties(section).items()
            if key not in common or _default(node) != _default(common[key])
        }
        for name, section in sections.items()
    }
    shared = _shared(own, common)
    parts += ["## Every experiment\n", COMMON, _table(common), "## Several experiments\n", SHARED, _table(shared)]
    for name, section in sections.items():
        usual = [key for key, node in own[name].items() if key in shared and _alike(node, shared[key])]
        rest = {key: node for key, node in own[name].items() if key not in usual}
        parts += [f"## experiments.{name}\n", f"{_clause(section)}.\n", _table(rest, {**common, **shared})]
        parts += [f"As above: {', '.join(f'`{key}`' for key in usual)}.\n"] if usual else []
    return "\n".join(parts)


def _common(sections: Mapping[str, Schema]) -> dict[str, Schema]:
    """The keys that all experiments have with the same meaning, each with its most frequent default."""
    found = {}
    for key in properties(next(iter(sections.values()))):
        nodes = [properties(section).get(key) for section in sections.values()]
        there = [node for node in nodes if node]
        if len({_clause(node) for node in there}) == 1 and len(there) == len(nodes):
            often = Counter(map(_default, there)).most_common(1)[0][0]
            found[key] = next(node for node in there if _default(node) == often)
    return found


def _shared(own: Mapping[str, Mapping[str, Schema]], common: Collection[str]) -> dict[str, Schema]:
    """The keys that several experiments have with the same meaning, each with its most frequent default."""
    found: dict[str, Schema] = {}
    nodes = [(key, node) for keys in own.values() for key, node in keys.items() if not properties(node)]
    nodes = [(key, node) for key, node in nodes if key not in common]
    for key in sorted({key for key, _ in nodes}):
        there = [node for name, node in nodes if name == key]
        meaning, count = Counter(map(_clause, there)).most_common(1)[0]
        same = [node for node in there if _clause(node) == meaning]
        often = Counter(map(_default, same)).most_common(1)[0][0]
        if count >= SEVERAL:
            found[key] = next(node for node in same if _default(node) == often)
    return found


def _alike(node: Schema, other: Schema) -> bool:
    """Whether two keys have the same meaning and default."""
    return (_clause(node), _default(node)) == (_clause(other), _default(other))


def _table(nodes: Mapping[str, Schema], known: Mapping[str, Schema] | None = None) -> str:
    """known: keys whose meaning was said before, where it is the same."""
    rows = []
    for key, node in nodes.items():
        said = known is not None and key in known and _clause(known[key]) == _clause(node)
        below = ", ".join(f"`{one}`" for one in _below(key, node))
        rows.append([f"`{key}`", _default(node) or below, "" if said else _clause(node)])
    return _lines(["key", "default", "meaning"], rows)


def _lines(heads: list[str], rows: list[list[str]]) -> str:
    """Without blanks beside the bars: the page is made by a program and read rendered."""
    return "\n".join(f"|{'|'.join(row)}|" for row in [heads, ["---"] * len(heads), *rows]) + "\n"


def _below(key: str, node: Schema) -> Iterator[str]:
    """The keys in a section and in the sections within it."""
    for name, inner in properties(node).items():
        yield f"{key}.{name}"
        yield from _below(f"{key}.{name}", inner)


def _clause(node: Schema) -> str:
    """The first clause of a description, what is in parentheses left out; code is not cut."""
    text = re.sub(r" \([^)`]*\)", "", str(node["description"]))
    found = next((one for one in _CLAUSE.finditer(text) if text.count("`", 0, one.start()) % 2 == 0), None)
    first = (text[: found.start()] if found else text).rstrip(" ,.")
    first, *parts = _ASIDE.split(first)
    for part in parts:
        if len(f"{first} {part}".split()) > MOST_WORDS:
            break
        first = f"{first}, {part}"
    return first


def _default(node: Schema) -> str:
    """The default, or those of the presets where they differ; nothing for a section."""
    if properties(node):
        return ""
    by_preset = node.get("x-default-by-preset")
    texts = [_flow(by_preset[preset]) for preset in PRESETS] if by_preset else [_flow(node["default"])]
    return "/".join(f"`{text}`" for text in (texts if len(set(texts)) > 1 else texts[:1]))


def _flow(value: Any) -> str:
    """The value as YAML, on one line."""
    if isinstance(value, list):
        return f"[{','.join(_flow(item) for item in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    print(reference(), end="")
