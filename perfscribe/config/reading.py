"""A stricter reading of a YAML config: nothing that two YAML readers, or a reader and a person, take differently.

PyYAML drops the first of two equal keys, reads 010 as 8, 1:30 as 90 and 1e-3 as text. Here each of these, aliases that
grow without bound, dates, NaN and infinity included, is refused with the line and the key.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from perfscribe.config.errors import ConfigError, dotted, shown

MAX_BYTES = 131_072
MAX_DEPTH = 16
MAX_VALUES = 20_000

_TAG = "tag:yaml.org,2002:"
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
# Numbers for YAML 1.2 and for people, text for PyYAML.
_NUMBER_LIKE_TEXT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+|0o[0-7]+")
_LEADING_TAB = re.compile(r"^[ ]*\t[ \t]*\S", re.MULTILINE)


def scalar(text: str) -> Any:
    """The value of an unquoted YAML scalar; ValueError with what was expected where its meaning is in doubt."""
    import yaml

    tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))
    return _scalar_value(tag, text, quoted=False)


def _scalar_value(tag: str, text: str, quoted: bool) -> Any:
    kind = tag.removeprefix(_TAG)
    if kind == "str" and (quoted or not _NUMBER_LIKE_TEXT.fullmatch(text)):
        return text
    if kind == "null" and text in _NULLS:
        return None
    if kind == "bool" and text in _BOOLEANS:
        return _BOOLEANS[text]
    if kind == "int" and _WHOLE.fullmatch(text):
        return int(text)
    if kind == "float" and _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    raise ValueError("a plain decimal number, true, false or null, or the text in quotes")


def read(path: Path) -> dict[str, Any]:
    """The file's mapping of keys to plain values (dict, list, str, int, float, bool, None).

    ConfigError for whatever keeps it from being one: no such file, not UTF-8, larger than 128 KiB, not YAML, no
    mapping, a key given twice, a value in doubt, nested too deep.
    """
    node = _composed(_text(path), path)
    if node is None:
        raise ConfigError(f"{path}: got an empty file, expected keys such as site: local")
    value = _Walk(path).value(node, ())
    if not isinstance(value, dict):
        line = node.start_mark.line + 1
        raise ConfigError(f"{path}, line {line}: got {shown(value)}, expected keys such as site: local")
    return value


def _text(path: Path) -> str:
    try:
        if path.is_fifo():  # it would keep us waiting
            raise OSError(None, "a pipe")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: got no such file, expected a YAML file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: got a file that cannot be read ({reason}), expected a YAML file") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: got more than {MAX_BYTES} bytes, expected a YAML file of at most that size")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise ConfigError(f"{path}, line {line}: got the byte {byte:#04x}, expected text in UTF-8") from None


def _composed(text: str, path: Path) -> Any:
    """The root node of the only document, None for an empty one."""
    import yaml

    def at(offset: int) -> str:
        return f"{path}, line {text.count(chr(10), 0, offset) + 1}"

    if odd := yaml.SafeLoader.NON_PRINTABLE.search(text):
        raise ConfigError(f"{at(odd.start())}: got the control character {odd.group()!r}, expected printable text")
    if tab := _LEADING_TAB.search(text):
        raise ConfigError(f"{at(tab.end())}: got a tab in front of the line, expected spaces")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(yaml.parse(text, Loader=loader), path)
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{place}: got text that is not YAML ({error.problem}), expected key: value") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: got text that is not YAML ({error}), expected key: value") from None


def _check_depth(events: Any, path: Path) -> None:
    """Before nodes are composed, as that recurses: thousands of brackets would end the interpreter."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1
            raise ConfigError(f"{path}, line {line}: got more than {MAX_DEPTH} levels of nesting, expected fewer")


class _Walk:
    """Turns YAML nodes into plain values, knowing the key and line of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = 0

    def error(self, node: Any, steps: tuple[str | int, ...], text: str) -> ConfigError:
        return ConfigError(f"{self.path}, line {node.start_mark.line + 1}: {dotted(steps)}: {text}")

    def value(self, node: Any, steps: tuple[str | int, ...]) -> Any:
        self.values += 1
        if self.values > MAX_VALUES or len(steps) > MAX_DEPTH:  # an alias may hold itself, or grow exponentially
            raise self.error(node, steps, f"got aliases that grow to more than {MAX_VALUES} values, expected fewer")
        if node.id == "sequence" and node.tag == _TAG + "seq":
            return [self.value(item, (*steps, index)) for index, item in enumerate(node.value)]
        if node.id == "mapping" and node.tag == _TAG + "map":
            return self.mapping(node, steps)
        if node.id != "scalar":
            raise self.error(node, steps, f"got the YAML tag {shown(node.tag)}, expected a list or mapping without tag")
        try:
            return _scalar_value(node.tag, node.value, quoted=bool(node.style))
        except ValueError as expected:
            raise self.error(node, steps, f"got {shown(node.value)[1:-1]}, expected {expected}") from None

    def mapping(self, node: Any, steps: tuple[str | int, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar" or key_node.tag != _TAG + "str":
                given = shown(key_node.value)[1:-1] if key_node.id == "scalar" else f"a {key_node.id}"
                raise self.error(key_node, steps, f"got the key {given}, expected a name (quote it if it is one)")
            key = key_node.value
            inner = (*steps, key)
            value = self.value(value_node, inner)
            if key in values:
                raise self.error(
                    key_node, inner, f"got {shown(value)} for a key of line {lines[key]}, expected it once"
                )
            values[key] = value
            lines[key] = key_node.start_mark.line + 1
        return values
