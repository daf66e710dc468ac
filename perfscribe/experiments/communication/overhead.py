"""One rank, profiled against not: whole trainings, and single steps in each state of the profiler."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from perfscribe.experiments.communication.program import Training, profiler_of, training_of
from perfscribe.instruments.timing import synchronise

if TYPE_CHECKING:
    from perfscribe.distributed.rank import Rank

PLAIN, FIRST, AGAIN = "plain", "first_profiled", "profiled"


def on_rank(arguments: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """samples, in ms unless their names say otherwise, and what comes before them.

    <training>_train_s: a whole training, for PLAIN, AGAIN, and FIRST, the process's first profile. <state>_step_ms: the
    median step of a turn in this state of the profiler. profile_ms: a profile from begin to end, its trace written, in
    each turn; same_plain_ms: as many steps without. warmup: the first turn.
    """
    factors = arguments["factors"]
    if rank.device.type == "cpu":
        torch.set_num_threads(1)  # as many as each of two ranks has on two cores; more wait for each other
    training = training_of(factors, rank)
    for _ in range(factors["warmup_steps"] + 1):
        training.step()
    samples: dict[str, list[float]] = defaultdict(list)
    samples[f"{FIRST}_train_s"].append(_train(training, factors, rank, profiled=True))
    for turn in range(factors["trainings"]):
        order = (PLAIN, AGAIN) if turn % 2 == 0 else (AGAIN, PLAIN)
        for name in order:
            samples[f"{name}_train_s"].append(_train(training, factors, rank, profiled=name == AGAIN))
    warmup = _turn(training, factors, rank)
    for _ in range(factors["turns"]):
        for name, sample in _turn(training, factors, rank).items():
            samples[name].append(sample)
    return {"samples": dict(samples), "warmup": {name: [sample] for name, sample in warmup.items()}}


def _train(training: Training, factors: Mapping[str, Any], rank: Rank, profiled: bool) -> float:
    """Wall seconds of the loop; the profile's trace is written within it, as the homework does."""
    with tempfile.TemporaryDirectory(prefix="kineto-") as folder:
        synchronise(rank.device)
        began = time.perf_counter()
        if profiled:
            with profiler_of(factors, rank.device, _writer(folder), detailed=True) as profiler:
                for _ in range(factors["training_steps"]):
                    training.step()
                    profiler.step()
        else:
            for _ in range(factors["training_steps"]):
                training.step()
        synchronise(rank.device)
        return time.perf_counter() - began


def _writer(folder: str) -> Any:
    def ready(profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(str(Path(folder) / "trace.json"))

    return ready


def _turn(training: Training, factors: Mapping[str, Any], rank: Rank) -> dict[str, float]:
    """Plain steps, then as many as one profile takes in each state, and as many with the profiler at an end."""
    counts = {name: factors[key] for name, key in (("wait", "wait"), ("warmup", "warmup_steps"), ("active", "active"))}
    states = [name for name, count in counts.items() for _ in range(count)]
    plain = [_timed(training, rank) for _ in states]
    steps: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="kineto-") as folder:
        began = time.perf_counter()
        with profiler_of(factors, rank.device, _writer(folder), detailed=True) as profiler:
            for state in states:
                steps[state].append(_timed(training, rank))
                profiler.step()
            profile_ms = (time.perf_counter() - began) * 1e3
            for _ in range(counts["active"]):
                steps["over"].append(_timed(training, rank))
                profiler.step()
    found = {f"{state}_step_ms": _middle(ms) for state, ms in {"plain": plain, **steps}.items()}
    return found | {"profile_ms": profile_ms, "same_plain_ms": sum(plain)}


def _middle(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _timed(training: Training, rank: Rank) -> float:
    """Milliseconds of a step, the device waited for before and after it."""
    synchronise(rank.device)
    began = time.perf_counter()
    training.step()
    synchronise(rank.device)
    return (time.perf_counter() - began) * 1e3
