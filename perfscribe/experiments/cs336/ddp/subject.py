"""A subject's DDP: checked against one process, then timed interleaved with ours around the same model."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement, read
from perfscribe.experiments.cs336.ddp import measure as m
from perfscribe.experiments.cs336.ddp import variants as v
from perfscribe.instruments.correctness import WrongResult, require_close
from perfscribe.subjects import BUCKETED, INDIVIDUAL, Subject
from perfscribe.subjects.loading import adapters, subjects_code

if TYPE_CHECKING:
    import torch

    from perfscribe.distributed.rank import Rank
    from perfscribe.experiments.cs336.ddp.program import Wrappers
    from perfscribe.subjects.ddp import Theirs

# Our implementations per kernel. A subject's variant is named <subject>.<implementation>[.<bucket size>].
OURS = {INDIVIDUAL: (v.NAIVE, v.OVERLAP), BUCKETED: (v.BUCKETED,)}
SEPARATOR = "."


def cells(of: Sequence[Cell], name: str, kernels: Collection[str]) -> list[Cell]:
    """Return cells for either wrapper per cell of ours: with ours and naive, or with ours of each bucket size."""
    found = []
    for cell in of:
        for kernel, ours in OURS.items():
            beside = [one for one in v.from_level(cell.read(m.Training).variants) if one.implementation in ours]
            theirs = [
                v.Variant(SEPARATOR.join([name, one.key.replace(":", SEPARATOR)]))
                for one in beside
                if one.implementation != v.NAIVE
            ]
            if kernel in kernels and theirs:
                level = v.as_level([*beside, *theirs])
                found.append(replace(cell, factors={**cell.factors, "variants": level, "kernel": kernel}))
    return found


def parsed(variant: v.Variant) -> v.Variant | None:
    """Return our variant that a subject's variant corresponds to; None if it is ours."""
    if SEPARATOR not in variant.implementation:
        return None
    _, implementation, *size = variant.implementation.split(SEPARATOR, 2)
    return v.Variant(implementation, float(size[0]) if size else None)


def run(cell: Cell) -> Measurement:
    """Measure the subject's and our variants in one launch."""
    return m.launched(cell, on_rank)


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return the results of program.on_rank, with the subject's wrappers among ours.

    <variant>_early_all_reduces: over all steps, those called before backward had ended.
    """
    from perfscribe.distributed.ddp import BY_NAME
    from perfscribe.experiments.cs336.ddp import program
    from perfscribe.subjects.ddp import Theirs

    factors, early = arguments["factors"], dict[str, list[Theirs]]()
    wrappers = dict[str, Any](BY_NAME)
    with subjects_code():
        functions = adapters(**vars(read(factors, Subject)))
        for variant in v.from_level(read(factors, m.Training).variants):
            if theirs := parsed(variant):
                sizes = [] if theirs.bucket_mb is None else [theirs.bucket_mb]
                made = early.setdefault(variant.key, [])
                wrappers[variant.implementation] = partial(_kept, made, functions, sizes)
                check(variant, rank, wrappers)
        found = program.on_rank(arguments, rank, wrappers)
        found["values"] |= {f"{key}_early_all_reduces": sum(one.early for one in of) for key, of in early.items()}
        return found


def _kept(made: list[Theirs], *arguments: Any) -> Theirs:
    from perfscribe.subjects.ddp import Theirs

    made.append(Theirs(*arguments))
    return made[-1]


def check(variant: v.Variant, rank: Rank, wrappers: Wrappers) -> None:
    """Check averages of a first backward, and parameters on all ranks, against one process with all data.

    As in the course's tests, one parameter is frozen and one is tied. Ranks other than 0 start with different
    parameters, except the frozen ones. Raises WrongResult, which names the parameter.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.functional import mse_loss

    from perfscribe.experiments.cs336.ddp.program import Wrapped

    allowed = v.TOLERANCE["fp32"]
    torch.manual_seed(rank.seed)
    alone = _model().to(rank.device)
    data = torch.randn((2 * rank.place.world_size, 16), device=rank.device)
    for tensor in (*alone.parameters(), data):
        dist.broadcast(tensor.detach(), 0)
    model = copy.deepcopy(alone)
    if rank.place.rank:
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(tensor.requires_grad)
    wrapped = Wrapped(variant, model, wrappers)
    own = data.chunk(rank.place.world_size)[rank.place.rank]
    where = f"rank {rank.place.rank}, {variant.key.partition(SEPARATOR)[2]}"
    for (name, got), want in zip(model.named_parameters(), alone.parameters(), strict=True):
        require_close(f"parameter {name}", got, want, allowed, f"{where}, after wrapping")
    for call, rows in ((alone, data), (wrapped.call, own)):
        mse_loss(call(rows), torch.ones((len(rows), 8), device=rank.device)).backward()
    wrapped.finish()
    for (name, got), want in zip(model.named_parameters(), alone.parameters(), strict=True):
        if want.grad is not None:
            require_close(f"gradient of {name}", got.grad, want.grad, allowed, f"{where}, after on_after_backward")
        elif got.grad is not None and bool(got.grad.any()):
            raise WrongResult(f"{name} is frozen and has a gradient at {where}, after on_after_backward")
    wrapped.release()


def _model() -> torch.nn.Module:
    """Return a model with a frozen bias, a frozen unused parameter, and a weight shared by two layers."""
    import torch

    layers = [torch.nn.Linear(16, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 8)]
    assert layers[1].bias is not None
    layers[1].bias.requires_grad_(False)
    layers[2].weight = layers[1].weight
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), *layers[2:])
    model.register_parameter("unused", torch.nn.Parameter(torch.full((2,), 2.0), requires_grad=False))
    return model
