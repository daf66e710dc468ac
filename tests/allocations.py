"""What is allocated while code runs, counted at PyTorch's dispatcher: works for real and for fake tensors."""

from __future__ import annotations

import contextlib
import weakref

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


class LiveBytes(TorchDispatchMode):
    """Bytes of live tensor storages: those given at the start, and all that operators return within the context.

    log: elements of every storage that was allocated. The scratch memory of kernels is not seen.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.log: list[int] = []
        self._known: set[int] = set()
        for tensor in tensors:
            self._see(tensor)
        self.log.clear()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor):
                self._see(value)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return
        self._known.add(key)
        self.log.append(tensor.numel())
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class Saved:
    """Storages that autograd keeps for backward within the context, without those of the given tensors."""

    def __init__(self, *known: torch.Tensor) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self.storages[storage._cdata] = storage
            self.tensors[storage._cdata] = tensor
        return tensor

    def __enter__(self) -> Saved:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    @property
    def n_bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


class CudaSoftmax(TorchFunctionMode):
    """Makes CPU autocast treat softmax and cross-entropy as CUDA autocast does (fp16 with fake tensors only).

    CUDA autocast asks for fp32 results; its kernel reads fp16 directly, bf16 is copied to fp32 first
    (aten/src/ATen/autocast_mode.h, aten/src/ATen/native/SoftMax.cpp).
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.is_autocast_enabled("cpu") and func in (torch.softmax, F.cross_entropy):
            half = args[0].dtype == torch.float16
            if func is torch.softmax:
                return torch._softmax(args[0], -1, True) if half else torch.softmax(args[0].float(), -1)
            if half:
                return F.nll_loss(torch._log_softmax(args[0], 1, True), args[1])
        return func(*args, **kwargs)


def autocast(dtype: str) -> contextlib.AbstractContextManager[object]:
    """CPU autocast for bf16 and fp16, nothing for fp32 and tf32."""
    return torch.autocast("cpu", dtype=LOW[dtype]) if dtype in LOW else contextlib.nullcontext()
