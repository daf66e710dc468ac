"""Timed collectives: each checked against the values that it must give, then timed on every rank.

Ranks start each call together: on the host clock after a barrier, by CUDA events after a small all-reduce on the same
stream, the call being queued while the device is still busy. The time of a call is the longest that any rank took.
Input is written again before each call, so that sums stay small; that is not in the time. Values are whole numbers
that the dtype adds exactly: a check is for equality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from perfscribe.cells import Measurement, Unsupported
from perfscribe.counters.traffic import BUS_FACTORS, algbw_gb_per_s, bus_factor, busbw_gb_per_s

if TYPE_CHECKING:
    import torch

    from perfscribe.parallel.rank import Rank
    from perfscribe.timing import Timing

HOST_CLOCK, CUDA_EVENTS = "host clock", "CUDA events"
OPERATIONS = tuple(BUS_FACTORS)
# Whole numbers up to which each dtype is exact: 2^(bits of the mantissa + 1).
EXACT_UP_TO = {"fp32": 2**24, "bf16": 2**8, "fp16": 2**11}
LARGEST_VALUE = 16
LEAST_CALLS = 5
BUSY_CYCLES = 1_000_000  # of the GPU's clock: 0.5 ms at 2 GHz; a call of NCCL takes the host up to 0.1 ms
# The random values repeat after this many elements, a prime, so that a chunk put in the wrong place shows.
PERIOD = 1_000_003
ROOT = 0


@dataclass(frozen=True)
class Message:
    """One collective to time. size_bytes: of the whole array (see counters.traffic). timer: "" for the usual one.

    The usual timer is CUDA events for NCCL, the host clock for gloo (which waits on the host).
    limit_s: timed calls that would last longer, by the warm-up, are fewer, but at least LEAST_CALLS.
    """

    operation: str
    size_bytes: int
    dtype: str = "fp32"
    warmup: int = 5
    timed: int = 20
    timer: str = ""
    limit_s: float | None = None

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(f"operation {self.operation!r}: expected one of {', '.join(OPERATIONS)}")
        if self.dtype not in EXACT_UP_TO:
            raise ValueError(f"dtype {self.dtype!r}: expected one of {', '.join(EXACT_UP_TO)}")
        if self.size_bytes < 1 or self.warmup < 0 or self.timed < 1:
            raise ValueError(f"{self}: expected size_bytes and timed from 1, warmup from 0")
        if self.timer not in ("", HOST_CLOCK, CUDA_EVENTS):
            raise ValueError(f"timer {self.timer!r}: expected {HOST_CLOCK} or {CUDA_EVENTS}")


def time_collectives(
    messages: Sequence[Message], *, world_size: int, timeout_s: float, **launch_options: Any
) -> list[Measurement]:
    """Time the messages one after another within one launch (see launch.launch for options); a Measurement each.

    samples: time_ms, for each call the longest time of any rank. series: rank_<r>_ms, the same calls on each rank.
    values: message_bytes (as sent: size_bytes cut to what divides evenly), algbw_gb_per_s and busbw_gb_per_s of the
    median, bus_factor, dtype, elements_checked, nccl_version with NCCL.
    RankError: a rank's result was wrong, or what launch() raises.
    """
    from perfscribe.parallel.launch import launch

    arguments = {"messages": [asdict(message) for message in messages]}
    launched = launch(run_on_rank, arguments, world_size=world_size, timeout_s=timeout_s, **launch_options)
    each = zip(*launched.results, strict=True)
    return [combine(message, list(said)) for message, said in zip(messages, each, strict=True)]


def combine(message: Message, ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """A Measurement from what each rank says of a message, in the order of ranks."""
    world_size, first = len(ranks), ranks[0]
    times_ms = _longest([rank["samples_ms"] for rank in ranks])
    middle_ms, sent = median(times_ms), first["message_bytes"]
    values = {
        "message_bytes": sent,
        "algbw_gb_per_s": algbw_gb_per_s(sent, middle_ms),
        "busbw_gb_per_s": busbw_gb_per_s(message.operation, world_size, sent, middle_ms),
        "bus_factor": bus_factor(message.operation, world_size),
        "elements_checked": sum(rank["elements_checked"] for rank in ranks),
    }
    if first["nccl_version"]:
        values["nccl_version"] = first["nccl_version"]
    return Measurement(
        samples={"time_ms": times_ms},
        warmup={"time_ms": _longest([rank["warmup_ms"] for rank in ranks])},
        values=values,
        series={f"rank_{number}_ms": rank["samples_ms"] for number, rank in enumerate(ranks)},
        timers={"time_ms": first["timer"]},
        warmup_s=max(rank["warmup_s"] for rank in ranks),
        timed_s=max(rank["timed_s"] for rank in ranks),
    )


def _longest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    return [max(call) for call in zip(*by_rank, strict=True)]


# --- on a rank --------------------------------------------------------------------------------------------------


def run_on_rank(arguments: Mapping[str, Any], rank: Rank) -> list[dict[str, Any]]:
    """The program of a rank: what it has to say of each message."""
    said = [_time(Message(**fields), rank) for fields in arguments["messages"]]
    _free(rank)
    return said


def run_once(arguments: Mapping[str, Any], rank: Rank) -> int:
    """Exchange a message once, for what the backend says of it; returns how many elements were checked."""
    checked = Exchange(Message(**arguments["message"]), rank).check()
    _free(rank)
    return checked


def _free(rank: Rank) -> None:
    """Give memory back, for other ranks on the same device: torch keeps what it has freed."""
    import torch

    if rank.device.type == "cuda":
        torch.cuda.empty_cache()


def _time(message: Message, rank: Rank) -> dict[str, Any]:
    from perfscribe.parallel.transport import nccl_version

    timer = message.timer or (CUDA_EVENTS if rank.backend == "nccl" else HOST_CLOCK)
    if timer == CUDA_EVENTS and rank.backend != "nccl":
        raise ValueError(f"timer {timer!r}: gloo waits on the host, time it by the host clock")
    exchange = Exchange(message, rank)
    try:
        checked = exchange.check()
    except RuntimeError as error:
        raise _as_unsupported(error, message, rank) from error
    warmup = _calls(exchange, timer, message.warmup) if message.warmup else None
    timing = _calls(exchange, timer, _affordable(message, warmup, rank))
    return {
        "samples_ms": timing.samples_ms,
        "warmup_ms": warmup.samples_ms if warmup else [],
        "timer": timing.timer,
        "warmup_s": warmup.timed_s if warmup else 0.0,
        "timed_s": timing.timed_s,
        "message_bytes": exchange.message_bytes,
        "elements_checked": checked,
        "nccl_version": nccl_version() if rank.backend == "nccl" else None,
    }


def _calls(exchange: Exchange, timer: str, count: int) -> Timing:
    from perfscribe.timing import time_device, time_host

    if timer == CUDA_EVENTS:
        return time_device(exchange.call, warmup=0, timed=count, flush_l2=False, prepare=exchange.prepare_on_device)
    device = exchange.rank.device
    return time_host(exchange.call, warmup=0, timed=count, device=device, prepare=exchange.prepare_on_host)


def _affordable(message: Message, warmup: Timing | None, rank: Rank) -> int:
    """How many calls to time: the same number on all ranks, by the slowest one's warm-up."""
    if message.limit_s is None or warmup is None:
        return message.timed
    import torch
    import torch.distributed as dist

    call_s = torch.tensor([median(warmup.samples_ms) * 1e-3], device=rank.device)
    dist.all_reduce(call_s, op=dist.ReduceOp.MAX)
    within = int(message.limit_s / max(call_s.item(), 1e-9))
    return min(message.timed, max(LEAST_CALLS, within))


def _as_unsupported(error: RuntimeError, message: Message, rank: Rank) -> Exception:
    """The error, as Unsupported where the backend says that it has no such collective or dtype."""
    text = str(error).lower()
    if any(words in text for words in ("does not support", "not supported", "invalid scalar type", "unsupported")):
        return Unsupported(f"{rank.backend} has no {message.operation} of {message.dtype} on {rank.device.type}")
    return error


class Exchange:
    """The buffers of one collective on one rank: filled, exchanged, checked. ValueError: too small to be divided."""

    def __init__(self, message: Message, rank: Rank) -> None:
        import torch

        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[message.dtype]
        self.operation, self.rank, self.world_size = message.operation, rank, rank.place.world_size
        self.share = message.size_bytes // dtype.itemsize // self.world_size
        if self.share < 1:
            least = dtype.itemsize * self.world_size
            raise ValueError(f"size_bytes {message.size_bytes}: expected at least {least}, an element a rank")
        self.elements = self.share * self.world_size
        self.message_bytes = self.elements * dtype.itemsize
        limit = max(1, min(LARGEST_VALUE, EXACT_UP_TO[message.dtype] // self.world_size))
        self._blocks = [self._block(number, limit).to(rank.device, dtype) for number in range(self.world_size)]
        sends, receives = _sizes(self.operation, self.elements, self.share)
        self.source = torch.empty(sends, dtype=dtype, device=rank.device)
        self.target = self.source if receives == 0 else torch.empty(receives, dtype=dtype, device=rank.device)
        self._signal = torch.ones(1, device=rank.device)
        self.call = self._calls()[self.operation]

    def _block(self, number: int, limit: int) -> torch.Tensor:
        """The random values of a rank, which every rank can make, on the CPU so that devices agree."""
        import torch

        generator = torch.Generator().manual_seed(self.rank.seed * 1_000_003 + number)
        count = min(self.elements, PERIOD)
        return torch.randint(-limit, limit + 1, (count,), generator=generator, dtype=torch.int32)

    def _calls(self) -> dict[str, Callable[[], object]]:
        import torch.distributed as dist

        # Newer torch calls them _single and warns of the older names.
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return {
            "all_reduce": lambda: dist.all_reduce(self.source),
            "broadcast": lambda: dist.broadcast(self.source, ROOT),
            "all_gather": lambda: gather(self.target, self.source),
            "reduce_scatter": lambda: scatter(self.target, self.source),
            "all_to_all": lambda: dist.all_to_all_single(self.target, self.source),
        }

    def fill(self) -> None:
        """Write this rank's input."""
        block = self._blocks[self.rank.place.rank]
        whole = self.source.numel() // block.numel() * block.numel()
        self.source[:whole].view(-1, block.numel()).copy_(block)
        self.source[whole:].copy_(block[: self.source.numel() - whole])

    def clear(self) -> None:
        """Overwrite what an earlier exchange may have left in the memory of the result."""
        if self.target is not self.source:
            self.target.fill_(math.nan)

    def prepare_on_host(self) -> None:
        """Fill, and wait until all ranks have."""
        import torch.distributed as dist

        from perfscribe.timing import synchronise

        self.fill()
        synchronise(self.rank.device)
        dist.barrier()

    def prepare_on_device(self) -> None:
        """Queue the fill and a small all-reduce behind it, which no rank's stream passes before all have come to it.

        The device is kept busy before that for longer than the host takes to queue these and the call: otherwise it
        would wait for the host between the events, and a small message's time would be that of starting it.
        """
        import torch
        import torch.distributed as dist

        self.fill()
        torch.cuda._sleep(BUSY_CYCLES)
        dist.all_reduce(self._signal, op=dist.ReduceOp.MAX)

    def check(self) -> int:
        """Exchange once and compare every element; how many. ArithmeticError: one differs."""
        self.fill()
        self.clear()
        self.call()
        wrong = sum(_differing(part, block, offset) for part, block, offset in self._expected())
        if wrong:
            text = f"{self.operation}: {wrong} of {self.target.numel()} elements are wrong on rank"
            raise ArithmeticError(f"{text} {self.rank.place.rank}")
        return self.target.numel()

    def _expected(self) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Parts of the result, the block that each repeats, and the element of the block that it begins with."""
        total = sum(self._blocks[1:], start=self._blocks[0])
        own = self.rank.place.rank * self.share
        parts = self.target.split(self.share)
        if self.operation == "all_reduce":
            return [(self.target, total, 0)]
        if self.operation == "broadcast":
            return [(self.target, self._blocks[ROOT], 0)]
        if self.operation == "reduce_scatter":
            return [(self.target, total, own)]
        begin = 0 if self.operation == "all_gather" else own
        return [(part, block, begin) for part, block in zip(parts, self._blocks, strict=True)]


def _sizes(operation: str, elements: int, share: int) -> tuple[int, int]:
    """Elements that a rank sends and receives; receives 0: in place."""
    if operation in ("all_reduce", "broadcast"):
        return elements, 0
    if operation == "all_gather":
        return share, elements
    return elements, share if operation == "reduce_scatter" else elements


def _differing(part: torch.Tensor, block: torch.Tensor, offset: int) -> int:
    """How many elements of part differ from block repeated, from its element `offset` on."""
    block = block.roll(-(offset % block.numel()))
    whole = part.numel() // block.numel() * block.numel()
    wrong = (part[:whole].view(-1, block.numel()) != block).sum() + (
        part[whole:] != block[: part.numel() - whole]
    ).sum()
    return int(wrong)
