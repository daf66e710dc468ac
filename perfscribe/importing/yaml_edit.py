"""Values put into a section of config.yaml as text, so that comments and layout stay."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def scalar(value: Any) -> str:
    """A value as this project's config writes it; texts are quoted where YAML would read something else."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        text = repr(value)
        mantissa, e, exponent = text.partition("e")
        # 5e-05 is text to YAML 1.1, which wants a point
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}" if e else text
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {scalar(inner)}' for key, inner in value.items())}}}"
    plain = re.fullmatch(r"[A-Za-z][\w./-]*", str(value)) and str(value).lower() not in _WORDS
    return str(value) if plain else json.dumps(str(value), ensure_ascii=False)


_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def with_values(text: str, experiment: str, values: Mapping[str, Any]) -> str:
    """The text with these keys of experiments.<experiment> set; those that it lacks come behind the others.

    ValueError: the text has no such section.
    """
    lines = text.splitlines()
    first, last = _section(lines, experiment)
    for key, value in values.items():
        at = next((n for n in range(first, last) if re.match(rf"    {re.escape(key)}:", lines[n])), None)
        if at is None:
            lines.insert(last, f"    {key}: {scalar(value)}")
            last += 1
            continue
        below = at + 1
        while below < last and re.match(r"     +\S", lines[below]):  # levels that stand below their key
            below += 1
        comment = re.search(r"\s+#(?![^{\[]*[}\]]).*$", lines[at])
        lines[at:below] = [f"    {key}: {scalar(value)}{comment[0] if comment else ''}"]
        last -= below - at - 1
    return "\n".join(lines) + "\n"


def _section(lines: list[str], experiment: str) -> tuple[int, int]:
    """Where the keys of a section begin and end."""
    top = next((n for n, line in enumerate(lines) if re.match(r"experiments:\s*(#.*)?$", line)), None)
    start = None if top is None else _line(lines, rf"  {re.escape(experiment)}:\s*(#.*)?$", top)
    if start is None:
        raise ValueError(f"config.yaml has no section experiments.{experiment}; without --write it is printed")
    last = start + 1
    for number in range(start + 1, len(lines)):
        if re.match(r"    +\S", lines[number]):
            last = number + 1
        elif lines[number].strip():
            break
    return start + 1, last


def _line(lines: list[str], pattern: str, start: int) -> int | None:
    return next((n for n in range(start, len(lines)) if re.match(pattern, lines[n])), None)
