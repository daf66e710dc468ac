"""The sharded optimizer on gloo: the plain optimizer's parameters, with each rank keeping a part of the state."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import RanksError, run_ranks
from torch import Tensor, nn

from perfscribe.analytic.partition import partition
from perfscribe.analytic.shapes import SIZES, Shape
from perfscribe.distributed import broadcasting, sharded_optimizer
from perfscribe.distributed.ddp import BucketedDDP, NaiveDDP
from perfscribe.distributed.gathering import Gathering
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


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {}),
    "AdamW with options": (torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.3, "amsgrad": True}),
    "AdamW one by one": (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    "AdamW foreach": (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    "AdamW fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01}),
}


def pair(seed: int = 0) -> tuple[Net, Net]:
    """Two equal nets, the same on all ranks."""
    torch.manual_seed(seed)
    net = Net()
    return net, copy.deepcopy(net)


def batch(step: int) -> Tensor:
    """(4, 6), the same on all ranks: as gradients are, once they are averaged."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


def take_steps(net: Net, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        optimizer.zero_grad()
        net(batch(step)).backward()
        optimizer.step()


def assert_equal(net: nn.Module, expected: nn.Module) -> None:
    """To the last bits: rtol 1e-7 is below float32's resolution."""
    for (name, ours), theirs in zip(net.named_parameters(), expected.parameters(), strict=True):
        said = name + ": {}"
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=0, msg=said.format)


def train(rank: int, names: tuple[str, ...], dtype: torch.dtype = torch.float32) -> None:
    """Ten steps beside the plain optimizer."""
    for name in names:
        optimizer_cls, kwargs = OPTIMIZERS[name]
        net, plain_net = (net.to(dtype) for net in pair())
        frozen = net.frozen.weight.clone()
        sharded = ShardedOptimizer(net.parameters(), optimizer_cls, **kwargs)
        plain = optimizer_cls(plain_net.parameters(), **kwargs)
        for step in range(STEPS):
            for model, optimizer in ((net, sharded), (plain_net, plain)):
                optimizer.zero_grad()
                model(batch(step).to(dtype)).backward()
                optimizer.step()
        try:
            assert_equal(net, plain_net)
            assert torch.equal(net.frozen.weight, frozen)
            assert_same_state(sharded.state_dict(), plain.state_dict())
        except AssertionError as error:
            error.add_note(f"optimizer: {name}")
            raise


def assert_same_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Two state_dicts: the same keys, settings, dtypes and, to the last bits, tensors."""
    assert ours.keys() == theirs.keys()
    assert [dict(group) for group in ours["param_groups"]] == [dict(group) for group in theirs["param_groups"]]
    assert list(ours["state"]) == sorted(theirs["state"])
    for index, state in theirs["state"].items():
        assert list(ours["state"][index]) == list(state)
        for name, value in state.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(ours["state"][index][name], value, rtol=1e-7, atol=0)
            else:
                assert ours["state"][index][name] == value


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ten_steps_equal_the_plain_optimizer(ranks: int) -> None:
    run_ranks(train, ranks, tuple(OPTIMIZERS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    run_ranks(train, 2, ("AdamW with options", "SGD with momentum"), dtype)


def two_parameters(rank: int) -> list[int]:
    """Four ranks, of which two own nothing."""
    torch.manual_seed(0)
    linear, plain_linear = nn.Linear(3, 2), nn.Linear(3, 2)
    plain_linear.load_state_dict(linear.state_dict())
    for name, (optimizer_cls, kwargs) in OPTIMIZERS.items():
        sharded = ShardedOptimizer(linear.parameters(), optimizer_cls, **kwargs)
        plain = optimizer_cls(plain_linear.parameters(), **kwargs)
        for optimizer, layer in ((sharded, linear), (plain, plain_linear)):
            optimizer.zero_grad()
            layer(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        assert_equal(linear, plain_linear)
        sharded.load_state_dict(sharded.state_dict())
        assert len(sharded.state) == (name != "SGD" and rank < 2)
    return sharded.elements_by_rank


def test_a_rank_that_owns_nothing() -> None:
    assert run_ranks(two_parameters, 4) == [[6, 2, 0, 0]] * 4


# Sabotage: each of these must be noticed by the comparison that the tests above rest on.


def train_sabotaged(rank: int, sabotage: str) -> None:
    """train() with a part of the optimizer broken."""

    def from_the_wrong_rank(tensors: list[tuple[Tensor, int]], group: Any) -> None:
        broadcasting.broadcast_all([(tensor, 1 - source) for tensor, source in tensors], group)

    def gathered_from_the_wrong_rank(pieces: list[list[tuple[Tensor, int]]], group: Any) -> Gathering:
        return Gathering([[(tensor, 1 - source) for tensor, source in piece] for piece in pieces], group)

    def without_others(self: Gathering, *of: Any, part: Any = Gathering._part) -> Any:
        return dataclasses.replace(part(self, *of), others=[])

    nccl = mock.patch.object(sharded_optimizer, "backends", lambda group: {"cpu": "nccl"})
    replaced = functools.partial(mock.patch.object, sharded_optimizer)
    broken: dict[str, list[AbstractContextManager[Any]]] = {
        "nothing sent": [replaced("broadcast_all")],
        "the wrong rank's": [replaced("broadcast_all", from_the_wrong_rank)],
        "nothing gathered": [nccl, replaced("Gathering")],
        "not copied back": [nccl, mock.patch.object(Gathering, "_part", without_others)],
        "the wrong rank's gathered": [nccl, replaced("Gathering", gathered_from_the_wrong_rank)],
        "no settings": [replaced("_settings", lambda group: {})],
    }
    with contextlib.ExitStack() as stack:
        for one in broken[sabotage]:
            stack.enter_context(one)
        train(rank, ("AdamW with options",))


SABOTAGES = ["nothing sent", "the wrong rank's", "nothing gathered", "not copied back", "the wrong rank's gathered"]


@pytest.mark.parametrize("sabotage", [*SABOTAGES, "no settings"])
def test_sabotage_is_noticed(sabotage: str) -> None:
    with pytest.raises(RanksError, match="AssertionError"):
        run_ranks(train_sabotaged, 2, sabotage, timeout_s=10)


# What params may be.


def groups_of(net: Net) -> list[dict[str, Any]]:
    """Two groups, the first with settings of its own and an iterator that can be read once."""
    return [
        {"params": (p for p in net.first.parameters()), "lr": 0.5, "weight_decay": 0.2},
        {"params": [net.scale, net.transposed, *net.unused.parameters(), *net.frozen.parameters()]},
    ]


PARAMS: dict[str, Callable[[Net], Any]] = {
    "generator": lambda net: (p for p in net.parameters()),
    "list": lambda net: list(net.parameters()),
    "names": lambda net: net.named_parameters(),
    "groups": groups_of,
    "iterator of groups": lambda net: iter(groups_of(net)),
    "one parameter": lambda net: [net.first.weight],
}


def read_params(rank: int) -> None:
    """Each kind of params, beside the plain optimizer with the same."""
    for name, params in PARAMS.items():
        net, plain_net = pair()
        sharded = ShardedOptimizer(params(net), torch.optim.AdamW, lr=0.1)
        plain = torch.optim.AdamW(params(plain_net), lr=0.1)
        take_steps(net, sharded, range(3))
        take_steps(plain_net, plain, range(3))
        assert_equal(net, plain_net)
        assert_same_state(sharded.state_dict(), plain.state_dict())
        assert isinstance(sharded, torch.optim.Optimizer), name
        assert sharded.defaults == plain.defaults


def test_params() -> None:
    run_ranks(read_params, 2)


def grow(rank: int) -> None:
    """A group added after two steps, with a setting of its own; then zero_grad reaches it."""
    net, plain_net = pair()
    optimizers = []
    for model, make in ((net, ShardedOptimizer), (plain_net, lambda p, cls, **kw: cls(p, **kw))):
        optimizer = make(model.first.parameters(), torch.optim.AdamW, lr=0.1)
        take_steps(model, optimizer, range(2))
        optimizer.add_param_group({"params": [model.scale, model.transposed], "lr": 0.02})
        take_steps(model, optimizer, range(2, 5))
        optimizers.append(optimizer)
    assert_equal(net, plain_net)
    assert_same_state(optimizers[0].state_dict(), optimizers[1].state_dict())
    optimizers[0].zero_grad()
    assert net.scale.grad is None and net.first.weight.grad is None
    optimizers[0].zero_grad(set_to_none=False)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizers[0].add_param_group({"params": [net.scale]})


def test_add_param_group() -> None:
    run_ranks(grow, 2)


# Closures and schedulers.


def with_closure(rank: int) -> None:
    """The closure runs once a step on each rank, with gradients enabled, and its loss comes back."""
    net, plain_net = pair()
    sharded = ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)
    plain = torch.optim.AdamW(plain_net.parameters(), lr=0.1)
    calls: collections.Counter[str] = collections.Counter()
    for step in range(3):

        def closure(model: Net, optimizer: torch.optim.Optimizer, name: str, x: Tensor) -> Tensor:
            calls[name] += 1
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            return loss

        x = batch(step)
        with torch.no_grad():
            ours = sharded.step(lambda x=x: closure(net, sharded, "ours", x))
            theirs = plain.step(lambda x=x: closure(plain_net, plain, "theirs", x))
        assert torch.equal(ours, theirs)
    assert calls == {"ours": 3, "theirs": 3}
    assert_equal(net, plain_net)


def scheduled(rank: int) -> None:
    """Schedulers change the wrapper's groups: rates by step, rates and betas by cycle, and a rate set by hand."""
    makers: list[Callable[[torch.optim.Optimizer], Any]] = [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.3),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=20, cycle_momentum=True),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    ]
    for make in makers:
        net, plain_net = pair()
        sharded = ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)
        plain = torch.optim.AdamW(plain_net.parameters(), lr=0.1)
        for model, optimizer in ((net, sharded), (plain_net, plain)):
            scheduler = make(optimizer)
            for step in range(6):
                take_steps(model, optimizer, [step])
                scheduler.step()
        assert sharded.param_groups[0]["lr"] == plain.param_groups[0]["lr"] != 0.1
        assert_equal(net, plain_net)
    for model, optimizer in ((net, sharded), (plain_net, plain)):
        optimizer.param_groups[0]["lr"] = 0.7
        take_steps(model, optimizer, [0])
    assert_equal(net, plain_net)


class Warming(torch.optim.SGD):
    """An optimizer that changes a setting of its own in each step, as schedule-free ones do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= 1.5
        return super().step(closure)


def changes_its_settings(rank: int) -> None:
    """What the optimizer changes in its groups is kept, and seen in the wrapper's."""
    net, plain_net = pair()
    sharded, plain = ShardedOptimizer(net.parameters(), Warming, lr=0.01), Warming(plain_net.parameters(), lr=0.01)
    take_steps(net, sharded, range(3))
    take_steps(plain_net, plain, range(3))
    assert sharded.param_groups[0]["lr"] == plain.param_groups[0]["lr"] == 0.01 * 1.5**3
    assert_equal(net, plain_net)


def scaled(rank: int) -> None:
    """A gradient scaler skips the step on all ranks where a gradient overflows."""
    net, plain_net = pair()
    for model, optimizer in (
        (net, ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)),
        (plain_net, torch.optim.AdamW(plain_net.parameters(), lr=0.1)),
    ):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            optimizer.zero_grad()
            x = batch(step) * (float("inf") if step == 2 else 1)
            scaler.scale(model(x)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_equal(net, plain_net)


@pytest.mark.parametrize("case", [with_closure, scheduled, changes_its_settings, scaled])
def test_how_optimizers_are_driven(case: Callable[..., None]) -> None:
    run_ranks(case, 2)


# Checkpoints.


def save(rank: int, path: Path) -> None:
    """Three steps; rank 0 saves, of what all ranks have."""
    net, _ = pair()
    optimizer = ShardedOptimizer(groups_of(net), torch.optim.AdamW, lr=0.1)
    take_steps(net, optimizer, range(3))
    optimizer.param_groups[1]["lr"] = 0.05
    state = optimizer.state_dict()
    assert all(value.device.type == "cpu" for entry in state["state"].values() for value in entry.values())
    kept = copy.deepcopy(state)
    if rank == 0:
        torch.save({"net": net.state_dict(), "optimizer": state}, path)
    take_steps(net, optimizer, range(3, 5))
    assert_same_state(state, kept)  # a snapshot: later steps do not change it


def resume(rank: int, path: Path, plain: bool) -> dict[str, Tensor]:
    """Three more steps from the checkpoint; gives the parameters."""
    net, _ = pair(seed=9)
    saved = torch.load(path, weights_only=True)
    net.load_state_dict(saved["net"])
    optimizer: torch.optim.Optimizer
    if plain:
        optimizer = torch.optim.AdamW(groups_of(net), lr=0.9)
    else:
        optimizer = ShardedOptimizer(groups_of(net), torch.optim.AdamW, lr=0.9)
    optimizer.load_state_dict(saved["optimizer"])
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.05]
    assert_same_state(optimizer.state_dict(), saved["optimizer"])
    take_steps(net, optimizer, range(3, 6))
    return dict(net.state_dict())


def test_checkpoints_move_between_world_sizes(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    run_ranks(save, 2, path)
    (expected,) = run_ranks(resume, 1, path, True)
    for ranks in (1, 2, 3):
        for parameters in run_ranks(resume, ranks, path, False):
            for name, value in expected.items():
                torch.testing.assert_close(parameters[name], value, rtol=1e-7, atol=0)


def from_the_plain_one(rank: int) -> None:
    """The plain optimizer's state_dict loads; one of other groups is refused."""
    net, plain_net = pair()
    plain = torch.optim.AdamW(plain_net.parameters(), lr=0.1)
    take_steps(plain_net, plain, range(3))
    net.load_state_dict(plain_net.state_dict())
    sharded = ShardedOptimizer(net.parameters(), torch.optim.AdamW)
    sharded.load_state_dict(copy.deepcopy(plain.state_dict()))
    take_steps(net, sharded, range(3))
    take_steps(plain_net, plain, range(3))
    assert_equal(net, plain_net)
    for other in (torch.optim.AdamW([net.scale]), torch.optim.AdamW(groups_of(net))):
        with pytest.raises(ValueError, match="other parameter groups, or groups of another size"):
            sharded.load_state_dict(other.state_dict())


class Odd(torch.optim.SGD):
    """State that is no tensor and no number."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"count": 3, "text": "a", "ratio": 0.1, "none": None, **self.extra}

    extra: dict[str, Any]


def plain_values(rank: int) -> None:
    """Numbers and texts in the state travel exactly; what cannot is refused on all ranks alike."""
    net, _ = pair()
    optimizer = ShardedOptimizer(net.parameters(), Odd)
    Odd.extra = {}
    optimizer.step()
    state = optimizer.state_dict()["state"]
    assert len(state) == len(list(net.parameters()))
    assert all(entry == {"count": 3, "text": "a", "ratio": 0.1, "none": None} for entry in state.values())
    Odd.extra = {"bad": object()} if rank == 1 else {}
    optimizer.step()
    with pytest.raises(TypeError, match=r"state bad of parameter \d+ \(rank 1\) is a object"):
        optimizer.state_dict()


@pytest.mark.parametrize("case", [from_the_plain_one, plain_values])
def test_state_dicts(case: Callable[..., None]) -> None:
    run_ranks(case, 2)


# Memory and traffic.


def spread(rank: int) -> tuple[int, int, int, int]:
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

    with mock.patch.object(dist, "broadcast", noting):
        optimizer.step()
    kept = sum(entry["exp_avg"].numel() + entry["exp_avg_sq"].numel() for entry in optimizer.state.values())
    assert kept == 2 * optimizer.elements_by_rank[rank]
    assert all(optimizer.owner_of(parameter) == rank for parameter in optimizer.state)
    return kept, sum(parameter.numel() for parameter in model.parameters()), len(sizes), sum(sizes)


def test_state_is_spread_and_parameters_travel_once() -> None:
    results = run_ranks(spread, 2)
    total = results[0][1]
    assert sum(kept for kept, *_ in results) == 2 * total
    for kept, _, calls, sent in results:
        assert kept == pytest.approx(total, rel=0.05)
        assert calls == 2  # one flat chunk from each rank
        assert sent == 4 * total


def in_chunks(rank: int, chunk_bytes: int) -> int:
    """Calls that the step takes when chunks are small; parameters stay right."""
    net, plain_net = pair()
    broadcast = dist.broadcast
    with (
        mock.patch.object(broadcasting, "CHUNK_BYTES", chunk_bytes),
        mock.patch.object(dist, "broadcast", side_effect=broadcast) as counted,
    ):
        take_steps(net, ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1), range(1))
    take_steps(plain_net, torch.optim.AdamW(plain_net.parameters(), lr=0.1), range(1))
    assert_equal(net, plain_net)
    return counted.call_count


def test_chunks() -> None:
    assert run_ranks(in_chunks, 2, 1) == [6, 6]  # each trainable parameter by itself
    assert run_ranks(in_chunks, 3, 10**6) == [3] * 3


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_partition_is_balanced_and_complete(numels: list[int], ranks: int) -> None:
    loads = [0] * ranks
    owners = partition(numels, loads)
    assert len(owners) == len(numels)
    assert loads == [sum(n for n, owner in zip(numels, owners, strict=True) if owner == rank) for rank in range(ranks)]
    assert max(loads) - min(loads) <= max(numels, default=0)
    assert owners == partition(list(numels), [0] * ranks)


def test_partition_of_the_xl_model() -> None:
    shape = SIZES["xl"]
    d = shape.d_model
    block = [d, *[d * d] * 4, d, *[d * shape.d_ff] * 3]
    numels = [shape.vocab_size * d, *block * shape.layers, d, shape.vocab_size * d]
    for ranks in (2, 4):
        loads = [0] * ranks
        partition(numels, loads)
        assert max(loads) * ranks / sum(numels) < 1.01
    loads = [5, 0]
    assert partition([3, 1, 4], loads) == [1, 0, 1]
    assert loads == [6, 7]
    with pytest.raises(ValueError, match="at least one rank"):
        partition([1], [])


def in_pieces(rank: int, names: tuple[str, ...], piece_bytes: int) -> list[list[str]]:
    """The way that NCCL goes, on gloo: what happens in the steps of each optimizer, which stay the plain one's."""
    seen = []
    for name in names:
        optimizer_cls, kwargs = OPTIMIZERS[name]
        net, plain_net = pair()
        sharded = ShardedOptimizer(net.parameters(), optimizer_cls, **kwargs)
        observed: list[str] = []
        sharded.around = functools.partial(observe, observed)
        with (
            mock.patch.object(sharded_optimizer, "backends", lambda group: {"cpu": "nccl"}),
            mock.patch.object(sharded_optimizer, "PIECE_BYTES", piece_bytes),
            mock.patch.object(sharded_optimizer, "broadcast_all", side_effect=AssertionError("a broadcast")),
        ):
            take_steps(net, sharded, range(3))
        take_steps(plain_net, optimizer_cls(plain_net.parameters(), **kwargs), range(3))
        assert_equal(net, plain_net)
        assert_same_state(sharded.state_dict(), optimizer_state(plain_net, optimizer_cls, kwargs))
        seen.append(observed)
    return seen


def optimizer_state(net: Net, optimizer_cls: type[torch.optim.Optimizer], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The plain optimizer's state_dict after three steps of a fresh pair."""
    _, fresh = pair()
    plain = optimizer_cls(fresh.parameters(), **kwargs)
    take_steps(fresh, plain, range(3))
    assert_equal(fresh, net)
    return plain.state_dict()


@contextlib.contextmanager
def observe(seen: list[str], name: str) -> Iterator[None]:
    """Notes what it is entered around."""
    seen.append(name)
    yield


@pytest.mark.parametrize(("ranks", "piece_bytes", "pieces"), [(1, 1, 6), (2, 1, 3), (3, 1, 3), (2, 300, 1)])
def test_pieces_travel_while_the_next_ones_are_updated(ranks: int, piece_bytes: int, pieces: int) -> None:
    names = tuple(OPTIMIZERS)
    for seen in run_ranks(in_pieces, ranks, names, piece_bytes):
        # As many pieces as the rank with most of the six parameters needs; after the last one nothing is updated.
        expected = [*["update", "exchange"] * pieces, "exchange"] * 3
        assert seen == [expected] * len(names)


def gathered(rank: int) -> list[int]:
    """Tensors of several dtypes and layouts, rank 2 without any; gives the sizes of the flat tensors."""
    world_size = dist.get_world_size()
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.int16, torch.bool, torch.complex64)

    def made(owner: int) -> list[tuple[Tensor, int]]:
        draw = torch.Generator().manual_seed(owner)
        shapes = ((3, 4), (), (0, 2), (owner + 1,))
        values = [(torch.randn(shape, generator=draw) * 9).to(dtype) for dtype in dtypes for shape in shapes]
        values.append(torch.randn(4, 3, generator=draw).t())
        return [(value, owner) for value in values]

    expected = [one for owner in (0, 1) for one in made(owner)]
    mine = [(value if owner == rank else torch.zeros_like(value), owner) for value, owner in expected]
    order = torch.randperm(len(mine), generator=torch.Generator().manual_seed(0)).tolist()
    sizes: list[int] = []
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    real = getattr(dist, name)

    def noting(target: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(target.nbytes)
        return real(target, *args, **kwargs)

    with mock.patch.object(dist, name, noting):
        made_once = Gathering([[mine[i] for i in order], [mine[order[0]]]], dist.group.WORLD)
        for _ in range(2):
            for value, owner in mine:
                value.copy_(expected[0][0].new_zeros(())) if owner != rank else None
            assert all(memory.untyped_storage().nbytes() == 0 for memory in made_once._memory.values())
            made_once.begin(0)()
            made_once.begin(1)()
            made_once.close()
    for (value, _), (wanted, _) in zip(mine, expected, strict=True):
        assert torch.equal(value, wanted) and value.stride() == wanted.stride()
    assert all(size % world_size == 0 for size in sizes) and sizes[: len(sizes) // 2] == sizes[len(sizes) // 2 :]
    return sizes[: len(dtypes)]


def test_a_gather_of_all_kinds() -> None:
    for sizes in run_ranks(gathered, 3):
        elements = 12 + 1 + 2  # of the second rank, which has most
        assert sorted(sizes) == sorted(
            3 * size for size in (4 * (elements + 12), *(elements * n for n in (2, 8, 2, 1, 8)))
        )


def of_an_unknown_kind(rank: int) -> list[str]:
    """An optimizer that torch does not bring takes one step at a time, over all of the rank's part."""
    net, plain_net = pair()
    sharded, plain = ShardedOptimizer(net.parameters(), Warming, lr=0.01), Warming(plain_net.parameters(), lr=0.01)
    seen: list[str] = []
    sharded.around = functools.partial(observe, seen)
    with (
        mock.patch.object(sharded_optimizer, "backends", lambda group: {"cpu": "nccl"}),
        mock.patch.object(sharded_optimizer, "PIECE_BYTES", 1),
        mock.patch.object(Gathering, "begin", autospec=True, side_effect=Gathering.begin) as gathers,
    ):
        take_steps(net, sharded, range(1))
    assert gathers.call_count == 3  # yet what travels at once is as small as with others
    take_steps(plain_net, plain, range(1))
    assert_equal(net, plain_net)
    return seen


def test_an_unknown_optimizer_is_not_taken_apart() -> None:
    assert run_ranks(of_an_unknown_kind, 2) == [["update", *["exchange"] * 4]] * 2


def changed_between_steps(rank: int) -> None:
    """Pieces follow what is to be sent: other parameters, moved ones, another dtype, a group more."""
    net, plain_net = pair()
    on_nccl = net.scale.is_cuda
    as_there = mock.patch.object(sharded_optimizer, "backends", lambda group: {"cpu": "nccl"})
    with contextlib.nullcontext() if on_nccl else as_there:
        sharded = ShardedOptimizer(net.first.parameters(), torch.optim.SGD, lr=0.1)
        plain = torch.optim.SGD(plain_net.first.parameters(), lr=0.1)
        for model, optimizer in ((net, sharded), (plain_net, plain)):
            take_steps(model, optimizer, [0])
            optimizer.add_param_group({"params": [model.scale, model.transposed]})
            take_steps(model, optimizer, [1, 2])
            model.first.bias.requires_grad_(False)
            take_steps(model, optimizer, [3])
            model.first.bias.requires_grad_(True)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()
            take_steps(model, optimizer, [4])
            model.double()
            for step in (5, 6):
                optimizer.zero_grad()
                model(batch(step).double()).backward()
                optimizer.step()
    for ours, theirs in zip(net.parameters(), plain_net.parameters(), strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)


def test_changes_between_steps() -> None:
    run_ranks(changed_between_steps, 2)


def frozen_later(rank: int) -> None:
    """What was frozen after a backward is updated by the gradient that it has, as by the plain optimizer."""
    net, plain_net = pair()
    for model, optimizer in (
        (net, ShardedOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)),
        (plain_net, torch.optim.AdamW(plain_net.parameters(), lr=0.1)),
    ):
        model(batch(0)).backward()
        model.first.weight.requires_grad_(False)
        optimizer.step()
        model.first.weight.grad = None
        optimizer.step()
    assert_equal(net, plain_net)


def test_frozen_later() -> None:
    run_ranks(frozen_later, 2)


# With the data-parallel wrappers.


def whole_training(rank: int, wrapper: str) -> None:
    """The transformer in float64: sharded state on averaged gradients, against one process on the whole batch."""
    shape = Shape(d_model=16, d_ff=48, layers=2, heads=2, vocab_size=40)
    torch.manual_seed(rank)
    model = Model(shape, 6).double()
    ddp = NaiveDDP(model) if wrapper == "naive" else BucketedDDP(model, 0.01)
    single = copy.deepcopy(model)
    sharded = ShardedOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
    plain = torch.optim.AdamW(single.parameters(), lr=0.01)
    tokens = torch.randint(40, (STEPS, 6, 7), generator=torch.Generator().manual_seed(1))
    for ids in tokens:
        sharded.zero_grad()
        plain.zero_grad()
        mine = ids.chunk(dist.get_world_size())[rank]
        next_token_loss(ddp, mine[:, :-1], mine[:, 1:]).backward()
        ddp.finish_gradient_synchronization()
        next_token_loss(single, ids[:, :-1], ids[:, 1:]).backward()
        sharded.step()
        plain.step()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("wrapper", "ranks"), [("naive", 2), ("bucketed", 3)])
def test_with_a_data_parallel_wrapper(wrapper: str, ranks: int) -> None:
    run_ranks(whole_training, ranks, wrapper)


# Wrong use.


def test_without_a_process_group() -> None:
    with pytest.raises(RuntimeError, match=r"^ShardedOptimizer needs a process group"):
        ShardedOptimizer(nn.Linear(2, 2).parameters(), torch.optim.AdamW)


def misused(rank: int) -> None:
    """What torch's optimizers refuse is refused in their words; LBFGS in ours."""
    linear = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="empty parameter list"):
        ShardedOptimizer([], torch.optim.AdamW)
    with pytest.raises(TypeError, match="iterable of Tensors or dicts"):
        ShardedOptimizer(linear.weight, torch.optim.AdamW)
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        ShardedOptimizer(linear.parameters(), torch.optim.AdamW, lr=-1)
    with pytest.raises(TypeError, match="no_such_setting"):
        ShardedOptimizer(linear.parameters(), torch.optim.AdamW, no_such_setting=1)
    with pytest.raises(ValueError, match="LBFGS cannot be sharded"):
        ShardedOptimizer(linear.parameters(), torch.optim.LBFGS)
    with pytest.raises(KeyError):
        ShardedOptimizer([linear.weight], torch.optim.SGD, lr=0.1).owner_of(linear.bias)


def test_wrong_use() -> None:
    run_ranks(misused, 2)
