"""Tensors as the Triton kernels take them: (batch, heads, n, d) with known strides, as pointers or TMA descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from perfscribe.attention.triton_configs import Tile

TMA_ALIGNMENT_BYTES = 16
LARGEST_OFFSET = 2**31 - 1


@dataclass(frozen=True)
class Operand:
    """A (batch, heads, n, d) tensor with contiguous rows, and the strides of batch, heads and rows, in elements."""

    tensor: Tensor
    strides: tuple[int, int, int]

    def argument(self, rows: int, cols: int, tma: bool) -> Any:
        """What a kernel is given: a TMA descriptor with a box of rows × cols, or the tensor."""
        if not tma:
            return self.tensor
        return TensorDescriptor(self.tensor, list(self.tensor.shape), [*self.strides, 1], [1, 1, rows, cols])


def operand(tensor: Tensor) -> Operand:
    """The tensor as it is where the kernels can read it so, else a contiguous copy.

    Copied are: rows with gaps or of stride 0, as those of the gradient of a sum; starts and strides off the 16 bytes
    that TMA asks for; and heads so spread out that 32-bit offsets within one do not reach.
    """
    four = tensor if tensor.dim() == 4 else tensor.unsqueeze(1)
    if not _readable(four):
        four = four.contiguous()
        if four.data_ptr() % TMA_ALIGNMENT_BYTES:
            four = four.clone()
    return Operand(four, _strides(four))


def _readable(four: Tensor) -> bool:
    unit = four.element_size()
    strides = [stride for stride, size in zip(four.stride(), four.shape, strict=True) if size > 1]
    return (
        four.stride(-1) == 1
        and all(stride > 0 for stride in strides)
        and all(stride * unit % TMA_ALIGNMENT_BYTES == 0 for stride in _strides(four))
        and four.data_ptr() % TMA_ALIGNMENT_BYTES == 0
        and four.shape[-2] * _strides(four)[-1] <= LARGEST_OFFSET
    )


def _strides(four: Tensor) -> tuple[int, int, int]:
    """Strides of batch, heads and rows, in place of those of single rows, heads and batches ones that are aligned."""
    batch, heads, n, d = four.shape
    whole = (heads * n * d, n * d, d)
    b, h, r = (s if size > 1 else w for s, size, w in zip(four.stride(), (batch, heads, n), whole, strict=False))
    return b, h, r


def launch_options(tile: Tile) -> dict[str, Any]:
    """Triton's own arguments of a launch."""
    options: dict[str, Any] = {"num_warps": tile.warps, "num_stages": tile.stages}
    return options if tile.registers is None else options | {"maxnreg": tile.registers}
