"""Files damaged at random: bytes of any, parts of JSON and of journals."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from random import Random
from typing import Any

import yaml

from perfscribe.records import journal

# In the place of a part of JSON.
ODD: list[Any] = json.loads('[null, true, -1, 1e308, 0.5, "", "x", "../../x", "/etc/x", "\\n\\u0000", [], {}, [[]]]')
ODD += [10**30, {"a": 1}]
# Among bytes.
SCRAPS = [b"\0", b"\n", b"\xff", b'"', b"{", b"|", b"NaN", b"1e999", b"\n---\n", b"../../x", b"<script>"]
SCRAPS += [b"[" * 5000, b"(" * 500, b"!!python/object/apply:os.abort []", b"__import__('os').abort()"]
SCRAPS += [pickle.dumps(os.abort)]


def damaged(content: bytes, draw: Random) -> bytes:
    """Some bytes lost, changed, added, or the end cut off."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at, size = draw.randrange(len(made) + 1), draw.choice((1, 1, 4, 64))
        new = draw.choice((b"", draw.randbytes(size), draw.choice(SCRAPS), bytes(made[at : at + 64])))
        made[at : at + draw.choice((0, size))] = new
    return bytes(made[: draw.randrange(len(made) + 1)] if draw.random() < 0.1 else made)


def altered(value: Any, draw: Random) -> Any:
    """The JSON value with a part of it lost, or another in its place."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.1:
        return draw.choice(ODD)
    made = value.copy()
    place = draw.choice(list(made) if isinstance(made, dict) else range(len(made)))
    if draw.random() < 0.1:
        del made[place]
    else:
        made[place] = altered(made[place], draw)
    return made


def as_json(content: bytes, draw: Random) -> bytes:
    return json.dumps(altered(yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), draw)).encode()


def as_lines(content: bytes, draw: Random) -> bytes:
    """A line altered; a journal's with the digest that belongs to it."""
    if content[:2] == b"\x1f\x8b":
        return gzip.compress(as_lines(gzip.decompress(content), draw))
    lines = content.splitlines()
    place = draw.randrange(len(lines))
    made = altered(json.loads(lines[place]), draw)
    signed = b'"digest"' in lines[place] and isinstance(made, dict)
    lines[place] = journal.as_line(made)[:-1] if signed else json.dumps(made).encode()
    return b"\n".join(lines) + b"\n"
