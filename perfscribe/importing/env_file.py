"""The exports of a shell file, read by their form: no shell runs, and nothing that would need one is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_ENDS = " \t;"


class Refused(Exception):
    """Something in the file that needs a shell; the text says what."""


@dataclass
class EnvFile:
    """exports: text by name, in order. refused: line number, name where one is known, and why it was not taken."""

    exports: dict[str, str] = field(default_factory=dict)
    refused: list[tuple[int, str, str]] = field(default_factory=list)


def parse(text: str) -> EnvFile:
    """Every `export NAME=value` of the text; `NAME=value` alone is for later lines, as in a shell.

    Values may be quoted in both ways and name earlier variables of the file. What a shell would have to run or look up
    is refused with its line; lines that are neither are passed over.
    """
    found, known = EnvFile(), dict[str, str]()
    for number, line in enumerate(text.splitlines(), start=1):
        rest, exported = line.strip(), False
        while rest and not rest.startswith("#"):
            if re.match(r"export\s", rest):
                exported, rest = True, rest[6:].lstrip()
                continue
            assignment = _ASSIGNMENT.match(rest)
            if assignment is None:
                bare = NAME.match(rest) if exported else None
                if bare and bare[0] in known:  # export of what was set before
                    found.exports[bare[0]] = known[bare[0]]
                break
            name = assignment[1]
            try:
                value, rest = _value(rest[assignment.end() :], known)
            except Refused as why:
                found.refused.append((number, name, str(why)))
                found.exports.pop(name, None)
                known.pop(name, None)
                break
            known[name] = value
            if exported:
                found.exports[name] = value
            exported = exported and not rest.startswith(";")
            rest = rest.lstrip(_ENDS)
    return found


def _value(text: str, known: Mapping[str, str]) -> tuple[str, str]:
    """The value at the beginning of the text, and what follows it."""
    parts, place = [], 0
    while place < len(text) and text[place] not in _ENDS:
        character = text[place]
        if character == "'":
            end = text.find("'", place + 1)
            if end < 0:
                raise Refused("a quote that does not end in its line")
            parts.append(text[place + 1 : end])
            place = end + 1
        elif character == '"':
            part, place = _double_quoted(text, place + 1, known)
            parts.append(part)
        elif character == "\\":
            parts.append(text[place + 1 : place + 2])
            place += 2
        else:
            end = place
            while end < len(text) and text[end] not in _ENDS + "'\"\\":
                end += 1
            parts.append(_expanded(text[place:end], known))
            place = end
    return "".join(parts), text[place:]


def _double_quoted(text: str, place: int, known: Mapping[str, str]) -> tuple[str, int]:
    """The text up to the closing quote, and the place behind it."""
    raw: list[str] = []
    plain: list[str] = []
    while place < len(text) and text[place] != '"':
        if text[place] == "\\" and text[place + 1 : place + 2] in ('"', "\\", "$", "`"):
            raw.append(_expanded("".join(plain), known))
            raw.append(text[place + 1])
            plain, place = [], place + 2
        else:
            plain.append(text[place])
            place += 1
    if place >= len(text):
        raise Refused("a quote that does not end in its line")
    return "".join([*raw, _expanded("".join(plain), known)]), place + 1


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """The text with the file's own variables put in. Refused: a command, another expansion, a variable not set here."""
    if "`" in text or "$(" in text:
        raise Refused("a command stands in it, which is not run")

    def put(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in known:
            raise Refused(f"it names {name}, which the file has not set")
        return known[name]

    done = _VARIABLE.sub(put, text)
    if "${" in _VARIABLE.sub("", text):
        raise Refused("an expansion that needs a shell stands in it")
    return done
