"""Parses NCCL's log for the choices it made.

Only the log (NCCL_DEBUG=INFO) shows what NCCL did: kernel names contain an entry point, so that ..._RING_LL is seen
for every protocol. Logging slows each call, so a separate launch produces the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : .* via (\S+)")
_TUNING = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
_SYMMETRIC = re.compile(r"NCCL INFO (\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\w+) nchannels (\d+)")
_NCCL_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
}


@dataclass(frozen=True)
class Choice:
    """NCCL's choice for one call: algorithm (RING, TREE, NVLS, ...), protocol (LL, LL128, SIMPLE), channels."""

    operation: str
    message_bytes: int
    algorithm: str
    protocol: str
    channel_numbers: frozenset[int]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self.channel_numbers)


@dataclass(frozen=True)
class NcclLog:
    """Content of NCCL's log. connections: transports of the channels, such as P2P, SHM or NET/Socket."""

    version: str | None
    connections: tuple[str, ...]
    choices: tuple[Choice, ...] = field(default=())

    def choice(self, operation: str, message_bytes: int, world_size: int) -> Choice | None:
        """Return the choice for a collective of this size; None if the log has no line for it.

        message_bytes: of the whole array, as in nccl-tests; NCCL prints one rank's part for gathers and scatters. A
        call that NCCL split into ranges of channels is merged; differing algorithms or protocols are joined by "+".
        """
        part = message_bytes // world_size if operation in ("all_gather", "reduce_scatter") else message_bytes
        name = _NCCL_NAMES[operation]
        choices = [choice for choice in self.choices if (choice.operation, choice.message_bytes) == (name, part)]
        if not choices:
            return None
        algorithms = "+".join(dict.fromkeys(choice.algorithm for choice in choices))
        protocols = "+".join(dict.fromkeys(choice.protocol for choice in choices))
        channels = frozenset[int]().union(*(choice.channel_numbers for choice in choices))
        return Choice(operation, message_bytes, algorithms, protocols, channels)


def parse_nccl_log(lines: Iterable[str]) -> NcclLog:
    """Parse version, connections and choices from lines of NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,TUNING.

    Supports the formats of NCCL 2.26 to 2.30. Other lines are skipped.
    """
    version, connections, choices = None, [], []
    for line in lines:
        if match := _VERSION.search(line):
            version = match[1]
        elif match := _CHANNEL.search(line):
            connections.append(_transport(match[1]))
        elif match := _TUNING.search(line):
            name, size, algorithm, protocol, low, high = match.groups()
            channels = frozenset(range(int(low), int(high) + 1))
            choices.append(Choice(name, int(size), algorithm.upper(), protocol.upper(), channels))
        elif match := _SYMMETRIC.search(line):
            channels = frozenset(range(int(match[4])))
            choices.append(Choice(match[1], int(match[2]), f"symmetric {match[3]}", "none", channels))
    return NcclLog(version, tuple(dict.fromkeys(connections)), tuple(choices))


def _transport(connection: str) -> str:
    """Shorten P2P/CUMEM/read to P2P, SHM/direct/direct to SHM, NET/Socket/0 to NET/Socket."""
    parts = connection.split("/")
    return "/".join(parts[:2]) if parts[0] == "NET" else parts[0]
