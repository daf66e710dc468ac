"""Publishes known fields only, their texts without host names, user names and absolute paths; finds those left.

A name that is also a word of the project ("root", "max") or shorter than three letters does not identify anybody: it is
replaced only where the context does, as in USER=max, max@vm, "node": "vm". Absolute paths shrink to the name of their
file, so that tracebacks stay readable.
"""

from __future__ import annotations

import getpass
import gzip
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from perfscribe.records import machine

HOST, USER, PATH = "<host>", "<user>", "<path>"


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Fields that are published; others are left out.
RECORD = _set(
    "event schema id origin experiment key round factors fingerprint status reason samples warmup values series timers "
    "spent environment watch flags data_digest order"
)
PROVENANCE = _set(
    "commit dirty node node_number boot python gpu_clocks_mhz variables slurm_job_id gpus cores time attempts error"
)
CLUSTER = _set("executor time_minutes gpus_per_node max_nodes max_jobs cores mem_mb exclusive")
ENVIRONMENT = _set(
    "gpu_model gpu_count gpu_memory_bytes gpu_power_limit_w driver_version cuda_driver_version cpu_model cpu_cores "
    "is_virtual python platform libraries"
)

HOST_KEYS = _set("node nodes node_name nodename nodelist host hosts host_name hostname hostnames")
USER_KEYS = _set("user users user_name username login logname")
HOMES = _set("home homes Users user users u scratch")  # parents of home folders
# Top folders that are the same everywhere; /pytorch is in the tracebacks of its builds.
PUBLIC_TOPS = "bin|boot|dev|etc|lib|lib32|lib64|proc|pytorch|sbin|sys"
CITED = r"arxiv\.org|doi\.org|github\.com|huggingface\.co"  # whose addresses are citations, not this machine's
FILE_NAME = re.compile(
    r"[^/]*\.(?:cc?|cpp|csv|cuh?|gz|h|h5|html|json|jsonl|log|md|npy|pt|pyi?|rep|sh|so|sqlite|txt|yaml)"
)
_ALNUM = r"[^\W_]"
_PART = r"[^\s\"'`<>|,;:()\[\]{}\\/]"  # of a path
# An absolute path may begin here: not in a ratio (a/b), a unit (GB/s), a closing tag or a relative path, but after a
# compiler's -I and after an escaped line end.
_LEFT = r"(?:(?<=file://)|(?<=\s-[A-Za-z])|(?<=\\[nrt])|(?<![\w/.)\]}+%*~\\-]))"
_OWNER = r"(?:user(?:_?name)?|logname|login|owner|account|host(?:_?name)?|node(?:_?name|list)?|master_addr)"


def _any(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"


def _words(text: str) -> set[str]:
    return set(re.findall(f"{_ALNUM}+", text.casefold()))


@dataclass(frozen=True)
class Private:
    """Private facts. hosts, users: names. paths: absolute folders. ordinary: lower-case words that identify nobody."""

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    ordinary: frozenset[str] = frozenset()

    def including(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> Private:
        """Return a copy with more names, e.g. of cluster nodes in the journals."""
        short = {name for host in hosts for name in (host, host.split(".")[0])} - {"localhost"}
        all_hosts, all_users = {*self.hosts, *short} - {"", HOST}, {*self.users, *users} - {"", USER}
        return replace(self, hosts=tuple(sorted(all_hosts)), users=tuple(sorted(all_users)))

    def distinctive(self, name: str) -> bool:
        """Return whether the name identifies a host or user without any context."""
        return len(name) >= 3 and not name.isdecimal() and not _words(name) <= self.ordinary

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Everything private, and citations."""
        names = {*self.hosts, *self.users}
        name, private_top = _any(names), f"/(?!(?:{PUBLIC_TOPS})/)"
        user, host = (_any(filter(self.distinctive, kind)) for kind in (self.users, self.hosts))
        return re.compile(
            rf"(?P<citation>https?://(?:{CITED})/[\w.%/-]*)"
            # a quoted path may have blanks, as this machine's own may
            rf"|(?<=[\"'])(?P<quoted>{private_top}[^\"'\\\n/]+/[^\"'\\\n]+)(?=\\?[\"'])"
            rf"|(?P<path>(?:{_any(self.paths)})(?![\w-])(?:/{_PART}*)*"
            rf"|{_LEFT}(?:{private_top}{_PART}+/+{_PART}+(?:/{_PART}*)*|/root(?![\w-])))"
            rf"|(?P<key>\"(?P<of>{_any(HOST_KEYS | USER_KEYS)})\"\s*:\s*\")(?!<host>\"|<user>\"|\")[^\"\\\n]+"
            rf"|(?P<before>(?<![A-Za-z])(?i:{_OWNER})[\"']?\s*[:=]\s*[\"']?|[ug]id=\d+\("
            rf"|\bRank [^\n<]*? on +|\branks on )(?P<named>{name})(?![\w-])"
            rf"|(?<![\w.@/+<-])(?:{name})(?=@[A-Za-z<\[]|:\d+:\d+ \[\d+\])|(?:(?<=[@\[])|(?<=//))(?:{name})(?![\w-])"
            rf"|(?<!{_ALNUM})(?:{user}|(?:{host})(?:\.[A-Za-z][\w-]*)*)(?!{_ALNUM})"
        )

    def changes(self, text: str) -> Iterator[tuple[int, str, str]]:
        """Yield (offset, private text, its replacement)."""
        for match in self.pattern.finditer(text):
            if (new := self._replacement(match)) != match[0]:
                yield match.start(), match[0], new

    def _replacement(self, match: re.Match[str]) -> str:
        if match["citation"]:
            return match[0]
        if path := match["path"] or match["quoted"]:
            return self._collapse(path)
        if match["key"]:
            return match["key"] + (HOST if match["of"] in HOST_KEYS else USER)
        return (match["before"] or "") + (USER if (match["named"] or match[0]) in self.users else HOST)

    def _collapse(self, path: str) -> str:
        """Replace an absolute path, but for the name of a file; a home folder may look like one."""
        stem = path.rstrip(".!?…")
        parent, base = f"//{stem}".split("/")[-2:]
        named = "/" + scrub_text(base, self) if FILE_NAME.fullmatch(base) and parent not in HOMES else ""
        return PATH + named + path[len(stem) :]


def private_here(root: Path) -> Private:
    """Private facts about this machine and user; `root` is the checkout, whose words identify nobody."""
    hosts = [platform.node(), *(os.environ.get(name, "") for name in ("HOSTNAME", "SLURMD_NODENAME"))]
    users = {account(), *(os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))}
    folders = {root, root.resolve(), Path.home(), Path(sys.prefix)}
    folders |= {Path(os.environ[name]) for name in ("TMPDIR", "SCRATCH", "VIRTUAL_ENV") if os.environ.get(name)}
    paths = {str(folder) for folder in folders if folder.is_absolute() and len(folder.parts) > 2}
    patterns = ("perfscribe/**/*.py", "chapters/**/*.md", "references/*.csv", "config.yaml")
    texts = (file.read_text(encoding="utf-8", errors="replace") for pattern in patterns for file in root.glob(pattern))
    ordinary = set().union(*map(_words, texts), _words(str([*machine.identity(()).values()])))
    return Private(paths=tuple(sorted(paths)), ordinary=frozenset(ordinary)).including(hosts, users)


def account() -> str:
    """Name of this account; empty if its uid has no entry, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def scrub_text(text: str, private: Private) -> str:
    """Replace private facts by <host>, <user> and <path>/file.name; idempotent."""
    while changes := list(private.changes(text)):  # a replacement can expose the text next to it
        for start, old, new in reversed(changes):
            text = text[:start] + new + text[start + len(old) :]
    return text


def scrub_json(value: Any, private: Private, key: str = "") -> Any:
    """Copy with every text scrubbed, and replaced under keys such as "node" and "user"; keys stay."""
    if isinstance(value, Mapping):
        return {name: scrub_json(inner, private, name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_json(inner, private, key) for inner in value]
    if not isinstance(value, str) or not value:
        return value
    return HOST if key in HOST_KEYS else USER if key in USER_KEYS else scrub_text(value, private)


def published(record: Mapping[str, Any], private: Private) -> dict[str, Any]:
    """Known fields of a record, scrubbed."""
    provenance = {name: value for name, value in record["provenance"].items() if name in PROVENANCE}
    if cluster := record["provenance"].get("cluster"):
        provenance["cluster"] = {name: value for name, value in cluster.items() if name in CLUSTER}
    known = {name: value for name, value in record.items() if name in RECORD}
    return {name: scrub_json(value, private, name) for name, value in (known | {"provenance": provenance}).items()}


def gather(value: Any, private: Private) -> Private:
    """Extend `private` by the host and user names under such keys: journals come from many nodes."""
    named = re.findall(r'"(\w+)": (\["[^]]*|"[^"]*)', json.dumps(value))
    hosts, users = (
        {name for key, texts in named if key in keys for name in re.split(r'[\["]+(?:, *)?|, *', texts)}
        for keys in (HOST_KEYS, USER_KEYS)
    )
    return private.including(hosts, users)


def find_private(root: Path, private: Private) -> list[str]:
    """List everything that scrubbing would still change in the text files below `root` and in their names.

    Each as file, line (from 1; 0 for the file name) and text. Skips binary files (with a zero byte) and HTML, which is
    not committed; unpacks .gz.
    """
    findings = []
    for file in sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".html"):
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        name, text = file.relative_to(root).as_posix(), "" if b"\0" in content else content.decode(errors="replace")
        findings += [f"{name}:0: {old}" for _, old, _ in private.changes(name)]
        findings += [f"{name}:{text.count(chr(10), 0, start) + 1}: {old}" for start, old, _ in private.changes(text)]
    return findings
