"""All-reduce test before a training on several processes: judges its bandwidth, and finds the slow pair.

A launch that waits for a broken link looks like a slow training. So one large all-reduce is timed among all ranks
first and, if it is too slow, a smaller one between each pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.traffic import busbw_gb_per_s
from perfscribe.distributed import collectives

if TYPE_CHECKING:
    import torch

    from perfscribe.distributed.rank import Rank

OPERATION = "all_reduce"
PASSED, NO_FIGURE, TOO_SLOW = 0, 44, 46  # exit statuses of the workshop's job script
MIB = 2**20
BOOT = Path("/proc/sys/kernel/random/boot_id")
PAIR_BYTES = {"gloo": 8 * MIB, "nccl": 256 * MIB}
PAIR_WARMUP, PAIR_CALLS = 1, 3


@dataclass(frozen=True)
class Pair:
    """Two ranks and the bus bandwidth of an all-reduce between them."""

    first: int
    second: int
    busbw_gb_per_s: float


@dataclass(frozen=True)
class Trial:
    """Parameters of the test. threshold_gb_per_s: 0 accepts any bandwidth."""

    size_bytes: int
    warmup: int
    timed: int
    threshold_gb_per_s: float


@dataclass(frozen=True)
class Outcome:
    """Result of the test: times of each call (the longest of any rank), or none if another program timed them.

    hosts: of each rank. machines: number of distinct boot ids, as one machine may have several host names. pairs:
    empty unless the bandwidth is below the threshold and there are more than two ranks.
    """

    trial: Trial
    backend: str
    world_size: int
    hosts: tuple[str, ...]
    busbw_gb_per_s: float
    times_ms: tuple[float, ...] = ()
    warmup_ms: tuple[float, ...] = ()
    pairs: tuple[Pair, ...] = ()
    machines: int = 1

    @property
    def code(self) -> int:
        """PASSED or TOO_SLOW."""
        return TOO_SLOW if self.busbw_gb_per_s < self.trial.threshold_gb_per_s else PASSED

    @property
    def slowest(self) -> Pair | None:
        """The pair with the lowest bandwidth, None if passed; with two ranks, that pair."""
        if self.code == PASSED:
            return None
        if self.world_size == 2:
            return Pair(0, 1, self.busbw_gb_per_s)
        return min(self.pairs, key=lambda pair: pair.busbw_gb_per_s, default=None)

    def line(self) -> str:
        """Return one line with nodes and bandwidth, and the slow pair if it failed."""
        size = f"{self.trial.size_bytes / MIB:g} MiB"
        nodes = ", ".join(dict.fromkeys(self.hosts)) or "unnamed nodes"
        text = f"all-reduce of {size} among {self.world_size} ranks on {nodes} by {self.backend}: "
        text += f"busbw {self.busbw_gb_per_s:.3g} GB/s"
        if self.code == PASSED:
            return f"{prefix(PASSED)}{text}, threshold {self.trial.threshold_gb_per_s:g} GB/s"
        return f"{prefix(TOO_SLOW)}{text}, below {self.trial.threshold_gb_per_s:g} GB/s{self._slowest_text()}"

    def log(self) -> list[str]:
        """Return lines in the style of NVIDIA's all_reduce_perf."""
        ranks = [f"#  Rank {number:2} on {host}" for number, host in enumerate(self.hosts)]
        calls = f"# {self.backend}, {self.trial.warmup} calls to warm up, {len(self.times_ms)} timed: "
        times = f"median {median(self.times_ms):.4g} ms, {min(self.times_ms):.4g} to {max(self.times_ms):.4g} ms"
        bandwidth = f"# Avg bus bandwidth    : {self.busbw_gb_per_s:g}"
        size = f"# {self.trial.size_bytes} bytes, fp32, sum"
        return [*ranks, size, f"{calls}{times}", bandwidth, *self.log_of_pairs()]

    def log_of_pairs(self) -> list[str]:
        """Return a line for each pair tested."""
        return [f"#  Ranks {pair.first} and {pair.second}: {pair.busbw_gb_per_s:g} GB/s" for pair in self.pairs]

    def _slowest_text(self) -> str:
        slow = self.slowest
        if slow is None or self.world_size == 2:
            return ""
        others = [pair.busbw_gb_per_s for pair in self.pairs if pair is not slow]
        rest = f", the other pairs at {min(others):.3g} or more" if others else ""
        names = f"{self._rank_name(slow.first)} and {self._rank_name(slow.second)}"
        return f"; slowest pair: {names} at {slow.busbw_gb_per_s:.3g}{rest}"

    def _rank_name(self, rank: int) -> str:
        host = self.hosts[rank] if rank < len(self.hosts) else ""
        return f"rank {rank}" + (f" ({host})" if host else "")


def prefix(code: int) -> str:
    """Return how Outcome.line() and the reasons of cells that the test blocks begin."""
    return f"preflight {code}: "


@contextmanager
def algorithm(environment: MutableMapping[str, str], name: str | None) -> Iterator[None]:
    """Context that sets NCCL's algorithm only for the test, so that training chooses its own."""
    before = environment.get("NCCL_ALGO")
    if name:
        environment["NCCL_ALGO"] = name
    try:
        yield
    finally:
        if name:
            environment.pop("NCCL_ALGO", None)
            if before is not None:
                environment["NCCL_ALGO"] = before


# --- on a rank --------------------------------------------------------------------------------------------------


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Run the test; every rank must call it and gets the same Outcome, as a dict."""
    return asdict(try_out(Trial(**arguments["trial"]), rank))


def pairs_on_rank(arguments: Mapping[str, Any], rank: Rank) -> list[dict[str, Any]]:
    """Test the pairs; every rank must call it and gets the same list of Pair, as dicts."""
    return [asdict(pair) for pair in try_pairs(rank, Trial(**arguments["trial"]))]


def try_out(trial: Trial, rank: Rank) -> Outcome:
    """Time the all-reduce in an initialised process group; if it is too slow, also one for each pair."""
    message = collectives.Message(OPERATION, trial.size_bytes, warmup=trial.warmup, timed=trial.timed)
    (result,) = collectives.run_on_rank({"messages": [asdict(message)]}, rank)
    world_size = rank.place.world_size
    times_ms, warmup_ms = (_longest(result[name], rank) for name in ("samples_ms", "warmup_ms"))
    busbw = busbw_gb_per_s(OPERATION, world_size, result["message_bytes"], median(times_ms))
    hosts, machines = _hosts(rank)
    too_slow = busbw < trial.threshold_gb_per_s
    pairs = try_pairs(rank, trial) if too_slow and world_size > 2 else ()
    return Outcome(
        trial, rank.backend, world_size, hosts, busbw, tuple(times_ms), tuple(warmup_ms), tuple(pairs), machines
    )


def from_json(value: Mapping[str, Any]) -> Outcome:
    """Return an Outcome from asdict()'s result."""
    pairs = tuple(Pair(**pair) for pair in value["pairs"])
    parts = {name: tuple(value[name]) for name in ("hosts", "times_ms", "warmup_ms")}
    return Outcome(**{**value, **parts, "pairs": pairs, "trial": Trial(**value["trial"])})


def try_pairs(rank: Rank, trial: Trial) -> list[Pair]:
    """Return the bandwidth of each pair, tested in sequence while the others wait; the same on every rank."""
    import torch
    import torch.distributed as dist

    size_bytes = min(trial.size_bytes, PAIR_BYTES[rank.backend])
    buffer = torch.ones(max(1, size_bytes // 4), dtype=torch.float32, device=rank.device)
    pairs = []
    for first, second in combinations(range(rank.place.world_size), 2):
        group = dist.new_group([first, second])
        dist.barrier()
        own_ms = _time_pair(buffer, group, rank) if rank.place.rank in (first, second) else 0.0
        (pair_ms,) = _longest([own_ms], rank)
        pairs.append(Pair(first, second, busbw_gb_per_s(OPERATION, 2, buffer.nbytes, pair_ms)))
        if own_ms:
            dist.destroy_process_group(group)
    return pairs


def _time_pair(buffer: torch.Tensor, group: Any, rank: Rank) -> float:
    """Return the median time of a call in ms, by the host clock."""
    import torch.distributed as dist

    from perfscribe.instruments.timing import time_host

    def call() -> None:
        dist.all_reduce(buffer, group=group)

    def prepare() -> None:
        buffer.fill_(1.0)

    timing = time_host(call, warmup=PAIR_WARMUP, timed=PAIR_CALLS, device=rank.device, prepare=prepare)
    return median(timing.samples_ms)


def _longest(own_ms: Sequence[float], rank: Rank) -> list[float]:
    """Return, for each call, the longest time of any rank."""
    import torch
    import torch.distributed as dist

    if not own_ms:
        return []
    times = torch.tensor(list(own_ms), dtype=torch.float64, device=rank.device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [float(time) for time in times.tolist()]


def _hosts(rank: Rank) -> tuple[tuple[str, ...], int]:
    """Return every rank's host, in rank order, and the number of distinct kernels, by Linux's boot id."""
    import torch.distributed as dist

    kernel = BOOT.read_text() if BOOT.is_file() else rank.place.host
    names = [("", "")] * rank.place.world_size
    dist.all_gather_object(names, (rank.place.host, kernel))
    return tuple(host for host, _ in names), len({kernel for _, kernel in names})
