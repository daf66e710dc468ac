"""Functions that tests of FSDP run on ranks, with gloo here and with NCCL in tests/distributed_gpu.py."""

import copy
import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from perfscribe.analytic import fsdp_memory, fsdp_plan, fsdp_traffic
from perfscribe.analytic.fsdp_plan import Plan
from perfscribe.analytic.workshop_shapes import SimpleGptShape
from perfscribe.base.cells import read
from perfscribe.distributed import fsdp
from perfscribe.distributed.collective_bytes import Collectives
from perfscribe.distributed.fsdp import local, wrap
from perfscribe.distributed.fsdp_training import FsdpTraining, Gathered, held_bytes, local_gradients, tensors_of
from perfscribe.experiments.fsdp.strategies import program as strategies
from perfscribe.instruments.memory import allocated_bytes
from perfscribe.models.simple_gpt import SimpleGPTModel, build

# No dimension is a multiple of two or four ranks but the width, so that pieces differ and are padded.
SHAPE = SimpleGptShape(vocab_size=37, hidden_size=12, num_layers=3, num_heads=2, ffn=21)
ROWS, LENGTH, STEPS = 4, 6, 2


def make_model(device: torch.device | str = "cpu") -> SimpleGPTModel:
    """The small model without dropout, so that it computes the same in one process and in several."""
    return strategies.without_dropout(build(SHAPE, 3, str(device)))


def ids_of(step: int, device: torch.device) -> Tensor:
    """The whole batch of a step, (ROWS, LENGTH)."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(SHAPE.vocab_size, (ROWS, LENGTH), generator=generator).to(device)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer whose update is as large as the gradient is, so that a gradient off by a factor shows."""
    return torch.optim.SGD(parameters, lr=0.2)


def make_training(plan: Plan, device: torch.device, **options: Any) -> FsdpTraining:
    """The small model wrapped, with SGD."""
    training = FsdpTraining(wrap(make_model(device), plan, device), strategies.loss_of, **options)
    training.optimizer = sgd(training.module.parameters())
    return training


def own_rows(step: int, rank: Any, accumulation: int = 1) -> tuple[Tensor, ...]:
    """This rank's rows of a step's batch, in micro-batches."""
    return ids_of(step, rank.device).chunk(rank.place.world_size)[rank.place.rank].chunk(accumulation)


def whole_parameters(training: FsdpTraining) -> dict[str, Tensor]:
    """All parameters in full, on every rank; a collective."""
    module = training.module
    if isinstance(module, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(module, writeback=False):
            found = {_plain(name): value.detach().clone() for name, value in module.named_parameters()}
    else:
        device = training.wrapped.device
        found = {
            _plain(name): (value.to(device).full_tensor() if local(value) is not value else value).detach().clone()
            for name, value in module.named_parameters()
        }
    return {name: value.cpu() for name, value in found.items()}


def _plain(name: str) -> str:
    for added in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module."):
        name = name.replace(added, "")
    return name


def difference(arguments: Mapping[str, Any], rank: Any) -> float:
    """Largest difference of a parameter from a single process's on whole batches, over the largest change of any.

    arguments: plan; accumulation; everywhere.
    """
    training = make_training(Plan(**arguments["plan"]), rank.device, everywhere=arguments.get("everywhere", False))
    model = make_model(rank.device)
    start, optimizer = copy.deepcopy(model), sgd(model.parameters())
    for step in range(STEPS):
        training.step(own_rows(step, rank, arguments.get("accumulation", 1)))
        optimizer.zero_grad()
        strategies.loss_of(model, ids_of(step, rank.device)).backward()
        optimizer.step()
    found, before = whole_parameters(training), dict(start.named_parameters())
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys(), (sorted(found), sorted(expected))
    apart, change = (
        max(float((one[name].detach().cpu() - expected[name].detach().cpu()).abs().max()) for name in expected)
        for one in (found, before)
    )
    gc.collect()
    return apart / change


def load_of(model: nn.Module, plan: Plan, world_size: int) -> fsdp_memory.Load:
    """The model as the counters take it, read off before it is wrapped."""
    found = strategies.layout(model)
    outside, block = (tuple(map(tuple, found[part])) for part in ("outside", "block"))
    return fsdp_memory.Load(outside, block, found["blocks"], plan, world_size)


def counted(arguments: Mapping[str, Any], rank: Any) -> dict[str, Any]:
    """State, gathered bytes and traffic of a step, each predicted and found."""
    plan, world_size = Plan(**arguments["plan"]), rank.place.world_size
    model = make_model(rank.device)
    load = load_of(model, plan, world_size)
    wrapped = wrap(model, plan, rank.device)
    fsdp.check(wrapped, world_size, load.blocks)
    training = FsdpTraining(wrapped, strategies.loss_of)
    batch = own_rows(0, rank)
    for _ in range(2):  # DDP puts its buckets in order with the second
        training.step(batch)
    gathered = Gathered(wrapped.module)
    hook = fsdp.blocks_of(wrapped.module)[-1].register_forward_pre_hook(gathered.note)
    between: list[int] = []
    most: list[int] = []

    def after_forward() -> None:
        between.append(gathered.now_bytes())
        most.append(gathered.most_bytes)  # backward may compute blocks again

    with Collectives() as seen:
        training.passes(batch, after_forward)
        found = held_bytes(training.optimizer)
        training.update()
    hook.remove()
    training.zero_grad()
    result = {
        "state": found,
        "predicted_state": fsdp_memory.state_bytes(load),
        "sent": fsdp_traffic.by_operation(seen.calls),
        "predicted_sent": fsdp_traffic.by_operation(fsdp_traffic.messages(load)),
        "between": between[0],
        "predicted_between": gathered_between_bytes(load),
        "most": most[0],
        "predicted_most": gathered_in_forward_bytes(load),
        "at_rest": gathered.now_bytes(),
    }
    gc.collect()  # of the case before: modules and their hooks hold each other
    return result


def gathered_in_forward_bytes(load: fsdp_memory.Load) -> int:
    """Bytes gathered during the last block: the block and the parameters outside blocks, or everything so far."""
    if not load.is_gathered:
        return 0
    sizes = [fsdp_memory.whole_bytes(load, unit) for unit in load.units]
    return sum(sizes) if load.plan.strategy == fsdp_plan.SHARD_GRAD_OP else sizes[0] + sum(sizes[1:2])


def gathered_between_bytes(load: fsdp_memory.Load) -> int:
    """Bytes that stay gathered between forward and backward: FSDP1 keeps the root, with which backward begins."""
    if not load.is_gathered:
        return 0
    sizes = [fsdp_memory.whole_bytes(load, unit) for unit in load.units]
    if load.plan.strategy == fsdp_plan.SHARD_GRAD_OP:
        return sum(sizes)
    return sizes[0] if load.plan.api == fsdp_plan.FSDP1 else 0


def several(arguments: Mapping[str, Any], rank: Any) -> list[Any]:
    """Run several cases in one launch; run: name of a function of this module."""
    gc.collect()
    gc.freeze()  # libraries, which each collection would go through
    return [globals()[case["run"]](case, rank) for case in arguments["cases"]]


def exchanges(arguments: Mapping[str, Any], rank: Any) -> dict[str, int]:
    """Collectives of two micro-batches by kind, those that reduce under one name; arguments: plan, everywhere."""
    training = make_training(Plan(**arguments["plan"]), rank.device, everywhere=arguments["everywhere"])
    batches = own_rows(0, rank, 2)
    for _ in range(2):
        training.step(batches)
    with Collectives() as seen:
        training.step(batches)
    found = {"gather": 0, "reduce": 0}
    for call in seen.calls:
        found["gather" if call.operation == "all_gather" else "reduce"] += 1
    return found


def mismatched(arguments: Mapping[str, Any], rank: Any) -> list[str]:
    """Messages of check() for a model wrapped by one plan while another was requested, for each pair of plans."""
    said = []
    for done, asked in arguments["pairs"]:
        wrapped = wrap(make_model(rank.device), Plan(**done), rank.device)
        try:
            fsdp.check(replace(wrapped, plan=Plan(**asked)), rank.place.world_size, SHAPE.num_layers)
            said.append("nothing")
        except ValueError as error:
            said.append(str(error))
    return said


def overflowing(arguments: Mapping[str, Any], rank: Any) -> list[Any]:
    """Whether a step with an infinite gradient on the last rank alone is left out everywhere, and the next is not."""
    training = make_training(Plan(**arguments["plan"]), rank.device)
    batch = own_rows(0, rank)
    moved = []
    for step in range(2):
        before = whole_parameters(training)
        training.passes(batch)
        if step == 0 and rank.place.rank == rank.place.world_size - 1:
            local_gradients(training.optimizer)[0].view(-1)[0] = float("inf")
        training.update()
        training.zero_grad()
        after = whole_parameters(training)
        moved.append(any(not torch.equal(before[name], after[name]) for name in before))
    return [*moved, training.loss_scale]


def left_behind(arguments: Mapping[str, Any], rank: Any) -> list[dict[str, Any]]:
    """For each plan of strategies: bytes that it reports at rest, bytes that it added, and bytes left after it."""
    found = []
    for factors in arguments["plans"]:
        strategies.fresh(rank.device)
        before = allocated_bytes(rank.device)
        trained = strategies.Trained(strategies.plan_of(factors), read(factors, strategies.Steps), rank)
        known, added = trained.at_rest_bytes(), allocated_bytes(rank.device) - before
        state = sum(held_bytes(trained.training.optimizer).values())
        held = [local(one.detach()) for one in tensors_of(trained.training)]
        ids = trained.ids.untyped_storage().nbytes()
        trained.close()
        left = sum(one.untyped_storage().nbytes() for one in held if one.device.type == rank.device.type)
        found.append({"known": known, "added": added - ids, "state": state, "left": left})
        del trained, held
    return found
