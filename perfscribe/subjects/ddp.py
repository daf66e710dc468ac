"""Wraps a subject's DDP with the interface of ours; counts its collectives and can skip them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfscribe.distributed.ddp import Traffic

# ProcessGroup methods that torch.distributed's functions call; barriers do not count as a step's communication.
COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "reduce_scatter"),
    *("_allgather_base", "_reduce_scatter_base", "allgather_into_tensor_coalesced", "alltoall_base"),
)


class Done:
    """Completed work handle of a skipped collective."""

    def wait(self, *_: Any) -> bool:
        """Return at once."""
        return True

    is_completed = is_success = block_current_stream = wait

    def get_future(self) -> Any:
        """Return a completed future."""
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


class Theirs(nn.Module):
    """A module in the subject's wrapper. adapters: get, on_after_backward and perhaps on_train_batch_start.

    arguments: of get, after the module. traffic: bytes of the tensors that this rank passed to collectives. early:
    collectives called between the end of forward and the end of backward. If the wrapper trains copies of the
    module's parameters, the module's parameters share their memory and get their gradients after each backward.
    """

    def __init__(self, adapters: Sequence[Callable[..., Any] | None], arguments: Sequence[float], module: nn.Module):
        super().__init__()
        get, self._after, self._start = (*adapters, None)[:3]
        assert get is not None and self._after is not None
        self._module, self._enabled, self.traffic = [module], True, Traffic()  # a list, so that it is no submodule
        self.early, self._in_backward = 0, False
        self._optimizer = torch.optim.SGD(module.parameters(), lr=0.0)  # argument of the course's interface
        attributes = vars(dist.ProcessGroup)  # not getattr: restoring needs the raw attribute, not a bound method
        self._kept = {name: attributes[name] for name in COLLECTIVES if name in attributes}
        for name in self._kept:
            setattr(dist.ProcessGroup, name, _bound(self._counted, getattr(dist.ProcessGroup, name)))
        try:
            self._wrapped = [get(module, *arguments)]
            self._copied = _copied(module, self._wrapped[0])
        except BaseException:
            self.release()
            raise
        self.traffic.reset()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapper's forward, after on_train_batch_start if there is one."""
        if self._start is not None:
            try:
                self._start(self._wrapped[0], self._optimizer)
            except NotImplementedError:  # optional in the course
                self._start = None
        for parameter, copied in self._copied:
            if parameter.grad is None:
                copied.grad = None
        output = self._wrapped[0](*args, **kwargs)
        self._in_backward = True
        return output

    def finish_gradient_synchronization(self) -> None:
        """Call on_after_backward."""
        assert self._after is not None
        self._in_backward = False
        self._after(self._wrapped[0], self._optimizer)
        for parameter, copied in self._copied:
            parameter.grad = copied.grad

    @contextmanager
    def communication_off(self) -> Iterator[None]:
        """Skip collectives, and only these, within the block."""
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = True

    def release(self) -> None:
        """Remove all hooks from the module and its parameters, and the counting from the process group."""
        for name, method in self._kept.items():
            setattr(dist.ProcessGroup, name, method)
        self._wrapped, self._copied = [], []
        module = self._module[0]
        hooks = [getattr(part, name) for part in module.modules() for name in vars(part) if name.endswith("_hooks")]
        hooks += [p._backward_hooks for p in module.parameters()]
        hooks += [getattr(p, "_post_accumulate_grad_hooks", None) for p in module.parameters()]
        for by_number in filter(None, hooks):
            by_number.clear()
        gc.collect()  # graph nodes with hooks live as long as reference cycles with the wrapper

    def _counted(self, method: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        self.traffic.calls += 1
        self.early += self._in_backward
        self.traffic.bytes += sum(tensor.nbytes for tensor in _tensors(args[:1]))
        return method(group, *args, **kwargs) if self._enabled else Done()


def _copied(module: nn.Module, wrapper: Any) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Pair the module's parameters with the wrapper's copies and let both share memory; empty without copies."""
    inside = list(wrapper.parameters()) if isinstance(wrapper, nn.Module) else []
    ids, ours = set(map(id, inside)), list(module.parameters())
    if not inside or any(id(p) in ids for p in ours) or [p.shape for p in ours] != [p.shape for p in inside]:
        return []
    for parameter, copied in zip(ours, inside, strict=True):
        parameter.data = copied.data
    return list(zip(ours, inside, strict=True))


def _bound(counted: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function, which a class binds as a method, unlike a partial."""
    call = partial(counted, method)
    return lambda group, *args, **kwargs: call(group, *args, **kwargs)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
