"""An optimizer whose state is spread over the ranks: each keeps, and updates, a part of the parameters.

Sources: handout of Stanford CS336, assignment 2 (systems), 1.0.4, problem optimizer_state_sharding; Rajbhandari et al.,
ZeRO, SC 2020 (stage 1, of which this is a simpler form: gradients are all-reduced, not reduce-scattered, before it, and
whole parameters are handed out, not equal pieces of the flattened model).
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

NOT_SETTINGS = ("params", "param_names")  # of a parameter group: the rest are hyperparameters

Observer = Callable[[str], AbstractContextManager[object]]


class ShardedOptimizer(torch.optim.Optimizer):
    """optimizer_cls over the parameters that this rank keeps; after each step all ranks hold all updated parameters.

    params: an iterable of parameters, of (name, parameter) or of parameter groups, read once; the same on all ranks.
    optimizer_cls: any that updates each parameter by itself, in a step that changes no setting. State shrinks to 1/W,
    and as each parameter is updated by one rank with all of its gradient, parameters stay those of the plain optimizer
    to the last bit. Gradients must be averages already, equal on all ranks, None included.

    step() is a collective, with no buffer that stays. gloo: the updated parameters go round in flat chunks, after the
    update. NCCL: in pieces of each rank's part, by a flat copy and one all-gather a piece, all through the same memory;
    each travels while the next one is updated, so that temporaries of the update are those of a piece. The copies cost
    the device little beside an update; a call a parameter would cost the host more than it has left in a training step.
    A parameter that neither requires a gradient nor has one is not sent; with NCCL the first step settles that.
    param_groups holds all parameters and is what schedulers change; state holds this rank's part.

    around(name) is entered around "update" and "exchange" of each piece: an experiment puts a timer or a mark there.

    RuntimeError: no process group.
    """

    def __init__(self, params: Iterable[Any], optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any) -> None:
        self._group = require_group(type(self).__name__)
        self._loads = [0] * dist.get_world_size(self._group)
        self._owners: dict[Tensor, int] = {}
        self._inner: torch.optim.Optimizer | None = None
        self._gathering: Gathering | None = None
        self.around: Observer = lambda _: nullcontext()
        super().__init__(params, dict(kwargs))
        self._hand_out([parameter for group in self.param_groups for parameter in group["params"]])
        self._inner = optimizer_cls([self._own_part(group) for group in self.param_groups], **kwargs)
        self.defaults = self._inner.defaults
        _copy_settings(self._inner.param_groups, self.param_groups)
        self.state = self._inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, on all ranks; its parameters go to the ranks with the fewest elements, none moves."""
        super().add_param_group(param_group)
        if self._inner is None:  # torch's constructor is calling: ours hands out all groups at once
            return
        group = self.param_groups[-1]
        self._hand_out(group["params"])
        self._inner.add_param_group(self._own_part(group))
        self._gathering = None
        _copy_settings(self._inner.param_groups[-1:], [group])

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update this rank's parameters and exchange the updated ones; every rank must call it."""
        assert self._inner is not None
        _copy_settings(self.param_groups, self._inner.param_groups)
        if self._travels_by_itself():
            self._step_and_gather()
            return
        with self.around("update"):
            self._inner.step()
        with self.around("exchange"):
            broadcast_all(self._pieces(None)[0], self._group)

    def state_dict(self) -> dict[str, Any]:
        """Refused: it would be this rank's part of the state alone."""
        raise RuntimeError(f"{type(self).__name__} does not save its state, of which each rank keeps a part")

    def _pieces(self, capacity_bytes: int | None) -> list[list[tuple[Tensor, int]]]:
        """What the step may change, with the owners, a part of each rank's at a time; the same on all ranks."""
        owned: list[list[Tensor]] = [[] for _ in self._loads]
        for parameter, owner in self._owners.items():
            if parameter.requires_grad or parameter.grad is not None:
                owned[owner].append(parameter)
        parts = [fill_buckets([parameter.nbytes for parameter in mine], capacity_bytes) for mine in owned]
        pieces = [
            [(owned[owner][i], owner) for owner, part in enumerate(piece) for i in part or ()]
            for piece in itertools.zip_longest(*parts)
        ]
        return pieces or [[]]  # the inner optimizer takes its step also where there is nothing to train

    def _travels_by_itself(self) -> bool:
        """Whether what is sent travels while the device does something else: with NCCL, from all parameters' places."""
        served = backends(self._group)
        devices = {parameter.device.type for parameter in self._owners}
        return all(served.get(device) == "nccl" for device in devices)

    def _step_and_gather(self) -> None:
        """Update a piece while the one before it travels."""
        assert self._inner is not None
        if self._gathering is None:
            pieces = self._pieces(PIECE_BYTES)
            of_group = [group["params"] for group in self._inner.param_groups]
            sent = [{parameter for parameter, _ in piece} for piece in pieces]
            # This rank's parameters, by piece and group.
            self._members = [[[p for p in parameters if p in one] for parameters in of_group] for one in sent]
            self._gathering = Gathering(pieces, self._group)
        end: Callable[[], None] = lambda: None  # noqa: E731
        for number, members in enumerate(self._members):
            with self.around("update"):
                self._update(members)
            with self.around("exchange"):
                end()
                end = self._gathering.begin(number)
        with self.around("exchange"):
            end()
            self._gathering.close()

    def _update(self, members: Sequence[list[Tensor]]) -> None:
        """The inner optimizer's step, with these parameters in its groups."""
        assert self._inner is not None
        groups = self._inner.param_groups
        whole = [group["params"] for group in groups]
        for group, parameters in zip(groups, members, strict=True):
            group["params"] = parameters
        self._inner.step()
        for group, parameters in zip(groups, whole, strict=True):
            group["params"] = parameters

    def _hand_out(self, parameters: Sequence[Tensor]) -> None:
        """Give each parameter an owner; the trainable ones first, so that frozen ones do not unbalance them."""
        for trainable in (True, False):
            chosen = [parameter for parameter in parameters if parameter.requires_grad == trainable]
            owners = partition([parameter.numel() for parameter in chosen], self._loads)
            self._owners.update(zip(chosen, owners, strict=True))

    def _own_part(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The group with this rank's parameters alone, perhaps none."""
        rank = dist.get_rank(self._group)
        return {**_settings(group), "params": [p for p in group["params"] if self._owners[p] == rank]}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in NOT_SETTINGS}


def _copy_settings(of: Sequence[Mapping[str, Any]], to: Sequence[dict[str, Any]]) -> None:
    for source, target in zip(of, to, strict=True):
        target.update(_settings(source))
