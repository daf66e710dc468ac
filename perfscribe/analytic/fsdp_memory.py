"""Memory per rank of data-parallel training with torch's DDP, FSDP1 and FSDP2: parameters, gradients, AdamW state.

What a rank keeps is FP32; units that FSDP gathers have the plan's dtype. FSDP2 splits each parameter along its first
dimension into a piece per rank of a copy, padded to the size of the first, the largest; FSDP1 concatenates a unit's
parameters, each aligned to 16 bytes as gathered, and splits the result (torch/distributed/fsdp/_flat_param.py).
Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from perfscribe.analytic.fsdp_plan import FSDP1, FSDP2, NO_SHARD, WHOLE, Plan, shards, took_effect

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
KINDS = (PARAMETERS, GRADIENTS, STATE)
FP32_BYTES = 4
MOMENTS = 2  # AdamW's, each as large as the parameters
ALIGNED_BYTES = 16  # alignment of each parameter in FSDP1's gathered unit
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

Unit = tuple[tuple[int, int], ...]  # (first dimension, elements) of each parameter


@dataclass(frozen=True)
class Load:
    """A model under a plan.

    outside: parameters outside the blocks. block: those of one block. blocks: number of blocks. world_size: ranks.
    """

    outside: Unit
    block: Unit
    blocks: int
    plan: Plan
    world_size: int

    @property
    def elements(self) -> int:
        """Number of elements of all parameters."""
        return _elements(self.outside) + self.blocks * _elements(self.block)

    @property
    def units(self) -> list[Unit]:
        """Units, each gathered whole: the part outside the blocks, then every block; one if blocks are not wrapped."""
        whole = self.outside + self.blocks * self.block
        return [whole] if self.plan.wrapping == WHOLE else [self.outside, *[self.block] * self.blocks]

    @property
    def is_gathered(self) -> bool:
        """Whether parameters are gathered at all; FSDP2 gathers (by local copies) even with one rank."""
        return self.plan.api in (FSDP1, FSDP2) and took_effect(self.plan, self.world_size) != NO_SHARD

    @property
    def gathered_bytes(self) -> int:
        """Bytes per gathered element."""
        return DTYPE_BYTES[self.plan.dtype]


def _elements(unit: Sequence[tuple[int, int]]) -> int:
    return sum(elements for _, elements in unit)


def shard_elements(load: Load, unit: Unit) -> int:
    """Return the elements of a unit that the fullest rank keeps, including padding."""
    parts = shards(load.plan, load.world_size)[1]
    if load.plan.api == FSDP1:
        end, aligned = 0, ALIGNED_BYTES // load.gathered_bytes
        for _, elements in unit:
            end = -(-end // aligned) * aligned + elements
        return -(-end // parts)
    return sum(-(-first // parts) * (elements // max(1, first)) for first, elements in unit)


def kept_elements(load: Load) -> int:
    """Return the elements of the model's parameters that the fullest rank keeps between steps."""
    if load.plan.api not in (FSDP1, FSDP2):
        return load.elements
    return sum(shard_elements(load, unit) for unit in load.units)


def whole_bytes(load: Load, unit: Unit) -> int:
    """Return the bytes of a gathered unit, including the padding of every rank."""
    return load.gathered_bytes * shards(load.plan, load.world_size)[1] * shard_elements(load, unit)


def state_bytes(load: Load) -> dict[str, int]:
    """Return parameters, gradients and optimizer state of the fullest rank between backward and optimizer step."""
    kept = FP32_BYTES * kept_elements(load)
    return {PARAMETERS: kept, GRADIENTS: kept, STATE: MOMENTS * kept}


def largest_unit_bytes(load: Load) -> int:
    """Return the bytes of the largest gathered unit; 0 if nothing is gathered."""
    return max(whole_bytes(load, unit) for unit in load.units) if load.is_gathered else 0
