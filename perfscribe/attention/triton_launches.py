"""Prepared launches of Triton kernels, and the layouts of their tensors.

Triton's own launch inspects up to forty arguments each time, which takes longer than a short kernel runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

TMA_ALIGNMENT_BYTES = 16
LARGEST_OFFSET = 2**31 - 1

Place: TypeAlias = tuple[tuple[int, ...], bool]
Box: TypeAlias = tuple[Any, ...]  # shape, strides and box of a TMA descriptor; for Gluon also its layout


def place(tensor: Tensor) -> Place:
    """Return the strides in elements, and whether the first element is aligned for TMA."""
    return tensor.stride(), tensor.data_ptr() % TMA_ALIGNMENT_BYTES == 0


@dataclass(frozen=True)
class Layout:
    """A tensor as the kernels read it: (batch, heads, n, d), rows contiguous, strides of batch, heads and rows.

    copied: the tensor has no such layout, and the kernels get a contiguous copy. That is so for rows with gaps or of
    stride 0, starts and strides not aligned to TMA's 16 bytes, and heads too spread out for 32-bit offsets.
    """

    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    copied: bool

    def box(self, rows: int, cols: int, tma: bool) -> Box | None:
        """Return Launch's entry for the tensor: shape, strides and box of a descriptor, or None for a pointer."""
        return (self.shape, [*self.strides, 1], [1, 1, rows, cols]) if tma else None


def layout_of(tensor: Tensor) -> Layout:
    """Return the layout of a tensor (batch, n, d) or (batch, heads, n, d)."""
    _, heads, n, d = shape = _four(tensor.shape, 1)
    whole = (heads * n * d, n * d, d)
    given = _four(tensor.stride(), 0)
    # Strides of dimensions of size 1 have no effect and may be unaligned: replaced by aligned ones.
    strides = tuple(s if size > 1 else w for s, size, w in zip(given, shape, whole, strict=False))
    readable = (
        given[-1] == 1
        and all(stride > 0 and stride * tensor.element_size() % TMA_ALIGNMENT_BYTES == 0 for stride in strides)
        and place(tensor)[1]
        and n * strides[-1] <= LARGEST_OFFSET
    )
    return Layout(shape, strides if readable else whole, not readable)  # type: ignore[arg-type]


def _four(sizes: Sequence[int], for_heads: int) -> tuple[int, int, int, int]:
    return tuple(sizes) if len(sizes) == 4 else (sizes[0], for_heads, *sizes[1:])  # type: ignore[return-value]


def raw_strides(tensor: Tensor) -> tuple[int, int, int, int]:
    """Return the strides of batch, heads, rows and columns, unchanged, in elements."""
    return _four(tensor.stride(), 0)


def readable(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor with the same content, aligned for TMA."""
    whole = tensor.contiguous()
    return whole if place(whole)[1] else whole.clone()


class Launch:
    """A kernel with its grid and all arguments except the tensors, which a call passes in the kernel's order.

    boxes: each tensor's descriptor, or None for a pointer. options: Triton's, such as num_warps. The first call
    compiles; later calls use the compiled kernel's launcher directly, so all tensors must be aligned like those of the
    first call.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        boxes: Sequence[Box | None],
        scalars: Sequence[float],
        constants: Mapping[str, Any],
        **options: int,
    ) -> None:
        self._kernel, self._grid, self._scalars = kernel, (*grid, 1, 1)[:3], scalars
        self._boxes, self._keywords = boxes, {**constants, **options}
        self._templates: list[dict[str, Any] | None] = []
        self._compiled: Any = None  # stays None in the interpreter

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current stream of the tensors' device."""
        compiled = self._compiled
        if compiled is None:
            return self._compile(tensors)
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(*tensors)
        arguments = [
            tensor.data_ptr() if template is None else _descriptor(template, tensor)
            for tensor, template in zip(tensors, self._templates, strict=True)
        ]
        stream = self._stream_of(self._device)
        handles = stream, compiled.function, compiled.packed_metadata, None, None, None
        compiled.run(*self._grid, *handles, *arguments, *self._rest)

    def _compile(self, tensors: Sequence[Tensor]) -> None:
        arguments = [
            tensor if box is None else (GluonDescriptor if len(box) == 4 else TensorDescriptor)(tensor, *box)
            for tensor, box in zip(tensors, self._boxes, strict=True)
        ]
        with torch.cuda.device_of(tensors[0]):
            compiled = self._kernel[self._grid](*arguments, *self._scalars, **self._keywords)
        if compiled is None:
            return
        names = self._kernel.arg_names[len(tensors) + len(self._scalars) :]
        self._rest = [*self._scalars, *(self._keywords[name] for name in names)]
        self._templates = [
            None if box is None else {**vars(argument), "base": None}
            for argument, box in zip(arguments, self._boxes, strict=True)
        ]
        self._stream_of = triton.runtime.driver.active.get_current_stream
        self._device = tensors[0].device.index
        self._compiled = compiled  # last, because other threads may launch meanwhile


def _descriptor(template: dict[str, Any], tensor: Tensor) -> TensorDescriptor:
    """Return a descriptor without its constructor's checks, which the first call's descriptor has passed."""
    descriptor = object.__new__(TensorDescriptor)
    descriptor.__dict__ = {**template, "base": tensor}
    return descriptor
