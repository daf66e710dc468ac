"""Removes harmful environment variables: names of interfaces that this machine lacks, and an override of TF32."""

import re
import socket
from collections.abc import Callable, Collection, MutableMapping

import psutil

# NVIDIA's images set it, which makes fp32 matrix products of ranks TF32, whatever a cell asks for.
UNDONE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
# gloo and Open MPI use whole names (Open MPI also networks: 10.0.0.0/8), NCCL uses prefixes.
_WHOLE = re.compile(r"(GLOO|TP)_SOCKET_IFNAME|(OMPI|PRTE|PMIX)_MCA_(\w+_)?if_include")
_BEGINNINGS = re.compile(r"NCCL_(SOCKET|OOB_NET)_IFNAME")


def settle(env: MutableMapping[str, str], say: Callable[[str], None]) -> None:
    """Remove or shorten the variables, reporting it: a cluster's interfaces would fail every launch elsewhere.

    Interfaces that exist here stay. If none is left, gloo and NCCL choose one themselves.
    """
    env.pop(UNDONE, None)
    here = _interfaces()
    for name in sorted(env):
        text = env[name]
        is_whole = _WHOLE.fullmatch(name) or text.startswith("=")
        if not is_whole and (not _BEGINNINGS.fullmatch(name) or text.startswith("^")):  # ^: exclusion
            continue
        named = [entry.strip() for entry in text.removeprefix("=").split(",")]
        known = [entry for entry in named if _is_here(entry, here, bool(is_whole))]
        if len(known) < len(named):
            say(f"{name}={text}: no such interface on this machine, so it does not count")
            env[name] = ("=" if text.startswith("=") else "") + ",".join(known)
        if not known:
            del env[name]


def _interfaces() -> set[str]:
    """Names of interfaces that have an address."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {name for name, addresses in psutil.net_if_addrs().items() if any(a.family in families for a in addresses)}


def _is_here(entry: str, here: Collection[str], is_whole: bool) -> bool:
    name = entry.partition(":")[0]  # NCCL allows a port
    if is_whole:
        return name in here or "/" in entry
    return bool(name) and any(interface.startswith(name) for interface in here)
