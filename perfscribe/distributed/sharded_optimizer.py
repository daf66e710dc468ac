"""An optimizer with its state sharded over the ranks: each keeps and updates a part of the parameters.

Sources: handout of Stanford CS336, assignment 2 (systems), 1.0.4, problem optimizer_state_sharding; Rajbhandari et al.,
ZeRO, SC 2020 (this is a simpler form of stage 1: gradients are all-reduced beforehand, not reduce-scattered, and whole
parameters are assigned, not equal pieces of the flattened model).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perfscribe.analytic.bucket_model import fill_buckets
from perfscribe.analytic.partition import PIECE_BYTES, partition
from perfscribe.distributed.broadcasting import broadcast_all
from perfscribe.distributed.gathering import Gathering
from perfscribe.distributed.process_group import backends, require_group

NOT_SETTINGS = ("params", "param_names")  # keys of a parameter group that are not hyperparameters

Observer = Callable[[str], AbstractContextManager[object]]


class ShardedOptimizer(torch.optim.Optimizer):
    """Runs optimizer_cls on this rank's parameters; after each step all ranks have all updated parameters.

    params: an iterable of parameters, of (name, parameter) or of parameter groups, read once; the same on all ranks.
    optimizer_cls: any that updates each parameter independently, in a step that changes no setting. With W ranks state
    shrinks to 1/W; as one rank updates a whole parameter with its whole gradient, parameters equal the plain
    optimizer's bit for bit. Gradients must already be averaged, equal on all ranks, including None.

    step() is a collective and keeps no buffer between calls. gloo: updates everything, then broadcasts in flat chunks.
    NCCL: each rank's part goes in pieces, copied flat and all-gathered while the next is updated, so that temporaries
    are those of one piece; a call per parameter would make the host the bottleneck. A parameter that neither requires a
    gradient nor has one is not sent; with NCCL the first step determines that. param_groups contains all parameters,
    for schedulers to change; state contains this rank's part.

    around(name) wraps "update" and "exchange" of each piece: an experiment puts a timer or a mark there.

    Raises RuntimeError without a process group.
    """

    def __init__(self, params: Iterable[Any], optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any) -> None:
        self._group = require_group(type(self).__name__)
        self._loads = [0] * dist.get_world_size(self._group)
        self._owners: dict[Tensor, int] = {}
        self._inner: torch.optim.Optimizer | None = None
        self._gathering: Gathering | None = None
        self.around: Observer = lambda _: nullcontext()
        super().__init__(params, dict(kwargs))
        self._assign_owners([parameter for group in self.param_groups for parameter in group["params"]])
        self._inner = optimizer_cls([self._local_group(group) for group in self.param_groups], **kwargs)
        self.defaults = self._inner.defaults
        _copy_settings(self._inner.param_groups, self.param_groups)
        self.state = self._inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, on all ranks; its parameters go to the ranks with the fewest elements, earlier ones stay."""
        super().add_param_group(param_group)
        if self._inner is None:  # called by torch's constructor: ours assigns all groups at once
            return
        group = self.param_groups[-1]
        self._assign_owners(group["params"])
        self._inner.add_param_group(self._local_group(group))
        self._gathering = None
        _copy_settings(self._inner.param_groups[-1:], [group])

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Update this rank's parameters and exchange the updated ones; every rank must call it.

        closure: computes the gradients, once and first; its result, the loss, is returned. kwargs: of optimizer_cls's
        step.
        """
        assert self._inner is not None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _copy_settings(self.param_groups, self._inner.param_groups)
        if self._is_overlapped():
            self._step_and_gather(kwargs)
            return loss
        with self.around("update"):
            self._inner.step(**kwargs)
        with self.around("exchange"):
            broadcast_all(self._pieces(None)[0], self._group)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Raise RuntimeError: it would contain only this rank's part of the state."""
        raise RuntimeError(f"{type(self).__name__} does not save its state, of which each rank keeps a part")

    def _pieces(self, capacity_bytes: int | None) -> list[list[tuple[Tensor, int]]]:
        """Return (parameter, owner) pairs that the step may change, in pieces of capacity_bytes per rank; None: one."""
        owned: list[list[Tensor]] = [[] for _ in self._loads]
        for parameter, owner in self._owners.items():
            if parameter.requires_grad or parameter.grad is not None:
                owned[owner].append(parameter)
        parts = [fill_buckets([parameter.nbytes for parameter in mine], capacity_bytes) for mine in owned]
        pieces = [
            [(owned[owner][i], owner) for owner, part in enumerate(piece) for i in part or ()]
            for piece in itertools.zip_longest(*parts)
        ]
        return pieces or [[]]  # the inner optimizer steps even if there is nothing to train

    def _is_overlapped(self) -> bool:
        """Return whether communication overlaps with computing: if NCCL serves the devices of all parameters."""
        served = backends(self._group)
        devices = {parameter.device.type for parameter in self._owners}
        return all(served.get(device) == "nccl" for device in devices)

    def _step_and_gather(self, kwargs: Mapping[str, Any]) -> None:
        """Update a piece while the previous one is sent."""
        assert self._inner is not None
        if self._gathering is None:
            pieces = self._pieces(PIECE_BYTES)
            by_group = [group["params"] for group in self._inner.param_groups]
            sent = [{parameter for parameter, _ in piece} for piece in pieces]
            # This rank's parameters, by piece and group.
            self._members = [[[p for p in parameters if p in piece] for parameters in by_group] for piece in sent]
            self._gathering = Gathering(pieces, self._group)
        end: Callable[[], None] = lambda: None  # noqa: E731
        for number, members in enumerate(self._members):
            with self.around("update"):
                self._update(members, kwargs)
            with self.around("exchange"):
                end()
                end = self._gathering.begin(number)
        with self.around("exchange"):
            end()
            self._gathering.close()

    def _update(self, members: Sequence[list[Tensor]], kwargs: Mapping[str, Any]) -> None:
        """Run the inner optimizer's step on only these parameters of its groups."""
        assert self._inner is not None
        groups = self._inner.param_groups
        whole = [group["params"] for group in groups]
        for group, parameters in zip(groups, members, strict=True):
            group["params"] = parameters
        self._inner.step(**kwargs)
        for group, parameters in zip(groups, whole, strict=True):
            group["params"] = parameters

    def _assign_owners(self, parameters: Sequence[Tensor]) -> None:
        """Assign each parameter to a rank; trainable ones first, so that frozen ones do not unbalance them."""
        for trainable in (True, False):
            chosen = [parameter for parameter in parameters if parameter.requires_grad == trainable]
            owners = partition([parameter.numel() for parameter in chosen], self._loads)
            self._owners.update(zip(chosen, owners, strict=True))

    def _local_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the group with only this rank's parameters, possibly none."""
        rank = dist.get_rank(self._group)
        return {**_settings(group), "params": [p for p in group["params"] if self._owners[p] == rank]}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in NOT_SETTINGS}


def _copy_settings(sources: Sequence[Mapping[str, Any]], targets: Sequence[dict[str, Any]]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.update(_settings(source))
