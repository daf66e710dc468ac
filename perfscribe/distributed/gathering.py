"""Brings tensors owned by several ranks to all of them, through one flat tensor and one all-gather per piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from perfscribe.distributed.process_group import families

ALIGNMENT_BYTES = 512  # alignment of parts of the flat tensor, as in CUDA's allocator
Owned = tuple[Tensor, int]  # a tensor and its owner's group rank


@dataclass(frozen=True)
class _Part:
    """Data of one all-gather: tensors of one dtype and device. flat: (ranks, elements of the fullest rank)."""

    flat: Tensor
    sent: list[Tensor]
    sent_views: list[Tensor]
    received: list[Tensor]
    received_views: list[Tensor]


class Gathering:
    """Overwrites tensors, in pieces that are sent one after the other, with those of the group ranks that own them.

    Every rank passes the same pieces, on devices that NCCL serves. A rank copies its tensors of a piece into its row of
    a flat tensor (each row as long as the fullest rank's), and at the end copies the others' rows to their tensors: two
    copies and one collective for many tensors, per dtype and device. All pieces share the flat tensor's memory, which
    the first begin() allocates and close() frees; its views are created once, because creating them costs the host more
    than the rest.
    """

    def __init__(self, pieces: Sequence[Sequence[Owned]], group: dist.ProcessGroup) -> None:
        self._group = group
        self._me, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        # all_gather_into_tensor is the older name.
        self._gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with torch.no_grad():
            by_device = [self._families(piece) for piece in pieces] if self._world_size > 1 else []
            self._memory = {device: self._reserve(device, by_device) for groups in by_device for device, _ in groups}
            self._pieces = [self._parts(groups) for groups in by_device]
        self.close()

    def _families(self, piece: Sequence[Owned]) -> list[tuple[torch.device, list[Owned]]]:
        """Group the piece's tensors into families that one all-gather can carry."""
        grouped = [[piece[i] for i in family] for family in families([tensor for tensor, _ in piece])]
        return [(family[0][0].device, family) for family in grouped if self._most_elements(family)]

    def _most_elements(self, family: Sequence[Owned]) -> int:
        """Return the elements of the rank that has most."""
        return max(sum([t.numel() for t, owner in family if owner == rank]) for rank in range(self._world_size))

    def _size_bytes(self, family: Sequence[Owned]) -> int:
        size = self._world_size * self._most_elements(family) * family[0][0].itemsize
        return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def _reserve(self, device: torch.device, pieces: Sequence[list[tuple[torch.device, list[Owned]]]]) -> Tensor:
        sizes = [sum(self._size_bytes(family) for at, family in piece if at == device) for piece in pieces]
        return torch.empty(max(sizes), dtype=torch.uint8, device=device)

    def _parts(self, piece: Sequence[tuple[torch.device, list[Owned]]]) -> list[_Part]:
        used = dict.fromkeys(self._memory, 0)
        parts = []
        for device, family in piece:
            begin, size = used[device], self._world_size * self._most_elements(family) * family[0][0].itemsize
            used[device] += self._size_bytes(family)
            memory = self._memory[device][begin : begin + size]
            parts.append(self._part(memory.view(family[0][0].dtype).view(self._world_size, -1), family))
        return parts

    def _part(self, flat: Tensor, family: Sequence[Owned]) -> _Part:
        by_rank = [[tensor for tensor, owner in family if owner == rank] for rank in range(self._world_size)]
        views = [_views(row, tensors) for row, tensors in zip(flat, by_rank, strict=True)]
        elsewhere = [rank for rank in range(self._world_size) if rank != self._me]
        return _Part(
            flat,
            by_rank[self._me],
            views[self._me],
            [tensor for rank in elsewhere for tensor in by_rank[rank]],
            [view for rank in elsewhere for view in views[rank]],
        )

    @torch.no_grad()
    def begin(self, number: int) -> Callable[[], None]:
        """Start to send a piece; returns a function that finishes it, to be called once, before another begin().

        Until then, the other ranks' tensors must not be read. The current stream waits for NCCL in that function.
        """
        if not self._pieces:
            return lambda: None
        for memory in self._memory.values():
            if not memory.untyped_storage().nbytes():  # resizing an allocated storage would reallocate and copy it
                memory.untyped_storage().resize_(memory.nbytes)
        works = []
        for part in self._pieces[number]:
            if part.sent:
                torch._foreach_copy_(part.sent_views, part.sent)
            target, mine = part.flat.view(-1).view(torch.uint8), part.flat[self._me].view(torch.uint8)
            works.append(self._gather(target, mine, group=self._group, async_op=True))

        @torch.no_grad()
        def end() -> None:
            for work, part in zip(works, self._pieces[number], strict=True):
                work.wait()
                if part.received:
                    torch._foreach_copy_(part.received, part.received_views)

        return end

    def close(self) -> None:
        """Free the flat tensor's memory until the next begin()."""
        for memory in self._memory.values():
            memory.untyped_storage().resize_(0)


def _views(row: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a row's beginning in the tensors' shapes."""
    numels = [tensor.numel() for tensor in tensors]
    pieces = row[: sum(numels)].split(numels)
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
