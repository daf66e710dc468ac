"""A subject's FSDP: checked against one process, then measured interleaved with ours and unsharded DDP."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from perfscribe.analytic.shapes import Shape
from perfscribe.base.cells import Cell, Measurement, read
from perfscribe.experiments.cs336.ddp.measure import Training, launched
from perfscribe.experiments.cs336.fsdp_accounting import measure as m
from perfscribe.subjects import FSDP, Subject
from perfscribe.subjects.loading import adapters, subjects_code

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank
    from perfscribe.experiments.cs336.fsdp_accounting.program import Wrapped
    from perfscribe.models.transformer import Model

CHECKED_DTYPES = ("fp32", "fp16")  # the course's
CHECKED_SHAPE, CHECKED_TOKENS = Shape(d_model=64, d_ff=128, layers=1, heads=1, vocab_size=100), 8
# Of 44 weights of one size, much larger than the activations of so few tokens.
DEEP_SHAPE, DEEP_TOKENS = Shape(d_model=128, d_ff=128, layers=6, heads=1, vocab_size=128), 2


def cells(of: Sequence[Cell], name: str, kernels: Collection[str]) -> list[Cell]:
    """Return a subject's cell for each of ours; its variant is named <subject>.fsdp."""
    variants = f"{m.DDP} {m.FSDP} {name}.{m.FSDP}"
    factors = {"variants": variants, "kernel": FSDP}
    return [replace(cell, factors={**cell.factors, **factors}) for cell in of] if FSDP in kernels else []


def run(cell: Cell) -> Measurement:
    """Launch the ranks and combine their results."""
    return launched(cell, on_rank)


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return the results of program.on_rank, with the subject's FSDP next to ours.

    <variant>_gathered_share: see gathered_share.
    """
    import torch

    from perfscribe.experiments.cs336.fsdp_accounting import program

    factors = arguments["factors"]
    *_, theirs = read(factors, Training).variants.split()
    with subjects_code():
        subject = read(factors, Subject)
        functions = adapters(**vars(subject))
        with suppress(Exception):  # what it imports when it is called: pass_for_theirs looks at loaded modules
            cast("Any", functions[0])(torch.nn.Sequential(torch.nn.Linear(2, 2)).to(rank.device))
        gc.collect()
        gc.freeze()  # as in program.on_rank
        wrap = partial(_wrap, functions, subject.subject)
        whole_batch = (2 * rank.place.world_size, CHECKED_TOKENS + 1)
        words = torch.randint(CHECKED_SHAPE.vocab_size, whole_batch, generator=torch.Generator()).to(rank.device)
        for dtype in CHECKED_DTYPES:
            program.error(theirs, wrap, dtype, words, rank, CHECKED_SHAPE)
        share = gathered_share(wrap, rank)
        results = program.on_rank(arguments, rank, {**program.WRAPS, theirs: wrap})
    results["values"][f"{theirs}_gathered_share"] = share
    return results


def _wrap(functions: Sequence[Callable[..., Any] | None], subject: str, model: Model, dtype: str) -> Wrapped:
    import torch

    from perfscribe.experiments.cs336.fsdp_accounting.program import Wrapped
    from perfscribe.instruments import precision
    from perfscribe.subjects.layers import clear_hooks, pass_for_theirs

    get, after_backward, gather = functions
    assert get is not None and after_backward is not None and gather is not None
    pass_for_theirs(model, subject)
    compute_dtype = precision.tensor_dtype(dtype)
    wrapped = get(model, compute_dtype=None if compute_dtype == torch.float32 else compute_dtype)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.0)  # argument of the course's interface
    finish, whole = partial(after_backward, wrapped, optimizer), partial(gather, wrapped)
    return Wrapped(wrapped, finish, whole, release=clear_hooks)


def gathered_share(wrap: Callable[[Model, str], Wrapped], rank: Rank) -> float:
    """Return the most memory that a forward pass, after a step, adds to this rank's parts, over that of all weights.

    It is read before each block, and at the end, of a model with so many weights that two or three layers' are little.
    """
    import torch

    from perfscribe.experiments.cs336.fsdp_accounting import program
    from perfscribe.experiments.cs336.optimizer_state_sharding.memory import settle
    from perfscribe.instruments.memory import allocated_bytes
    from perfscribe.models.transformer import Model

    torch.manual_seed(rank.seed)
    words = torch.zeros((1, DEEP_TOKENS + 1), dtype=torch.int64, device=rank.device)
    held: list[int] = []

    def read_held(*_: object) -> None:
        held.append(allocated_bytes(settle(rank.device)))

    read_held()
    model = Model(DEEP_SHAPE, DEEP_TOKENS, device=rank.device)
    whole_bytes = sum(parameter.nbytes for parameter in model.parameters())
    for block in model.blocks:
        block.register_forward_pre_hook(read_held)
    wrapped = wrap(model, "fp32")
    del model, block
    wrapped.optimizer = torch.optim.SGD(wrapped.model.parameters(), lr=0.0)
    program.step(wrapped, words)
    wrapped.optimizer.zero_grad()
    del held[1:]
    logits = wrapped.model(words[:, :-1])
    read_held()
    del logits
    wrapped.release()
    return (max(held) - held[0]) / whole_bytes - 1 / rank.place.world_size
