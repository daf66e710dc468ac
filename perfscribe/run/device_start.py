"""A CUDA context made while Python imports: both take seconds, and neither waits for the other.

The driver makes one context a process and device, which torch then finds (the primary context of the driver's API).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Mapping
from typing import Any

LIBRARY = "libcuda.so.1"
HERE, ELSEWHERE = "device-here", "device-elsewhere"  # what a child's command line says of where its cells use one


def is_wanted(cells: Iterable[Mapping[str, Any]]) -> bool:
    """Whether cells of a plan run on the process's own device; those with ranks leave it to processes of their own."""
    needs = {requirement for cell in cells for requirement in cell["requires"] if not cell["skip"]}
    return "cuda" in needs and not any(requirement.startswith("cuda:") for requirement in needs)


def begin() -> threading.Thread | None:
    """Make the context of the first visible device in a thread; None where the driver's library is missing.

    What fails there fails again, and is reported, where torch asks for the context.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    thread = threading.Thread(target=_retain_primary_context, args=(driver,), daemon=True)
    thread.start()
    return thread


def _retain_primary_context(driver: Any) -> bool:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    return not (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
