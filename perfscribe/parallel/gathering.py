"""Parts of several ranks brought to all of them, through one flat tensor and one all-gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from perfscribe.parallel.replicas import families


@torch.no_grad()
def begin_gather(tensors: Sequence[tuple[Tensor, int]], group: dist.ProcessGroup) -> Callable[[], None]:
    """Begin to overwrite each tensor by that of the group rank beside it; what it gives back, called once, ends it.

    Every rank passes the same sequence, on devices that NCCL serves. Each rank's tensors are copied into its part of a
    flat tensor, as large for all ranks as the fullest one's, and from there to the tensors of the others at the end;
    so a call of the host serves many tensors. One flat tensor and one all-gather for each dtype and device. Until the
    end no tensor may be written, and none of another rank read.
    """
    ends = [_begin_one([tensors[i] for i in family], group) for family in families([one for one, _ in tensors])]

    @torch.no_grad()
    def end() -> None:
        while ends:
            ends.pop(0)()

    return end


def _begin_one(tensors: Sequence[tuple[Tensor, int]], group: dist.ProcessGroup) -> Callable[[], None]:
    me, world_size = dist.get_rank(group), dist.get_world_size(group)
    parts = [[tensor.detach() for tensor, owner in tensors if owner == rank] for rank in range(world_size)]
    longest = max(sum([tensor.numel() for tensor in part]) for part in parts)
    if world_size == 1 or not longest:
        return lambda: None
    flat = torch.empty((world_size, longest), dtype=tensors[0][0].dtype, device=tensors[0][0].device)
    if parts[me]:
        torch._foreach_copy_(_views(flat[me], parts[me]), parts[me])
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name
    work = gather(flat.view(-1).view(torch.uint8), flat[me].view(torch.uint8), group=group, async_op=True)

    def end() -> None:
        work.wait()
        others = [(row, part) for rank, (row, part) in enumerate(zip(flat, parts, strict=True)) if rank != me]
        views = [view for row, part in others for view in _views(row, part)]
        if views:
            torch._foreach_copy_([tensor for _, part in others for tensor in part], views)

    return end


def _views(row: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The beginning of a row, cut into the tensors' shapes."""
    numels = [tensor.numel() for tensor in tensors]
    pieces = row[: sum(numels)].split(numels)
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
