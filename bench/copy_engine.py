"""Tries DDP's all-reduce with fewer multiprocessors: NCCL with fewer CTAs, and copies by the GPUs' copy engines.

bench/copy_engine.py [--size xl] [--turns 6]

Needs two GPUs. A bucket of gradients is averaged by exchange of halves, local addition and gather; the exchange and the
gather are copies from the other GPU's memory, or all-to-all and all-gather of an NCCL group whose CTA policy is zero.
Each variant's forward and backward passes alternate with the same without communication, in turns with the other
variants; times are the longer of both ranks. Gradients are checked against those of one all-reduce for each.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from tabulate import tabulate
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfscribe.analytic.shapes import SIZES  # noqa: E402
from perfscribe.distributed.ddp import BucketedDDP  # noqa: E402
from perfscribe.distributed.launch import launch  # noqa: E402
from perfscribe.instruments.correctness import relative_error  # noqa: E402
from perfscribe.models.transformer import Model, next_token_loss  # noqa: E402

BATCH, LENGTH = 16, 128  # of a rank, as in ddp_bucketed_benchmarking
RANKS = 2
# Name of a variant: MB of a bucket, and options of NCCL's group or how copy engines are used.
NCCL: dict[str, tuple[float, dict[str, Any]]] = {
    "1000 MB": (1000, {}),
    "1000 MB, at most 8 CTAs": (1000, {"max_ctas": 8}),
    "1000 MB, at most 4 CTAs": (1000, {"max_ctas": 4}),
    "1000 MB, at most 2 CTAs": (1000, {"max_ctas": 2}),
    "100 MB, at most 4 CTAs": (100, {"max_ctas": 4}),
    "1000 MB, policy efficiency": (1000, {"cta_policy": 1}),
}
COPIES = {"100 MB, copies from peer": 100, "1000 MB, copies from peer": 1000}
ZERO = {"1000 MB": 1000, "100 MB, policy zero": 100, "1000 MB, policy zero": 1000}


class Work:
    """A bucket's averaging on another stream, as BucketedDDP waits for it."""

    def __init__(self, done: torch.cuda.Event) -> None:
        self._done = done

    def wait(self) -> None:
        """Let the current stream wait."""
        torch.cuda.current_stream().wait_event(self._done)


class Exchange:
    """Averages buckets between two ranks on a stream of its own. sizes: elements of each bucket, FP32."""

    def __init__(self, sizes: list[int], rank: int) -> None:
        self.rank, self.side = rank, torch.cuda.Stream(priority=-1)
        padded = [-(-size // 256) * 256 for size in sizes]
        self.halves = [size // RANKS for size in padded]
        self.allocate(padded)

    def allocate(self, sizes: list[int]) -> None:
        """Make self.mine, a buffer for each bucket."""
        raise NotImplementedError

    def average(self, bucket: int) -> None:
        """Average self.mine[bucket] over the ranks, on the current stream."""
        raise NotImplementedError

    def start(self, bucket: int, tensors: list[Tensor]) -> Work:
        """Average the bucket's gradients in place."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            parts = self.mine[bucket][: sum(t.numel() for t in tensors)].split([t.numel() for t in tensors])
            for part, tensor in zip(parts, tensors, strict=True):
                part.copy_(tensor.view(-1))
            self.average(bucket)
            for part, tensor in zip(parts, tensors, strict=True):
                tensor.view(-1).copy_(part)
            done = torch.cuda.Event()
            done.record()
        return Work(done)

    mine: list[Tensor]


class PeerCopies(Exchange):
    """Reads the other GPU's buffer by cudaMemcpyAsync, between barriers of torch's symmetric memory."""

    def allocate(self, sizes: list[int]) -> None:
        import torch.distributed._symmetric_memory as symmetric

        group = dist.group.WORLD.group_name
        self.mine = [symmetric.empty(size, device=torch.device("cuda", self.rank)) for size in sizes]
        self.handles = [symmetric.rendezvous(buffer, group) for buffer in self.mine]
        other = 1 - self.rank
        self.peers = [h.get_buffer(other, b.shape, b.dtype) for h, b in zip(self.handles, self.mine, strict=True)]
        self.received = torch.empty(max(self.halves), device=torch.device("cuda", self.rank))

    def average(self, bucket: int) -> None:
        half, barrier = self.halves[bucket], self.handles[bucket].barrier
        mine, peer = self.mine[bucket].view(RANKS, half), self.peers[bucket].view(RANKS, half)
        own, received = mine[self.rank], self.received[:half]
        barrier()
        received.copy_(peer[self.rank])
        torch.lerp(own, received, 0.5, out=own)
        barrier()
        mine[1 - self.rank].copy_(peer[1 - self.rank])
        barrier()


class ZeroCtas(Exchange):
    """NCCL's all-to-all and all-gather on buffers in symmetric windows, in a group whose CTA policy is zero."""

    def allocate(self, sizes: list[int]) -> None:
        import torch.distributed._symmetric_memory as symmetric

        device = torch.device("cuda", self.rank)
        self.group = nccl_group({"cta_policy": dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO})
        dist.all_reduce(torch.ones(1, device=device), group=self.group)
        if symmetric.get_backend(device) != "NCCL":
            symmetric.set_backend("NCCL")
        buffers = [symmetric.empty(size, device=device) for size in (*sizes, max(sizes), max(sizes) // RANKS)]
        for buffer in buffers:
            symmetric.rendezvous(buffer, self.group.group_name)
        *self.mine, self.received, self.shard = buffers

    def average(self, bucket: int) -> None:
        half, mine = self.halves[bucket], self.mine[bucket]
        received, shard = self.received[: RANKS * half], self.shard[:half]
        dist.all_to_all_single(received, mine, group=self.group)
        torch.lerp(received[:half], received[half:], 0.5, out=shard)
        dist.all_gather_into_tensor(mine, shard, group=self.group)


def nccl_group(config: dict[str, Any]) -> dist.ProcessGroup:
    """Return a new group of all ranks, with the fields of ncclConfig_t given."""
    options = dist.ProcessGroupNCCL.Options()
    for name, value in config.items():
        setattr(options.config, name, value)
    return dist.new_group(backend="nccl", pg_options=options)


class Exchanged(BucketedDDP):
    """Buckets averaged by an Exchange."""

    exchange: Exchange

    def _start(self, tensors: list[Tensor]) -> Any:
        return self.exchange.start(len(self._works), tensors) if self._enabled else None


Wrap = Callable[[nn.Module], BucketedDDP]


def with_group(bucket_mb: float, config: dict[str, Any]) -> Wrap:
    """Return a maker of BucketedDDP whose all-reduces run in a group of its own."""
    group = nccl_group(config) if config else dist.group.WORLD

    def wrap(module: nn.Module) -> BucketedDDP:
        wrapped = BucketedDDP(module, bucket_mb)
        wrapped.group = group
        return wrapped

    return wrap


def with_exchange(bucket_mb: float, kind: type[Exchange], model: nn.Module, rank: int) -> Wrap:
    """Return a maker of Exchanged, whose buffers are made once."""
    first = BucketedDDP(model, bucket_mb)
    exchange = kind([size // 4 for size in first.bucket_sizes_bytes], rank)
    first.release()

    def wrap(module: nn.Module) -> BucketedDDP:
        wrapped = Exchanged(module, bucket_mb)
        wrapped.exchange = exchange
        return wrapped

    return wrap


class Bench:
    """A model and a batch, around which the variants alternate."""

    def __init__(self, size: str, device: torch.device, rank: int) -> None:
        torch.manual_seed(0)
        self.model, self.device = Model(SIZES[size], LENGTH, device=device), device
        generator = torch.Generator().manual_seed(rank)
        ids = torch.randint(SIZES[size].vocab_size, (BATCH, LENGTH + 1), generator=generator).to(device)
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        self.backward(lambda *args: self.model(*args))
        self.expected = []
        for parameter in self.model.parameters():
            gradient = parameter.grad.clone()
            dist.all_reduce(gradient, dist.ReduceOp.AVG)
            self.expected.append(gradient)

    def backward(self, call: Callable[..., Tensor]) -> list[torch.cuda.Event]:
        """Run forward and backward; return events after each."""
        self.model.zero_grad(set_to_none=True)
        events = []
        loss = next_token_loss(call, self.inputs, self.targets)
        for part in (lambda: None, loss.backward):
            part()
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
        return events

    def step_ms(self, wrapped: BucketedDDP) -> tuple[float, float, float]:
        """Return ms of a step by the host's clock, of backward and of the rest after it by the device's."""
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        forward, backward = self.backward(wrapped)
        wrapped.finish_gradient_synchronization()
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3, forward.elapsed_time(backward), backward.elapsed_time(end)

    def take_turn(self, wrap: Wrap, samples: dict[str, list[float]], reverse: bool) -> None:
        """Warm up and check, then add ms with and without communication."""
        wrapped = wrap(self.model)
        self.step_ms(wrapped)
        pairs = zip(self.model.parameters(), self.expected, strict=True)
        samples["error"].append(max(relative_error(p.grad.double(), e.double()) for p, e in pairs))
        gc.collect()
        gc.disable()
        for mode in ("off", "on", "on", "off") if reverse else ("on", "off", "off", "on"):
            if mode == "off":
                with wrapped.communication_off():
                    times = self.step_ms(wrapped)
            else:
                times = self.step_ms(wrapped)
            for name, value in zip(("step", "backward", "tail"), times, strict=True):
                samples[f"{mode} {name}"].append(value)
        gc.enable()
        wrapped.release()

    def traced(self, wrap: Wrap) -> dict[str, float]:
        """Return ms of NCCL's kernels, copies and barriers in a step, by name."""
        wrapped = wrap(self.model)
        self.step_ms(wrapped)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.step_ms(wrapped)
        wrapped.release()
        found: dict[str, float] = defaultdict(float)
        for event in profile.events():
            if any(part in event.name.lower() for part in ("nccl", "memcpy", "barrier", "lerp")):
                found[event.name[:48]] += event.device_time / 1e3
        return dict(found)


def on_rank(arguments: dict[str, Any], rank: Any) -> dict[str, Any]:
    """Measure the variants named; returns samples, or the error, by variant."""
    bench, found = Bench(arguments["size"], rank.device, rank.place.rank), dict[str, Any]()
    wraps: dict[str, Wrap] = {}
    for name, wrap in makers(arguments["kind"], bench.model, rank.place.rank):
        try:
            wraps[name] = wrap()
            bench.take_turn(wraps[name], defaultdict(list), False)
            found[name] = {"samples": defaultdict(list), "seen": bench.traced(wraps[name])}
        except Exception:  # a transport that this machine lacks: the others are measured
            wraps.pop(name, None)
            found[name] = {"error": traceback.format_exc()[-600:]}
    for turn in range(arguments["turns"]):
        for name, wrap in wraps.items() if turn % 2 == 0 else reversed(wraps.items()):
            bench.take_turn(wrap, found[name]["samples"], turn % 2 == 1)
    return found


def makers(kind: str, model: nn.Module, rank: int) -> Iterator[tuple[str, Callable[[], Wrap]]]:
    """Return the kind's variants: name, and what makes its wrapper's maker."""
    if kind == "zero":
        yield "1000 MB", lambda: with_group(1000, {})
        for name, size in list(ZERO.items())[1:]:
            yield name, lambda size=size: with_exchange(size, ZeroCtas, model, rank)
        return
    for name, (size, config) in NCCL.items():
        yield name, lambda size=size, config=config: with_group(size, config)
    for name, size in COPIES.items():
        yield name, lambda size=size: with_exchange(size, PeerCopies, model, rank)


def main() -> int:
    """Print a table for each kind of variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="xl")
    parser.add_argument("--turns", type=int, default=6)
    args = parser.parse_args()
    for kind in ("copies", "zero"):
        arguments = {"size": args.size, "turns": args.turns, "kind": kind}
        ranks = launch("copy_engine:on_rank", arguments, world_size=RANKS, backend="nccl", timeout_s=140)
        rows = []
        for name in ranks[0]:
            if any("error" in rank[name] for rank in ranks):
                print(name, *(rank[name].get("error") for rank in ranks), sep="\n")
                continue
            both = [rank[name]["samples"] for rank in ranks]
            longest = {key: [max(pair) for pair in zip(*(s[key] for s in both), strict=True)] for key in both[0]}
            on, off = longest["on step"], longest["off step"]
            costs = sorted(a - b for a, b in zip(on, off, strict=True))
            rows.append(
                {
                    "variant": name,
                    "step ms": median(on),
                    "without": median(off),
                    "cost": median(costs),
                    "cost, middle half": f"{costs[len(costs) // 4]:.2f} to {costs[-1 - len(costs) // 4]:.2f}",
                    "backward longer by": median(longest["on backward"]) - median(longest["off backward"]),
                    "after backward": median(longest["on tail"]),
                    "error": max(longest["error"]),
                }
            )
            print(name, {part: round(ms, 2) for part, ms in ranks[0][name]["seen"].items()})
        print(tabulate(rows, headers="keys", tablefmt="pipe", floatfmt=".4g"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
