"""What a process group can do: which backend serves which device."""

from __future__ import annotations

import torch
import torch.distributed as dist


def require_group(who: str, group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
    """The group, the default one for None.

    RuntimeError: no process group was made. ValueError: this process is not in the group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(f"{who} needs a process group: call torch.distributed.init_process_group() first")
    found = dist.group.WORLD if group is None else group
    if found is None or dist.get_rank(found) < 0:
        raise ValueError(f"{who}: this process is not in the process group")
    return found


def backends(group: dist.ProcessGroup) -> dict[str, str]:
    """The backend by type of device: {"cpu": "gloo", "cuda": "gloo"}, {"cuda": "nccl"}."""
    return dict(pair.split(":") for pair in str(dist.get_backend_config(group)).split(","))


def message_device(group: dist.ProcessGroup) -> torch.device:
    """Where a small message of the host has to lie to be sent: the CPU if a backend serves it."""
    if "cpu" in backends(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
