"""Rates of collectives by the conventions of nccl-tests.

algbw = bytes / time. busbw = algbw x factor: the load of each link, independent of the number of ranks n, so that it
compares with a link's rated bandwidth. bytes count the whole array: the vector that is reduced or broadcast, the data
that all ranks together gather or scatter. 1 GB = 10^9 bytes.
Source: nccl-tests, doc/PERFORMANCE.md.
"""

from collections.abc import Callable

GB = 10**9
MB_MEANINGS = {"10^6": 10**6, "2^20": 2**20}

# By collective, for n ranks.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}


def size_bytes(size_mb: float, megabyte: str) -> int:
    """Return the bytes of a size in MB; megabyte: its definition, "10^6" or "2^20"."""
    return round(size_mb * MB_MEANINGS[megabyte])


def bus_factor(operation: str, world_size: int) -> float:
    """Return busbw / algbw of a collective among world_size ranks."""
    return BUS_FACTORS[operation](world_size)


def algbw_gb_per_s(message_bytes: int, time_ms: float) -> float:
    """Return bytes over time, in GB/s."""
    return message_bytes / (time_ms * 1e-3) / GB


def busbw_gb_per_s(operation: str, world_size: int, message_bytes: int, time_ms: float) -> float:
    """Return algbw times the factor, in GB/s; 0 for one rank, which sends nothing (but broadcast's factor is 1)."""
    return algbw_gb_per_s(message_bytes, time_ms) * bus_factor(operation, world_size)
