"""torch_compile of CS336 assignment 2: attention and training steps, eager against compiled.

A cell holds both, timed interleaved, so that their ratio is one of the same minutes; eager comes twice in each turn,
which shows how far equal things differ. The compiled passes come from cold caches, and how long the first ones take is
kept apart from all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.base.partial import kept_on_failure
from perfscribe.data import tokens
from perfscribe.instruments import precision
from perfscribe.instruments.graph_timing import samples_within
from perfscribe.instruments.interleaving import time_interleaved
from perfscribe.instruments.timing import STEP, Mark, record, synchronise

if TYPE_CHECKING:
    from perfscribe.experiments.torch_compile.pairs import Pair

# The first compiles; the others show that nothing is compiled behind it.
FIRST_PASSES = 3


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches for every context length of the models."""
    model = config["model"]
    return tokens.datasets([model["batch"]], model["seq_len"], config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """The attention grid, then the models."""
    return [_cell(factors) for problem in ("attention", "model") for factors in _levels(config, problem)]


def _levels(config: Mapping[str, Any], problem: str) -> Iterator[dict[str, Any]]:
    """The factors of every cell of a problem."""
    of = config[problem]
    names = ("backend", "dtype", *(("head_dim", "seq_len") if problem == "attention" else ("size", "seq_len")))
    levels = {"device": config["device"], **{name: of[name] for name in names}}
    fixed = {"batch": of["batch"], "turns": config["turns"], "warmup_passes": 1, "passes": of["passes"]}
    return ({"problem": problem, "implementation": "compiled", **one, **fixed} for one in grid(levels))


def _cell(factors: dict[str, Any]) -> Cell:
    """What it needs of the machine: inductor writes C++ for a CPU, and Triton for a GPU."""
    device, is_model = factors["device"], factors["problem"] == "model"
    requires = precision.requires(device, factors["dtype"])
    if factors["backend"] == "inductor":
        requires += ("triton", "c_compiler") if device == "cuda" else ("compiler",)
    data = (tokens.dataset_name(factors["batch"], factors["seq_len"]),) if is_model else ()
    return Cell(factors, requires=requires, cost=_cost(factors), data=data)


def _cost(factors: Mapping[str, Any]) -> float:
    """FLOP and element-wise work of all passes, and what compiling costs on that scale.

    Seconds are worth more work on a GPU than on a CPU; aot_eager writes no kernels.
    """
    passes = 3 * factors["turns"] * (factors["warmup_passes"] + factors["passes"])  # eager comes twice in each turn
    if factors["problem"] == "attention":
        parts, work = 1, factors["seq_len"] ** 2 * (12 * factors["head_dim"] + 300)
    else:
        shape = SIZES[factors["size"]]
        flop_per_token = 6.0 * shape.layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
        parts, work = 3 * shape.layers, factors["seq_len"] * flop_per_token
    compiling_s = 10 + parts if factors["backend"] == "inductor" else 1 + 0.1 * parts
    return float(passes * factors["batch"] * work + compiling_s * (2e13 if factors["device"] == "cuda" else 2e10))


def run(cell: Cell) -> Measurement:
    """Check both ways, count memory, time the first compiled passes, then all passes interleaved."""
    from perfscribe.experiments.torch_compile import pairs
    from perfscribe.instruments import compiling

    measurement = Measurement(values={"compiler_start_s": compiling.start_compiler(cell["backend"], cell["device"])})
    with kept_on_failure(measurement), compiling.cold_caches():
        pair = (pairs.attention_pair if cell["problem"] == "attention" else pairs.model_pair)(cell)
        _eager_alone(cell, pair, measurement)
        _compile(cell, pair, measurement)
        _time(cell, pair, measurement)
        measurement.values |= compiling.counts()
    return measurement


def _eager_alone(cell: Cell, pair: Pair, measurement: Measurement) -> None:
    """Correctness and peak of eager, before anything else holds memory but the optimizer's state."""
    measurement.values |= pair.check_eager()
    pair.prepare()
    pair.eager(_unmarked)
    measurement.values |= _peak("eager", cell, pair, pair.eager)


def _compile(cell: Cell, pair: Pair, measurement: Measurement) -> None:
    """Time the first passes, which compile; then correctness and peak."""
    first_ms = []
    for _ in range(FIRST_PASSES):
        pair.prepare()
        synchronise(cell["device"])
        start = time.perf_counter()
        pair.compiled(_unmarked)
        synchronise(cell["device"])
        first_ms.append((time.perf_counter() - start) * 1e3)
    measurement.series["first_passes_ms"] = first_ms
    measurement.compile_s = sum(first_ms) / 1e3
    measurement.values |= pair.check_compiled()
    measurement.values |= _peak("compiled", cell, pair, pair.compiled)


def _peak(name: str, cell: Cell, pair: Pair, one_pass: Callable[[Mark], object]) -> dict[str, Any]:
    """Peak of one untimed pass."""
    from perfscribe.models.training_step import peak

    pair.prepare()
    return peak(name, lambda: one_pass(_unmarked), cell["device"])


def _unmarked(_: str) -> None:
    """A mark for passes whose phases nobody times."""


def _time(cell: Cell, pair: Pair, measurement: Measurement) -> None:
    variants = {"eager": pair.eager, "compiled": pair.compiled, "eager_again": pair.eager}
    passes = samples_within(measurement.series["first_passes_ms"][-1], cell["passes"])
    counted = {"turns": cell["turns"], "warmup": cell["warmup_passes"], "timed": passes}
    timed = time_interleaved(variants, **counted, device=cell["device"], prepare=pair.prepare)
    for variant, phases in timed.items():
        for phase, timing in phases.items():
            record(measurement, f"{variant}_{pair.whole if phase == STEP else phase}_ms", timing)
