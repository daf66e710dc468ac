"""A rank's training step of the language model, and the three optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from perfscribe.analytic.shapes import SIZES
from perfscribe.data import tokens
from perfscribe.distributed.ddp import BucketedDDP, DataParallel, FlatDDP, NaiveDDP, OverlappedDDP
from perfscribe.distributed.sharded_optimizer import ShardedOptimizer
from perfscribe.experiments.optimizer_state_sharding.names import PEER, SHARDED
from perfscribe.instruments import precision
from perfscribe.models.transformer import Model, next_token_loss

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

LEARNING_RATE = 1e-4
BUCKET_MB = 100.0  # of the bucketed wrapper
WRAPPERS: dict[str, Callable[[Model], DataParallel]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlapped": OverlappedDDP,
    "bucketed": lambda model: BucketedDDP(model, BUCKET_MB),
}


def build_model(factors: Mapping[str, Any], rank: Rank) -> Model:
    """The model with weights of its own on each rank. Raises torch's out-of-memory errors."""
    precision.set_matmul_precision(factors["dtype"])
    return Model(SIZES[factors["size"]], factors["seq_len"], device=rank.device)


class Training:
    """The model as a data-parallel replica, and this rank's part of the batch.

    inputs, targets: token ids (B / world size, S), int64. ValueError: the token data are too few.
    """

    def __init__(self, model: Model, factors: Mapping[str, Any], rank: Rank) -> None:
        self.device = rank.device
        self.replica = WRAPPERS[factors["wrapper"]](model)
        self.parameters = list(model.parameters())
        held = tokens.read(Path(factors["data_folder"]), factors["batch"], factors["seq_len"])
        mine = torch.from_numpy(held).chunk(factors["world_size"])[rank.place.rank].to(rank.device)
        self.inputs, self.targets = mine[:, :-1].contiguous(), mine[:, 1:].contiguous()

    def zero_grad(self) -> None:
        """Give the gradients' memory back, as a step of the homework begins."""
        for parameter in self.parameters:
            parameter.grad = None

    def passes(self, mark: Callable[[str], object] = lambda _: None) -> None:
        """Forward, backward and the average of the gradients over the ranks, marking the end of each."""
        loss = next_token_loss(self.replica, self.inputs, self.targets)
        mark("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        mark("backward")
        self.replica.finish_gradient_synchronization()
        mark("averaging")


def make_optimizer(name: str, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """AdamW with torch's own choice of its implementation: plain, in our shards, or in torch's."""
    if name == SHARDED:
        return ShardedOptimizer(parameters, torch.optim.AdamW, lr=LEARNING_RATE)
    if name == PEER:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, lr=LEARNING_RATE)
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE)


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors of this rank's optimizer state; torch's sharded optimizer keeps them in one of its own."""
    inner = getattr(optimizer, "optim", optimizer)
    return [value for state in inner.state.values() for value in state.values() if isinstance(value, Tensor)]
