"""Counts the collectives that a piece of code calls, directly or indirectly, and their bytes.

Every collective of torch.distributed goes through the dispatcher, including those of DDP's C++ reducer and of
backward's threads; a dispatch mode sees their tensors and process group. Bytes follow nccl-tests' convention
(analytic.traffic): of the whole array, which all ranks together gather or scatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from perfscribe.analytic.fsdp_traffic import LEAST_BYTES, Message

SPACES = ("c10d", "_c10d_functional")
NO_MESSAGE = ("barrier", "wait_tensor", "monitored_barrier_", "_wrap_tensor_autograd")


class Collectives(TorchDispatchMode):
    """Context that records each collective started in it, in order: .calls.

    Collectives of a single rank, or of fewer than LEAST_BYTES, are omitted.

    Raises RuntimeError at exit if a collective was called whose bytes are not known here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Message] = []
        self._unknown: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Record the call, and run it."""
        if func.namespace in SPACES:
            self._note(func._schema.name.partition("::")[2], args)
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._unknown and error[0] is None:
            raise RuntimeError(f"the bytes of collectives are not known: {', '.join(sorted(self._unknown))}")

    def _note(self, name: str, args: Sequence[Any]) -> None:
        if name in NO_MESSAGE:
            return
        if name not in _MESSAGES:
            self._unknown.add(name)
            return
        operation, whole_array = _MESSAGES[name]
        whole = sum(tensor.nbytes for tensor in _flat(args[whole_array]))
        ranks = _ranks(args)
        if name == "all_gather_into_tensor":  # its argument is only the rank's own part
            whole *= ranks
        if ranks > 1 and whole >= LEAST_BYTES:
            self.calls.append(Message(operation, whole, ranks))


def _flat(part: Any) -> list[Tensor]:
    if isinstance(part, Tensor):
        return [part]
    return [tensor for item in part for tensor in _flat(item)]


# By the operator's name: the collective, and the index of the argument that is the whole array.
_MESSAGES: dict[str, tuple[str, int]] = {
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "all_reduce": ("all_reduce", 0),
    "all_reduce_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
}


def _ranks(args: Sequence[Any]) -> int:
    """Return the size of an operator's group, an object or (functional operators) a name."""
    for part in args:
        if isinstance(part, torch.ScriptObject) and "ProcessGroup" in str(part._type()):
            return int(dist.ProcessGroup.unbox(part).size())
    named = [part for part in args if isinstance(part, str)]
    by_name: Any = dist.distributed_c10d
    return int(by_name._resolve_process_group(named[-1]).size())
