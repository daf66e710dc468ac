"""Memory of data-parallel training by torch's DDP, FSDP1 and FSDP2, a rank's parameters, gradients and AdamW state.

All three are fp32 whatever the products' dtype. FSDP2 divides each parameter by its first dimension into n pieces, of
which the first are the largest and as large as the others are padded to; FSDP1 lays a unit's parameters behind each
other, begins each at a multiple of 16 bytes, and divides the whole. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscribe.analytic.fsdp_plan import FSDP1, FSDP2, NO_SHARD, WHOLE, Plan, shards, took_effect

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
KINDS = (PARAMETERS, GRADIENTS, STATE)
FP32_BYTES = 4
MOMENTS = 2  # of AdamW, each as large as the parameters
ALIGNED_BYTES = 16  # of what FSDP1 gathers
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

Unit = tuple[tuple[int, int], ...]  # of each parameter: its first dimension, its elements


@dataclass(frozen=True)
class Load:
    """A model under a plan.

    outside: parameters outside of the blocks. block: those of one block. blocks: their number. world_size: ranks.
    """

    outside: Unit
    block: Unit
    blocks: int
    plan: Plan
    world_size: int

    @property
    def elements(self) -> int:
        """Of all parameters."""
        return _elements(self.outside) + self.blocks * _elements(self.block)

    @property
    def units(self) -> list[Unit]:
        """What is gathered together, the part outside of the blocks first; all as one where blocks are not wrapped."""
        whole = self.outside + self.blocks * self.block
        return [whole] if self.plan.wrapping == WHOLE else [self.outside, *[self.block] * self.blocks]

    @property
    def is_gathered(self) -> bool:
        """Whether parameters are gathered at all: FSDP2 does so even with one rank, by copies within it."""
        return self.plan.api in (FSDP1, FSDP2) and took_effect(self.plan, self.world_size) != NO_SHARD

    @property
    def gathered_bytes(self) -> int:
        """Of one gathered element."""
        return DTYPE_BYTES[self.plan.dtype]


def _elements(unit: Sequence[tuple[int, int]]) -> int:
    return sum(elements for _, elements in unit)


def shard_elements(load: Load, unit: Unit) -> int:
    """Elements that the fullest rank keeps of a unit, padding included."""
    parts = shards(load.plan, load.world_size)[1]
    if load.plan.api == FSDP1:
        end, aligned = 0, ALIGNED_BYTES // load.gathered_bytes
        for _, elements in unit:
            end = -(-end // aligned) * aligned + elements
        return -(-end // parts)
    return sum(-(-first // parts) * (elements // max(1, first)) for first, elements in unit)


def kept_elements(load: Load) -> int:
    """Elements of the model's parameters that the fullest rank keeps between steps."""
    if load.plan.api not in (FSDP1, FSDP2):
        return load.elements
    return sum(shard_elements(load, unit) for unit in load.units)


def whole_bytes(load: Load, unit: Unit) -> int:
    """A unit as it is gathered, with the padding of every rank."""
    return load.gathered_bytes * shards(load.plan, load.world_size)[1] * shard_elements(load, unit)


def state_bytes(load: Load) -> dict[str, int]:
    """Parameters, gradients and optimizer state of the fullest rank between backward and the optimizer's step."""
    kept = FP32_BYTES * kept_elements(load)
    return {PARAMETERS: kept, GRADIENTS: kept, STATE: MOMENTS * kept}


def largest_unit_bytes(load: Load) -> int:
    """The largest unit, gathered; 0 where nothing is."""
    return max(whole_bytes(load, unit) for unit in load.units) if load.is_gathered else 0
