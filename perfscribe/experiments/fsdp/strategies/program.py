"""Runs on the ranks of strategies; they stay for all cells of one number of ranks.

A rank holds one plan (Trained): the model wrapped and checked against the unwrapped one; its traffic and memory.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfscribe.analytic import fsdp_traffic
from perfscribe.analytic.fsdp_plan import DDP, Plan
from perfscribe.analytic.workshop_shapes import BLOOM, SimpleGptShape
from perfscribe.base.cells import read
from perfscribe.distributed import fsdp
from perfscribe.distributed.collective_bytes import Collectives
from perfscribe.distributed.fsdp_training import (
    FsdpTraining,
    Gathered,
    bytes_on,
    held_bytes,
    local_gradients,
    release,
    tensors_of,
)
from perfscribe.distributed.process_group import together
from perfscribe.experiments.fsdp.strategies.measure import (
    ACCUMULATION,
    EACH,
    MICRO_BATCHES,
    WRAPPING,
    Steps,
    from_level,
    key_of,
    plan_of,
)
from perfscribe.instruments import precision
from perfscribe.instruments.correctness import require
from perfscribe.instruments.interleaving import as_one, time_interleaved
from perfscribe.instruments.memory import PeakMemory
from perfscribe.instruments.timing import STEP, time_host
from perfscribe.models import bloom, simple_gpt

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

# Ours, for machines without a GPU; BLOOM's code takes seconds to import.
SMALL = {"gpt-tiny": SimpleGptShape(vocab_size=512, hidden_size=64, num_layers=3, num_heads=2, ffn=128)}
MODEL_SEED = 0
# Relative difference of the first loss from the unwrapped model's.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 3e-2}
_STARTED: list[bool] = []


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Run one cell on this rank; see measure.combine for the result. Raises what Trained raises."""
    if rank.device.type == "cpu":  # small tensors need no more, and speed does not depend on the number of ranks
        torch.set_num_threads(1)
    fresh(rank.device)
    try:
        of_part = {WRAPPING: _interleaved, ACCUMULATION: _accumulated}
        of = read(arguments, Steps)
        return of_part.get(of.part, _alone)(of, arguments, rank)
    finally:
        fresh(rank.device)


def _alone(of: Steps, factors: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Check, inspect and time one plan, with nothing else on the device."""
    with closing(Trained(plan_of(factors), of, rank)) as trained:
        values = _looked_at(trained)
        fresh(rank.device)
        timing = time_host(
            trained.step,
            warmup=of.warmup_steps,
            timed=of.timed_steps,
            device=rank.device,
            prepare=partial(together, rank.device),
        )
        return {
            "timings": {"step_ms": vars(timing)},
            "values": values | {"last_loss": float(trained.step()), "loss_scale": trained.training.loss_scale},
            "applied": trained.applied,
            "layout": trained.layout,
        }


def _looked_at(trained: Trained, beside: Iterable[Trained] = ()) -> dict[str, Any]:
    traffic = trained.traffic()
    return {"first_loss": trained.first_loss} | traffic | trained.memory(beside)


def _interleaved(of: Steps, factors: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Inspect each variant of wrapping and prefetching, then time all of them interleaved."""
    with ExitStack() as stack:
        variants: dict[str, Trained] = {}
        for one in from_level(of.variants):
            trained = Trained(plan_of({**factors, **one}), of, rank)
            variants[key_of(one)] = stack.enter_context(closing(trained))
        return _time_all(of, variants, rank)


def _time_all(of: Steps, variants: Mapping[str, Trained], rank: Rank) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, trained in variants.items():
        found = _looked_at(trained, [other for other in variants.values() if other is not trained])
        found.pop("peak_reserved_bytes", None)  # of all variants together
        values |= {f"{name}_{key}": value for key, value in (found | trained.applied).items()}
    fresh(rank.device)
    timed = time_interleaved(
        {name: as_one(trained.step) for name, trained in variants.items()},
        turns=of.turns,
        warmup=of.warmup_steps,
        timed=of.timed_steps,
        device=rank.device,
        prepare=partial(together, rank.device),
    )
    return {
        "timings": {f"{name}_step_ms": vars(phases[STEP]) for name, phases in timed.items()},
        "values": values,
        "applied": {},
        "layout": next(iter(variants.values())).layout,
    }


def _accumulated(of: Steps, factors: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Return the gradient norm of two micro-batches, exchanged with each or with the last, and one process's norm."""
    ids = random_ids(of.model, MICRO_BATCHES, of.seq_len, rank)
    model = build(of.model, rank.device)
    loss_of(model, ids).backward()  # type: ignore[no-untyped-call]
    squares = torch.zeros((), dtype=torch.float64, device=rank.device)
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        squares += (parameter.grad / rank.place.world_size).double().square().sum()
    expected = float(squares.sqrt())
    model.zero_grad(set_to_none=True)
    wrapped = fsdp.wrap(model, plan_of(factors), rank.device)
    training = FsdpTraining(wrapped, loss_of, everywhere=of.exchange == EACH)
    training.passes(ids.chunk(MICRO_BATCHES))
    parts = [part.double().square().sum().to(rank.device) for part in local_gradients(training.optimizer)]
    total = torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64, device=rank.device)
    dist.all_reduce(total)
    values = {"gradient_norm": float(total.sqrt()), "expected_norm": expected}
    discard(training, rank.device)
    return {"timings": {}, "values": values, "applied": {}, "layout": None}


# --- the model ---


def build(name: str, device: torch.device) -> nn.Module:
    """Return the fp32 model without dropout, with the same random weights on all ranks."""
    if name not in SMALL:
        model: nn.Module = bloom.build(name, None, MODEL_SEED, str(device))
        return model
    return without_dropout(simple_gpt.build(SMALL[name], MODEL_SEED, str(device)))


def without_dropout(model: nn.Module) -> nn.Module:
    """Return the model with every dropout at 0."""
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    return model


def loss_of(module: nn.Module, ids: Tensor) -> Tensor:
    """Return the model's loss of predicting each next token of ids (B, S), a scalar in fp32."""
    loss: Tensor = module(input_ids=ids, labels=ids)["loss"]
    return loss


def layout(model: nn.Module) -> dict[str, Any]:
    """Return first dimension and elements of each parameter outside the blocks and of one block; number of blocks.

    Raises ValueError if the blocks differ.
    """
    blocks = fsdp.blocks_of(model)
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    shapes = [[[p.shape[0], p.numel()] for p in block.parameters()] for block in blocks]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("the blocks of the model differ")
    outside = [[p.shape[0], p.numel()] for p in model.parameters() if id(p) not in inside]
    return {"outside": outside, "block": shapes[0], "blocks": len(blocks)}


# --- one plan ---


def fresh(device: torch.device) -> None:
    """Free what an earlier plan may have left: modules and their hooks reference each other."""
    gc.collect()
    if not _STARTED:  # exclude libraries, which collecting and counting memory on a CPU would traverse each time
        gc.freeze()
        _STARTED.append(True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # blocks used by other streams are free only afterwards
        torch.cuda.empty_cache()


def discard(training: FsdpTraining, device: torch.device, more: Iterable[Tensor] = ()) -> None:
    """Free what a training holds on its device, and more; it must not be used afterwards.

    Explicit, because DDP's reducer and a single rank's FSDP1 flat parameters outlive the last Python reference.
    """
    release(device, [*tensors_of(training), *more])
    for name in ("reducer", "logger"):  # of DDP, with its hooks on the parameters
        vars(training.module).pop(name, None)
    training.optimizer.state.clear()


class Trained:
    """A plan's training on this rank, after its first steps. ids: (batch, seq_len), this rank's.

    Raises WrongResult if the first loss differs from the unwrapped model's, ValueError if the wrapped model is not
    the one requested.
    """

    def __init__(self, plan: Plan, of: Steps, rank: Rank) -> None:
        self.device = rank.device
        precision.set_matmul_precision("fp32")
        model = build(of.model, self.device)
        self.ids = random_ids(of.model, of.batch, of.seq_len, rank)
        self.layout = layout(model)
        with torch.no_grad(), precision.autocast(self.device.type, plan.dtype):
            expected = float(loss_of(model, self.ids))
        wrapped = fsdp.wrap(model, plan, self.device)
        del model
        self.applied = asdict(fsdp.check(wrapped, rank.place.world_size, self.layout["blocks"]))
        self.training = FsdpTraining(wrapped, loss_of)
        self.first_loss = float(self.training.step([self.ids]))
        error = {"the first loss": abs(self.first_loss / expected - 1)}
        require(error, TOLERANCE[plan.dtype], "the model's before it was wrapped")
        self._buckets = self._second_step()

    def _second_step(self) -> list[Tensor]:
        """Run the step in which DDP orders its buckets; return its gradients, views that locate the buckets."""
        self.training.passes([self.ids])
        parameters = self.training.module.parameters() if self.training.wrapped.plan.api == DDP else ()
        buckets = [parameter.grad.detach() for parameter in parameters if parameter.grad is not None]
        self.training.update()
        self.training.zero_grad()
        return buckets

    def close(self) -> None:
        """Free the device's memory; nothing else may be called afterwards."""
        discard(self.training, self.device, self._buckets)
        self._buckets.clear()

    def at_rest_bytes(self) -> int:
        """Return the bytes that this plan holds on its device between steps."""
        return bytes_on(self.device, [*tensors_of(self.training), *self._buckets])

    def step(self) -> Tensor:
        """Run forward, backward and update; return the loss."""
        return self.training.step([self.ids])

    def traffic(self) -> dict[str, Any]:
        """Return the bytes that a step sends, by the collectives it calls, and the bytes gathered within it."""
        gathered = Gathered(self.training.module)
        hook = fsdp.blocks_of(self.training.module)[-1].register_forward_pre_hook(gathered.note)
        within: list[int] = []  # at the end of forward, because backward may recompute blocks
        with Collectives() as seen:
            self.training.passes([self.ids], lambda: within.extend((gathered.now_bytes(), gathered.most_bytes)))
            self.training.update()
        hook.remove()
        self.training.zero_grad()
        return {
            "sent_bytes": fsdp_traffic.sent_bytes(seen.calls),
            **{f"sent_{name}_bytes": size for name, size in fsdp_traffic.by_operation(seen.calls).items()},
            "collectives": len(seen.calls),
            "gathered_between_bytes": within[0],
            "gathered_most_bytes": within[1],
        }

    def memory(self, beside: Iterable[Trained] = ()) -> dict[str, Any]:
        """Return state between backward and update, and the peaks of a whole step without other plans' memory.

        beside: other plans on this device, at rest. others_bytes (GPU): bytes that belong neither to this plan nor to
        these; if large, they are leftovers that may be freed within the step and make the peak too low.
        """
        _without_scratch(self.device)
        own, known = self.at_rest_bytes(), sum(one.at_rest_bytes() for one in beside)
        with PeakMemory(self.device) as memory:
            self.training.passes([self.ids])
            held = held_bytes(self.training.optimizer)
            self.training.update()
            self.training.zero_grad()
        first = fsdp.local(next(iter(self.training.optimizer.param_groups[0]["params"])))
        found: dict[str, Any] = {f"{kind.replace(' ', '_')}_bytes": size for kind, size in held.items()}
        found |= {"state_bytes": sum(held.values()), "state_device": first.device.type}
        found["peak_allocated_bytes"] = own + memory.peak_allocated_bytes - memory.allocated_before_bytes
        if memory.peak_reserved_bytes is not None:  # the allocator's counters, which include everything on the device
            found["peak_reserved_bytes"] = memory.peak_reserved_bytes
            found["others_bytes"] = memory.allocated_before_bytes - own - known
        return found


def _without_scratch(device: torch.device) -> None:
    """Free what no plan holds; cuBLAS allocates its workspaces again, so that every plan's peak includes them."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()
    fresh(device)


def random_ids(model: str, batch: int, seq_len: int, rank: Rank) -> Tensor:
    """Return token ids (batch, seq_len) of this rank, the same for all plans."""
    generator = torch.Generator().manual_seed(rank.place.rank + 1)
    shape = SMALL.get(model) or BLOOM[model]
    return torch.randint(shape.vocab_size, (batch, seq_len), generator=generator).to(rank.device)
