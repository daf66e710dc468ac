"""The four data-parallel wrappers on gloo: replicas that train as one process on the whole batch would."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import math
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import RanksError, run_ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perfscribe.analytic import bucket_model
from perfscribe.analytic.parameters import transformer_parameters
from perfscribe.analytic.shapes import SIZES, Shape
from perfscribe.distributed import averaging, launching, replicas, sending
from perfscribe.distributed.averaging import Averager
from perfscribe.distributed.ddp import AveragingAfterBackward, BucketedDDP, FlatDDP, NaiveDDP, OverlappedDDP
from perfscribe.distributed.overlapping import OverlappingDataParallel
from perfscribe.distributed.replicas import DataParallel
from perfscribe.models.transformer import Model, next_token_loss

WRAPPERS: dict[str, Callable[..., DataParallel]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlapped": OverlappedDDP,
    "bucketed_tiny": lambda module, **kw: BucketedDDP(module, 0.0016, **kw),
    "bucketed_two": lambda module, **kw: BucketedDDP(module, 0.0025, **kw),
    "bucketed_one": lambda module, **kw: BucketedDDP(module, None, **kw),
    "bucketed_flat": lambda module, **kw: BucketedDDP(module, 0.0025, flatten=True, **kw),
    "overlapped_thread": lambda module, **kw: OverlappedDDP(module, launch_thread=True, **kw),
    "bucketed_thread": lambda module, **kw: BucketedDDP(module, 0.0025, launch_thread=True, **kw),
    "bucketed_flat_thread": lambda module, **kw: BucketedDDP(module, 0.0025, flatten=True, launch_thread=True, **kw),
}
ON_A_THREAD = ("overlapped_thread", "bucketed_thread", "bucketed_flat_thread")
HOOKED = ("overlapped", "bucketed_tiny", "bucketed_two", "bucketed_one", "bucketed_flat", *ON_A_THREAD)
ONE_OF_EACH = ("naive", "flat", "overlapped", "bucketed_one")

TRANSFORMER = Shape(d_model=16, d_ff=48, layers=2, heads=2, vocab_size=40)
STEPS = 3
ROWS = 12  # of the whole batch: divisible by 2, 3 and 4


def one_after_the_other(rank: int, case: Callable[..., Any], wrappers: tuple[str, ...], args: tuple[Any, ...]) -> Any:
    """case(rank, wrapper, *args) for each wrapper, in the same processes; gives the results by wrapper."""
    results = {}
    for wrapper in wrappers:
        try:
            results[wrapper] = case(rank, wrapper, *args)
        except BaseException as error:
            error.add_note(f"wrapper: {wrapper}")
            raise
    return results


def run_wrappers(
    case: Callable[..., Any],
    ranks: int,
    *args: Any,
    wrappers: tuple[str, ...] = tuple(WRAPPERS),
    timeout_s: float = 60.0,
) -> list[dict[str, Any]]:
    """The results of case for each wrapper, by rank and wrapper."""
    return run_ranks(one_after_the_other, ranks, case, wrappers, args, timeout_s=timeout_s)


class Mixed(nn.Module):
    """Tied, frozen and unused parameters, a scalar, an empty and a transposed one, and buffers of odd dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.tied = nn.Linear(16, 16)
        self.tied_again = nn.Linear(16, 16)
        self.tied_again.weight = self.tied.weight
        self.unused = nn.Linear(3, 5)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.randn(()))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.transposed = nn.Parameter(torch.randn(4, 16).t())
        self.register_buffer("shift", torch.randn(16))
        self.register_buffer("steps", torch.randint(100, (), dtype=torch.int16))
        self.register_buffer("mask", torch.rand(7) < 0.5, persistent=False)
        self.register_buffer("wave", torch.randn(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """X (N, 8) to (N, 4)."""
        hidden = torch.tanh(self.first(x)) + self.shift
        hidden = torch.tanh(self.tied(hidden)) * self.scale
        hidden = self.frozen(self.tied_again(hidden))
        return hidden @ self.transposed + self.empty.sum(0)


def make_model(name: str) -> nn.Module:
    """By name, in float64 where nothing else is said."""
    if name == "mixed":
        return Mixed().double()
    if name == "transformer":
        return Model(TRANSFORMER, 6).double()
    if name == "nano":
        return Model(SIZES["nano"], 8)
    if name == "bf16":
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).bfloat16()
    if name == "two_dtypes":
        return TwoDtypes()
    assert name == "channels_last"
    net = nn.Sequential(nn.Conv2d(2, 6, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 4)).double()
    return net.to(memory_format=torch.channels_last)


class TwoDtypes(nn.Module):
    """Halves in float64 and float32, alternating."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8, dtype=(torch.float64, torch.float32)[i % 2]) for i in range(5))
        self.last = nn.Linear(8, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """X (N, 8) to (N, 4)."""
        for part in self.parts:
            x = torch.tanh(part(x.to(part.weight.dtype)))
        return self.last(x.double())


def make_batches(model: nn.Module, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of ROWS rows, the same on all ranks."""
    generator = torch.Generator().manual_seed(7)
    dtype = next(model.parameters()).dtype
    if isinstance(model, Model):
        size, length = model.shape.vocab_size, model.context_length
        ids = torch.randint(size, (steps, ROWS, length + 1), generator=generator)
        return [(step[:, :-1], step[:, 1:]) for step in ids]
    images = any(isinstance(part, nn.Conv2d) for part in model.modules())
    shape = (ROWS, 2, 2, 2) if images else (ROWS, 8)
    draw = [(torch.randn(shape, generator=generator), torch.randn(ROWS, 4, generator=generator)) for _ in range(steps)]
    return [(x.to(dtype), y.to(dtype)) for x, y in draw]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the rows."""
    inputs, targets = batch
    if targets.dtype == torch.int64:
        return next_token_loss(model, inputs, targets)
    return F.mse_loss(model(inputs), targets)


def share(batch: tuple[Tensor, Tensor], rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """This rank's rows."""
    return batch[0].chunk(world_size)[rank], batch[1].chunk(world_size)[rank]


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """With momentum, so that a wrong gradient stays visible."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def wrap(wrapper: str, model: str, rank: int, **kwargs: Any) -> tuple[DataParallel, nn.Module]:
    """The wrapped model, begun differently on each rank, and an unwrapped copy of what rank 0 began with."""
    torch.manual_seed(rank)
    ddp = WRAPPERS[wrapper](make_model(model), **kwargs)
    torch.manual_seed(0)
    return ddp, make_model(model)


def assert_same(model: nn.Module, expected: nn.Module, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Parameters and buffers, by name."""
    for part in ("named_parameters", "named_buffers"):
        ours, theirs = dict(getattr(model, part)()), dict(getattr(expected, part)())
        assert ours.keys() == theirs.keys()
        for name in ours:
            said = functools.partial("{}: {}".format, name)
            torch.testing.assert_close(ours[name], theirs[name], rtol=rtol, atol=atol, msg=said)


def assert_same_gradients(model: nn.Module, single: nn.Module, part: float = 1.0) -> None:
    """Those of the single process, or a part of them; None for the same parameters."""
    for (name, ours), theirs in zip(model.named_parameters(), single.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, part * theirs.grad, rtol=1e-10, atol=1e-12)


def train(rank: int, wrapper: str, model: str, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """A few steps beside a single process on the whole batch."""
    ddp, single = wrap(wrapper, model, rank)
    assert_same(ddp.module, single, rtol=0, atol=0)
    optimizer, single_optimizer = make_optimizer(ddp), make_optimizer(single)
    for batch in make_batches(single):
        optimizer.zero_grad()
        single_optimizer.zero_grad()
        loss_of(ddp, share(batch, rank, dist.get_world_size())).backward()
        ddp.finish_gradient_synchronization()
        loss_of(single, batch).backward()
        optimizer.step()
        single_optimizer.step()
    assert_same(ddp.module, single, rtol, atol)
    for (name, ours), theirs in zip(ddp.module.named_parameters(), single.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name


@pytest.mark.parametrize("model", ["mixed", "transformer", "channels_last"])
def test_training_equals_a_single_process(model: str) -> None:
    run_wrappers(train, 2, model)


@pytest.mark.parametrize(
    ("model", "rtol", "atol"), [("two_dtypes", 1e-5, 1e-6), ("nano", 1e-4, 1e-5), ("bf16", 0.05, 0.02)]
)
def test_dtypes(model: str, rtol: float, atol: float) -> None:
    run_wrappers(train, 2, model, rtol, atol)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_other_numbers_of_ranks(ranks: int) -> None:
    run_wrappers(train, ranks, "mixed")


def as_on_nccl(rank: int, wrapper: str) -> None:
    """The way that NCCL goes, on gloo: AVG in place of a division, and no wait of the host for an agreement."""
    with (
        mock.patch.object(averaging, "backends", lambda group: {"cpu": "nccl"}),
        mock.patch.object(torch, "_foreach_div_", side_effect=AssertionError("divided")),
    ):
        train(rank, wrapper, "mixed")
        ddp, single = wrap(wrapper, "transformer", rank)
        with mock.patch.object(Tensor, "tolist", side_effect=AssertionError("the host reads from the device")):
            loss_of(ddp, share(make_batches(single)[0], rank, 2)).backward()
            ddp.finish_gradient_synchronization()


def test_the_way_of_nccl() -> None:
    run_wrappers(as_on_nccl, 2)


# Sabotage: each of these must be noticed by the comparison that the tests above rest on.


def train_sabotaged(rank: int, wrapper: str, sabotage: str) -> None:
    """train() with a part of the wrapper broken."""
    all_reduce = Averager._all_reduce

    def all_but_the_second(self: Averager, sent: list[Tensor], *how: Any) -> Any:
        return None if self.traffic.calls % 7 == 2 else all_reduce(self, sent, *how)

    def no_tied(self: DataParallel) -> None:
        self._trainable = [p for p in self._trainable if p is not self.module.tied.weight]

    def undivided(self: Averager, group: Any, init: Any = Averager.__init__) -> None:
        init(self, group)
        self.world_size = 1

    broken: dict[str, AbstractContextManager[Any]] = {
        "no broadcast": mock.patch.object(replicas, "broadcast_all"),
        "not divided": mock.patch.object(Averager, "__init__", undivided),
        "a collective left out": mock.patch.object(Averager, "_all_reduce", all_but_the_second),
        "the tied weight left out": mock.patch.object(DataParallel, "_require_trainable", no_tied),
        "not finished": mock.patch.object(DataParallel, "finish_gradient_synchronization"),
    }
    with broken[sabotage]:
        train(rank, wrapper, "mixed")


@pytest.mark.parametrize("wrapper", ["naive", "bucketed_tiny", "overlapped_thread"])
@pytest.mark.parametrize(
    "sabotage", ["no broadcast", "not divided", "a collective left out", "the tied weight left out", "not finished"]
)
def test_sabotage_is_noticed(wrapper: str, sabotage: str) -> None:
    with pytest.raises(RanksError, match=r"AssertionError: |Tensor-likes are not close"):
        run_ranks(train_sabotaged, 2, wrapper, sabotage)


# Gradient accumulation and several backwards.


def accumulate(rank: int, wrapper: str, finish_inside: bool) -> None:
    """Three micro-batches a step; the scale is used by the first of them alone."""
    ddp, single = wrap(wrapper, "mixed", rank)
    scale = ddp.module.scale
    optimizer, single_optimizer = make_optimizer(ddp), make_optimizer(single)
    batches = make_batches(single, 6)
    for step in (batches[:3], batches[3:]):
        optimizer.zero_grad()
        single_optimizer.zero_grad()
        for i, batch in enumerate(step):
            with ddp.no_sync() if i < 2 else contextlib.nullcontext():
                sent = ddp.averager.traffic.calls
                ddp.module.scale.requires_grad_(i == 0)
                loss_of(ddp, share(batch, rank, dist.get_world_size())).backward()
                if i == 2 or finish_inside:
                    ddp.finish_gradient_synchronization()
                assert (ddp.averager.traffic.calls > sent) == (i == 2)
            single.scale.requires_grad_(i == 0)
            loss_of(single, batch).backward()
        assert scale.grad is not None
        optimizer.step()
        single_optimizer.step()
    assert_same(ddp.module, single)


@pytest.mark.parametrize("finish_inside", [False, True])
def test_accumulation(finish_inside: bool) -> None:
    run_wrappers(accumulate, 2, finish_inside)


def several_backwards(rank: int, wrapper: str, finish_each: bool, forwards_first: bool) -> None:
    """Two losses a step, both summed over the step's gradients."""
    ddp, single = wrap(wrapper, "mixed", rank)
    optimizer, single_optimizer = make_optimizer(ddp), make_optimizer(single)
    batches = make_batches(single, 4)
    for pair in (batches[:2], batches[2:]):
        optimizer.zero_grad(set_to_none=False)
        single_optimizer.zero_grad(set_to_none=False)
        losses: Iterator[Tensor] = (loss_of(ddp, share(batch, rank, dist.get_world_size())) for batch in pair)
        for i, loss in enumerate(list(losses) if forwards_first else losses):
            loss.backward()
            if finish_each or i == 1:
                ddp.finish_gradient_synchronization()
        for batch in pair:
            loss_of(single, batch).backward()
        optimizer.step()
        single_optimizer.step()
    assert_same(ddp.module, single)


@pytest.mark.parametrize("finish_each", [False, True])
def test_several_backwards_a_step(finish_each: bool) -> None:
    run_wrappers(several_backwards, 2, finish_each, not finish_each)


def checkpointed(rank: int, wrapper: str, reentrant: bool) -> None:
    """A weight in two checkpointed segments: with reentrant checkpoints it gets two gradients in one backward."""
    torch.manual_seed(0)
    linear = nn.Linear(4, 4).double()
    single = copy.deepcopy(linear)
    whole = torch.randn(ROWS, 4, dtype=torch.float64)

    def twice(layer: nn.Module, x: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(lambda y: torch.tanh(layer(y)), x, use_reentrant=reentrant)
        return x.square().mean()

    ddp = WRAPPERS[wrapper](linear)
    twice(ddp, whole.chunk(2)[rank].requires_grad_()).backward()
    ddp.finish_gradient_synchronization()
    twice(single, whole.requires_grad_()).backward()
    torch.testing.assert_close(linear.weight.grad, single.weight.grad)
    torch.testing.assert_close(linear.bias.grad, single.bias.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(reentrant: bool) -> None:
    run_wrappers(checkpointed, 2, reentrant)


# Parameters that not all ranks, or not all steps, use.


class Experts(nn.Module):
    """Linear maps, of which a call uses some, in the order given."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor, chosen: tuple[int, ...]) -> Tensor:
        """Mean over the rows of the sum of x (N, 4) through the chosen ones, one after the other."""
        for i in chosen:
            x = torch.tanh(self.all[i](x))
        return x.square().sum(-1).mean()


# By step, and rank: experts that the rank uses. Expert 3 sleeps at first, 0 later; ranks differ in order and choice.
CHOICES = [
    [(0, 1, 2), (2, 1, 0)],
    [(0, 1), (2,)],
    [(), (1, 2)],
    [(1, 2), (2, 1)],
    [(3, 1), (1,)],
    [(1,), (1, 3)],
    [(2, 3, 1, 0), (3, 0, 2, 1)],
]


def choose(rank: int, wrapper: str, set_to_none: bool) -> list[int]:
    """Ranks that use different experts, against both losses' mean in one process; gives the bytes sent by step."""
    torch.manual_seed(rank)
    experts = Experts().double()
    ddp = WRAPPERS[wrapper](experts)
    torch.manual_seed(0)
    single = Experts().double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    optimizer, single_optimizer = make_optimizer(experts), make_optimizer(single)
    sent = []
    for chosen in CHOICES:
        optimizer.zero_grad(set_to_none=set_to_none)
        single_optimizer.zero_grad(set_to_none=set_to_none)
        ddp.averager.traffic.reset()
        loss = ddp(x[rank].requires_grad_(), chosen[rank])
        loss.backward()
        ddp.finish_gradient_synchronization()
        sent.append(ddp.averager.traffic.bytes)
        (sum(single(x[r], chosen[r]) for r in range(2)) / 2).backward()
        for ours, theirs in zip(experts.parameters(), single.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
        optimizer.step()
        single_optimizer.step()
    assert_same(experts, single)
    return sent


@pytest.mark.parametrize("set_to_none", [True, False])
def test_ranks_that_use_different_parameters(set_to_none: bool) -> None:
    run_wrappers(choose, 2, set_to_none)


def test_parameters_that_nobody_uses_are_not_sent_again() -> None:
    expert_bytes = (4 * 4 + 4) * 8
    expected = {"naive": (3, 3, 2, 2), "overlapped": (4, 3, 3, 3), "bucketed_one": (4, 3, 3, 3)}
    for sent in run_wrappers(choose, 2, True, wrappers=tuple(expected)):
        for wrapper, experts_sent in expected.items():
            assert sent[wrapper][:4] == [n * expert_bytes for n in experts_sent], wrapper


def nothing_waits(rank: int, wrapper: str) -> None:
    """After the first step all groups are sent before finish, though a frozen and an unused module stand between."""
    ddp, single = wrap(wrapper, "mixed", rank)
    for i, batch in enumerate(make_batches(single)):
        ddp.zero_grad()
        ddp.averager.traffic.reset()
        loss_of(ddp, batch).backward()
        ddp._settle()
        during = ddp.averager.traffic.calls
        ddp.finish_gradient_synchronization()
        assert i == 0 or 0 < during == ddp.averager.traffic.calls


def test_groups_leave_during_backward() -> None:
    run_wrappers(nothing_waits, 2, wrappers=HOOKED)


def sent_in_one_order(rank: int, on_a_thread: bool) -> list[int]:
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
    send = Averager.send

    def noting(self: Averager, gradients: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        sizes.extend(gradient.numel() for gradient in gradients)
        return send(self, gradients, *args, **kwargs)

    ddp = OverlappedDDP(module, launch_thread=on_a_thread)
    with mock.patch.object(Averager, "send", noting):
        ddp(torch.ones(1, 2)).backward()
        ddp.finish_gradient_synchronization()
    assert ready == ([10, 6] if rank == 0 else [6, 10])  # else this test shows nothing
    return sizes


@pytest.mark.parametrize("on_a_thread", [False, True])
def test_all_ranks_send_in_one_order(on_a_thread: bool) -> None:
    assert run_ranks(sent_in_one_order, 2, on_a_thread) == [[10, 6], [10, 6]]


# Counters, the switch and the observer.


def count(rank: int, wrapper: str) -> tuple[int, int, list[int]]:
    """Calls and bytes of one step of the transformer, and the sizes of the buckets."""
    ddp, single = wrap(wrapper, "transformer", rank)
    loss_of(ddp, make_batches(single)[0]).backward()
    ddp.finish_gradient_synchronization()
    sizes = ddp.bucket_sizes_bytes if isinstance(ddp, BucketedDDP) else []
    return ddp.averager.traffic.calls, ddp.averager.traffic.bytes, sizes


def test_calls_and_bytes() -> None:
    total = 8 * transformer_parameters(TRANSFORMER)
    tensors = 9 * TRANSFORMER.layers + 3
    for counts in run_wrappers(count, 2):
        for wrapper, (calls, sent_bytes, sizes) in counts.items():
            assert sent_bytes == total, wrapper
            assert sum(sizes) == (total if sizes else 0)
            expected = {"flat": 1, "bucketed_one": 1} | dict.fromkeys(
                ("naive", "overlapped", "overlapped_thread"), tensors
            )
            assert calls == expected.get(wrapper, len(sizes)), wrapper
        assert 2 < len(counts["bucketed_two"][2]) < len(counts["bucketed_tiny"][2]) == tensors


def order_of_buckets(rank: int) -> list[torch.dtype]:
    """By dtype, of a model whose dtypes alternate."""
    ddp = BucketedDDP(TwoDtypes(), 0.0001)
    return [bucket[0].dtype for bucket in ddp._groups]


def test_buckets_leave_in_the_order_in_which_they_fill() -> None:
    wide, narrow = torch.float64, torch.float32
    (order,) = run_ranks(order_of_buckets, 1)
    assert [dtype for i, dtype in enumerate(order) if not i or order[i - 1] != dtype] == [
        wide,
        narrow,
        wide,
        narrow,
        wide,
    ]


def switched_off(rank: int, wrapper: str) -> None:
    """Without communication the same groups are prepared, but gradients stay the rank's own (gloo: divided)."""
    ddp, single = wrap(wrapper, "mixed", rank)
    batch = share(make_batches(single)[0], rank, 2)
    loss_of(single, batch).backward()
    prepared = []
    with mock.patch.object(dist, "all_reduce", side_effect=AssertionError("a collective")), ddp.communication_off():
        for _ in range(2):
            ddp.zero_grad()
            ddp.averager.traffic.reset()
            loss_of(ddp, batch).backward()
            ddp.finish_gradient_synchronization()
            prepared.append(ddp.averager.traffic.bytes)
    assert_same_gradients(ddp.module, single, part=0.5)
    ddp.averager.traffic.reset()
    loss_of(ddp, batch).backward()
    ddp.finish_gradient_synchronization()
    # The same was prepared as is sent now: with the switch off nothing is learned of what ranks use.
    assert prepared == [ddp.averager.traffic.bytes] * 2


def test_communication_off() -> None:
    run_wrappers(switched_off, 2)


def observed(rank: int, wrapper: str) -> list[str]:
    """What the observer was told in one step."""
    seen: list[str] = []

    @contextlib.contextmanager
    def around(name: str) -> Iterator[None]:
        yield
        seen.append(name)

    torch.manual_seed(0)
    ddp = WRAPPERS[wrapper](nn.Linear(2, 2))
    ddp.averager.around = around
    ddp(torch.ones(1, 2)).sum().backward()
    ddp.finish_gradient_synchronization()
    return seen


def test_the_observer_brackets_all_communication() -> None:
    expected = {
        "naive": ["launch", "wait", "launch", "wait"],
        "flat": ["flatten", "launch", "wait", "unflatten"],
        "overlapped": ["launch", "launch", "wait", "wait"],
        "bucketed_one": ["launch", "wait"],
        "bucketed_flat": ["flatten", "launch", "wait"],
        "overlapped_thread": ["launch", "launch", "wait", "wait", "wait"],  # for the thread's stream, then as gloo does
        "bucketed_flat_thread": ["flatten", "launch", "wait", "wait"],
    }
    assert run_wrappers(observed, 2, wrappers=tuple(expected)) == [expected, expected]


# A bucket as one flat tensor.


def in_one_flat_tensor(rank: int, wrapper: str) -> None:
    """Gradients are parts of their bucket's flat tensor, and what autograd made of them is free."""
    ddp, single = wrap(wrapper, "transformer", rank)
    made: list[weakref.ref[Tensor]] = []
    hooks = [p.register_post_accumulate_grad_hook(lambda p: made.append(weakref.ref(p.grad))) for p in ddp.parameters()]
    batches = make_batches(single)
    for set_to_none in (True, False):
        made.clear()
        loss_of(ddp, batches[0]).backward()
        ddp.finish_gradient_synchronization()
        storages = [{p.grad.untyped_storage().data_ptr() for p in bucket} for bucket in ddp._groups]
        assert all(len(one) == 1 for one in storages) and len(set.union(*storages)) == len(storages)
        # the hook here runs after the wrapper's, which has sent a bucket already at its last gradient
        copied = sum(len(bucket) - 1 for bucket in ddp._groups)
        assert 0 < copied <= sum(gradient() is None for gradient in made)
        kept = [p.grad.clone() for p in ddp.parameters()]
        ddp.zero_grad(set_to_none)
        assert set_to_none or all(not p.grad.any() for p in ddp.parameters())
    with ddp.no_sync():
        loss_of(ddp, batches[0]).backward()
        loss_of(ddp, batches[0]).backward()
    for p, gradient in zip(ddp.parameters(), kept, strict=True):
        torch.testing.assert_close(p.grad, 2 * gradient)
    assert all(hook is not None for hook in hooks)


def test_a_bucket_as_one_flat_tensor() -> None:
    run_wrappers(in_one_flat_tensor, 2, wrappers=("bucketed_flat", "bucketed_flat_thread"))


# The thread that starts collectives.


def between(rank: int, wrapper: str) -> None:
    """Collectives of the group that others start meanwhile, in an order of their own on each rank, do no harm."""
    ddp, single = wrap(wrapper, "transformer", rank)
    send = Averager.send

    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.002 * rank)
        return send(*args, **kwargs)

    with mock.patch.object(Averager, "send", late):
        for batch in make_batches(single, 2):
            loss = loss_of(ddp, share(batch, rank, 2))
            ddp.zero_grad()
            single.zero_grad()
            loss.backward()
            total = loss.detach().clone()
            dist.all_reduce(total)
            ddp.finish_gradient_synchronization()
            whole = loss_of(single, batch)
            whole.backward()
            torch.testing.assert_close(total / 2, whole.detach())
    assert_same_gradients(ddp.module, single)


def test_collectives_between_backward_and_its_finish() -> None:
    run_wrappers(between, 2, wrappers=ON_A_THREAD)


def failing(rank: int, wrapper: str) -> None:
    """What fails on the thread is raised by finish; the next backward is averaged as ever."""
    ddp, single = wrap(wrapper, "transformer", rank)
    batch = make_batches(single)[0]
    send = Averager.send

    def once(self: Averager, *args: Any, **kwargs: Any) -> Any:
        if self.traffic.calls == 1:
            self.traffic.calls += 1
            raise ValueError("a call that fails")
        return send(self, *args, **kwargs)

    with mock.patch.object(Averager, "send", once):
        loss_of(ddp, batch).backward()
        with pytest.raises(ValueError, match="a call that fails"):
            ddp.finish_gradient_synchronization()
        ddp.zero_grad()
        loss_of(ddp, share(batch, rank, 2)).backward()
        ddp.finish_gradient_synchronization()
    loss_of(single, batch).backward()
    assert_same_gradients(ddp.module, single)


def test_what_fails_on_the_thread_is_raised() -> None:
    run_wrappers(failing, 2, wrappers=ON_A_THREAD)


def off_and_on(rank: int, wrapper: str) -> None:
    """The switch counts as it stood when backward reached a group, however late the thread is."""
    ddp, single = wrap(wrapper, "transformer", rank)
    send = Averager.send

    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.01)
        return send(*args, **kwargs)

    batch = share(make_batches(single)[0], rank, 2)
    with mock.patch.object(Averager, "send", late):
        with ddp.communication_off():
            loss_of(ddp, batch).backward()
        ddp.finish_gradient_synchronization()
    loss_of(single, batch).backward()
    assert_same_gradients(ddp.module, single, part=0.5)


def test_the_switch_and_a_late_thread() -> None:
    run_wrappers(off_and_on, 2, wrappers=("overlapped_thread",))


def threads(rank: int) -> list[int]:
    """Wrappers of one group share a thread; threads named so: with two wrappers, and once the group's is let go."""

    def alive() -> int:
        return sum(thread.name == launching.NAME for thread in threading.enumerate())

    first, second = (OverlappedDDP(nn.Linear(2, 2), launch_thread=True) for _ in range(2))
    assert first._thread is second._thread and first.averager.group is not dist.group.WORLD
    assert OverlappedDDP(nn.Linear(2, 2))._thread is None  # gloo
    seen = [alive()]
    del first, second
    gc.collect()
    launching._thread_of.clear()
    end = time.monotonic() + 60  # a loaded machine is slow to run what ends it
    while alive() and time.monotonic() < end:
        time.sleep(0.01)
    return [*seen, alive()]


def test_one_thread_a_group_which_ends_with_it() -> None:
    assert run_ranks(threads, 2) == [[1, 0]] * 2


@pytest.mark.parametrize("last", ["", "dist.destroy_process_group()", "raise SystemExit(3)", "1 / 0"])
def test_the_thread_does_not_hold_up_the_end(tmp_path: Path, last: str) -> None:
    """One that did would hold it up for longer than the test waits: on a loaded machine END_S may pass while the thread
    waits for a core, and the end then breaks it off within torch. To destroy a group while a collective starts on it
    is a fault of the program itself."""
    code = f"""
import torch, torch.distributed as dist
from perfscribe.distributed import launching
from perfscribe.distributed.ddp import OverlappedDDP
launching.END_S = 3600.0
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
ddp = OverlappedDDP(torch.nn.Linear(2, 2), launch_thread=True)
ddp(torch.ones(1, 2)).sum().backward()
{"ddp._thread.settle()" if "destroy" in last else ""}
{last or "ddp.finish_gradient_synchronization()"}
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, timeout=180, check=False)
    assert ended.returncode == {"raise SystemExit(3)": 3, "1 / 0": 1}.get(last, 0)


class FakeCuda:
    """Streams and events of torch.cuda that note what is asked of them."""

    def __init__(self) -> None:
        self.said: list[tuple[str, ...]] = []
        self.now = "main"

    def stream_named(self, name: str) -> Any:
        def wait_stream(other: Any) -> None:
            self.said.append((name, "waits for", other.name))

        def wait_event(event: Any) -> None:
            self.said.append((name, "waits for", event.at))

        return SimpleNamespace(name=name, device="cuda:0", wait_stream=wait_stream, wait_event=wait_event)

    def event(self) -> Any:
        made = SimpleNamespace(at="")
        made.record = lambda stream: setattr(made, "at", stream.name)
        return made

    def contribution(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            self.said.append((self.now, "copies"))
        return parameter.new_zeros(2, 2) if parameter.grad is None else parameter.grad

    def contiguous(self, gradients: list[Tensor]) -> tuple[list[Tensor], list[Any]]:
        if not all(gradient.is_contiguous() for gradient in gradients):
            self.said.append((self.now, "copies"))
        return averaging.contiguous(gradients)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream.name
        yield
        self.now = before


def test_a_collective_runs_beside_the_computation_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies on the computation's stream, the collective on the side behind it, and the main one behind that."""
    cuda = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: cuda.stream_named(f"side {priority}"))
    monkeypatch.setattr(torch.cuda, "Event", cuda.event)
    monkeypatch.setattr(torch.cuda, "stream", cuda.stream)
    monkeypatch.setattr(sending, "contiguous", cuda.contiguous)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(cuda, "now", stream.name))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: cuda.stream_named("main"))

    class Noting:
        def flat(self, gradients: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            cuda.said.append((cuda.now, "copies"))
            flat = torch.cat([g.reshape(-1) for g in gradients])
            return flat, [part.view(g.shape) for part, g in zip(flat.split(4), gradients, strict=True)]

        def send(self, sent: list[Tensor], copies: Any, *, on_current_stream: bool) -> None:
            assert on_current_stream and len(sent) == 1
            cuda.said.append((cuda.now, "sends"))

    side = launching.SideStream("cuda:0")
    for flatten, kind in ((True, ""), (False, ""), (False, "transposed"), (False, "missing")):
        parameters = [nn.Parameter(torch.zeros(2, 2)) for _ in range(1 + flatten)]
        for parameter in parameters:
            parameter.grad = torch.ones(2, 2)
        if kind == "missing":
            parameters[0].grad = None
        if kind == "transposed":
            parameters[0].grad = torch.ones(1, 2).expand(2, 2)
        group = sending.Sending(Noting(), cuda.contribution, parameters, [0, 1], flatten)
        group.stream, group.side = cuda.stream_named("computation"), side
        group.start()
        side.join()
        copies = [("computation", "copies")] if flatten or kind else []
        sends = [("side -1", "waits for", "computation"), ("side -1", "sends"), ("main", "waits for", "side -1")]
        assert cuda.said == [*copies, *sends]
        cuda.said.clear()
        if flatten:
            assert parameters[0].grad._base is parameters[1].grad._base is not None


# The wrapper as a module.


def keys(rank: int, wrapper: str) -> None:
    """state_dict has the keys of torch's wrapper (which cannot send int16 on gloo), and loads into one."""
    ddp, single = wrap(wrapper, "transformer", rank)
    torch_ddp = nn.parallel.DistributedDataParallel(single)
    assert list(ddp.state_dict()) == list(torch_ddp.state_dict())
    assert all(key.startswith("module.") for key in ddp.state_dict())
    torch_ddp.load_state_dict(ddp.state_dict())
    assert list(ddp.parameters()) == list(ddp.module.parameters())
    assert not ddp.eval().module.training


def test_state_dict_keys() -> None:
    run_wrappers(keys, 2)


def two_models(rank: int, wrapper: str) -> None:
    """Two wrappers whose backwards and finishes interleave."""
    (one, single_one), (other, single_other) = wrap(wrapper, "mixed", rank), wrap(wrapper, "transformer", rank)
    for first, second in zip(make_batches(single_one), make_batches(single_other), strict=True):
        loss_of(one, share(first, rank, 2)).backward()
        loss_of(other, share(second, rank, 2)).backward()
        one.finish_gradient_synchronization()
        other.finish_gradient_synchronization()
        loss_of(single_one, first).backward()
        loss_of(single_other, second).backward()
    for ours, theirs in ((one, single_one), (other, single_other)):
        for p, q in zip(ours.module.parameters(), theirs.parameters(), strict=True):
            if q.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-12)


def test_two_models_at_once() -> None:
    run_wrappers(two_models, 2)


def wrapped_twice(rank: int, first: str, second: str) -> None:
    """The second wrapper trains the module; the first one says that it cannot be used, and sends nothing."""
    older, single = wrap(first, "mixed", rank)
    newer = WRAPPERS[second](older.module)
    for batch in make_batches(single):
        loss_of(newer, share(batch, rank, 2)).backward()
        newer.finish_gradient_synchronization()
        loss_of(single, batch).backward()
    assert older.averager.traffic.calls == 0
    assert_same_gradients(newer.module, single)
    for use in (older.finish_gradient_synchronization, lambda: older(torch.zeros(1, 8))):
        with pytest.raises(RuntimeError, match="was released: another wrapper took its module over"):
            use()
    with pytest.raises(TypeError, match="not wrapped yet"):
        WRAPPERS[second](newer)


@pytest.mark.parametrize(
    ("first", "second"),
    [("overlapped", "bucketed_one"), ("bucketed_tiny", "naive"), ("overlapped_thread", "bucketed_flat_thread")],
)
def test_wrapping_twice(first: str, second: str) -> None:
    run_ranks(wrapped_twice, 2, first, second)


def dropped(rank: int, wrapper: str) -> None:
    """A wrapper that nobody holds is freed with its hooks, and its module trains alone."""
    ddp, _ = wrap(wrapper, "mixed", rank)
    module, alive = ddp.module, weakref.ref(ddp)
    loss_of(ddp, make_batches(module)[0]).backward()
    ddp.finish_gradient_synchronization()
    del ddp
    gc.collect()
    assert alive() is None
    assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in module.parameters())
    loss_of(module, make_batches(module)[0]).backward()


def test_a_dropped_wrapper_leaves_nothing_behind() -> None:
    run_wrappers(dropped, 1, wrappers=(*ONE_OF_EACH, "overlapped_thread"))


def in_groups(rank: int, wrapper: str) -> float:
    """Pairs of ranks that average apart from each other; gives the weight that the group's first rank began with."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(rank)
    ddp = WRAPPERS[wrapper](module, group=pairs[rank // 2])
    with pytest.raises(ValueError, match="not in the process group"):
        WRAPPERS[wrapper](nn.Linear(1, 1), group=pairs[1 - rank // 2])
    (ddp(torch.ones(1, 1)) * rank).sum().backward()
    ddp.finish_gradient_synchronization()
    assert module.weight.grad == (0.5 if rank < 2 else 2.5)
    return float(module.weight)


def test_process_groups() -> None:
    assert run_ranks(in_groups, 4, "bucketed_one") == [0, 0, 2, 2]


# Wrong use: one clear line, on all ranks.


@pytest.mark.parametrize("wrapper", ONE_OF_EACH)
def test_without_a_process_group(wrapper: str) -> None:
    with pytest.raises(RuntimeError, match=r"^\w+DDP needs a process group: call torch.distributed.init_process_group"):
        WRAPPERS[wrapper](nn.Linear(2, 2))


@pytest.mark.parametrize("size", [0, -1.0, math.nan])
def test_bucket_sizes_that_are_none(size: float) -> None:
    with pytest.raises(ValueError, match=f"bucket_size_mb: expected a number above 0 or None, not {size}"):
        BucketedDDP(nn.Linear(2, 2), size)


@pytest.mark.parametrize("kind", [DataParallel, AveragingAfterBackward, OverlappingDataParallel])
def test_what_does_not_say_how_to_average_wraps_nothing(kind: type[DataParallel]) -> None:
    with pytest.raises(TypeError, match="abstract"):
        kind(nn.Linear(2, 2))


def misused(rank: int, wrapper: str) -> None:
    """Each error is the same on all ranks, and the wrapper works after it."""
    make = WRAPPERS[wrapper]
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        make(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(TypeError, match="expected a module"):
        make([nn.Linear(2, 2)])
    for other in (nn.Linear(2, 3), nn.Linear(2, 2).double(), nn.Linear(2, 2, bias=False)):
        with pytest.raises(RuntimeError, match="of rank 1 differ from rank 0's"):
            make(other if rank else nn.Linear(2, 2))
    half_frozen = nn.Linear(2, 2)
    half_frozen.bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match="of rank 1 differ from rank 0's"):
        make(half_frozen if rank else nn.Linear(2, 2))
    ddp = make(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match=r"no rank has a gradient; call it after backward\(\)"):
        ddp.finish_gradient_synchronization()
    ddp(torch.full((1, 2), float(rank))).sum().backward()
    ddp.finish_gradient_synchronization()
    assert (ddp.module.weight.grad == 0.5).all()
    ddp.finish_gradient_synchronization()  # averages averages
    assert (ddp.module.weight.grad == 0.5).all()


def test_wrong_use() -> None:
    run_wrappers(misused, 2, wrappers=ONE_OF_EACH)


def unfrozen(rank: int, wrapper: str) -> None:
    """A parameter that was frozen when wrapped must not get a gradient, which nobody would average."""
    module = nn.Linear(2, 2)
    module.weight.requires_grad_(False)
    ddp = WRAPPERS[wrapper](module)
    module.weight.requires_grad_(True)
    ddp(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="weight has a gradient, but was frozen when the module was wrapped"):
        ddp.finish_gradient_synchronization()


def sparse(rank: int, wrapper: str) -> None:
    """Sparse gradients are refused by name."""
    embedding = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    ddp = WRAPPERS[wrapper](embedding)
    with pytest.raises(RuntimeError, match=r"the gradient of 0.weight is sparse, which is not supported"):
        ddp(torch.tensor([1])).sum().backward()
        ddp.finish_gradient_synchronization()


@pytest.mark.parametrize("case", [unfrozen, sparse])
def test_gradients_that_cannot_be_averaged(case: Callable[..., None]) -> None:
    run_wrappers(case, 2, wrappers=ONE_OF_EACH)


# The harness.


def only_rank_1_raises(rank: int) -> None:
    if rank:
        raise ValueError("a bad value")
    dist.barrier()


def only_rank_1_is_late(rank: int) -> None:
    if rank:
        time.sleep(60)
    dist.barrier()


def test_the_harness_reports_the_rank_that_failed() -> None:
    with pytest.raises(RanksError, match="ValueError: a bad value") as failed:
        run_ranks(only_rank_1_raises, 2)
    assert next(iter(failed.value.errors)) == 1
    with pytest.raises(RanksError, match="rank 1: took longer than 1 s"):
        run_ranks(only_rank_1_is_late, 2, timeout_s=1)


# Buckets as numbers.


def tensor_bytes(shape: Shape) -> list[int]:
    """Bytes of the language model's float32 tensors in reverse order of registration."""
    d, ff, vocabulary = shape.d_model, shape.d_ff, shape.vocab_size
    block = [d * ff] * 3 + [d] + [d * d] * 4 + [d]
    return [4 * numel for numel in (vocabulary * d, d, *block * shape.layers, vocabulary * d)]


def test_buckets_hold_at_most_their_capacity() -> None:
    assert bucket_model.fill_buckets([4, 4, 4], 8) == [[0, 1], [2]]
    assert bucket_model.fill_buckets([1, 100, 1, 1], 8) == [[0], [1], [2, 3]]
    assert bucket_model.fill_buckets([8, 9], 8) == [[0], [1]]
    assert bucket_model.fill_buckets([1, 2, 3], None) == [[0, 1, 2]]
    assert bucket_model.fill_buckets([], None) == []
    with pytest.raises(ValueError, match="more than 0 bytes or None"):
        bucket_model.fill_buckets([1], 0)


def test_buckets_of_the_xl_model() -> None:
    nano = [parameter.nbytes for parameter in reversed(list(make_model("nano").parameters()))]
    assert tensor_bytes(SIZES["nano"]) == nano
    sizes = tensor_bytes(SIZES["xl"])
    assert len(sizes) == 435
    counts = {mib: len(bucket_model.fill_buckets(sizes, mib * 2**20)) for mib in (10, 100, 1000)}
    assert counts == {10: 339, 100: 98, 1000: 8}  # as a public note on this homework counts them


def test_the_best_bucket_is_the_least_of_the_model() -> None:
    total, rate, call = 8e9, 300e9, 50e-6
    best = bucket_model.best_bucket_count(total, rate, call)
    at = bucket_model.overhead_s(total, best, rate, call)
    assert at == pytest.approx(2 * math.sqrt(total * call / rate))
    assert at < min(bucket_model.overhead_s(total, best * f, rate, call) for f in (0.9, 1.1))
    assert bucket_model.best_bucket_bytes(total, rate, call) == pytest.approx(total / best)
    with pytest.raises(ValueError, match="call_s: expected a number above 0, not 0"):
        bucket_model.best_bucket_count(total, rate, 0)


def test_the_fit_finds_what_made_the_points() -> None:
    total = 8e9
    points = [(n, bucket_model.overhead_s(total, n, 300e9, 50e-6)) for n in (8, 98, 339)]
    fit = bucket_model.fit_overhead(total, points)
    assert fit.has_optimum
    assert fit.bytes_per_s == pytest.approx(300e9) and fit.call_s == pytest.approx(50e-6)
    assert max(map(abs, fit.residuals_s)) < 1e-12
    rising = bucket_model.fit_overhead(total, [(1, 0.001), (10, 0.01), (100, 0.1)])
    assert rising.bytes_per_s > 1e18 and rising.call_s == pytest.approx(1e-3)
    falling = bucket_model.fit_overhead(total, [(1, 0.1), (10, 0.01), (100, -0.01)])
    assert falling.call_s == 0 and not falling.has_optimum
    below_zero = bucket_model.fit_overhead(total, [(1, -0.1), (10, -0.2)])
    assert (below_zero.bytes_per_s, below_zero.call_s) == (math.inf, 0)
    assert below_zero.residuals_s == (-0.1, -0.2)
    with pytest.raises(ValueError, match="at least two numbers of buckets"):
        bucket_model.fit_overhead(total, [(8, 0.1), (8, 0.2)])


def test_the_model_of_buckets_needs_no_torch(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    code = (
        "import sys, perfscribe.analytic.bucket_model, perfscribe.analytic.partition; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
