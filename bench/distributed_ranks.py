"""What the ranks of bench/distributed.py run: the variants of a part in turns, round after round, in one launch.

A block is several steps in a row. It is timed in one or two ways: "running", behind one step that is not timed and
without a wait in between, as a training loop runs, so that the host is ahead of the device where it can be (CUDA events
on a GPU, else the host clock); and "waited", each step by the host clock, the device waited for before and after it.
"""

from __future__ import annotations

import gc
import inspect
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perfscribe.analytic.shapes import SIZES
from perfscribe.distributed.collectives import Message
from perfscribe.distributed.ddp import BucketedDDP, DataParallel, NaiveDDP, OverlappedDDP
from perfscribe.distributed.exchange import Exchange
from perfscribe.distributed.rank import Rank
from perfscribe.distributed.sharded_optimizer import ShardedOptimizer
from perfscribe.instruments.precision import set_matmul_precision
from perfscribe.instruments.timing import synchronise, time_device, time_host
from perfscribe.models.transformer import Model, next_token_loss

RUNNING, WAITED = "running", "waited"
PLAIN, SHARDED = "plain", "sharded"
NAIVE, OVERLAPPED, BUCKETED, TORCH = "naive", "overlapped", "bucketed", "torch DDP"
BUCKETED_SHARDED = "bucketed, sharded optimizer"
VARIANTS = (NAIVE, OVERLAPPED, BUCKETED, TORCH, BUCKETED_SHARDED)
WITHOUT_OFF = (TORCH, BUCKETED_SHARDED)  # timed with communication alone
OFF = ", communication off"
WARMUP_STEPS = 1  # after a wrapper is made
TORCH_WARMUP_STEPS = 2  # torch's arranges its buckets anew in its second step
LEARNING_RATE = 1e-6  # so that replicas that drift apart with the communication off stay finite

Maker = Callable[[nn.Module], nn.Module]
Blocks = dict[str, dict[str, list[float]]]  # ms by way of timing and variant, one a round


class Rounds:
    """Rounds within a budget: all ranks go on or stop together."""

    def __init__(self, rank: Rank, rounds: int, budget_s: float) -> None:
        self._rank, self._rounds, self._budget_s = rank, rounds, budget_s

    def __iter__(self) -> Any:
        began = time.monotonic()
        for number in range(self._rounds):
            started = time.monotonic()
            yield number
            now = time.monotonic()
            late = torch.tensor([now - began + (now - started) > self._budget_s], dtype=torch.uint8)
            late = late.to(self._rank.device)
            dist.all_reduce(late, dist.ReduceOp.MAX)
            if late.item():
                return


def running_ms(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Milliseconds a step, of steps that are not waited for."""
    synchronise(device)
    dist.barrier()
    step()
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - start) * 1e3 / steps
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(steps):
        step()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / steps


def waited_ms(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Milliseconds a step, median of steps that are each waited for."""
    return median(time_host(step, warmup=0, timed=steps, device=device).samples_ms)


TIMERS = {RUNNING: running_ms, WAITED: waited_ms}


def note(
    blocks: Blocks, name: str, step: Callable[[], object], arguments: Mapping[str, Any], device: torch.device
) -> None:
    """Time a block in each way that is asked for and keep it."""
    for way in arguments["ways"]:
        blocks.setdefault(way, {}).setdefault(name, []).append(TIMERS[way](step, arguments["steps"], device))


def settle(arguments: Mapping[str, Any], rank: Rank) -> None:
    """Before anything is timed: libraries out of the garbage collector's sight, and with pin a rank's own processors.

    Threads that exist already stay where they are; autograd's and ours are made later.
    """
    gc.collect()
    gc.freeze()
    if arguments["pin"]:
        usable, ranks = sorted(os.sched_getaffinity(0)), rank.place.world_size
        share = len(usable) // ranks
        if share:
            os.sched_setaffinity(0, usable[rank.place.rank * share :][:share])


# --- all-reduce -------------------------------------------------------------------------------------------------


def all_reduce(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """One all-reduce, timed call by call as the collectives module does, and as a bare loop of torch's own."""
    exchange = Exchange(Message("all_reduce", arguments["size_bytes"]), rank)
    checked = exchange.check()
    calls = arguments["calls"]

    def ours() -> list[float]:
        if rank.backend == "nccl":
            prepare = exchange.prepare_on_device
            return time_device(exchange.call, warmup=1, timed=calls, flush_l2=False, prepare=prepare).samples_ms
        prepare = exchange.prepare_on_host
        return time_host(exchange.call, warmup=1, timed=calls, device=rank.device, prepare=prepare).samples_ms

    def bare() -> list[float]:
        exchange.fill()
        return [running_ms(lambda: dist.all_reduce(exchange.source), calls, rank.device)]

    samples: dict[str, list[list[float]]] = {"ours": [], "bare": []}
    for number in Rounds(rank, arguments["rounds"], arguments["budget_s"]):
        for name, measure in in_turn({"ours": ours, "bare": bare}, number):
            samples[name].append(measure())
    return {"samples": samples, "message_bytes": exchange.message_bytes, "elements_checked": checked}


def in_turn(variants: Mapping[str, Any], number: int) -> list[tuple[str, Any]]:
    """The variants in their order in even rounds and the other way round in odd ones."""
    return list(variants.items())[:: -1 if number % 2 else 1]


# --- data parallelism -------------------------------------------------------------------------------------------


class Training:
    """A model, a batch and two optimizers, which all variants share one after the other, so that all fit."""

    def __init__(self, arguments: Mapping[str, Any], rank: Rank) -> None:
        set_matmul_precision(arguments["dtype"])
        shape, context = SIZES[arguments["size"]], arguments["context"]
        rows = arguments["global_batch"] // rank.place.world_size
        self.device = rank.device
        self.model = Model(shape, context, device=rank.device)
        ids = torch.randint(shape.vocab_size, (rows, context + 1), device=rank.device)
        self.tokens, self.targets = ids[:, :-1], ids[:, 1:]
        if arguments["compile_blocks"]:
            compile_blocks(self.model)
            next_token_loss(self.model, self.tokens, self.targets).backward()  # compiles, before the budget begins
            self.model.zero_grad()
        self.plain = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.sharded = ShardedOptimizer(self.model.parameters(), torch.optim.AdamW, lr=LEARNING_RATE)

    def step(self, wrapped: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """One training step."""
        self.model.zero_grad()
        next_token_loss(wrapped, self.tokens, self.targets).backward()
        if isinstance(wrapped, DataParallel):
            wrapped.finish_gradient_synchronization()
        optimizer.step()


def compile_blocks(model: Model, backend: str = "inductor") -> None:
    """Let each block be compiled: one compilation serves all, and gradients still come block by block.

    The host then has little to do for a step, so that the device sets the pace. torch's own wrapper would cut what is
    compiled at its buckets' borders: the same graphs for all variants here.
    """
    torch._dynamo.config.optimize_ddp = False
    for block in model.blocks:
        block.compile(backend=backend, dynamic=False)


def makers(bucket_mb: float) -> dict[str, Maker]:
    """What wraps the model, by variant."""

    def bucketed(module: nn.Module) -> nn.Module:
        return BucketedDDP(module, bucket_mb)

    return {
        NAIVE: NaiveDDP,
        OVERLAPPED: OverlappedDDP,
        BUCKETED: bucketed,
        TORCH: torch_ddp,
        BUCKETED_SHARDED: bucketed,
    }


def torch_ddp(module: nn.Module) -> nn.Module:
    """With its own defaults, but for buffers: they are constants here, and ours do not send them either."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before torch 2.13
    return DistributedDataParallel(module, **{name: False})


def data_parallel(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Training steps of each variant; of ours also with the communication off."""
    settle(arguments, rank)
    training = Training(arguments, rank)
    made = makers(arguments["bucket_mb"])
    chosen = {name: made[name] for name in arguments["variants"]}
    blocks: Blocks = {}
    for number in Rounds(rank, arguments["rounds"], arguments["budget_s"]):
        for name, make in in_turn(chosen, number):
            _blocks_of(name, make, training, arguments, number, blocks)
            training.model.zero_grad()
            gc.collect()  # torch's wrapper holds itself by its hooks, and its buckets are as large as the gradients
    return {"blocks": blocks} | memory_of(rank.device)


def _blocks_of(
    name: str, make: Maker, training: Training, arguments: Mapping[str, Any], number: int, blocks: Blocks
) -> None:
    wrapped = make(training.model)
    optimizer = training.sharded if name == BUCKETED_SHARDED else training.plain

    def step() -> None:
        training.step(wrapped, optimizer)

    for _ in range(TORCH_WARMUP_STEPS if name == TORCH else WARMUP_STEPS):
        step()
    switches: dict[str, AbstractContextManager[Any]] = {name: nullcontext()}
    if name not in WITHOUT_OFF and isinstance(wrapped, DataParallel):
        switches[name + OFF] = wrapped.communication_off()
    for label, switched in in_turn(switches, number):
        with switched:
            note(blocks, label, step, arguments, training.device)
    if isinstance(wrapped, DataParallel):
        wrapped.release()


def memory_of(device: torch.device) -> dict[str, int]:
    """The most memory that the device has held at once; nothing for a CPU."""
    return {"peak_bytes": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}


# --- optimizer --------------------------------------------------------------------------------------------------


def optimizers(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Steps of the plain and the sharded optimizer on given gradients, and what each holds after its first."""
    settle(arguments, rank)
    model = Model(SIZES[arguments["size"]], arguments["context"], device=rank.device)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    make: dict[str, Callable[[], torch.optim.Optimizer]] = {
        PLAIN: lambda: torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE),
        SHARDED: lambda: ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=LEARNING_RATE),
    }
    made: dict[str, torch.optim.Optimizer] = {}
    held_bytes: dict[str, int] = {}
    for name in make:
        before = held(rank.device, made.values())
        made[name] = make[name]()
        made[name].step()
        held_bytes[name] = held(rank.device, made.values()) - before
    blocks: Blocks = {}
    for number in Rounds(rank, arguments["rounds"], arguments["budget_s"]):
        for name, optimizer in in_turn(made, number):
            note(blocks, name, optimizer.step, arguments, rank.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"blocks": blocks, "held_bytes": held_bytes, "parameters": parameters} | memory_of(rank.device)


def held(device: torch.device, made: Any) -> int:
    """Bytes allocated on the device; on a CPU, whose allocator does not tell, those of the optimizers' states."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    states = (state for optimizer in made for state in optimizer.state.values())
    return sum(value.nbytes for state in states for value in state.values() if isinstance(value, torch.Tensor))
