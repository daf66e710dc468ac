"""GPUs through NVML, which starts no CUDA context. An unanswered query gives None or an empty list."""

from __future__ import annotations

import importlib
import itertools
import os
import re
from functools import cache
from typing import Any

from perfscribe.base.cpu_sets import MOST_CORES, Cores, cores_of_mask

SLICE = "MIG-"  # prefix of the UUID of a GPU slice


@cache
def load() -> Any | None:
    """Return the initialised module pynvml, or None without package, driver or GPU. Stays open until exit."""
    try:
        pynvml: Any = importlib.import_module("pynvml")  # by a computed name: no fingerprint includes its version
        pynvml.nvmlInit()
    except Exception:  # also a library whose version differs from the driver's, which is no NVMLError
        return None
    return pynvml


def ask(function: str, *arguments: Any) -> Any | None:
    """Call an NVML function; None if NVML, or this driver, GPU or pynvml version, does not offer it."""
    pynvml: Any = load()
    call = getattr(pynvml, function, None)
    if call is None:
        return None
    try:
        answer = call(*arguments)
    except pynvml.NVMLError:
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def all_gpus() -> list[Any]:
    """NVML handles in PCI order. Devices that the job may not open are left out, although NVML counts them."""
    handles = (ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0))
    return [handle for handle in handles if handle is not None]


def visible_gpus() -> list[Any]:
    """NVML handles of the devices in CUDA_VISIBLE_DEVICES, in its order.

    As in CUDA, an entry that names no device, or in another form than the first, hides itself and all later ones; a
    duplicate hides all. With MIG, a process sees only one slice, the first, and no whole GPUs (NVIDIA's MIG user guide,
    "CUDA device enumeration"). Indices count in PCI order; CUDA's default order (fastest first) is the same if all GPUs
    of a machine are of one model.
    """
    handles = all_gpus()
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        devices = [part for gpu in handles for part in parts(gpu)[:1]]
    else:
        entries = [entry.strip() for entry in variable.split(",")]
        alike = itertools.takewhile(lambda entry: entry.isdecimal() == entries[0].isdecimal(), entries)
        named = itertools.takewhile(bool, (_named(handles, entry) for entry in alike))
        devices = list(itertools.chain.from_iterable(named))
        if len(set(map(_uuid, devices))) < len(devices):
            return []
    slices = [device for device in devices if _uuid(device).startswith(SLICE)]
    return slices[:1] or devices


def gpus_by_uuid() -> tuple[list[Any], list[str]]:
    """Handles and UUIDs of the visible GPUs; empty unless NVML knows the UUID of each."""
    handles = visible_gpus()
    uuids = [ask("nvmlDeviceGetUUID", handle) for handle in handles]
    return ([], []) if None in uuids else (handles, [str(uuid) for uuid in uuids])


def parts(gpu: Any) -> list[Any]:
    """Devices that CUDA can use of a GPU: itself or, in MIG mode, its slices, possibly none."""
    if not (ask("nvmlDeviceGetMigMode", gpu) or [0])[0]:
        return [gpu]
    slots = range(ask("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)
    slices = (ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot) for slot in slots)
    return [device for device in slices if device is not None]


def _uuid(device: Any) -> str:
    return str(ask("nvmlDeviceGetUUID", device) or id(device))


def _named(handles: list[Any], entry: str) -> list[Any]:
    """Device that an entry of CUDA_VISIBLE_DEVICES names, for a GPU in MIG mode its first slice; empty for none."""
    old_form = re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry)  # GPU, GPU instance, compute instance
    if entry.isdecimal():
        gpus = handles[int(entry) :][:1]
    elif old_form:
        places = ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
        slices = (part for gpu in handles if _uuid(gpu) == old_form[1] for part in parts(gpu))
        return [part for part in slices if [str(ask(place, part)) for place in places] == [old_form[2], old_form[3]]]
    elif entry.startswith(SLICE):
        device = ask("nvmlDeviceGetHandleByUUID", entry)
        return [] if device is None else [device]
    else:
        gpus = [gpu for gpu in handles if entry.startswith("GPU-") and _uuid(gpu).startswith(entry)]
    return parts(gpus[0])[:1] if len(gpus) == 1 else []


def cuda_driver_version() -> str | None:
    """Newest CUDA version that the driver supports, such as 13.0."""
    number = ask("nvmlSystemGetCudaDriverVersion_v2")
    return None if not number else f"{number // 1000}.{number % 1000 // 10}"


def nearest_cores(gpu: Any) -> Cores:
    """Cores nearest to a GPU; empty if NVML does not know them."""
    words = ask("nvmlDeviceGetCpuAffinity", gpu, MOST_CORES // 64) or ()
    return cores_of_mask(hex(sum(int(word) << 64 * place for place, word in enumerate(words))))
