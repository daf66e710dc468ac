"""Properties of a process group: the backend of each device, tensors that one collective can carry."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from perfscribe.instruments.timing import synchronise


def require_group(who: str) -> dist.ProcessGroup:
    """Return the default process group; raises RuntimeError if there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(f"{who} needs a process group: call torch.distributed.init_process_group() first")
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def together(device: torch.device) -> None:
    """Wait for the device, then for all ranks."""
    synchronise(device)
    dist.barrier()


def backends(group: dist.ProcessGroup) -> dict[str, str]:
    """Return the backend by device type: {"cpu": "gloo", "cuda": "gloo"}, {"cuda": "nccl"}."""
    return dict(pair.split(":") for pair in str(dist.get_backend_config(group)).split(","))


def message_device(group: dist.ProcessGroup) -> torch.device:
    """Return the device for small messages of the host: the CPU if a backend serves it."""
    if "cpu" in backends(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def families(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return indices of tensors that one collective can carry, by dtype and device, each in the order given."""
    indices: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        indices.setdefault((tensor.dtype, tensor.device), []).append(index)
    return list(indices.values())
