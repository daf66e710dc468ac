"""Transports between ranks: environment variables that force one.

NCCL is forced to a transport by disabling the faster ones. gloo has only TCP. For NCCL's actual choice see nccl_log.py.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

DEFAULT = "default"
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"

# By name: description, and NCCL's variables that force it on one machine. NVLink multicast (NVLS) is a separate
# transport, which P2P's switch leaves enabled.
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


def set_switches(environment: MutableMapping[str, str], backend: str, transport: str) -> None:
    """Set the variables that a rank needs before it joins its process group.

    On one machine gloo is bound to the loopback interface, so that it needs
    neither a network nor a host name; an existing GLOO_SOCKET_IFNAME stays.
    """
    if backend == "gloo":
        environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
        return
    environment.update(TRANSPORTS[transport][1])


def nccl_version() -> str | None:
    """Return the version of torch's NCCL; None in a build without it."""
    import torch

    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        return None
