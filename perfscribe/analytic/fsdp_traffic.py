"""Collectives of a data-parallel training step with torch's DDP, FSDP1 and FSDP2, and the bytes that a rank sends.

In a ring each rank sends (n - 1)/n of a message's bytes for an all-gather or a reduce-scatter, twice that for an
all-reduce. With P bytes of parameters that is 3P(n - 1)/n for FULL_SHARD (gathered for forward, again for backward,
gradients reduced), and 2P(n - 1)/n for SHARD_GRAD_OP and DDP. No torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from perfscribe.analytic.fsdp_memory import DTYPE_BYTES, FP32_BYTES, Load, shard_elements
from perfscribe.analytic.fsdp_plan import DDP, FSDP1, SHARD_GRAD_OP, SINGLE, shards
from perfscribe.analytic.traffic import bus_factor

LEAST_BYTES = 64  # smaller messages are flags, such as a loss scaler's overflow flag


@dataclass(frozen=True)
class Message:
    """Collectives of one kind: `count` of them, each of message_bytes (the whole array), among `ranks` ranks."""

    operation: str
    message_bytes: int
    ranks: int
    count: int = 1


def messages(load: Load) -> list[Message]:
    """Return the collectives of a step with one micro-batch, without groups of one rank; DDP's buckets count as one."""
    plan = load.plan
    replicas, parts = shards(plan, load.world_size)
    if plan.api == SINGLE:
        return []
    if plan.api == DDP:
        return _among_several([Message("all_reduce", FP32_BYTES * load.elements, load.world_size)])
    reduced = FP32_BYTES if plan.dtype == "fp32" else DTYPE_BYTES[plan.reduce_dtype]
    collectives = []
    for number, unit in enumerate(load.units):
        whole = parts * shard_elements(load, unit)
        kept = plan.strategy == SHARD_GRAD_OP or (plan.api == FSDP1 and number == 0)
        collectives.append(Message("all_gather", load.gathered_bytes * whole, parts, 1 if kept else 2))
        collectives.append(Message("reduce_scatter", reduced * whole, parts))
        collectives.append(Message("all_reduce", reduced * whole // parts, replicas))
    return _among_several(collectives)


def _among_several(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if message.ranks > 1]


def sent_bytes(messages: Iterable[Message]) -> float:
    """Return the bytes that each rank sends in a ring."""
    return sum(m.count * m.message_bytes * bus_factor(m.operation, m.ranks) for m in messages)


def by_operation(messages: Iterable[Message]) -> dict[str, float]:
    """Return the bytes sent by kind of collective."""
    sent: dict[str, float] = {}
    for message in messages:
        sent[message.operation] = sent.get(message.operation, 0.0) + sent_bytes([message])
    return sent
