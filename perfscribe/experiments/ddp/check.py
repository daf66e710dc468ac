"""Whether ranks that share a batch end with the parameters of a single process that saw all of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.ddp.variants import CHECKED_STEPS, TOLERANCE, Variant
from perfscribe.experiments.ddp.wrapped import Wrapped
from perfscribe.instruments import precision
from perfscribe.models.transformer import Model, next_token_loss

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

SIZE, LONGEST = "nano", 32
# Plain steps without normalisation: a gradient that is off by a factor moves parameters by that factor.
LEARNING_RATE = 0.1


def share(token_ids: Tensor, rank: Rank) -> Tensor:
    """This rank's part of the sequences (batch, length), in the order of ranks."""
    count = token_ids.shape[0] // rank.place.world_size
    return token_ids[rank.place.rank * count :][:count]


def errors(of: Sequence[Variant], factors: Mapping[str, Any], token_ids: Tensor, rank: Rank) -> dict[str, float]:
    """By variant the largest error of any parameter tensor's change over CHECKED_STEPS steps.

    A small model on the cell's device, in its dtype. token_ids: the whole batch (batch, length + 1). Ranks other than 0
    begin with parameters of their own, which the wrapper must overwrite.
    ArithmeticError: an error beyond the tolerance.
    """
    token_ids = token_ids[:, : LONGEST + 1]
    torch.manual_seed(rank.seed)
    begin = Model(SIZES[SIZE], token_ids.shape[1] - 1, device=rank.device)
    for tensor in begin.parameters():
        dist.broadcast(tensor.detach(), 0)
    alone = copy.deepcopy(begin)
    _train(alone, alone, lambda: None, token_ids, factors)
    found = {}
    for variant in of:
        found[variant.key] = _error(variant, begin, alone, token_ids, factors, rank)
        allowed = TOLERANCE[factors["dtype"]]
        if not found[variant.key] <= allowed:
            what = f"{variant.key}: parameters after {CHECKED_STEPS} steps differ from a single process's"
            raise ArithmeticError(f"{what} by {found[variant.key]:.2g} of their change, allowed {allowed:g}")
    return found


def _error(
    variant: Variant, begin: Model, alone: Model, token_ids: Tensor, factors: Mapping[str, Any], rank: Rank
) -> float:
    model = copy.deepcopy(begin)
    if rank.place.rank:
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(1)
    wrapped = Wrapped(variant, model)
    _train(model, wrapped.call, wrapped.finish, share(token_ids, rank), factors)
    wrapped.release()
    triples = zip(begin.parameters(), alone.parameters(), model.parameters(), strict=True)
    ratios = [_norm(got - expected) / _norm(expected - before) for before, expected, got in triples]
    return max(ratios, key=lambda ratio: (math.isnan(ratio), ratio))


def _norm(difference: Tensor) -> float:
    return float(difference.detach().double().norm())


def _train(
    model: Model, call: nn.Module, finish: Callable[[], object], token_ids: Tensor, factors: Mapping[str, Any]
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(CHECKED_STEPS):
        model.zero_grad(set_to_none=True)
        with precision.autocast(factors["device"], factors["dtype"]):
            loss = next_token_loss(call, token_ids[:, :-1], token_ids[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        finish()
        optimizer.step()


def require_equal_gradients(model: nn.Module, who: str) -> None:
    """ArithmeticError where the gradients of one rank are not, to the last bit, those of the others.

    Compared are sums in float64, which ranks with equal gradients compute alike. (Parameters would differ once steps
    without communication were among those before: the optimizer's moments keep them.)
    """
    with torch.no_grad():
        gradients = [tensor.grad for tensor in model.parameters() if tensor.grad is not None]
        sums = torch.stack([gradient.sum(dtype=torch.float64) for gradient in gradients])
    least, largest = sums.clone(), sums.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    differing = int((least != largest).sum())
    if differing or not bool(torch.isfinite(sums).all()):
        raise ArithmeticError(f"{who}: {differing} of {len(sums)} gradients differ between ranks, or are not finite")
