"""One measurement of what the ranks say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscribe.base.cells import Measurement
from perfscribe.experiments.optimizer_state_sharding.names import IMPLEMENTATIONS, MOMENTS
from perfscribe.instruments.memory import CPU_COUNTER, CUDA_COUNTER


def combine(ranks: Sequence[Mapping[str, Any]]) -> Measurement:
    """A Measurement from the results of program.on_rank, in the order of ranks.

    samples: <implementation>_step_ms, <implementation>_optimizer_ms and sharded_<part>_ms; of each call the longest
    time of any rank. series: <implementation>_<moment>_bytes, bytes by kind (names.KINDS) on the rank that holds most
    at that moment, and <implementation>_<moment>_rank_bytes, the total of each rank.
    values: difference, <implementation>_outside_bytes where there is a GPU, gradient_calls and gradient_bytes of a
    rank's averages in a step.
    """
    first = ranks[0]
    measurement = Measurement(values=dict(first["traffic"]))
    measurement.values["difference"] = max(rank["difference"] for rank in ranks)
    for name in IMPLEMENTATIONS:
        for moment in MOMENTS:
            held = [rank["memory"][name][moment] for rank in ranks]
            measurement.series[f"{name}_{moment}_bytes"] = max(held, key=sum)
            measurement.series[f"{name}_{moment}_rank_bytes"] = [sum(kinds) for kinds in held]
        outside = [rank["outside"][name] for rank in ranks]
        if None not in outside:
            measurement.values[f"{name}_outside_bytes"] = max(outside)
    on_gpu = first["outside"][IMPLEMENTATIONS[0]] is not None
    measurement.values["memory_counter"] = CUDA_COUNTER if on_gpu else CPU_COUNTER
    for name, timing in first["timings"].items():
        _add_times(measurement, name, timing["timer"], [rank["timings"][name] for rank in ranks])
    return measurement


def _add_times(measurement: Measurement, name: str, timer: str, ranks: Sequence[Mapping[str, Any]]) -> None:
    measurement.samples[name] = _longest([timing["samples_ms"] for timing in ranks])
    if ranks[0]["warmup_ms"]:
        measurement.warmup[name] = _longest([timing["warmup_ms"] for timing in ranks])
    measurement.timers[name] = timer
    measurement.warmup_s += max(timing["warmup_s"] for timing in ranks)
    measurement.timed_s += max(timing["timed_s"] for timing in ranks)


def _longest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    return [max(call) for call in zip(*by_rank, strict=True)]
