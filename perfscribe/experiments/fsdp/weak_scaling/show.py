"""Tables and figure of weak_scaling: one row per variant of a cell, and the work it requires of a GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.analytic.weak_scaling import SOURCE, VARIANTS, Setup
from perfscribe.analytic.workshop_shapes import BLOOM_TOKENIZER_VOCABULARY, SimpleGptShape
from perfscribe.experiments.fsdp import trainings as c
from perfscribe.experiments.fsdp.weak_scaling.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t
from perfscribe.training.launching import SHAPE

WAY = ("backend", "loop", "hidden_size", "vocab_size", "dtype", "variant")  # cells of another preset are another grid
SETUP_NOTES = (
    "By arithmetic; FLOP: matrix products of forward and backward in an optimizer step.",
    "As it ran: the workshop's scripts take the tokenizer's vocabulary and one row per GPU.",
)
NOTES = ("Efficiency: T_base / T_current of a step's median; inverted: T_current / T_base.",)
CAPTION = "Weak-scaling efficiency by median steps, first row over row; work: FLOP of a step per GPU, by arithmetic."


NAMES = dict(zip(VARIANTS, ("as printed", "same model", "equal work"), strict=True))


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return the table of set-ups with their work per GPU, and that of measurements."""
    rows = by_variant(records["weak_scaling"])
    cleared: dict[str, Any] = {"reason": "", "flags": [], "samples": {}, "warmup": {}, "values": {}, "series": {}}
    cleared |= {"provenance": {}, "later": []}
    set_ups = [replace(record, status="ok", **cleared) for record in rows]  # by arithmetic, even without measurements
    ok = [record for record in rows if record.ok]
    # The base of each is its variant's row with the fewest ranks.
    trained = [
        c.with_figures(record, (base for base in ok if base.levels(*WAY) == record.levels(*WAY))) for record in rows
    ]
    return [
        t.make("fsdp.weak_setup", "Set-up of weak scaling", set_ups, SETUP, SETUP_NOTES),
        t.make("fsdp.weak_scaling", "Weak scaling", trained, MEASURED, NOTES),
    ]


def by_variant(records: Sequence[Record]) -> list[Record]:
    """Return one row per variant of each record, grouped by grid and variant, each group in the order of ranks."""
    rows = [
        replace(record, factors={**record.factors, "variant": variant})
        for record in records
        for variant in str(record.factors["variants"]).split("; ")
    ]
    ways = t.grouped(rows, lambda row: row.levels(*WAY)).values()
    return [record for way in ways for record in sorted(way, key=lambda row: row.factors["world_size"])]


def _setup_of(record: Record) -> Setup:
    factors = record.factors
    shape = SimpleGptShape(**{name: factors[name] for name in SHAPE})
    return Setup(factors["variant"], factors["world_size"], factors["batch_size"], shape, factors["max_length"])


def _specified(name: str, title: str, get: Callable[[Setup], Any], exact: bool = True) -> t.Column:
    """Return a column computed from factors only, so filled without measurements too."""
    return t.Column(name, title, lambda record: get(_setup_of(record)), kind="factor", exact=exact)


def _ran(name: str, title: str, get: Callable[[Record, Setup], Any], exact: bool = True, batch: int = 1) -> t.Column:
    """Return a column of the workshop's rows as its scripts run them: tokenizer's vocabulary, one row per GPU."""

    def value(record: Record) -> Any:
        setup = _setup_of(record)
        ran = replace(setup, shape=replace(setup.shape, vocab_size=BLOOM_TOKENIZER_VOCABULARY))
        return get(record, replace(ran, batch=batch or ran.batch)) if setup.variant == SOURCE else "not the workshop's"

    return t.Column(name, title, value, kind="factor", exact=exact)


def _steps(record: Record, setup: Setup) -> int:
    return -(-int(record.factors["train_size"]) // setup.total_batch)


SPECIFIED = t.factors(variant="Variant", world_size="GPUs", num_layers="Num Layers", batch_size="Per-GPU Batch")
SETUP = [
    *SPECIFIED,
    _specified("total_batch", "Total batch", lambda setup: setup.total_batch),
    _specified("parameters", "Total Params", lambda setup: setup.shape.parameters),
    _specified("parameters_per_gpu", "Params a GPU (M)", lambda setup: setup.parameters_per_gpu / 1e6, exact=False),
    _specified("tflop_per_gpu", "TFLOP a GPU", lambda setup: setup.flop_per_gpu / 1e12, exact=False),
    t.factor("steps_per_epoch", "Steps an epoch", lambda r: _steps(r, _setup_of(r))),
    _ran("ran_parameters", "Params as it ran", lambda _, ran: ran.shape.parameters),
    _ran("ran_tflop", "TFLOP a GPU as it ran", lambda _, ran: ran.flop_per_gpu / 1e12, exact=False),
    _ran("ran_steps", "Steps an epoch as it ran", _steps),
    _ran(
        "asked_tflop",
        "TFLOP a GPU, its batch, that vocabulary",
        lambda _, ran: ran.flop_per_gpu / 1e12,
        exact=False,
        batch=0,
    ),
    t.factor("device", "Device"),
]
# The workshop's ten columns, then ours.
MEASURED = [
    *SPECIFIED,
    _specified("total_params", "Total Params", lambda setup: setup.shape.parameters),
    c.SAMPLES_CALLBACK,
    c.MEMORY_CALLBACK,
    c.UTILISATION,
    c.LOSS,
    c.FIRST_LOSS,
    c.RUNTIME,
    *t.values(efficiency="Efficiency (%)", inverted="Inverted, the workshop's (%)"),
    c.NODES,
    c.SAMPLES_STEPPING,
    c.MEMORY_PEAK,
    c.MFU,
    *c.STEPS,
    *c.SPENT,
    *c.WRAPPED,
    *t.factors(device="Device", loop="Loop", dtype="Dtype", num_epochs="Epochs"),
    *t.settings("hidden_size", "vocab_size", "train_size", "max_length", "grad_acc"),
    *t.unshown("train_samples_per_second"),
]


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of efficiency over ranks."""
    measured, plans = (tables[name] for name in ("fsdp.weak_scaling", "fsdp.weak_setup"))
    draw = partial(_draw, rows=measured.ok, plans=plans.frame)
    return [f.Figure(SHOWN.figures[0], CAPTION, draw, sample="step_ms")]


def _draw(canvas: Any, rows: pd.DataFrame, plans: pd.DataFrame) -> None:
    """Draw a line per variant, named with its layers, batches and work per GPU."""
    axes = canvas.subplots()
    rows = f.main_device(c.numbers(rows, "efficiency"))
    if rows["world_size"].nunique() < 2:
        f.no_data(axes, "not measured on several numbers of ranks")
        return
    lines = []
    for variant, group in rows.groupby("variant", sort=False):
        group = group.sort_values("world_size", kind="stable")
        keys = ["variant", "world_size", "num_layers", "batch_size"]
        tflop = group[keys].merge(plans[[*keys, "tflop_per_gpu"]].drop_duplicates(keys))["tflop_per_gpu"].astype(float)
        work = ", ".join(f"{share:.0f}" for share in 100 * tflop / tflop.iloc[0])
        layers, batches = (", ".join(map(str, group[column])) for column in ("num_layers", "batch_size"))
        lines.append((f"{NAMES[str(variant)]}: layers {layers}; batch {batches}; work {work} %", group))
    c.over_ranks(axes, lines, "efficiency")
    c.finish(axes, rows, "Efficiency (%)", [c.hundred_percent(axes)])
