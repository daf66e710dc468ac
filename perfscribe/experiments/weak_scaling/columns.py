"""Columns and notes of weak_scaling's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfscribe import tables as t
from perfscribe import training_columns as c
from perfscribe.experiments.weak_scaling.rows import as_it_ran, is_source, setup_of
from perfscribe.records import Record
from perfscribe.training_rows import nodes_of

NOT_THE_WORKSHOPS = "not the workshop's"
SETUP_NOTE = (
    "By arithmetic. Parameters: embedding, head's bias and layers; the head shares the embedding's weights. FLOP: "
    "matrix products of forward and backward in an optimizer step. As it ran: the workshop's scripts take the "
    "tokenizer's vocabulary whatever VOCAB_SIZE says, and never read BATCH_SIZE, so that every GPU had one row at once."
)
VARIANT_NOTE = (
    "source: as the workshop asks, twice the layers and half the batch for twice the GPUs. same model: the first row's "
    "model and batch on all. deeper, equal work: the workshop's batches, and as many layers as make the FLOP of a GPU "
    "those of the first row."
)
EFFICIENCY_NOTE = (
    "Efficiency: T_base / T_current, of an optimizer step's median time; of the runtime beside it, which the source's "
    "rows compare by, over the steps of the run: of the same rows more ranks make fewer, unless the batch is divided "
    "as in the source. What a run does once, such as evaluation, weighs more on fewer steps. Inverted: T_current / "
    "T_base of the same runtimes, which the workshop prints as efficiency. By work: the efficiency "
    "times the FLOP of a GPU over the base's, so the FLOP rate of a GPU over the base's: the one that holds where the "
    "work differs. The base is the first measured row of the variant: its own figures are 100 % by definition. Where "
    "variants begin with the same set-up, their first rows are one training."
)


def _computed(name: str, title: str, get: Callable[[Record], Any], exact: bool = False) -> t.Column:
    """Known for every row, measured or not."""
    return t.Column(name, title, get, kind="factor", exact=exact)


def setup() -> list[t.Column]:
    """What each row asks of a GPU."""
    return [
        t.factor("variant", "Variant"),
        t.factor("world_size", "GPUs"),
        t.factor("num_layers", "Num Layers"),
        t.factor("batch_size", "Per-GPU Batch"),
        _computed("total_batch", "Total batch", lambda r: setup_of(r).total_batch, exact=True),
        _computed("parameters", "Total Params", lambda r: setup_of(r).shape.parameters, exact=True),
        _computed("parameters_per_gpu", "Params a GPU (M)", lambda r: setup_of(r).parameters_per_gpu / 1e6),
        _computed("tokens_per_gpu", "Tokens a GPU", lambda r: setup_of(r).tokens_per_gpu, exact=True),
        _computed("tflop_per_gpu", "TFLOP a GPU", lambda r: setup_of(r).flop_per_gpu / 1e12),
        _computed("steps_per_epoch", "Steps an epoch", _steps, exact=True),
        _computed("ran_parameters", "Params as it ran", lambda r: _ran(r, "parameters"), exact=True),
        _computed("ran_tflop", "TFLOP a GPU as it ran", lambda r: _ran(r, "tflop")),
        _computed("ran_steps", "Steps an epoch as it ran", lambda r: _ran(r, "steps"), exact=True),
        _computed("asked_tflop", "TFLOP a GPU, its batch, that vocabulary", lambda r: _ran(r, "asked")),
        t.factor("device", "Device"),
    ]


def _steps(record: Record) -> int:
    return -(-int(record.factors["train_size"]) // setup_of(record).total_batch)


def _ran(record: Record, what: str) -> Any:
    if not is_source(record):
        return NOT_THE_WORKSHOPS
    ran = as_it_ran(record)
    if what == "asked":
        return ran.flop_per_gpu * record.factors["batch_size"] / 1e12
    steps = -(-record.factors["train_size"] // ran.total_batch)
    return {"parameters": ran.shape.parameters, "tflop": ran.flop_per_gpu / 1e12, "steps": steps}[what]


def measured() -> list[t.Column]:
    """The workshop's ten columns, then ours."""
    total = _computed("total_params", "Total Params", lambda r: setup_of(r).shape.parameters, exact=True)
    return [
        t.factor("variant", "Variant"),
        t.factor("world_size", "GPUs"),
        t.factor("num_layers", "Num Layers"),
        t.factor("batch_size", "Per-GPU Batch"),
        total,
        c.samples_callback(),
        c.memory_callback(),
        c.utilisation(),
        c.loss(),
        c.runtime(),
        t.value("efficiency", "Efficiency (%)"),
        t.value("inverted", "Inverted, the workshop's (%)"),
        t.value("runtime_efficiency", "Efficiency of the runtime (%)"),
        t.value("work_efficiency", "Efficiency by work (%)"),
        t.Column("origin", "Origin", lambda record: record.origin, kind="factor", exact=True),
        t.Column("nodes", "Nodes", nodes_of, kind="factor", exact=True),
        c.samples_stepping(),
        c.memory_peak(),
        t.value("mfu", "MFU (%)"),
        *c.steps(),
        *c.wrapped(),
        t.factor("device", "Device"),
        t.factor("loop", "Loop"),
        t.factor("dtype", "Dtype"),
        t.factor("num_epochs", "Epochs"),
    ]
