"""Fully sharded data parallelism over any module: each rank keeps a part of every large weight, layers gather it.

| parameter | each rank keeps | sent |
| --- | --- | --- |
| weight of nn.Linear or nn.Embedding | an equal part, flat, with zeros as padding | all-gathered before use |
| any other, or one that is frozen | all of it | nothing |

Gradients of the parts are reduce-scattered, of the others all-reduced. A weight that several layers share is one weight
for all of them; where anything but these layers has it too, it is kept whole.

Sources: handout of Stanford CS336, assignment 2 (systems), 26.1.1, problem fsdp; Rajbhandari et al., ZeRO, SC 2020,
stage 3; Zhao et al., PyTorch FSDP, VLDB 2023 (storages that are freed and filled again under autograd's references).
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from perfscribe.distributed.broadcasting import broadcast_all
from perfscribe.distributed.process_group import backends, require_group

LAYERS = (nn.Linear, nn.Embedding)
# A layer's gather begins when the layer this many places before it has ended; as many reductions are under way at most.
DEPTH = 2

# The second of each pair is the older name.
GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
Observer = Callable[[str], AbstractContextManager[object]]


class Weight:
    """A sharded weight.

    shard: the optimizer's parameter, flat, of the weight's dtype. whole: leaf of autograd that layers compute with, of
    the weight's shape and of dtype; its storage has 0 bytes unless it is gathered.
    """

    def __init__(self, parameter: nn.Parameter, dtype: torch.dtype | None, group: dist.ProcessGroup) -> None:
        self._group, self._size = group, dist.get_world_size(group)
        self._work: dist.Work | None = None
        self._sent: Tensor | None = None
        self.reached: tuple[Sequence[ShardedLayer], int] = ([], 0)  # place in a forward pass that backward has come to
        self.shard = nn.Parameter(self.padded(parameter.detach()).chunk(self._size)[dist.get_rank(group)].clone())
        flat = parameter.new_empty(self.shard.numel() * self._size, dtype=dtype or parameter.dtype, requires_grad=False)
        self.whole = flat[: parameter.numel()].view(parameter.shape).requires_grad_()
        self._flat = flat.data  # the same memory, with a version of its own: autograd sees no write
        self.free()

    def padded(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the weight's shape, flat and padded to a multiple of the ranks; a view if it can be."""
        missing = -tensor.numel() % self._size
        return nn.functional.pad(tensor.flatten(), (0, missing)) if missing else tensor.flatten()

    @torch.no_grad()
    def start(self) -> None:
        """Start to gather, unless that has been done; NCCL begins when the current stream has come here."""
        if self._flat.untyped_storage().nbytes():
            return
        self._flat.untyped_storage().resize_(self._flat.nbytes)
        self._sent = self.shard.detach().to(self._flat.dtype)
        self._work = GATHER(self._flat, self._sent, group=self._group, async_op=True)

    def wait(self) -> None:
        """Wait for the gather: with NCCL the current stream, else the host."""
        if self._work is not None:
            self._work.wait()
        self._work = self._sent = None

    def free(self) -> None:
        """Free the whole weight's memory, after a gather that is under way."""
        self.wait()
        self._flat.untyped_storage().resize_(0)

    def gathered(self) -> Tensor:
        """Return a new tensor with the whole weight in the shards' dtype."""
        flat = self.shard.new_empty(self._flat.numel(), requires_grad=False)
        GATHER(flat, self.shard.detach(), group=self._group)
        return flat[: self.whole.numel()].view(self.whole.shape)


class Layer:
    """A Linear or Embedding, which has other parameters while it is called: those that it computes with."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._kept: dict[str, Any] = {name: tensor for name, tensor in module._parameters.items() if tensor is not None}
        self._used = dict(self._kept)

    def open(self, dtype: torch.dtype | None) -> None:
        """Let the module compute, with parameters of dtype."""
        self.module._parameters.update({name: _cast(tensor, dtype) for name, tensor in self._used.items()})

    def close(self) -> None:
        """Let the module have its own parameters again."""
        self.module._parameters.update(self._kept)


class ShardedLayer(Layer):
    """A layer with a sharded weight. place: in the forward pass. needed_again: whether backward reads the weight."""

    def __init__(self, module: nn.Module, weight: Weight) -> None:
        super().__init__(module)
        self.weight, self.place, self.needed_again = weight, 0, not isinstance(module, nn.Embedding)
        self._kept["weight"], self._used["weight"] = weight.shard, weight.whole
        self.close()

    def close(self) -> None:
        """Free the whole weight, too."""
        super().close()
        self.weight.free()


class FullyShardedModule(nn.Module):
    """A module whose large weights are divided among the ranks of the default process group, in place.

    compute_dtype: of whole weights, of their layers' inputs and biases, and of the gradients that are sent. Parameters
    and their gradients, and hence the optimizer's state, keep the parameters' dtype.

    On construction rank 0's parameters and buffers overwrite the others'; the optimizer is made afterwards. A step is
    forward, backward, finish_gradient_synchronization(), optimizer step. All ranks must call the same layers in the
    same order. Forward knows this order from the forward before it, and gathers ahead from the second on. NCCL averages
    while it reduces; elsewhere gradients are divided before they are summed.

    around("wait") wraps each wait for a gather. Raises RuntimeError without a process group.
    """

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.module, self.compute_dtype, self.group = module, compute_dtype, require_group(type(self).__name__)
        self.around: Observer = lambda _: nullcontext()
        broadcast_all([(tensor, 0) for tensor in (*module.parameters(), *module.buffers())], self.group)
        nccl = backends(self.group).get(next(module.parameters()).device.type) == "nccl"
        self._divisor = 1 if nccl else dist.get_world_size(self.group)
        self._average = dist.ReduceOp.AVG if nccl else dist.ReduceOp.SUM
        self._order: list[ShardedLayer] = []  # of the last forward pass
        self._pass: list[ShardedLayer] = []  # the one under way
        self._scattering: deque[tuple[dist.Work, Tensor, Tensor, Weight]] = deque()
        self._reducing: list[dist.Work] = []
        self._layers: list[ShardedLayer] = []
        self._weights: dict[Tensor, Weight] = {}  # by shard, and by whole
        for parameter, layers in _shardable(module).items():
            weight = Weight(parameter, compute_dtype, self.group)
            self._weights[weight.shard] = self._weights[weight.whole] = weight
            self._layers += [ShardedLayer(layer, weight) for layer in layers]
            weight.whole.register_post_accumulate_grad_hook(_weakly(self._scatter))
        sharded = {layer.module for layer in self._layers}
        others = [Layer(part) for part in module.modules() if _reads_its_weight(part) and part not in sharded]
        for layer in (*self._layers, *others):
            layer.module.register_forward_pre_hook(partial(self._before_forward, layer))
            layer.module.register_forward_hook(partial(self._after_forward, layer))
        for parameter in module.parameters():
            if parameter.requires_grad and parameter not in self._weights:
                parameter.register_post_accumulate_grad_hook(_weakly(self._reduce))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's forward."""
        self._order, self._pass = self._pass, []
        try:
            return self.module(*args, **kwargs)
        finally:
            self._close()

    def finish_gradient_synchronization(self) -> None:
        """Finish a backward: afterwards gradients are averages, on the current stream (gloo: on the host)."""
        self._close()
        while self._scattering:
            self._end_scatter()
        for work in self._reducing:
            work.wait()
        self._reducing = []

    def gather_full_params(self) -> dict[str, Tensor]:
        """Return all parameters whole, by name, on every rank; all ranks must call it."""
        named = self.module.named_parameters(remove_duplicate=False)
        return {name: self._weights[one].gathered() if one in self._weights else one.detach() for name, one in named}

    def _close(self) -> None:
        """Free weights that were gathered ahead and not used."""
        for layer in self._layers:
            layer.close()

    def _before_forward(self, layer: Layer, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if isinstance(layer, ShardedLayer):
            layer.place = len(self._pass)
            self._pass.append(layer)
            expected = self._order[layer.place : layer.place + DEPTH]
            self._fetch(expected if expected[:1] == [layer] else [layer])
        layer.open(self.compute_dtype)
        return tuple(_cast(tensor, self.compute_dtype) for tensor in inputs)

    def _after_forward(self, layer: Layer, _: nn.Module, __: Any, output: Tensor) -> None:
        layer.close()
        if not isinstance(layer, ShardedLayer):
            return
        expected = self._order[layer.place : layer.place + DEPTH + 1]
        if expected[:1] == [layer] and expected[DEPTH:]:
            expected[DEPTH].weight.start()
        if output.requires_grad:
            output.register_hook(partial(self._before_backward, self._pass, layer.place))

    def _before_backward(self, layers: Sequence[ShardedLayer], at: int, _: Tensor) -> None:
        """Gather the weight at this place of a forward pass, which backward has come to."""
        layers[at].weight.reached = layers, at
        if layers[at].needed_again:
            self._fetch([layer for layer in reversed(layers[max(0, at + 1 - DEPTH) : at + 1]) if layer.needed_again])

    def _fetch(self, layers: Sequence[ShardedLayer]) -> None:
        """Wait for the first layer's weight; the gathers of all of them are under way then."""
        for layer in layers:
            layer.weight.start()
        with self.around("wait"):
            layers[0].weight.wait()

    @torch.no_grad()
    def _scatter(self, whole: Tensor) -> None:
        """Send the gradient of a whole weight, which is not needed any more, and gather that of the next but one."""
        weight, gradient, whole.grad = self._weights[whole], whole.grad, None
        assert gradient is not None
        weight.free()
        layers, at = weight.reached
        if at >= DEPTH and layers[at - DEPTH].needed_again:
            layers[at - DEPTH].weight.start()
        while len(self._scattering) >= DEPTH:  # frees whole gradients
            self._end_scatter()
        sent = weight.padded(gradient)
        if self._divisor > 1:
            sent.div_(self._divisor)
        part = sent.new_empty(weight.shard.numel())
        work = SCATTER(part, sent, op=self._average, group=self.group, async_op=True)
        self._scattering.append((work, part, sent, weight))

    @torch.no_grad()
    def _end_scatter(self) -> None:
        work, part, _, weight = self._scattering.popleft()
        work.wait()
        part, so_far = part.to(weight.shard.dtype), weight.shard.grad
        weight.shard.grad = part if so_far is None else so_far + part

    @torch.no_grad()
    def _reduce(self, parameter: Tensor) -> None:
        """Send the gradient of a parameter that is kept whole."""
        assert parameter.grad is not None
        if self._divisor > 1:
            parameter.grad.div_(self._divisor)
        work = dist.all_reduce(parameter.grad, self._average, group=self.group, async_op=True)
        assert work is not None
        self._reducing.append(work)


def _shardable(module: nn.Module) -> dict[nn.Parameter, list[nn.Module]]:
    """Return the weights to shard, each with the layers that have it: nothing else has it, and it is trained."""
    owners: dict[nn.Parameter, list[tuple[str, nn.Module]]] = defaultdict(list)
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.requires_grad:
                owners[parameter].append((name, part))
    return {
        parameter: [part for _, part in having]
        for parameter, having in owners.items()
        if all(name == "weight" and _reads_its_weight(part) for name, part in having)
    }


def _reads_its_weight(part: nn.Module) -> bool:
    """Return whether it is a Linear or Embedding, and not attention's projection, whose weight attention reads."""
    return isinstance(part, LAYERS) and not isinstance(part, NonDynamicallyQuantizableLinear)


def _weakly(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Return a tensor's hook that keeps the method's object alive no longer: cycles through hooks are not collected."""
    reference = weakref.WeakMethod(method)

    def hook(tensor: Tensor) -> None:
        if (bound := reference()) is not None:
            bound(tensor)

    return hook


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    is_cast = dtype is not None and isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if is_cast else value
