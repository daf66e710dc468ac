"""Between a node's torchrun and its ranks: lets gloo talk through the interface that leads to the launcher.

    python -m perfscribe.distributed.on_node HOST MODULE

Interfaces have different names on different machines, so that the launcher cannot say which; a GLOO_SOCKET_IFNAME that
is set stays. Then the module runs in this process.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import sys


def address_towards(host: str) -> str:
    """This machine's own address on the way to the host; nothing is sent. OSError: there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def interface_towards(host: str) -> str | None:
    """Name of the interface that has that address; None where none has it."""
    import psutil

    own = address_towards(host)
    names = (name for name, addresses in psutil.net_if_addrs().items() if any(one.address == own for one in addresses))
    return next(names, None)


def main() -> None:
    """Choose the interface and become the module."""
    host, module = sys.argv[1:3]
    with contextlib.suppress(OSError):  # then the rank says what it cannot reach
        name = interface_towards(host)
        if name is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    sys.argv[1:] = []
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
