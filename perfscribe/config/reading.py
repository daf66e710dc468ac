"""Reads a YAML config: plain values of YAML 1.2, text keys without duplicates, no aliases.

PyYAML follows YAML 1.1: it reads 010 as 8, 1:30 as 90, yes as true and 1e-3 as text, and drops the first of two equal
keys.
"""

import functools
import re
from pathlib import Path
from typing import Any

from perfscribe.base import called_from
from perfscribe.config.errors import ConfigError, shown

MAX_CHARACTERS = 131_072
# YAML 1.2.2, chapter 10.3 (core schema), without octal and hexadecimal numbers, infinity and NaN. The rest is text.
PLAIN = {
    "null": r"|~|null|Null|NULL",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
}
# Exceptions that PyYAML raises for text that is not YAML, or for a tag that does not fit its value.
NO_YAML = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few lines of aliases can expand to gigabytes
                raise yaml.MarkedYAMLError(
                    problem="an alias in place of a value", problem_mark=self.peek_event().start_mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            mapping = {}
            for key_node, value_node in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str) or key in mapping:
                    what = f"the key {key} is given twice" if isinstance(key, str) else f"the key {key} is no text"
                    raise yaml.MarkedYAMLError(problem=what, problem_mark=key_node.start_mark)
                mapping[key] = self.construct_object(value_node, deep=deep)
            return mapping

    Loader.yaml_implicit_resolvers = {}
    for tag, pattern in PLAIN.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"({pattern})\Z"), None)
    return Loader


def scalar(text: str) -> Any:
    """Return the value of an unquoted YAML scalar."""
    import yaml

    loader = _loader()("")
    return loader.construct_object(yaml.ScalarNode(loader.resolve(yaml.ScalarNode, text, (True, False)), text))


def value(text: str) -> Any:
    """Return the value of a YAML text; text that is not valid YAML for a config is returned unchanged."""
    import yaml

    try:
        return _loader()(text).get_single_data()
    except (yaml.YAMLError, *NO_YAML):
        return text


def read(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises ConfigError if it is unreadable, too long, not YAML or no mapping."""
    import yaml

    try:
        text = called_from.text(path)
    except ValueError as error:
        raise ConfigError(f"{error}; expected a YAML file") from None
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{path}: got more than {MAX_CHARACTERS} characters, expected a smaller file")
    try:
        document = _loader()(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: {error.problem}; expected key: value") from None
    except (yaml.YAMLError, *NO_YAML) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}; expected key: value") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: got {shown(document)}, expected keys such as site: local")
    return document
