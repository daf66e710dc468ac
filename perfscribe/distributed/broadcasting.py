"""Broadcasts many tensors, from different ranks, in place and with few calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from perfscribe.analytic.bucket_model import fill_buckets
from perfscribe.distributed.process_group import backends, message_device

CHUNK_BYTES = 32 * 2**20  # limit of the copies for backends other than NCCL

Sent = tuple[Tensor, int]  # a flat uint8 tensor and its source's group rank


@torch.no_grad()
def broadcast_all(tensors: Iterable[tuple[Tensor, int]], group: dist.ProcessGroup) -> None:
    """Overwrite each tensor with that of the group rank paired with it; every rank passes the same sequence.

    Any shape, dtype and layout, sent as bytes. NCCL: one group call for all tensors of a device, in place. Other
    backends: flat copies of at most about 32 MiB per rank, so that small tensors share a call. The current stream waits
    for NCCL, the host for the others.
    """
    served = backends(group)
    elsewhere = message_device(group)
    carriers = [(tensor, _carrier(tensor.detach(), served, elsewhere), source) for tensor, source in tensors]
    carriers = [entry for entry in carriers if entry[1].numel()]
    by_device: dict[torch.device, list[Sent]] = {}
    for _, carrier, source in carriers:
        by_device.setdefault(carrier.device, []).append((carrier, source))
    for device, sent in by_device.items():
        if served[device.type] == "nccl":
            _broadcast_grouped(sent, device, group)
        else:
            _broadcast_in_chunks(sent, group)
    for tensor, carrier, _ in carriers:
        if not _is_sent_in_place(tensor, served):
            tensor.copy_(carrier.view(tensor.dtype).view(tensor.shape))


def _is_sent_in_place(tensor: Tensor, served: Mapping[str, str]) -> bool:
    return tensor.is_contiguous() and tensor.device.type in served


def _carrier(tensor: Tensor, served: Mapping[str, str], elsewhere: torch.device) -> Tensor:
    """Return the tensor's bytes, flat: its storage if that can be sent, else a copy on a device that can."""
    if not _is_sent_in_place(tensor, served):
        device = tensor.device if tensor.device.type in served else elsewhere
        tensor = tensor.to(device, copy=True, memory_format=torch.contiguous_format)
    return tensor.view(-1).view(torch.uint8)


def _broadcast_grouped(sent: Sequence[Sent], device: torch.device, group: dist.ProcessGroup) -> None:
    """Run all broadcasts between ncclGroupStart and ncclGroupEnd."""
    with _coalescing_manager(group, device, async_ops=True) as manager:
        for carrier, source in sent:
            dist.broadcast(carrier, dist.get_global_rank(group, source), group=group, async_op=True)
    manager.wait()


def _broadcast_in_chunks(sent: Sequence[Sent], group: dist.ProcessGroup) -> None:
    """Send in rounds of one flat chunk from each rank, so that ranks send concurrently and copies stay small."""
    by_source: dict[int, list[Tensor]] = {}
    for carrier, source in sent:
        by_source.setdefault(source, []).append(carrier)
    chunks = [
        [(source, [carriers[i] for i in chunk]) for chunk in fill_buckets([c.numel() for c in carriers], CHUNK_BYTES)]
        for source, carriers in sorted(by_source.items())
    ]
    for turn in itertools.zip_longest(*chunks):
        _send_chunks([chunk for chunk in turn if chunk is not None], group)


def _send_chunks(chunks: Sequence[tuple[int, list[Tensor]]], group: dist.ProcessGroup) -> None:
    pending = []
    for source, carriers in chunks:
        flat = torch.cat(carriers) if len(carriers) > 1 else carriers[0]
        work = dist.broadcast(flat, dist.get_global_rank(group, source), group=group, async_op=True)
        pending.append((work, flat, carriers))
    for work, flat, carriers in pending:
        work.wait()
        if len(carriers) > 1:
            torch._foreach_copy_(carriers, flat.split([carrier.numel() for carrier in carriers]))
