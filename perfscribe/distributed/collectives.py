"""Timed collectives: each is checked against the expected values, then timed on every rank.

Ranks start each call together: on the host clock after a barrier; with CUDA events after a small all-reduce on the same
stream, the call being queued while the device is still busy. A call's time is the longest of any rank. The input is
rewritten before each call, outside the timed span, so that sums stay small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.traffic import algbw_gb_per_s, bus_factor, busbw_gb_per_s
from perfscribe.base.cells import Measurement, Unsupported
from perfscribe.distributed.exchange import Exchange
from perfscribe.instruments import timing
from perfscribe.instruments.timing import Timing

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

HOST_CLOCK, CUDA_EVENTS = timing.HOST_CLOCK, timing.CUDA_EVENTS
LEAST_CALLS = 5


@dataclass(frozen=True)
class Message:
    """One collective to time. size_bytes: of the whole array (see analytic.traffic). timer: "" for the default.

    The default timer is CUDA events for NCCL, the host clock for gloo (which waits on the host).
    limit_s: reduces the timed calls to this total, estimated from the warm-up, but to no fewer than LEAST_CALLS.
    """

    operation: str
    size_bytes: int
    dtype: str = "fp32"
    warmup: int = 5
    timed: int = 20
    timer: str = ""
    limit_s: float | None = None


def combine(message: Message, ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """Combine the ranks' results for a message, in the order of ranks, into a Measurement.

    samples: time_ms, for each call the longest time of any rank. series: rank_<r>_ms, the same calls on each rank.
    values: message_bytes (as sent: size_bytes reduced to an evenly divisible size), algbw_gb_per_s and busbw_gb_per_s
    of the median, bus_factor, elements_checked, nccl_version with NCCL.
    """
    world_size, first = len(ranks), ranks[0]
    measurement = Measurement(series={f"rank_{number}_ms": rank["samples_ms"] for number, rank in enumerate(ranks)})
    timing.record_of_ranks(measurement, "time_ms", ranks)
    middle_ms, sent = median(measurement.samples["time_ms"]), first["message_bytes"]
    measurement.values = {
        "message_bytes": sent,
        "algbw_gb_per_s": algbw_gb_per_s(sent, middle_ms),
        "busbw_gb_per_s": busbw_gb_per_s(message.operation, world_size, sent, middle_ms),
        "bus_factor": bus_factor(message.operation, world_size),
        "elements_checked": sum(rank["elements_checked"] for rank in ranks),
    }
    if first["nccl_version"]:
        measurement.values["nccl_version"] = first["nccl_version"]
    return measurement


# --- on a rank --------------------------------------------------------------------------------------------------


def run_on_rank(arguments: Mapping[str, Any], rank: Rank) -> list[dict[str, Any]]:
    """Program of a rank: check and time each message; returns one result per message."""
    results = [_check_and_time(Message(**fields), rank) for fields in arguments["messages"]]
    _free_cache(rank)
    return results


def run_once(arguments: Mapping[str, Any], rank: Rank) -> int:
    """Exchange a message once, for the backend's log; returns how many elements were checked."""
    checked = Exchange(Message(**arguments["message"]), rank).check()
    _free_cache(rank)
    return checked


def _free_cache(rank: Rank) -> None:
    """Release cached memory for other ranks on the same device."""
    import torch

    if rank.device.type == "cuda":
        torch.cuda.empty_cache()


def _check_and_time(message: Message, rank: Rank) -> dict[str, Any]:
    from perfscribe.distributed.transport import nccl_version

    timer = message.timer or (CUDA_EVENTS if rank.backend == "nccl" else HOST_CLOCK)
    exchange = Exchange(message, rank)
    try:
        checked = exchange.check()
    except RuntimeError as error:
        raise _as_unsupported(error, message, rank) from error
    warmup = _time_calls(exchange, timer, message.warmup) if message.warmup else None
    timed = _time_calls(exchange, timer, _affordable_calls(message, warmup, rank))
    return {
        "samples_ms": timed.samples_ms,
        "warmup_ms": warmup.samples_ms if warmup else [],
        "timer": timed.timer,
        "warmup_s": warmup.timed_s if warmup else 0.0,
        "timed_s": timed.timed_s,
        "message_bytes": exchange.message_bytes,
        "elements_checked": checked,
        "nccl_version": nccl_version() if rank.backend == "nccl" else None,
    }


def _time_calls(exchange: Exchange, timer: str, count: int) -> Timing:
    if timer == CUDA_EVENTS:
        return timing.time_device(
            exchange.call, warmup=0, timed=count, flush_l2=False, prepare=exchange.prepare_on_device
        )
    device = exchange.rank.device
    return timing.time_host(exchange.call, warmup=0, timed=count, device=device, prepare=exchange.prepare_on_host)


def _affordable_calls(message: Message, warmup: Timing | None, rank: Rank) -> int:
    """Return how many calls to time: the same number on all ranks, by the slowest one's warm-up."""
    if message.limit_s is None or warmup is None:
        return message.timed
    import torch
    import torch.distributed as dist

    call_s = torch.tensor([median(warmup.samples_ms) * 1e-3], device=rank.device)
    dist.all_reduce(call_s, op=dist.ReduceOp.MAX)
    within = int(message.limit_s / max(call_s.item(), 1e-9))
    return min(message.timed, max(LEAST_CALLS, within))


def _as_unsupported(error: RuntimeError, message: Message, rank: Rank) -> Exception:
    """Return the error, or Unsupported if the backend does not have such a collective or dtype."""
    text = str(error).lower()
    if any(words in text for words in ("does not support", "not supported", "invalid scalar type", "unsupported")):
        return Unsupported(f"{rank.backend} has no {message.operation} of {message.dtype} on {rank.device.type}")
    return error
