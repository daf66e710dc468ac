"""Time of a collective over ranks and bytes: hops x latency of a hop + bytes of a rank / bandwidth.

hops: one message after the other that a collective among n ranks needs. ring: n - 1 for an all-gather or a
reduce-scatter; tree (recursive doubling and halving): ceil(log2 n). An all-reduce is one of each, twice as many. Both
send (n - 1)/n of the array's bytes from each rank, an all-reduce twice that. Latency of a hop and bandwidth are fitted
to all measured sizes and counts at once, so that residuals judge the algorithm. Sources: Hockney 1994 (latency and
bandwidth), Patarasuk and Yuan 2009 (ring), Thakur, Rabenseifner and Gropp 2005 (recursive halving and doubling).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfscribe.counters.traffic import GB, bus_factor
from perfscribe.statistics import fit_latency_bandwidth

RING, TREE = "ring", "tree"
ALGORITHMS = (RING, TREE)
PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
LEAST_POINTS = 3
JUDGED_FROM = 3  # different numbers of ranks


@dataclass(frozen=True)
class Call:
    """A measured collective. message_bytes: of the whole array. time_ms: median of the slowest rank's."""

    ranks: int
    message_bytes: float
    time_ms: float


def hops(operation: str, algorithm: str, ranks: int) -> int:
    """Messages one after the other; 0 for one rank. ValueError: no such algorithm, operation or number of ranks."""
    if operation not in PHASES or algorithm not in ALGORITHMS or ranks < 1:
        raise ValueError(f"{operation}, {algorithm}, {ranks} ranks: expected one of {', '.join(PHASES)} from 1 rank on")
    each = ranks - 1 if algorithm == RING else math.ceil(math.log2(ranks))
    return PHASES[operation] * each


@dataclass(frozen=True)
class CollectiveFit:
    """hop_ms: latency of a hop. ms_per_byte: of a byte that a rank sends. residuals: measured / fitted - 1, by call."""

    operation: str
    algorithm: str
    hop_ms: float
    ms_per_byte: float
    calls: tuple[Call, ...]
    residuals: tuple[float, ...]

    @property
    def rms(self) -> float:
        """Root mean square of the residuals."""
        return math.sqrt(sum(one * one for one in self.residuals) / len(self.residuals))

    @property
    def bus_gb_per_s(self) -> float | None:
        """Bandwidth as bus bandwidth; None where time does not grow with size."""
        return 1e3 / self.ms_per_byte / GB if self.ms_per_byte > 0 else None

    @property
    def counts(self) -> list[int]:
        """The numbers of ranks that were measured."""
        return sorted({call.ranks for call in self.calls})

    def latency_ms(self, ranks: int) -> float:
        """Of one call, whatever its size."""
        return self.hop_ms * hops(self.operation, self.algorithm, ranks)

    def ms_per_message_byte(self, ranks: int) -> float:
        """Time that a byte of the whole array adds."""
        return self.ms_per_byte * bus_factor(self.operation, ranks)

    def time_ms(self, ranks: int, message_bytes: float) -> float:
        """Of one call; 0 for one rank."""
        return self.latency_ms(ranks) + self.ms_per_message_byte(ranks) * message_bytes


def fit(operation: str, algorithm: str, calls: Sequence[Call]) -> CollectiveFit | None:
    """Least squares of relative errors; None below LEAST_POINTS different points among several ranks.

    Both sides over the hops, the model is a line in bytes of a rank and hop, with the same relative errors.
    """
    several = [call for call in calls if call.ranks > 1]
    steps = [hops(operation, algorithm, call.ranks) for call in several]
    sent = [bus_factor(operation, c.ranks) * c.message_bytes / n for c, n in zip(several, steps, strict=True)]
    if len({(call.ranks, call.message_bytes) for call in several}) < LEAST_POINTS:
        return None
    line = fit_latency_bandwidth(sent, [c.time_ms * 1e-3 / n for c, n in zip(several, steps, strict=True)])
    if line is None:
        return None
    hop_ms, ms_per_byte = 1e3 * line.alpha_s, 1e3 * line.beta_s_per_byte
    return CollectiveFit(operation, algorithm, hop_ms, ms_per_byte, tuple(several), line.residuals)


def fits(operation: str, calls: Sequence[Call], logged: str = "") -> list[CollectiveFit]:
    """By both algorithms, that with the smaller residuals first; from JUDGED_FROM numbers of ranks on.

    Fewer do not judge: among one both fit alike, and among two a ring whose latency has a part that does not grow (a
    launch) cannot be told from a tree. Then the algorithm that the backend logged comes first, where it is one of
    these, or else the ring, whose latency grows faster.
    """
    found = [one for algorithm in ALGORITHMS if (one := fit(operation, algorithm, calls)) is not None]
    if found and is_judged(found[0].counts):
        return sorted(found, key=lambda one: one.rms)
    return sorted(found, key=lambda one: one.algorithm != logged.lower())


def is_judged(counts: Sequence[int]) -> bool:
    """Whether so many numbers of ranks tell the algorithms apart."""
    return len(counts) >= JUDGED_FROM


def largest_left_out(operation: str, algorithm: str, calls: Sequence[Call]) -> float | None:
    """Root mean square of measured / predicted - 1 at the largest count, predicted from the others; None without."""
    most = max((call.ranks for call in calls), default=0)
    rest = fit(operation, algorithm, [call for call in calls if call.ranks < most])
    if rest is None:
        return None
    errors = [c.time_ms / rest.time_ms(c.ranks, c.message_bytes) - 1 for c in calls if c.ranks == most]
    return math.sqrt(sum(one * one for one in errors) / len(errors))
