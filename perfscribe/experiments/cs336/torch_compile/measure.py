"""torch_compile of CS336 assignment 2: attention and training steps, eager against compiled.

A cell times both interleaved, so that their ratio comes from the same minutes; eager runs twice in each turn, which
shows how far equal variants differ. Compiled passes start from cold caches, and the first ones are recorded separately.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscribe.base.cells import Cell, Measurement
from perfscribe.base.partial import kept_on_failure
from perfscribe.instruments.graph_timing import samples_within
from perfscribe.instruments.interleaving import time_interleaved
from perfscribe.instruments.timing import STEP, Mark, record, synchronise

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscribe.experiments.cs336.torch_compile.pairs import Pair

# The first compiles; the others show that later passes compile nothing.
FIRST_PASSES = 3


@dataclass(frozen=True)
class Compiled:
    """Factors of a cell with either problem."""

    problem: str
    device: str
    backend: str
    turns: int
    warmup_passes: int
    passes: int


def run(cell: Cell) -> Measurement:
    """Check both variants, count memory, time the first compiled passes, then all passes interleaved."""
    from perfscribe.experiments.cs336.torch_compile import pairs
    from perfscribe.instruments import compiling

    level = cell.read(Compiled)
    measurement = Measurement(values={"compiler_start_s": compiling.start_compiler(level.backend, level.device)})
    with kept_on_failure(measurement), compiling.cold_caches():
        pair = (pairs.attention_pair if level.problem == "attention" else pairs.model_pair)(cell, level.backend)
        _eager_alone(level, pair, measurement)
        _compile(level, pair, measurement)
        _time(level, pair, measurement)
        measurement.values |= compiling.counts()
    return measurement


def _eager_alone(level: Compiled, pair: Pair, measurement: Measurement) -> None:
    """Check eager and take its peak while nothing else but the optimizer's state holds memory."""
    measurement.values |= pair.check_eager()
    pair.prepare()
    pair.eager(_unmarked)
    measurement.values |= _peak("eager", level.device, pair, pair.eager)


def _compile(level: Compiled, pair: Pair, measurement: Measurement) -> None:
    """Time the first passes, which compile; then check correctness and take the peak."""
    first_ms = []
    for _ in range(FIRST_PASSES):
        pair.prepare()
        synchronise(level.device)
        start = time.perf_counter()
        pair.compiled(_unmarked)
        synchronise(level.device)
        first_ms.append((time.perf_counter() - start) * 1e3)
    measurement.series["first_passes_ms"] = first_ms
    measurement.compile_s = sum(first_ms) / 1e3
    measurement.values |= pair.check_compiled()
    measurement.values |= _peak("compiled", level.device, pair, pair.compiled)


def _peak(name: str, device: str, pair: Pair, one_pass: Callable[[Mark], object]) -> dict[str, Any]:
    from perfscribe.models.training_step import peak

    pair.prepare()
    return peak(name, lambda: one_pass(_unmarked), device)


def _unmarked(_: str) -> None:
    """Ignore the end of a phase, in untimed passes."""


def _time(level: Compiled, pair: Pair, measurement: Measurement) -> None:
    variants = {"eager": pair.eager, "compiled": pair.compiled, "eager_again": pair.eager}
    passes = samples_within(measurement.series["first_passes_ms"][-1], level.passes)
    counted = {"turns": level.turns, "warmup": level.warmup_passes, "timed": passes}
    timed = time_interleaved(variants, **counted, device=level.device, prepare=pair.prepare)
    for variant, phases in timed.items():
        for phase, timing in phases.items():
            record(measurement, f"{variant}_{pair.whole if phase == STEP else phase}_ms", timing)
