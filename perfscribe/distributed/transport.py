"""How the ranks of a launch reach each other: the switches that force a transport, and the links between GPUs.

NCCL is told of a transport by switching the faster ones off. gloo has TCP alone. What NCCL really did: nccl_log.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from perfscribe.base.cells import Unsupported

Answer = TypeVar("Answer")

DEFAULT = "default"
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"

# By name: what is forced, in words, and NCCL's variables that force it on one machine. NVLink multicast (NVLS) is a
# way of its own, which P2P's switch leaves on.
TRANSPORTS: dict[str, tuple[str, dict[str, str]]] = {
    DEFAULT: ("as the backend chooses", {}),
    "nvlink": ("NVLink", {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL", "NCCL_SHM_DISABLE": "0"}),
    "shm": (
        "shared memory of the host",
        {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0", "NCCL_NVLS_ENABLE": "0"},
    ),
    "tcp": (
        "TCP over the loopback interface",
        {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_NET": "Socket",
            "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE,
        },
    ),
}
_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}


def check(backend: str, transport: str) -> None:
    """ValueError, one line, for a transport that does not exist or that the backend does not have."""
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r}: expected one of {', '.join(TRANSPORTS)}")
    if backend == "gloo" and transport not in (DEFAULT, "tcp"):
        raise ValueError(f"transport {transport!r}: gloo has tcp alone")


def set_switches(environment: MutableMapping[str, str], backend: str, transport: str, log: bool = False) -> None:
    """Set the variables that a rank needs before it joins its process group.

    log: let NCCL report on standard output what it does. On one machine gloo is bound to the loopback interface, so
    that it needs neither a network nor a name for the host; a GLOO_SOCKET_IFNAME that is set stays.
    """
    check(backend, transport)
    if backend == "gloo":
        environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
        return
    environment.update(TRANSPORTS[transport][1])
    if log:
        environment.update(_LOG)
        environment.pop("NCCL_DEBUG_FILE", None)


# --- the machine's links ----------------------------------------------------------------------------------------

# NVML's numbers: nvmlGpuTopologyLevel_t, NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK.
_LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_CAPS_INDEX_NVLINK, _P2P_STATUS_OK = 2, 0
_REMOTE_IS_GPU = 0


@dataclass(frozen=True)
class Link:
    """How two GPUs are joined. kind: NV<links>, or nvidia-smi's names of PCIe paths; None: NVML does not say."""

    first: int
    second: int
    kind: str | None

    @property
    def is_nvlink(self) -> bool:
        """Whether it is NVLink, directly or through switches."""
        return (self.kind or "").startswith("NV")


def links(nvml: Any, gpus: Sequence[Any]) -> list[Link]:
    """The link of each pair of NVML handles."""
    pairs = [(one, other) for other in range(len(gpus)) for one in range(other)]
    return [Link(one, other, _kind(nvml, gpus[one], gpus[other])) for one, other in sorted(pairs)]


def ask(nvml: Any, function: str, *arguments: Any) -> Any | None:
    """What NVML answers; None where it cannot."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _kind(nvml: Any, one: Any, other: Any) -> str | None:
    joined = ask(nvml, "nvmlDeviceGetP2PStatus", one, other, _P2P_CAPS_INDEX_NVLINK)
    if joined == _P2P_STATUS_OK:
        return f"NV{min(_nvlinks(nvml, one, other), _nvlinks(nvml, other, one))}"
    level = ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    return None if level is None else _LEVELS.get(level)


def _nvlinks(nvml: Any, gpu: Any, peer: Any) -> int:
    """Active NVLinks of a GPU to its peer; those to switches lead to every peer."""
    peer_bus = getattr(ask(nvml, "nvmlDeviceGetPciInfo", peer), "busId", None)
    most = getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)
    active = [link for link in range(most) if ask(nvml, "nvmlDeviceGetNvLinkState", gpu, link) == 1]
    direct = [link for link in active if ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link) == _REMOTE_IS_GPU]
    if not direct:
        return len(active)
    remote = [getattr(ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu, link), "busId", None) for link in direct]
    return remote.count(peer_bus)


def visible_links(count: int) -> list[Link]:
    """The links among the first `count` GPUs that torch sees; none where NVML cannot be asked."""
    return of_visible(count, links)


def of_visible(count: int, question: Callable[[Any, list[Any]], list[Answer]]) -> list[Answer]:
    """What question(pynvml, handles) says of the first `count` GPUs that torch sees; nothing where NVML is mute."""
    import torch

    try:
        # Imported by a computed name: its version is no part of what a figure depends on.
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        uuids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(count)]
        return question(pynvml, [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids])
    except Exception:  # no package, no driver, a MIG device: nothing to tell
        return []


def require_nvlink(count: int) -> None:
    """Unsupported where two of the first `count` visible GPUs are known to be joined by something else."""
    for link in visible_links(count):
        if link.kind is not None and not link.is_nvlink:
            raise Unsupported(f"GPUs {link.first} and {link.second} are joined by {link.kind}, not by NVLink")


def nccl_version() -> str | None:
    """Version of the NCCL that torch uses; None in a build without it."""
    import torch

    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        return None
