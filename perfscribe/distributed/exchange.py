"""Buffers of one collective on one rank: the data sent and the result expected.

Values are integers that the dtype adds exactly, so that results are checked for equality.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfscribe.instruments import precision
from perfscribe.instruments.correctness import WrongResult

if TYPE_CHECKING:
    import torch

    from perfscribe.distributed.collectives import Message
    from perfscribe.distributed.rank import Rank

# Largest integer up to which each dtype is exact: 2^(bits of the mantissa + 1).
EXACT_UP_TO = {"fp32": 2**24, "bf16": 2**8, "fp16": 2**11}
LARGEST_VALUE = 16
BUSY_CYCLES = 1_000_000  # GPU clock cycles: 0.5 ms at 2 GHz; queuing a NCCL call takes the host up to 0.1 ms
# Random values repeat after this many elements, a prime, so that a misplaced chunk is detected.
PERIOD = 1_000_003
ROOT = 0


class Exchange:
    """Buffers of a collective: filled, exchanged, checked. ValueError below one element per rank."""

    def __init__(self, message: Message, rank: Rank) -> None:
        import torch

        dtype = precision.tensor_dtype(message.dtype)
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
        """Return rank `number`'s random int32 in ±limit, at most PERIOD; from the CPU, so all ranks agree."""
        import torch

        generator = torch.Generator().manual_seed(self.rank.seed * 1_000_003 + number)
        count = min(self.elements, PERIOD)
        return torch.randint(-limit, limit + 1, (count,), generator=generator, dtype=torch.int32)

    def _calls(self) -> dict[str, Callable[[], object]]:
        import torch.distributed as dist

        # Newer torch names them _single and warns about the older names.
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return {
            "all_reduce": lambda: dist.all_reduce(self.source),
            "broadcast": lambda: dist.broadcast(self.source, ROOT),
            "all_gather": lambda: gather(self.target, self.source),
            "reduce_scatter": lambda: scatter(self.target, self.source),
        }

    def fill(self) -> None:
        """Write this rank's input."""
        block = self._blocks[self.rank.place.rank]
        whole = self.source.numel() // block.numel() * block.numel()
        self.source[:whole].view(-1, block.numel()).copy_(block)
        self.source[whole:].copy_(block[: self.source.numel() - whole])

    def clear(self) -> None:
        """Set the result, unless it is the input, to NaN: it may hold that of an earlier exchange."""
        if self.target is not self.source:
            self.target.fill_(math.nan)

    def prepare_on_host(self) -> None:
        """Fill the input, and wait until all ranks have done so."""
        import torch.distributed as dist

        from perfscribe.instruments.timing import synchronise

        self.fill()
        synchronise(self.rank.device)
        dist.barrier()

    def prepare_on_device(self) -> None:
        """On CUDA, queue the fill, a busy wait and a small all-reduce, so that the next call starts on all at once.

        The wait is longer than the host takes to queue the rest and the call: otherwise the device would wait for the
        host between the events, and the time of a small message would be launch time.
        """
        import torch
        import torch.distributed as dist

        self.fill()
        torch.cuda._sleep(BUSY_CYCLES)
        dist.all_reduce(self._signal, op=dist.ReduceOp.MAX)

    def check(self) -> int:
        """Exchange once and compare every element; returns how many. Raises WrongResult if one differs."""
        self.fill()
        self.clear()
        self.call()
        wrong = sum(_differing(part, block, offset) for part, block, offset in self._expected())
        if wrong:
            text = f"{self.operation}: {wrong} of {self.target.numel()} elements are wrong on rank"
            raise WrongResult(f"{text} {self.rank.place.rank}")
        return self.target.numel()

    def _expected(self) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Return parts of the result, the block that each repeats, and the block's element at which the part begins."""
        total = sum(self._blocks[1:], start=self._blocks[0])
        if self.operation == "all_reduce":
            return [(self.target, total, 0)]
        if self.operation == "broadcast":
            return [(self.target, self._blocks[ROOT], 0)]
        if self.operation == "reduce_scatter":
            return [(self.target, total, self.rank.place.rank * self.share)]
        parts = self.target.split(self.share)
        return [(part, block, 0) for part, block in zip(parts, self._blocks, strict=True)]


def _sizes(operation: str, elements: int, share: int) -> tuple[int, int]:
    """Return the elements that a rank sends and receives; receives 0: in place."""
    if operation in ("all_reduce", "broadcast"):
        return elements, 0
    return (share, elements) if operation == "all_gather" else (elements, share)


def _differing(part: torch.Tensor, block: torch.Tensor, offset: int) -> int:
    """Return how many elements of part differ from block, repeated from its element `offset` on."""
    block = block.roll(-(offset % block.numel()))
    whole = part.numel() // block.numel() * block.numel()
    wrong = (part[:whole].view(-1, block.numel()) != block).sum() + (
        part[whole:] != block[: part.numel() - whole]
    ).sum()
    return int(wrong)
