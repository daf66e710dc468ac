"""The sharded optimizer on gloo: the plain optimizer's parameters, with each rank keeping a part of the state."""

import contextlib
import copy
import functools
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn

from perfscribe.analytic.shapes import SIZES
from perfscribe.distributed import broadcasting, sharded_optimizer
from perfscribe.distributed.sharded_optimizer import ShardedOptimizer
from perfscribe.models.transformer import Model, next_token_loss

STEPS = 10


class Net(nn.Module):
    """Parameters of several sizes, a frozen one, one without a gradient, a scalar and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.frozen = nn.Linear(10, 10)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.randn(()))
        self.transposed = nn.Parameter(torch.randn(3, 10).t())

    def forward(self, x: Tensor) -> Tensor:
        """X (N, 6) to a scalar."""
        return (self.frozen(torch.tanh(self.first(x))) * self.scale @ self.transposed).square().mean()


def pair() -> tuple[Net, Net]:
    """Two equal nets, the same on all ranks."""
    torch.manual_seed(0)
    net = Net()
    return net, copy.deepcopy(net)


def batch(step: int) -> Tensor:
    """(4, 6), the same on all ranks: as gradients are, once they are averaged."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


def take_steps(net: Net, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    """Take the steps; those with odd numbers call a closure, whose loss step() returns."""
    for step in steps:

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = net(batch(step))
            loss.backward()
            return loss

        if step % 2:
            assert optimizer.step(closure).requires_grad
        else:
            closure()
            optimizer.step()


def assert_equal(net: nn.Module, expected: nn.Module) -> None:
    """To the last bits: rtol 1e-7 is below float32's resolution."""
    torch.testing.assert_close(dict(net.named_parameters()), dict(expected.named_parameters()), rtol=1e-7, atol=0)


def groups_of(net: Net) -> list[dict[str, Any]]:
    """Two groups, the first with settings of its own and an iterator that can be read once."""
    return [
        {"params": (p for p in net.first.parameters()), "lr": 0.5, "weight_decay": 0.2},
        {"params": [net.scale, *net.unused.parameters(), *net.frozen.parameters()]},
    ]


def train(rank: int) -> None:
    """Train with groups, one that is added later, and a scheduler that changes the wrapper's groups."""
    net, plain_net = pair()
    sharded = ShardedOptimizer(groups_of(net), torch.optim.AdamW, lr=0.1, amsgrad=True)
    plain = torch.optim.AdamW(groups_of(plain_net), lr=0.1, amsgrad=True)
    for model, optimizer in ((net, sharded), (plain_net, plain)):
        take_steps(model, optimizer, range(2))
        optimizer.add_param_group({"params": [model.transposed], "lr": 0.02})
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.3)
        for step in range(2, STEPS):
            take_steps(model, optimizer, [step])
            scheduler.step()
    assert_equal(net, plain_net)
    assert isinstance(sharded, torch.optim.Optimizer) and sharded.defaults == plain.defaults
    with pytest.raises(RuntimeError, match="does not save its state"):
        sharded.state_dict()


@pytest.mark.parametrize("ranks", [1, 3])
def test_parameters_are_those_of_the_plain_optimizer(ranks: int) -> None:
    run_ranks(train, ranks)


class Scaled(torch.optim.SGD):
    """SGD whose step takes a factor for the gradients."""

    def step(self, closure: Any = None, *, scale: float = 1.0) -> Any:
        for group in self.param_groups:
            torch._foreach_mul_([p.grad for p in group["params"] if p.grad is not None], scale)
        return super().step(closure)


def scaled(rank: int, backend: str) -> None:
    nets = net, plain_net = pair()
    optimizers = ShardedOptimizer(net.parameters(), Scaled, lr=0.1), Scaled(plain_net.parameters(), lr=0.1)
    with mock.patch.object(sharded_optimizer, "backends", lambda group: {"cpu": backend}):
        for model, optimizer in zip(nets, optimizers, strict=True):
            model(batch(0)).backward()
            optimizer.step(scale=0.5)
    assert_equal(net, plain_net)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_arguments_of_a_step_reach_the_optimizer(backend: str) -> None:
    run_ranks(scaled, 2, backend)


# Memory and traffic.


def spread(rank: int, chunk_bytes: int) -> tuple[int, int, int, int]:
    """State of the nano model: this rank's elements, all parameters' elements, broadcasts of a step, bytes in them."""
    torch.manual_seed(0)
    model = Model(SIZES["nano"], 4)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW)
    next_token_loss(model, torch.ones(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64)).backward()
    broadcast = dist.broadcast
    sizes: list[int] = []

    def noting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.nbytes)
        return broadcast(tensor, *args, **kwargs)

    with mock.patch.object(dist, "broadcast", noting), mock.patch.object(broadcasting, "CHUNK_BYTES", chunk_bytes):
        optimizer.step()
    kept = sum(entry["exp_avg"].numel() + entry["exp_avg_sq"].numel() for entry in optimizer.state.values())
    return kept, sum(parameter.numel() for parameter in model.parameters()), len(sizes), sum(sizes)


@pytest.mark.parametrize(("chunk_bytes", "calls"), [(32 * 2**20, 2), (1, 21)])
def test_state_is_spread_and_parameters_travel_once(chunk_bytes: int, calls: int) -> None:
    """In one flat chunk from each rank, or each of 21 tensors by itself."""
    results = run_ranks(spread, 2, chunk_bytes)
    total = results[0][1]
    assert sum(kept for kept, *_ in results) == 2 * total
    for kept, _, counted, sent in results:
        assert kept == pytest.approx(total, rel=0.05)
        assert (counted, sent) == (calls, 4 * total)


# The way that NCCL goes.


def in_pieces(rank: int, piece_bytes: int) -> list[str]:
    """Calls observed in three steps, after which parameters equal the plain optimizer's."""
    net, plain_net = pair()
    sharded = ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)
    observed: list[str] = []
    sharded.around = functools.partial(observe, observed)
    with (
        mock.patch.object(sharded_optimizer, "backends", lambda group: {"cpu": "nccl"}),
        mock.patch.object(sharded_optimizer, "PIECE_BYTES", piece_bytes),
        mock.patch.object(sharded_optimizer, "broadcast_all", side_effect=AssertionError("a broadcast")),
    ):
        take_steps(net, sharded, range(3))
    take_steps(plain_net, torch.optim.AdamW(plain_net.parameters(), lr=0.1), range(3))
    assert_equal(net, plain_net)
    return observed


@contextlib.contextmanager
def observe(seen: list[str], name: str) -> Iterator[None]:
    """Notes what it is entered around."""
    seen.append(name)
    yield


@pytest.mark.parametrize(("ranks", "piece_bytes", "pieces"), [(3, 1, 3), (2, 300, 1)])
def test_pieces_travel_while_the_next_ones_are_updated(ranks: int, piece_bytes: int, pieces: int) -> None:
    for seen in run_ranks(in_pieces, ranks, piece_bytes):
        # As many pieces as the rank with most of the six parameters needs; after the last one nothing is updated.
        assert seen == [*["update", "exchange"] * pieces, "exchange"] * 3
