"""memory_profiling of CS336 assignment 2, part f: what a block saves for backward, and what its backward changes.

Only the blocks are built, and few of them: all save the same, and the whole model need not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfscribe.analytic.shapes import SIZES, LanguageModel
from perfscribe.base.cells import Cell, Measurement

if TYPE_CHECKING:
    from perfscribe.models.transformer import Model

UNSPLIT_BYTES = 2**20  # at most, that CUDA's allocator hands out beyond the size of a tensor
ALLOWED = 0.01


@dataclass(frozen=True)
class Blocks(LanguageModel):
    """Factors of a cell. layers: blocks that are built."""

    layers: int


def run(cell: Cell) -> Measurement:
    """Count what the middle block saves, by operation, then take the memory at the end of each block's passes.

    Raises WrongResult if the block's forward pass adds another amount than its operations saved.
    """
    from perfscribe.instruments import precision
    from perfscribe.instruments.correctness import require
    from perfscribe.instruments.memory import PeakMemory
    from perfscribe.instruments.savings import Savings
    from perfscribe.models.transformer import Model

    level = cell.read(Blocks)
    precision.set_matmul_precision(level.dtype)
    shape = replace(SIZES[level.size], layers=level.layers, vocab_size=1)
    model = Model(shape, level.seq_len, device=level.device)
    middle = level.layers // 2
    with Savings(model.blocks[middle], [*model.parameters(), *model.buffers()]) as savings:
        _pass(level, model, lambda _: None)
    model.zero_grad(set_to_none=True)
    with PeakMemory(level.device) as memory:
        _pass(level, model, memory.mark)
    forward, backward = (
        [memory.marks[f"{way} {end}"] for end in range(level.layers + 1)] for way in ("forward", "backward")
    )
    saved, added = savings.saved.total(), forward[middle + 1] - forward[middle]
    unsplit = savings.tensors * UNSPLIT_BYTES if level.device == "cuda" else 0
    require({"what a block saves": max(0, abs(added - saved) - unsplit) / saved}, ALLOWED, "the allocator's count")
    changed = backward[middle] - backward[middle + 1]
    values = {"saved_bytes": saved, "added_bytes": added, "changed_bytes": changed, "gradients_bytes": added + changed}
    operations, sizes = zip(*savings.saved.most_common(), strict=True)
    series = {"operation": [*operations], "operation_bytes": [*sizes]}
    series |= {"forward_bytes": forward, "backward_bytes": backward}
    return Measurement(values={**values, "memory_counter": memory.counter}, series=series)


def _pass(level: Blocks, model: Model, mark: Callable[[str], None]) -> None:
    """Run forward and backward of n blocks; mark the ends, forward 0 (before the first) to n and backward n to 0."""
    import torch

    from perfscribe.instruments import precision

    shape = (level.batch, level.seq_len, model.shape.d_model)
    x = torch.randn(shape, device=level.device, requires_grad=True)
    of_out = torch.ones_like(x)
    mark("forward 0")
    with precision.autocast(level.device, level.dtype):
        for number, block in enumerate(model.blocks):
            # Called when the gradient of the block's input is complete.
            x.register_hook(lambda _, number=number: mark(f"backward {number}"))
            x = block(x, model.rotary, model.causal_mask)
            mark(f"forward {number + 1}")
    mark(f"backward {level.layers}")
    x.backward(of_out)
