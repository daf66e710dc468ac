"""Identity of this machine: figures of equal identities are comparable.

Nothing here imports torch or starts a CUDA context, so that login nodes, parsers and parent processes can call it.
"""

import hashlib
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perfscribe.base import cpu_sets, files
from perfscribe.base.commands import output
from perfscribe.instruments import nvml
from perfscribe.records import libraries

CPUINFO, DMI = Path("/proc/cpuinfo"), Path("/sys/class/dmi/id")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Names of virtual machines' firmware, for processors without the flag, such as Arm's.
VIRTUAL = re.compile("QEMU|KVM|VMware|VirtualBox|Xen|Virtual Machine|Google Compute Engine", re.IGNORECASE)


def identity(imported: Iterable[str]) -> dict[str, Any]:
    """Identity of this machine.

    imported: import names of the top-level libraries that the measuring code imports; Python's modules and this
    package are left out, a library that is not installed has version None.
    With several GPU models all are named, with their lowest memory and power limit. Without a visible GPU the driver
    versions are None.
    """
    names = sorted(set(imported) - set(sys.stdlib_module_names) - {"perfscribe"})
    return {
        **_gpu_identity(),
        "cpu_model": cpu_model(),
        "cpu_cores": len(cpu_sets.granted()),  # in a Slurm job fewer than the node has
        "is_virtual": is_virtual(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": f"{platform.system()} {platform.machine()}",
        "libraries": {name: libraries.version(name) for name in names},
    }


def _gpu_identity() -> dict[str, Any]:
    gpus = nvml.visible_gpus()
    models = sorted({str(nvml.ask("nvmlDeviceGetName", gpu)) for gpu in gpus})
    memories = [nvml.ask("nvmlDeviceGetMemoryInfo", gpu) for gpu in gpus]
    limits_mw = [nvml.ask("nvmlDeviceGetPowerManagementLimit", gpu) for gpu in gpus]
    limit_mw = min((limit for limit in limits_mw if limit is not None), default=None)
    return {
        "gpu_model": " + ".join(models) or None,
        "gpu_count": len(gpus),
        "gpu_memory_bytes": min((int(memory.total) for memory in memories if memory), default=None),
        "gpu_power_limit_w": None if limit_mw is None else round(limit_mw / 1000),
        "driver_version": nvml.ask("nvmlSystemGetDriverVersion") if gpus else None,
        "cuda_driver_version": nvml.cuda_driver_version() if gpus else None,
    }


def is_virtual(cpuinfo: Path = CPUINFO, dmi: Path = DMI) -> bool:
    """Return whether this is a virtual machine, by the processor's hypervisor flag or the firmware's product name.

    Launches vary more on one, since the hypervisor shares its cores.
    """
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", _read(cpuinfo), re.MULTILINE)
    return bool(flags or VIRTUAL.search(_read(dmi / "sys_vendor") + _read(dmi / "product_name")))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def boot(boot_id: Path = BOOT_ID) -> str | None:
    """12 hexadecimal digits of a digest of the kernel's random boot id; None if it tells none.

    Equal only on one machine between two starts of it. It is provenance: a restart does not change the identity.
    """
    text = _read(boot_id).strip()
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else None


def identity_id(identity: Mapping[str, Any]) -> str:
    """12 hexadecimal digits of the SHA-256 of the identity as canonical JSON; the order of keys does not matter."""
    return hashlib.sha256(files.canonical(identity).encode()).hexdigest()[:12]


@cache
def cpu_model() -> str:
    """Processor name from the operating system, else its architecture."""
    text = _read(CPUINFO)
    if "model name" not in text:  # Arm: the kernel gives numbers only, lscpu knows the names
        text = output("lscpu") or f"Model name: {output('sysctl', '-n', 'machdep.cpu.brand_string') or ''}"
    model = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.IGNORECASE | re.MULTILINE)
    return " ".join(model[1].split()) if model else platform.processor() or platform.machine()
