"""The four data-parallel wrappers on gloo: replicas that train as one process on the whole batch would."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run_ranks
from torch import Tensor, nn

from perfscribe.distributed.ddp import BucketedDDP, DataParallel, FlatDDP, NaiveDDP, OverlappedDDP

WRAPPERS: dict[str, Callable[[nn.Module], DataParallel]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlapped": OverlappedDDP,
    "bucketed_tiny": lambda module: BucketedDDP(module, 0.000001),
    "bucketed_two": lambda module: BucketedDDP(module, 0.0022),
    "bucketed_one": lambda module: BucketedDDP(module, 1000),
}
HOOKED = ("overlapped", "bucketed_tiny", "bucketed_two", "bucketed_one")

STEPS = 3
ROWS = 12  # of the whole batch: divisible by 2 and 3


def one_after_the_other(rank: int, case: Callable[[int, str], Any]) -> Any:
    """case(rank, wrapper) for each wrapper, in the same processes; gives the results by wrapper."""
    results = {}
    for wrapper in WRAPPERS:
        try:
            results[wrapper] = case(rank, wrapper)
        except BaseException as error:
            error.add_note(f"wrapper: {wrapper}")
            raise
    return results


class Mixed(nn.Module):
    """Tied and frozen parameters, a scalar, parameters of two dtypes, and buffers of odd ones."""

    def __init__(self) -> None:
        super().__init__()
        double = {"dtype": torch.float64}
        self.first = nn.Linear(8, 16)
        self.tied = nn.Linear(16, 16, **double)
        self.tied_again = nn.Linear(16, 16, **double)
        self.tied_again.weight = self.tied.weight
        self.middle = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16, **double).requires_grad_(False)
        self.scale = nn.Parameter(torch.randn((), **double))
        self.last = nn.Linear(16, 4, **double)
        self.register_buffer("shift", torch.randn(16))
        self.register_buffer("steps", torch.randint(100, (), dtype=torch.int16))
        self.register_buffer("mask", torch.rand(7) < 0.5, persistent=False)
        self.register_buffer("wave", torch.randn(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """X (N, 8) to (N, 4)."""
        hidden = torch.tanh(self.first(x.float())).double() + self.shift
        hidden = torch.tanh(self.tied(hidden)) * self.scale
        hidden = self.middle(self.tied_again(hidden).float()).double()
        return self.last(self.frozen(hidden))


# Bytes of the model's ten gradients, five of each dtype.
GRADIENT_BYTES = 4 * (9 * 16 + 17 * 16) + 8 * (17 * 16 + 16 + 1 + 17 * 4)


def make_batches() -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of ROWS rows, the same on all ranks."""
    generator = torch.Generator().manual_seed(7)
    x, y = (torch.randn(STEPS, ROWS, size, generator=generator).double() for size in (8, 4))
    return list(zip(x, y, strict=True))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the rows."""
    inputs, targets = batch
    return F.mse_loss(model(inputs), targets)


def share(batch: tuple[Tensor, Tensor], rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """This rank's rows."""
    return batch[0].chunk(world_size)[rank], batch[1].chunk(world_size)[rank]


def wrap(wrapper: str, rank: int) -> tuple[DataParallel, nn.Module]:
    """The wrapped model, begun differently on each rank, and an unwrapped copy of what rank 0 began with."""
    torch.manual_seed(rank)
    ddp = WRAPPERS[wrapper](Mixed())
    torch.manual_seed(0)
    return ddp, Mixed()


def assert_same(model: nn.Module, expected: nn.Module, rtol: float, atol: float) -> None:
    """Parameters and buffers, by name."""
    ours, theirs = ({**dict(one.named_parameters()), **dict(one.named_buffers())} for one in (model, expected))
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def train(rank: int, wrapper: str) -> None:
    """A few steps next to a single process on the whole batch."""
    ddp, single = wrap(wrapper, rank)
    assert_same(ddp.module, single, rtol=0, atol=0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ddp, single)]
    for batch in make_batches():
        loss_of(ddp, share(batch, rank, dist.get_world_size())).backward()
        ddp.finish_gradient_synchronization()
        loss_of(single, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(ddp.module, single, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_training_equals_a_single_process(ranks: int) -> None:
    """A Transformer's: each cell of the experiment checks its own."""
    run_ranks(one_after_the_other, ranks, train)


def nothing_waits(rank: int, wrapper: str) -> tuple[int, int, list[int]]:
    """Groups are sent before finish, or all in it; gives calls and bytes of the step, and the sizes of the buckets."""
    ddp, _ = wrap(wrapper, rank)
    loss_of(ddp, make_batches()[0]).backward()
    during = ddp.traffic.calls
    ddp.finish_gradient_synchronization()
    assert during == (ddp.traffic.calls if wrapper in HOOKED else 0)
    sizes = ddp.bucket_sizes_bytes if isinstance(ddp, BucketedDDP) else []
    return ddp.traffic.calls, ddp.traffic.bytes, sizes


def test_groups_leave_during_backward_and_hold_each_gradient_once() -> None:
    """Gradients of different dtypes are never in one message."""
    expected = {"naive": 10, "flat": 2, "overlapped": 10, "bucketed_tiny": 10, "bucketed_two": 3, "bucketed_one": 2}
    for counts in run_ranks(one_after_the_other, 2, nothing_waits):
        for wrapper, (calls, sent_bytes, sizes) in counts.items():
            assert (calls, sent_bytes) == (expected[wrapper], GRADIENT_BYTES), wrapper
            assert not sizes or (len(sizes), sum(sizes)) == (calls, sent_bytes), wrapper


def sent_in_one_order(rank: int) -> list[int]:
    """Rank 1's autograd has the gradients of two branches in the other order; gives sizes in the order of sending."""
    sizes: list[int] = []

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3, bias=False), nn.Linear(2, 5, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            parts = [self.a, self.b] if rank == 0 else [self.b, self.a]
            return sum((part(x).sum() for part in parts), torch.zeros(()))

    ready: list[int] = []
    module = Branches()
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: ready.append(p.numel()))
    start = DataParallel._start

    def noting(self: DataParallel, gradients: list[Tensor]) -> Any:
        sizes.extend(gradient.numel() for gradient in gradients)
        return start(self, gradients)

    ddp = OverlappedDDP(module)
    with mock.patch.object(DataParallel, "_start", noting):
        ddp(torch.ones(1, 2)).backward()
        ddp.finish_gradient_synchronization()
    assert ready == ([10, 6] if rank == 0 else [6, 10])  # else this test shows nothing
    return sizes


def test_all_ranks_send_in_one_order() -> None:
    assert run_ranks(sent_in_one_order, 2) == [[10, 6], [10, 6]]


def switched_off(rank: int, wrapper: str) -> None:
    """Without communication the same groups are prepared, but gradients stay the rank's own (gloo: divided)."""
    ddp, single = wrap(wrapper, rank)
    batch = share(make_batches()[0], rank, 2)
    loss_of(single, batch).backward()
    with ddp.communication_off():
        loss_of(ddp, batch).backward()
        ddp.finish_gradient_synchronization()
    for ours, own in zip(ddp.module.parameters(), single.parameters(), strict=True):
        if own.requires_grad:
            torch.testing.assert_close(ours.grad, own.grad / 2, rtol=1e-5, atol=1e-8)
    assert ddp.traffic.bytes == GRADIENT_BYTES


def test_communication_off() -> None:
    run_ranks(one_after_the_other, 2, switched_off)
