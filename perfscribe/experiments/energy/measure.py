"""Energy of the same work over and over: a product, a full training step, and nothing at all.

Kinds of cell, told apart by the factor `workload`: idle, product, step. A step's energy is that of a window over the
number of steps in it, as no counter is fine enough for one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perfscribe import precision
from perfscribe.cells import Cell, Level, Measurement, grid
from perfscribe.data import tokens
from perfscribe.models.shapes import SIZES

IDLE, PRODUCT, STEP = "idle", "product", "step"
FIXED = ("window_s", "windows", "warmup_s")
NAP_S = 0.05
FLOP_PER_S = 1e12  # about, for the order of cells and the time left
HOST_CLOCK = "host clock"


def datasets(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Token batches."""
    section = config[STEP]
    vocabulary = next(iter(SIZES.values())).vocab_size
    return tokens.datasets(section["batch"], section["seq_len"], vocabulary, config["seed"])


def cells(config: Mapping[str, Any]) -> list[Cell]:
    """Nothing, products by dtype, steps by size, context and dtype; on each device."""
    return [_cell(levels) for levels in _levels(config)]


def _levels(config: Mapping[str, Any]) -> Iterator[dict[str, Level]]:
    fixed = {name: [config[name]] for name in FIXED}
    product, step = config[PRODUCT], config[STEP]
    yield from grid({"workload": [IDLE], "device": config["device"], **fixed})
    of_product = {"dtype": product["dtype"], "matrix_size": product["matrix_size"]}
    yield from grid({"workload": [PRODUCT], "device": config["device"], **of_product, **fixed})
    of_step = {"size": step["size"], "seq_len": step["seq_len"], "batch": [step["batch"]], "dtype": step["dtype"]}
    yield from grid({"workload": [STEP], "device": config["device"], **of_step, **fixed})


def _cell(levels: Mapping[str, Any]) -> Cell:
    requires = precision.requires(levels["device"], levels.get("dtype", "fp32"))
    # Seconds: the windows, and what checking a result of that many FLOP takes.
    spent_s = float(levels["warmup_s"] + levels["windows"] * levels["window_s"])
    if levels["workload"] == IDLE:
        return Cell(levels, requires, cost=spent_s)
    if levels["workload"] == PRODUCT:
        return Cell(levels, requires, cost=spent_s + 2 * levels["matrix_size"] ** 3 / FLOP_PER_S)
    shape = SIZES[levels["size"]]
    work = shape.layers * 12 * shape.d_model**2 * levels["batch"] * levels["seq_len"]
    data = (tokens.dataset_name(levels["batch"], levels["seq_len"]),)
    return Cell(levels, requires, cost=spent_s + 6 * work / FLOP_PER_S, data=data)


def run(cell: Cell) -> Measurement:
    """Check the work's result, warm up, then read the counter around windows of it.

    samples, one a window: call_ms; where there is a counter call_j and power_w. values: counter; without one why.
    series: calls of each window.
    """
    from perfscribe.energy_counter import NoCounter, of_device, window

    measurement = Measurement(values={"counter": "none"})
    try:
        counter = of_device(cell["device"])
        measurement.values["counter"] = counter.name
    except NoCounter as why:
        counter, measurement.values["why"] = None, str(why)
    work = WORK[cell["workload"]](cell, measurement)
    began = time.perf_counter()
    while time.perf_counter() - began < cell["warmup_s"]:
        work()
    measurement.warmup_s = time.perf_counter() - began
    windows = [window(work, counter, cell["window_s"]) for _ in range(cell["windows"])]
    measurement.timed_s = sum(one.seconds for one in windows)
    measurement.series["calls"] = [one.calls for one in windows]
    measurement.samples["call_ms"] = [1e3 * one.seconds / one.calls for one in windows]
    measurement.timers["call_ms"] = HOST_CLOCK
    if counter is not None:
        measurement.samples["call_j"] = [one.joules / one.calls for one in windows if one.joules is not None]
        measurement.samples["power_w"] = [one.watts for one in windows if one.watts is not None]
        measurement.timers |= {"call_j": counter.name, "power_w": counter.name}
    return measurement


def _idle(cell: Cell, measurement: Measurement) -> Callable[[], object]:
    """Nothing; on a GPU with the context that any work has."""
    if cell["device"] == "cuda":
        from perfscribe.timing import synchronise

        synchronise("cuda")
    return lambda: time.sleep(NAP_S)


def _product(cell: Cell, measurement: Measurement) -> Callable[[], object]:
    """A square product of random normal matrices, compared with float64."""
    import torch

    from perfscribe.experiments.flash_benchmarking.products import TOLERANCE, compare
    from perfscribe.timing import synchronise

    precision.set_matmul_precision(cell["dtype"])
    shape, dtype = (cell["matrix_size"], cell["matrix_size"]), precision.tensor_dtype(cell["dtype"])
    a, b = (torch.randn(shape, device=cell["device"], dtype=dtype) for _ in range(2))
    measurement.values["relative_error"] = compare(a, b, TOLERANCE[cell["dtype"]])
    out = torch.empty_like(a)

    def work() -> None:
        torch.matmul(a, b, out=out)
        synchronise(cell["device"])

    work()
    return work


def _step(cell: Cell, measurement: Measurement) -> Callable[[], object]:
    """A full training step, its loss compared with float64."""
    from perfscribe.models.loss_check import check_loss
    from perfscribe.models.training_step import build
    from perfscribe.timing import synchronise

    step = build(cell.factors, cell.data_folder)
    measurement.values |= check_loss(step)
    step.make_optimizer()

    def work() -> None:
        step.zero_grad()
        step.full()
        synchronise(cell["device"])

    work()
    return work


WORK: dict[str, Callable[[Cell, Measurement], Callable[[], object]]] = {IDLE: _idle, PRODUCT: _product, STEP: _step}
