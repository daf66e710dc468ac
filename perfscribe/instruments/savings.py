"""Counts what the operations of a module save for backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode


class Savings(TorchFunctionMode):
    """Context that counts while the module's forward pass runs in it.

    saved: bytes by `submodule: operation`, at the operation that saves a storage first; a storage counts once.
    tensors: their number. given: tensors that do not count, as parameters; nor do single numbers.
    """

    def __init__(self, module: nn.Module, given: Iterable[Tensor]) -> None:
        super().__init__()
        self.saved: Counter[str] = Counter()
        self.tensors = 0
        self._module, self._inside = module, [""]  # submodules around the operation
        self._operation = ""
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in given}
        self._hooks = ExitStack()

    def __enter__(self) -> Savings:
        for name, part in self._module.named_modules():
            enter = part.register_forward_pre_hook(lambda *_, name=name: self._inside.append(name or "block"))
            leave = part.register_forward_hook(lambda *_: self._inside.pop() and None)
            self._hooks.callback(enter.remove)
            self._hooks.callback(leave.remove)
        self._hooks.enter_context(saved_tensors_hooks(self._count, lambda tensor: tensor))
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._hooks.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outer, self._operation = self._operation, func.__name__.strip("_")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._operation = outer

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if self._inside[-1] and tensor.dim() and storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.saved[f"{self._inside[-1]}: {self._operation}"] += storage.nbytes()
            self.tensors += 1
        return tensor
