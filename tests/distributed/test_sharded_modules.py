"""Fully sharded modules on gloo: training as one process would, with weights that are there only while a layer runs."""

import contextlib
import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn

from perfscribe.distributed.sharded_modules import DEPTH, FullyShardedModule
from perfscribe.models.transformer import RMSNorm

STEPS, ROWS, WORDS = 10, 12, 11
RELATIVE = {None: 1e-5, torch.bfloat16: 3e-2}  # allowed error of parameters, by compute_dtype


class Toy(nn.Module):
    """An embedding, linear layers with and without bias, norms, a head; elements that 2 and 3 do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 5)
        self.first = nn.Linear(5, 7)
        self.norm = RMSNorm(7)
        self.second = nn.Linear(7, 5, bias=False)
        self.head = nn.Linear(5, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """X (N,) to logits (N, WORDS)."""
        return self.head(self.second(self.norm(torch.tanh(self.first(self.embedding(x))))))


class Shared(Toy):
    """The head is the embedding, the second layer frozen, and used twice; attention has its projection's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight
        self.square = nn.Linear(5, 5).requires_grad_(False)
        self.attention = nn.MultiheadAttention(5, 1)
        self.functional = nn.Linear(5, 5, bias=False)
        self.register_parameter("same", self.functional.weight)

    def forward(self, x: Tensor) -> Tensor:
        """X (N,) to logits (N, WORDS)."""
        hidden = self.square(self.square(self.embedding(x)))
        hidden = hidden.float()[None]
        hidden = self.attention(hidden, hidden, hidden)[0][0]
        hidden = self.second(self.norm(self.first(nn.functional.linear(hidden, self.same))))
        return self.head(self.second(self.norm(self.first(hidden))))


class Skipping(Toy):
    """Every second time two layers are not called, which were expected: their weights have been gathered ahead."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """X (N,) to logits (N, WORDS)."""
        self.calls += 1
        return super().forward(x) if self.calls % 2 else self.head(self.embedding(x))


def pair(kind: type[Toy], dtype: torch.dtype | None) -> tuple[FullyShardedModule, Toy]:
    """A sharded module, whose parameters on other ranks than 0 began differently, and a plain copy of rank 0's."""
    torch.manual_seed(0)
    plain = kind()
    module = copy.deepcopy(plain)
    with torch.no_grad():
        for parameter in module.parameters() if dist.get_rank() else ():
            parameter.add_(1)
    return FullyShardedModule(module, dtype), plain


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all ranks together."""
    words = torch.randint(WORDS, (2, ROWS), generator=torch.Generator().manual_seed(step))
    return words[0], words[1]


def own(tensor: Tensor) -> Tensor:
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs).float(), targets)


def in_dtype(model: Toy, dtype: torch.dtype) -> None:
    """Let Linear and Embedding compute in dtype, with parameters that stay as they are."""

    def cast(x: Any) -> Any:
        return x.to(dtype) if x is not None and x.is_floating_point() else x

    for part in model.modules():
        if type(part) in (nn.Linear, nn.Embedding):
            own = dict(part._parameters)
            part.register_forward_pre_hook(
                lambda part, _, own=own: part._parameters.update({name: cast(one) for name, one in own.items()})
            )
            part.register_forward_pre_hook(lambda _, inputs: tuple(map(cast, inputs)))
            part.register_forward_hook(lambda part, _, __, own=own: part._parameters.update(own))


def close(ours: dict[str, Tensor], expected: dict[str, Tensor], allowed: float) -> None:
    """Frobenius norm of each tensor's error over its own."""
    assert ours.keys() == expected.keys()
    for name, one in expected.items():
        error = (ours[name] - one).norm() / (one.norm() + 1e-9)
        assert ours[name].shape == one.shape and ours[name].dtype == one.dtype and error <= allowed, (name, error)


def train(rank: int, kind: type[Toy], dtype: torch.dtype | None) -> None:
    """Ten steps next to one process on the whole batch; SGD's change with the size of gradients."""
    fsdp, plain = pair(kind, dtype)
    if dtype is not None:
        in_dtype(plain, dtype)
    close(fsdp.gather_full_params(), dict(plain.named_parameters(remove_duplicate=False)), 0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (fsdp, plain)]
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss_of(fsdp, own(inputs), own(targets)).backward()
        fsdp.finish_gradient_synchronization()
        loss_of(plain, inputs, targets).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    close(fsdp.gather_full_params(), dict(plain.named_parameters(remove_duplicate=False)), RELATIVE[dtype])
    state = [value for entry in optimizers[0].state.values() for value in entry.values()]
    assert {value.dtype for value in state} == {torch.float32}


def each(rank: int, kinds: tuple[type[Toy], ...]) -> None:
    """One after the other in the same processes."""
    for kind in kinds:
        for dtype in RELATIVE:
            train(rank, kind, dtype)


@pytest.mark.parametrize(("ranks", "kinds"), [(2, (Toy, Shared, Skipping)), (3, (Toy,))])
def test_ten_steps_equal_one_process(ranks: int, kinds: tuple[type[Toy], ...]) -> None:
    run_ranks(each, ranks, kinds)


# What is there, and when.

LAYERS = 6


def watched(rank: int) -> list[list[list[int]]]:
    """Return for two steps the places of weights that are there, or on their way, where a layer waits for its own.

    Outside the layers' use none is there.
    """
    torch.manual_seed(0)
    widths = range(4, 3 + LAYERS)
    linear = [nn.Linear(width, width + 1, bias=False) for width in widths]
    fsdp = FullyShardedModule(nn.Sequential(nn.Embedding(WORDS, 4), *linear))
    seen: list[list[int]] = []

    def there() -> list[int]:
        return [at for at, layer in enumerate(fsdp._layers) if layer.weight.whole.untyped_storage().nbytes()]

    @contextlib.contextmanager
    def around(_: str) -> Iterator[None]:
        yield
        seen.append(there())

    fsdp.around = around
    steps = []
    for _ in range(2):
        loss = fsdp(torch.arange(WORDS)).sum()
        assert not there()
        loss.backward()
        assert len(fsdp._scattering) == DEPTH and all(layer.weight.whole.grad is None for layer in fsdp._layers)
        fsdp.finish_gradient_synchronization()
        assert not there()
        steps.append(seen.copy())
        seen.clear()
    return steps


def test_a_layers_gather_begins_when_the_layer_two_before_has_ended() -> None:
    last = LAYERS - 1
    unknown = [[at] for at in range(LAYERS)]
    forward = [[at, at + 1] for at in range(last)] + [[last]]
    backward = [[at - 1, at] for at in range(last, 1, -1)] + [[1]]  # an embedding's needs no weight
    for first, second in run_ranks(watched, 2):
        assert first == unknown + backward
        assert second == forward + backward


def dropped(rank: int) -> bool:
    """Return whether the parts of weights are there when nothing refers to their module."""
    fsdp = FullyShardedModule(Toy())
    loss_of(fsdp, *batch(0)).backward()
    fsdp.finish_gradient_synchronization()
    part = weakref.ref(fsdp._layers[0].weight.shard)
    del fsdp
    gc.collect()
    return part() is not None


def test_hooks_keep_nothing_alive() -> None:
    assert not any(run_ranks(dropped, 2))
