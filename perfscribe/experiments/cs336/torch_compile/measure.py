"""torch_compile of CS336 assignment 2: attention and training steps, eager against compiled.

A cell times both interleaved, so that their ratio comes from the same minutes; eager runs twice in each turn, which
shows how far equal variants differ. Compiled passes start from cold caches, and the first ones are recorded separately.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
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
    """Check both variants, count memory, time the first compiled passes, then all passes interleaved.

    The first round compiles from cold caches, which the later ones find warm.
    """
    from perfscribe.experiments.cs336.torch_compile import pairs
    from perfscribe.instruments import compiling

    level = cell.read(Compiled)
    start_s = compiling.start_compiler(level.backend, level.device)
    measurement = Measurement(values={"compiler_start_s": start_s} if cell.round == 1 else {})
    caches = compiling.caches(_cache_of(cell)) if cell.data_folder else compiling.cold_caches()
    with kept_on_failure(measurement), caches:
        pair = (pairs.attention_pair if level.problem == "attention" else pairs.model_pair)(cell, level.backend)
        _eager_alone(level, pair, measurement)
        first_ms = _compile(level, pair, measurement)
        if cell.round == 1:
            measurement.series["first_passes_ms"] = first_ms
            measurement.compile_s = sum(first_ms) / 1e3
        _time(level, pair, measurement, first_ms[-1])
        measurement.values |= compiling.counts()
    return measurement


def _cache_of(cell: Cell) -> Path:
    """Return the folder of the cell's compiled code, which is empty in the first round."""
    digest = hashlib.sha256(json.dumps(dict(cell.factors), sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(cell.data_folder).resolve().parent / "cache" / "torch_compile" / digest
    if cell.round == 1:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _eager_alone(level: Compiled, pair: Pair, measurement: Measurement) -> None:
    """Check eager and take its peak while nothing else but the optimizer's state holds memory."""
    measurement.values |= pair.check_eager()
    pair.prepare()
    pair.eager(_unmarked)
    measurement.values |= _peak("eager", level.device, pair, pair.eager)


def _compile(level: Compiled, pair: Pair, measurement: Measurement) -> list[float]:
    """Return the times of the first passes, which compile, in ms; then check correctness and take the peak."""
    first_ms = []
    for _ in range(FIRST_PASSES):
        pair.prepare()
        synchronise(level.device)
        start = time.perf_counter()
        pair.compiled(_unmarked)
        synchronise(level.device)
        first_ms.append((time.perf_counter() - start) * 1e3)
    measurement.values |= pair.check_compiled()
    measurement.values |= _peak("compiled", level.device, pair, pair.compiled)
    return first_ms


def _peak(name: str, device: str, pair: Pair, one_pass: Callable[[Mark], object]) -> dict[str, Any]:
    from perfscribe.models.training_step import peak

    pair.prepare()
    return peak(name, lambda: one_pass(_unmarked), device)


def _unmarked(_: str) -> None:
    """Ignore the end of a phase, in untimed passes."""


def _time(level: Compiled, pair: Pair, measurement: Measurement, pass_ms: float) -> None:
    variants = {"eager": pair.eager, "compiled": pair.compiled, "eager_again": pair.eager}
    passes = samples_within(pass_ms, level.passes)
    counted = {"turns": level.turns, "warmup": level.warmup_passes, "timed": passes}
    timed = time_interleaved(variants, **counted, device=level.device, prepare=pair.prepare)
    for variant, phases in timed.items():
        for phase, timing in phases.items():
            record(measurement, f"{variant}_{pair.whole if phase == STEP else phase}_ms", timing)
