"""Counts allocations at PyTorch's dispatcher while code runs, for real and for fake tensors."""

import contextlib
import weakref

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Bytes of live tensor storages: those given at the start, and all that operators return within the context.

    Scratch memory of kernels is not seen, except with cuda: its softmax's backward keeps the product of gradient and
    output (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out).
    """

    def __init__(self, *tensors: torch.Tensor, cuda: bool = False) -> None:
        super().__init__()
        self.cuda = cuda
        self.now = self.peak = 0
        self._known: set[int] = set()
        for tensor in tensors:
            self._see(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor):
                self._see(value)
        if self.cuda and func is torch.ops.aten._softmax_backward_data.default:
            self.peak = max(self.peak, self.now + args[0].nbytes)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class CudaSoftmax(TorchFunctionMode):
    """Makes CPU autocast to bf16 treat softmax as CUDA's does.

    CUDA autocast asks for fp32 results, and bf16 is copied to fp32 first (aten/src/ATen/autocast_mode.h).
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.is_autocast_enabled("cpu") and func is torch.softmax:
            return torch.softmax(args[0].float(), -1)
        return func(*args, **kwargs)


def autocast(dtype: str) -> contextlib.AbstractContextManager[object]:
    """CPU autocast for bf16, nothing for fp32."""
    return torch.autocast("cpu", dtype=torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()
