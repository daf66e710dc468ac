"""Removes host names, user names and absolute paths from published files, and finds those left.

A name is private only if it means the machine or the person. A distinctive name is replaced wherever it is a whole
word. A name that is also a word of this field or project ("root", "max", "vm") or shorter than three letters is
replaced only where the context identifies it, such as USER=max, max@vm, "node": "vm". Absolute paths shrink to their
base name, so that tracebacks stay readable.
"""

from __future__ import annotations

import getpass
import gzip
import os
import platform
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from perfscribe.records import machine

HOST, USER, PATH = "<host>", "<user>", "<path>"


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Top folders of paths specific to a machine or person. Kernel interfaces (/proc, /sys, /dev) and /etc are the same
# everywhere and stay.
ROOTS = _set(
    "home homes root Users tmp var private usr opt mnt media srv scratch lus lustre gpfs eagle grand beegfs pfs fsx "
    "afs nfs net global export projects project work workspace workdir storage shared cluster sw soft Volumes Library "
    "Applications content kaggle"
)
SAME_EVERYWHERE = _set("bin boot dev etc lib lib32 lib64 libx32 proc sbin sys")

# Parents of home folders, whose names are private.
HOME_PARENTS = _set("home homes Users")
MAYBE_HOME_PARENTS = _set("user users u scratch")  # unless the name looks like a file name

ORDINARY = _set(
    "root user users admin ubuntu debian runner nobody test guest host hosts node path localhost gpu cpu ram nvidia "
    "amd intel tesla epyc xeon h100 h200 a100 b200 gh200 v100 l40s mean median max min std sum total time step size "
    "batch seq len head dim dtype fp16 fp32 fp64 bf16 tf32 eager compiled triton torch cuda nccl gloo flash cold "
    "warm forward backward optimizer loss rate share token tokens sample samples second seconds byte bytes gib mib "
    "flop flops tflop tflops measured predicted published imported unsupported timeout failed skipped read write "
    "page mark data model local none true false null nan inf"
)

HOST_KEYS = _set("node nodes node_name nodename nodelist host hosts host_name hostname hostnames")
USER_KEYS = _set("user users user_name username login logname")

_ALNUM = r"[^\W_]"
_PART = r"[^\s\"'`<>|,;:()\[\]{}\\/]"  # one path component
_NEVER = r"(?!)"
# Where an absolute path may begin: not in a ratio (a/b), a unit (GB/s), a closing tag or a relative path;
# but after a compiler's -I and after an escaped line end.
_LEFT = r"(?:(?<=file://)|(?<=\s-[A-Za-z])|(?<=\\[nrt])|(?<![\w/.)\]}+%*~\\-]))"


@dataclass(frozen=True)
class Private:
    """Private facts.

    hosts, users: names; paths: absolute folders; roots: top folders of absolute paths that are always replaced;
    ordinary: lower-case words that identify a host or user only by their context.
    """

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    roots: frozenset[str] = ROOTS
    ordinary: frozenset[str] = frozenset()

    def including(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> Private:
        """Return a copy with more names, e.g. of cluster nodes in the journals."""
        short = {name for host in hosts for name in (host, host.split(".")[0])} - {"localhost"}
        return replace(
            self,
            hosts=tuple(sorted({*self.hosts, *short} - {"", HOST})),
            users=tuple(sorted({*self.users, *users} - {"", USER})),
        )


def private_here(root: Path) -> Private:
    """Private facts about this machine and user; `root` is the checkout."""
    variables = [os.environ.get(name, "") for name in ("HOSTNAME", "SLURMD_NODENAME")]
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")} | {account()}
    top = {entry.name for entry in os.scandir("/")} if os.name == "posix" else set()
    identity = machine.identity(())
    words = _words(f"{identity['gpu_model']} {identity['cpu_model']} {identity['platform']}")
    private = Private(
        paths=tuple(sorted(_own_folders(root), key=len, reverse=True)),
        roots=(ROOTS | top) - SAME_EVERYWHERE,
        ordinary=frozenset(_project_words(root) | words),
    )
    return private.including([platform.node(), *variables], users)


def account() -> str:
    """Name of this account; empty if its uid has no entry, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _own_folders(root: Path) -> set[str]:
    folders = {root, root.resolve(), Path.home(), Path(sys.prefix), *map(Path, site.getsitepackages())}
    folders |= {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    folders |= {Path(os.environ[name]) for name in ("TMPDIR", "SCRATCH", "VIRTUAL_ENV") if os.environ.get(name)}
    # Top-level folders (/usr, /tmp) are not private, unless one is the home (/root).
    return {
        str(folder) for folder in folders if folder.is_absolute() and (len(folder.parts) > 2 or folder == Path.home())
    } - {"/"}


def _words(text: str) -> set[str]:
    return set(re.findall(f"{_ALNUM}+", text.casefold()))


def _project_words(root: Path) -> set[str]:
    """Words that the project itself may print: such a name does not identify a person."""
    patterns = ("perfscribe/**/*.py", "references/*.csv", "config.yaml")
    files = {file for pattern in patterns for file in root.glob(pattern) if file.is_file() and file.name != "scrub.py"}
    return {word for file in files for word in _words(file.read_text(encoding="utf-8", errors="replace"))}


# --- text -------------------------------------------------------------------------------------------------------


def scrub_text(text: str, private: Private) -> str:
    """Replace private facts by <host>, <user> and <path>/base.name; idempotent."""
    rules = _rules(private)
    while (scrubbed := rules.scrub(text)) != text:  # a replacement can expose the text next to it
        text = scrubbed
    return text


class _Rules:
    """A regular expression of alternatives, each with the function that replaces its match."""

    def __init__(self, private: Private):
        self.private = private
        self.word = re.compile(_word_pattern(private))
        users, hosts = _any(private.users), _any(private.hosts)
        key = r"[\"']?\s*[:=]\s*[\"']?"
        alternatives: dict[str, tuple[str, Callable[[re.Match[str]], str]]] = {
            "url": (_URL, self._url),
            "quoted": (r"(?<=File )(\\?\")(?P<quoted_path>/[^\"\\\n]+)(?=\\?\", line)", self._quoted),
            "own": (_own_pattern(private), lambda match: self.collapse(match[0])),
            "absolute": (_absolute_pattern(private), lambda match: self.collapse(match[0])),
            "json_host": (_json_pattern(HOST_KEYS, HOST, "host"), lambda match: match["host_key"] + HOST),
            "json_user": (_json_pattern(USER_KEYS, USER, "user"), lambda match: match["user_key"] + USER),
            "user_of": (
                rf"(?<![A-Za-z])(?P<said_user>(?i:user(?:_?name)?|logname|login|owner|account){key}|[ug]id=\d+\()"
                rf"(?:{users})(?![\w-])",
                lambda match: match["said_user"] + USER,
            ),
            "user_at": (rf"(?<![\w.@/+<-])(?:{users})(?=@[A-Za-z<\[])", lambda match: USER),
            "host_of": (
                rf"(?<![A-Za-z])(?P<said_host>(?i:host(?:_?name)?|node(?:_?name|list)?|master_addr){key})"
                rf"(?:{hosts})(?![\w-])",
                lambda match: match["said_host"] + HOST,
            ),
            "host_at": (rf"(?:(?<=@)(?:{hosts})(?![\w-])|(?<=\[)(?:{hosts})(?=\]:\d))", lambda match: HOST),
            "host_ranks": (  # log and last line of a self-test
                rf"(?P<said_ranks>\bRank +\d+(?: Group +\d+)?(?: Pid +\d+)? on +|\branks on )(?:{hosts})(?![\w-])",
                lambda match: match["said_ranks"] + HOST,
            ),
            "host_log": (rf"(?<![\w<.-])(?:{hosts})(?=:\d+:\d+ \[\d+\])", lambda match: HOST),  # NCCL's log lines
            "word": (self.word.pattern, lambda match: self.scrub_word(match[0])),
        }
        self.replacements = {name: function for name, (_, function) in alternatives.items()}
        self.pattern = re.compile("|".join(f"(?P<{name}>{pattern})" for name, (pattern, _) in alternatives.items()))

    def changes(self, text: str) -> Iterator[tuple[int, str, str, str]]:
        """Yield (offset, kind, text found, its replacement) for everything private in the text."""
        for match in self.pattern.finditer(text):
            kind = next(name for name in self.replacements if match[name] is not None)
            new = self.replacements[kind](match)
            if new != match[0]:
                yield match.start(), kind, match[0], new

    def scrub(self, text: str) -> str:
        parts, done = [], 0
        for start, _, old, new in self.changes(text):
            parts += [text[done:start], new]
            done = start + len(old)
        return "".join([*parts, text[done:]])

    def scrub_word(self, text: str) -> str:
        """Replace distinctive names in the text, host names with their domain."""
        return self.word.sub(lambda match: USER if match[0] in self.private.users else HOST, text)

    def collapse(self, path: str) -> str:
        """Replace an absolute path by <path>/base; without the base if that is a home folder."""
        stem = path.rstrip(".!?…")
        if stem.rstrip("/") in self.private.paths:
            return PATH + path[len(stem.rstrip("/")) :]
        if stem.endswith("/"):
            return f"{PATH}/{path[len(stem) :]}"
        parent, base = PurePosixPath(stem).parts[-2:]
        persons = parent in HOME_PARENTS or (parent in MAYBE_HOME_PARENTS and "." not in base)
        if persons or base in self.private.users or stem == "/root":
            return PATH + path[len(stem) :]
        base = re.sub(r"^(pytest-of-|torchinductor_)(?!<).+", rf"\1{USER}", base)
        return f"{PATH}/{self.scrub_word(base)}{path[len(stem) :]}"

    def _quoted(self, match: re.Match[str]) -> str:
        return match[0].replace(match["quoted_path"], self.collapse(match["quoted_path"]))

    def _url(self, match: re.Match[str]) -> str:
        """Scrub only the authority: paths like github.com/<user>/... are citations."""
        scheme, rest = match[0].split("://", 1)
        authority, slash, path = rest.partition("/")
        for host in self.private.hosts:
            authority = re.sub(rf"(?<![\w.-]){re.escape(host)}(?:\.[\w.-]+)?(?=$|:\d)", HOST, authority)
        for user in self.private.users:
            authority = re.sub(rf"^{re.escape(user)}(?=[:@])", USER, authority)
        return f"{scheme}://{authority}{slash}{path}"


_rules = lru_cache(maxsize=16)(_Rules)

# A URL ends where a list (comma), a search path (":/") or a query (path "=/home/...") may continue with a path.
_URL = r"\b(?:https?|ftp|wss?)://(?:<host>|<user>|[^\s\"'<>`)\]}|\\,:=]|[:=](?!/))+"


def _any(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or _NEVER


def _distinctive(name: str, ordinary: frozenset[str]) -> bool:
    parts = _words(name)
    return len(name) >= 3 and not name.isdecimal() and not parts <= (ORDINARY | ordinary)


def _word_pattern(private: Private) -> str:
    users = _any(name for name in private.users if _distinctive(name, private.ordinary))
    hosts = _any(name for name in private.hosts if _distinctive(name, private.ordinary))
    domain = r"(?:(?:\.[\w-]+)*\.(?:edu|org|com|net|gov|local|internal|localdomain|lan)(?![\w-]))?"
    return rf"(?<!{_ALNUM})(?:(?:{users})|(?:{hosts}){domain})(?!{_ALNUM})"


def _own_pattern(private: Private) -> str:
    """Match this machine's folders literally, since they may contain blanks; named homes also within a word."""
    rest = rf"(?![\w-])(?:/{_PART}*)*"
    named = _any(path for path in private.paths if set(PurePosixPath(path).parts[1:-1]) & HOME_PARENTS)
    return rf"(?:(?:{named})|{_LEFT}(?:{_any(private.paths)})){rest}"


def _absolute_pattern(private: Private) -> str:
    return rf"{_LEFT}(?:/(?:{_any(private.roots)})/+{_PART}+(?:/{_PART}*)*|/root(?![\w-]))"


def _json_pattern(keys: frozenset[str], placeholder: str, name: str) -> str:
    return rf"(?P<{name}_key>\"(?:{_any(keys)})\"\s*:\s*\")(?!{placeholder}\"|\")[^\"\\\n]+"


# --- JSON -------------------------------------------------------------------------------------------------------


def scrub_json(obj: Any, private: Private) -> Any:
    """Copy with every text scrubbed; texts under keys such as "node" and "user" are replaced whole.

    Keys stay: they are names of code and variables. find_private would report a private one.
    """
    if isinstance(obj, str):
        return scrub_text(obj, private)
    if isinstance(obj, Mapping):
        return {key: _scrub_under(key, value, private) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [scrub_json(value, private) for value in obj]
    return obj


def _scrub_under(key: Any, value: Any, private: Private) -> Any:
    placeholder = HOST if key in HOST_KEYS else USER if key in USER_KEYS else None
    if placeholder and isinstance(value, str) and value:
        return placeholder
    if placeholder and isinstance(value, list | tuple):
        return [placeholder if isinstance(item, str) else scrub_json(item, private) for item in value]
    return scrub_json(value, private)


def gather(obj: Any, private: Private) -> Private:
    """Extend `private` by the host and user names under such keys: journals come from many nodes."""
    hosts, users = set(_texts_under(obj, HOST_KEYS)), set(_texts_under(obj, USER_KEYS))
    return private.including(hosts, users)


def _texts_under(obj: Any, keys: frozenset[str]) -> Iterator[str]:
    if isinstance(obj, Mapping):
        for key, value in obj.items():
            if key in keys:
                items = value if isinstance(value, list | tuple) else [value]
                texts = [item for item in items if isinstance(item, str)]
                yield from (name for text in texts for name in re.split(r",\s*", text) if name)
            yield from _texts_under(value, keys)
    elif isinstance(obj, list | tuple):
        for value in obj:
            yield from _texts_under(value, keys)


# --- files ------------------------------------------------------------------------------------------------------


def find_private(root: Path, private: Private) -> list[str]:
    """List everything that scrubbing would still change in the text files below `root` and in their names.

    Each as file, line (from 1; 0 for the file name), kind and text. Paths under common roots and texts under keys such
    as "node" are found whatever their origin. Skips binary files (with a zero byte) and HTML, which is not committed
    and embeds pictures in base64; unpacks .gz.
    """
    rules = _rules(private)
    findings = []
    for file in sorted(root.rglob("*")):
        if not file.is_file() or file.suffix == ".html":
            continue
        name = file.relative_to(root).as_posix()
        findings += [f"{name}:0: {kind}: {old}" for _, kind, old, _ in rules.changes(name)]
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        if b"\0" not in content:
            findings += _findings(name, content.decode(errors="replace"), rules)
    return findings


def _findings(name: str, text: str, rules: _Rules) -> Iterator[str]:
    for start, kind, old, _ in rules.changes(text):
        line = text.count("\n", 0, start) + 1
        yield f"{name}:{line}: {kind}: {old}"
