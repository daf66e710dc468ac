"""A subject's data-parallel wrapper behind the methods of ours, its collectives counted and, for a while, left out."""

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

# Methods of a process group that torch.distributed's functions call; barriers are not a step's communication.
COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "reduce_scatter"),
    *("_allgather_base", "_reduce_scatter_base", "allgather_into_tensor_coalesced", "alltoall_base"),
)


class Done:
    """Stands for a collective that was left out."""

    def wait(self, *_: Any) -> bool:
        """Nothing to wait for."""
        return True

    is_completed = is_success = block_current_stream = wait

    def get_future(self) -> Any:
        """One that is done."""
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


class Theirs(nn.Module):
    """module in the subject's wrapper. adapters: get, on_after_backward and perhaps on_train_batch_start.

    arguments: of get, beside the module. Bytes are of the tensors that this rank handed over. early: collectives that
    were called between the ends of a forward and of its backward. Where the wrapper trains parameters of its own, the
    module's become these: the same memory, and the same gradients after each backward.
    """

    def __init__(self, adapters: Sequence[Callable[..., Any] | None], arguments: Sequence[float], module: nn.Module):
        super().__init__()
        get, self._after, self._start = (*adapters, None)[:3]
        assert get is not None and self._after is not None
        self._module, self._enabled, self.traffic = [module], True, Traffic()  # a list: no submodule of this one
        self.early, self._in_backward = 0, False
        self._optimizer = torch.optim.SGD(module.parameters(), lr=0.0)  # which the course's interface hands over
        own = vars(dist.ProcessGroup)  # as they are there: what getattr gives would not bind its group again
        self._kept = {name: own[name] for name in COLLECTIVES if name in own}
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
        """The wrapper's forward, after on_train_batch_start where there is one."""
        if self._start is not None:
            try:
                self._start(self._wrapped[0], self._optimizer)
            except NotImplementedError:  # the course lets it be
                self._start = None
        for own, copied in self._copied:
            if own.grad is None:
                copied.grad = None
        found = self._wrapped[0](*args, **kwargs)
        self._in_backward = True
        return found

    def finish_gradient_synchronization(self) -> None:
        """on_after_backward."""
        assert self._after is not None
        self._in_backward = False
        self._after(self._wrapped[0], self._optimizer)
        for own, copied in self._copied:
            own.grad = copied.grad

    @contextmanager
    def communication_off(self) -> Iterator[None]:
        """All as ever but the collectives."""
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = True

    def release(self) -> None:
        """Take all hooks off the module and its parameters, and the counting off the process group."""
        for name, method in self._kept.items():
            setattr(dist.ProcessGroup, name, method)
        self._wrapped, self._copied = [], []
        module = self._module[0]
        hooks = [getattr(part, name) for part in module.modules() for name in vars(part) if name.endswith("_hooks")]
        hooks += [p._backward_hooks for p in module.parameters()]
        hooks += [getattr(p, "_post_accumulate_grad_hooks", None) for p in module.parameters()]
        for one in hooks:
            if one:
                one.clear()
        gc.collect()  # nodes of the graph that hold hooks live as long as the wrapper holds them

    def _counted(self, method: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        self.traffic.calls += 1
        self.early += self._in_backward
        self.traffic.bytes += sum(one.nbytes for one in _tensors(args[:1]))
        return method(group, *args, **kwargs) if self._enabled else Done()


def _copied(module: nn.Module, wrapper: Any) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The module's parameters and those of the wrapper that are copies of them, which share memory from here on."""
    inside = list(wrapper.parameters()) if isinstance(wrapper, nn.Module) else []
    ids, own = set(map(id, inside)), list(module.parameters())
    if not inside or any(id(one) in ids for one in own) or [p.shape for p in own] != [p.shape for p in inside]:
        return []
    for one, copied in zip(own, inside, strict=True):
        one.data = copied.data
    return list(zip(own, inside, strict=True))


def _bound(counted: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function, which becomes a method of a class that it is put into, as partial would not."""
    call = partial(counted, method)
    return lambda group, *args, **kwargs: call(group, *args, **kwargs)


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from _tensors(one)
