"""Units in the headings of tables: which one a heading asks for, and how figures become figures of it."""

from __future__ import annotations

import re

# In bytes and in seconds. MB and GB are powers of ten, MiB and GiB powers of two, as by IEC 80000-13.
BYTES = {
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_KNOWN = {name.casefold(): name for name in (*BYTES, *SECONDS)}
_BRACKET = re.compile(r"\(([^()]*)\)")


def named(text: str) -> str:
    """A unit as it is written here; ValueError where none of them is called so."""
    if text.casefold() not in _KNOWN:
        raise ValueError(f"{text!r} is no unit known here")
    return _KNOWN[text.casefold()]


def in_heading(heading: str) -> str:
    """The unit in brackets of a heading such as `GPU Memory (GB, Callback)`; empty where there is none."""
    words = (word.strip() for bracket in _BRACKET.findall(heading) for word in bracket.split(","))
    return next((_KNOWN[word.casefold()] for word in words if word.casefold() in _KNOWN), "")


def without_unit(heading: str) -> str:
    """The heading in lower case with its unit's kind in the unit's place, so that two that differ in it are equal."""
    unit = in_heading(heading)
    kind = "<bytes>" if unit in BYTES else "<seconds>"
    text = re.sub(rf"\b{re.escape(unit)}\b", kind, heading, count=1, flags=re.IGNORECASE) if unit else heading
    return " ".join(text.casefold().split())


def scale(stored: str, wanted: str) -> float:
    """What to multiply figures in `stored` by to have them in `wanted`; 1 where one of the two is empty.

    ValueError: the two measure different things.
    """
    if not stored or not wanted or stored == wanted:
        return 1.0
    for kind in (BYTES, SECONDS):
        if stored in kind and wanted in kind:
            return kind[stored] / kind[wanted]
    raise ValueError(f"{stored} cannot be told in {wanted}")


def told(unit: str) -> str:
    """What a unit of bytes is, for those who read another meaning into it; empty for other units."""
    if unit not in BYTES or unit == "B":
        return ""
    size = BYTES[unit]
    binary = unit[1] == "i"
    power = len(str(int(size))) - 1 if not binary else int(size).bit_length() - 1
    return f"{unit}: {2 if binary else 10}^{power} bytes"
