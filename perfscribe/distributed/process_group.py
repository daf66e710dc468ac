"""What a process group can do: which backend serves which device; whether its ranks hold the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


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


def ranks_that_differ(text: str, group: dist.ProcessGroup) -> list[int]:
    """The group ranks whose text is not rank 0's."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
    mine = torch.tensor([digest], dtype=torch.int64, device=message_device(group))
    digests = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(digests, mine, group=group)
    return [rank for rank, other in enumerate(digests) if int(other) != int(digests[0])]


def families(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Indices of the tensors that one collective can carry, by dtype and device, each in the order given."""
    found: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault((tensor.dtype, tensor.device), []).append(index)
    return list(found.values())
