"""torch_compile of CS336 assignment 2: attention and training steps, eager against compiled.

A cell holds both, timed interleaved, so that their ratio is one of the same minutes; eager comes twice in each turn,
which shows how far equal things differ. The compiled passes come from cold caches, and how long the first ones take is
kept apart from all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfscribe.analytic.shapes import SIZES
from perfscribe.base.cells import Cell, Measurement, grid
from perfscribe.data import tokens
from perfscribe.instruments import precision

if TYPE_CHECKING:
    from perfscribe.experiments.torch_compile.pair import Pair

# Passes until CUDA graphs are recorded: the first compiles, the second records, the third is the first replay.
FIRST_PASSES = 3
# A turn of long passes needs few: fewer are timed than asked for where they would last longer than this.
ENOUGH_MS = 100.0
FEWEST_PASSES = 3


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches for every context length of the models."""
    model = config["model"]
    contexts = [*model["seq_len"], model["further"]["seq_len"]]
    return tokens.datasets(model["batch"], contexts, next(iter(SIZES.values())).vocab_size, config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """The attention grid, then the models; each with CUDA graphs too where the config asks for it, on a GPU."""
    first, sizes = config["model"]["dtype"][0], config["model"]["several_ways_size"]
    models = [
        cell
        for cell in _model_cells(config)
        if cell["size"] in sizes or (cell["dtype"], cell["implementation"]) == (first, "compiled")
    ]
    return [*_attention_cells(config), *models]


def _attention_cells(config: Mapping[str, Any]) -> list[Cell]:
    of = config["attention"]
    plain = {"device": config["device"], **{n: of[n] for n in ("backend", "dtype", "head_dim", "seq_len")}}
    graphed = {**plain, "device": _with_graphs(config), "backend": ["inductor"], "head_dim": of["graphs_head_dim"]}
    fixed = {"batch": of["batch"], "turns": config["turns"], "warmup_passes": 1, "passes": of["passes"]}
    return [
        _cell({"problem": "attention", "implementation": implementation, **levels, **fixed}, _attention_work)
        for implementation, factors in (("compiled", plain), ("cuda_graphs", graphed))
        for levels in grid(factors)
    ]


def _model_cells(config: Mapping[str, Any]) -> list[Cell]:
    of, further = config["model"], config["model"]["further"]
    plain = {"device": config["device"], **{n: of[n] for n in ("backend", "dtype", "size", "seq_len")}}
    graphed = {**plain, "device": _with_graphs(config), "backend": ["inductor"], "dtype": of["graphs_dtype"]}
    more = {**plain, "backend": [further["backend"]], "dtype": ["fp32"], "size": further["size"]}
    more["seq_len"] = [further["seq_len"]]
    fixed = {"batch": of["batch"], "turns": config["turns"], "warmup_passes": 1, "passes": of["passes"]}
    wanted: list[dict[str, Any]] = []
    for implementation, factors in (("compiled", plain), ("compiled", more), ("cuda_graphs", graphed)):
        for levels in grid(factors):
            one = {"problem": "model", "implementation": implementation, **levels, **fixed}
            if one not in wanted:
                wanted.append(one)
    return [_cell(factors, _model_work, data=True) for factors in wanted]


def _with_graphs(config: Mapping[str, Any]) -> list[str]:
    return [device for device in config["device"] if device == "cuda"]


def _requires(factors: Mapping[str, Any]) -> tuple[str, ...]:
    """What the cell needs of the machine: inductor writes C++ for a CPU, and Triton for a GPU."""
    needed = precision.requires(factors["device"], factors["dtype"])
    if factors["backend"] != "inductor":
        return needed
    return (*needed, *(("triton", "c_compiler") if factors["device"] == "cuda" else ("compiler",)))


def _cell(factors: dict[str, Any], work: Any, data: bool = False) -> Cell:
    # Eager, eager again and compiled in each turn.
    passes = 3 * factors["turns"] * (factors["warmup_passes"] + factors["passes"])
    names = (tokens.dataset_name(factors["batch"], factors["seq_len"]),) if data else ()
    return Cell(factors, requires=_requires(factors), cost=float(work(factors, passes)), data=names)


def _attention_work(factors: Mapping[str, Any], passes: int) -> float:
    """FLOP and element-wise work over the N x N matrix of all passes, and what compiling costs on that scale."""
    matrix = factors["batch"] * factors["seq_len"] ** 2
    return float(passes * matrix * (12 * factors["head_dim"] + 300) + _compiling(1, factors))


def _model_work(factors: Mapping[str, Any], passes: int) -> float:
    shape = SIZES[factors["size"]]
    flop_per_token = 6.0 * shape.layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
    work = passes * factors["batch"] * factors["seq_len"] * flop_per_token
    return float(work + _compiling(3 * shape.layers, factors))


def _compiling(parts: int, factors: Mapping[str, Any]) -> float:
    """Seconds are worth more work on a GPU than on a CPU; aot_eager writes no kernels."""
    work_per_s = 2e13 if factors["device"] == "cuda" else 2e10
    return work_per_s * (10 + parts if factors["backend"] == "inductor" else 1 + 0.1 * parts)


def run(cell: Cell) -> Measurement:
    """Check both ways, count memory, time the first compiled passes, then all passes interleaved."""
    from perfscribe.base.partial import kept_on_failure
    from perfscribe.instruments.compiling import cold_caches, counts, start_compiler

    measurement = Measurement(values={"compiler_start_s": start_compiler(cell["backend"], cell["device"])})
    with kept_on_failure(measurement), cold_caches():
        pair = _pair(cell)
        _eager_alone(cell, pair, measurement)
        _compile(cell, pair, measurement)
        _time(cell, pair, measurement)
        measurement.values |= counts()
        if cell["implementation"] == "cuda_graphs" and measurement.values["skipped_graphs"]:
            raise RuntimeError(f"{measurement.values['skipped_graphs']} parts ran without CUDA graphs")
    return measurement


def _pair(cell: Cell) -> Pair:
    if cell["problem"] == "attention":
        from perfscribe.experiments.torch_compile.attention_pair import attention_pair

        return attention_pair(cell)
    from perfscribe.experiments.torch_compile.model_pair import model_pair

    return model_pair(cell)


def _eager_alone(cell: Cell, pair: Pair, measurement: Measurement) -> None:
    """Correctness and peak of eager, before anything else holds memory but the optimizer's state."""
    from perfscribe.experiments.torch_compile.pair import unmarked

    measurement.values |= pair.check_eager()
    pair.prepare()
    pair.eager(unmarked)
    measurement.values |= _peak("eager", cell, pair, pair.eager)


def _compile(cell: Cell, pair: Pair, measurement: Measurement) -> None:
    """Time the first passes, which compile; then correctness and peak."""
    import time

    from perfscribe.experiments.torch_compile.pair import unmarked
    from perfscribe.instruments.timing import synchronise

    first_ms = []
    for _ in range(FIRST_PASSES):
        pair.prepare()
        synchronise(cell["device"])
        start = time.perf_counter()
        pair.compiled(unmarked)
        synchronise(cell["device"])
        first_ms.append((time.perf_counter() - start) * 1e3)
    measurement.series["first_passes_ms"] = first_ms
    measurement.compile_s = sum(first_ms) / 1e3
    measurement.values |= pair.check_compiled()
    measurement.values |= _peak("compiled", cell, pair, pair.compiled)


def _peak(name: str, cell: Cell, pair: Pair, one_pass: Any) -> dict[str, Any]:
    """Peak of one untimed pass."""
    from perfscribe.experiments.torch_compile.pair import unmarked
    from perfscribe.models.training_step import peak

    pair.prepare()
    return peak(name, lambda: one_pass(unmarked), cell["device"])


def _time(cell: Cell, pair: Pair, measurement: Measurement) -> None:
    from perfscribe.instruments.interleaving import time_interleaved
    from perfscribe.instruments.timing import STEP, record

    variants = {"eager": pair.eager, "compiled": pair.compiled, "eager_again": pair.eager}
    passes = passes_within(measurement.series["first_passes_ms"][-1], cell["passes"])
    counted = {"turns": cell["turns"], "warmup": cell["warmup_passes"], "timed": passes}
    timed = time_interleaved(variants, **counted, device=cell["device"], prepare=pair.prepare)
    for variant, phases in timed.items():
        for phase, timing in phases.items():
            record(measurement, f"{variant}_{pair.whole if phase == STEP else phase}_ms", timing)


def passes_within(pass_ms: float, asked: int) -> int:
    """Passes of a turn: as asked for, but no fewer than FEWEST_PASSES nor many more than ENOUGH_MS of them."""
    return max(min(FEWEST_PASSES, asked), min(asked, int(ENOUGH_MS / pass_ms)))
