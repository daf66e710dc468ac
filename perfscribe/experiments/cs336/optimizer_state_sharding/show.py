"""Tables and figure of optimizer_state_sharding."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from perfscribe.analytic import sharding
from perfscribe.analytic.memory import total_bytes
from perfscribe.analytic.shapes import SIZES
from perfscribe.analytic.sharding import Scheme, Sharding, schemes
from perfscribe.analytic.workload import Workload
from perfscribe.experiments.cs336.optimizer_state_sharding import measure as m
from perfscribe.experiments.cs336.optimizer_state_sharding.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import tables as t

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
SOURCE = "brandon-snider"
NAMES = {m.UNSHARDED: "AdamW, unsharded", m.SHARDED: "sharded (ours)", m.PEER: "sharded (torch's ZeRO optimizer)"}
MOMENT_NAMES = {
    m.INIT: "after model init",
    m.PASSES: "peak of forward, backward, averaging",
    m.BEFORE_STEP: "directly before the step",
    m.STEP: "peak of the optimizer step",
    m.AFTER_STEP: "after the step",
}
MOMENT_TITLES = {
    m.INIT: "After model initialisation (GiB)",
    m.PASSES: "Peak up to the step (GiB)",
    m.BEFORE_STEP: "Directly before the step (GiB)",
    m.STEP: "Peak of the step (GiB)",
    m.AFTER_STEP: "Directly after the step (GiB)",
}
# The source prints the peak of the stretch before each moment.
PUBLISHED_MEMORY = {
    "memory_after_init_gib": f"After model initialisation, {SOURCE} (GiB)",
    "memory_before_step_gib": f"Peak up to the step, {SOURCE} (GiB)",
    "memory_after_step_gib": f"Peak of the step, {SOURCE} (GiB)",
}
MEMORY_NOTE = (
    "Bytes that torch's allocator has handed out, on the rank that holds most, in a step after the first ones. "
    "Beyond the allocator: CUDA's context and NCCL's buffers."
)
KIND_NOTE = (
    "Of the rank that holds most. Communication buffers: what averaging and the exchange of parameters add at the "
    "peak, without NCCL's own."
)
SAVED_NOTE = (
    "What the plain optimizer holds more, on the ranks that hold most. Predicted by counting the tensors that our "
    "implementation holds."
)
TIME_NOTE = (
    "Host clock, longest of any rank; optimizers were interleaved. Update and exchange: our optimizer's two parts with "
    "a wait after each."
)
SCHEME_NOTE = "Arithmetic in fp32. Sent: by each rank in a step, where collectives go round a ring."
CAPTION = (
    "Above: memory of the rank that holds most, by kind, at three moments of a training step. Below: whole steps and "
    "the optimizer's step alone, medians by the host clock, bars: ± half the interquartile range. In groups by "
    "number of processes: AdamW unsharded, sharded by our optimizer, sharded by torch's."
)
MODELS = {m.PASSES: sharding.passes_peak, m.BEFORE_STEP: sharding.before_step, m.STEP: sharding.step_peak}


def tables(records: Mapping[str, list[Record]]) -> list[t.Table]:
    """Return memory by moment and kind, memory saved, times, and ZeRO by arithmetic."""
    cells = records["optimizer_state_sharding"]
    rows = [row for cell in cells for row in by_implementation(cell)]
    moments = [replace(row, factors={**row.factors, "moment": moment}) for row in rows for moment in MOMENT_NAMES]
    sharded = [
        row for row in moments if row.factors["moment"] in MODELS and row.factors["implementation"] != m.UNSHARDED
    ]
    return [
        t.make(TABLES[0], "Memory with and without sharding", rows, MEMORY, [MEMORY_NOTE]),
        t.make(TABLES[1], "What the memory consists of", moments, KINDS, [KIND_NOTE]),
        t.make(TABLES[2], "Memory saved", sharded, SAVED, [SAVED_NOTE]),
        t.make(TABLES[3], "Times with and without sharding", rows, TIMES, [TIME_NOTE]),
        t.make(TABLES[4], "Beside ZeRO stage 1", by_scheme(cells), SCHEMES, [SCHEME_NOTE]),
    ]


# --- rows -------------------------------------------------------------------------------------------------------


def by_implementation(record: Record, names: Sequence[str] = m.IMPLEMENTATIONS) -> list[Record]:
    """Return a row per optimizer of a cell."""
    return [t.of_variant(record, name, implementation=name) for name in names]


def by_scheme(records: Iterable[Record]) -> list[Record]:
    """Return a row per size, number of processes and sharding scheme, with its cost by arithmetic."""
    # arithmetic needs no GPU, but each row represents a measured cell, or says why it was not measured
    chosen = t.first_ok(records, lambda record: record.levels("size", "world_size"))
    return [
        t.row_of(record, _costs(scheme) if record.ok else {}, scheme=scheme.name)
        for (size, ranks), record in chosen.items()
        for scheme in schemes(SIZES[size], ranks, record.factors["wrapper"] == "flat", record.factors["backend"])
    ]


def _costs(scheme: Scheme) -> dict[str, Any]:
    return {
        **vars(scheme),
        "sent_bytes": scheme.gradient_bytes + scheme.parameter_bytes,
        "messages": scheme.gradient_messages + scheme.parameter_messages,
    }


def held_bytes(record: Record, moment: str) -> int:
    """Return counted bytes on the rank that held most."""
    return sum(record.series[f"{moment}_bytes"])


def predicted_bytes(record: Record, moment: str, implementation: str) -> int:
    """Return predicted bytes on the rank that holds most."""
    f = record.factors
    load = Workload(SIZES[f["size"]], f["batch"] // f["world_size"], f["seq_len"], f["dtype"], f["device"])
    exchange = f["backend"] if implementation == m.SHARDED else ""  # torch's broadcasts the parameters in place
    keepers = 1 if implementation == m.UNSHARDED else f["world_size"]
    return total_bytes(MODELS[moment](Sharding(load, keepers, f["wrapper"] == "flat", exchange)))


# --- columns ----------------------------------------------------------------------------------------------------


def _factors(*more: t.Column) -> list[t.Column]:
    """Return the columns from size to number of processes, then `more`, then the optimizer."""
    shared = t.factors(size="Size", seq_len="Context", batch="Global batch", dtype="Dtype", backend="Backend")
    return [*shared, t.factor("world_size", "Processes"), *more, t.named("implementation", "Optimizer", NAMES)]


AVERAGING, MOMENT = t.factor("wrapper", "Averaging"), t.named("moment", "When", MOMENT_NAMES)
_published = partial(t.published, "optimizer_state_sharding", SOURCE)


def _held_gib(moment: str) -> t.Column:
    return t.derived(f"{moment}_gib", MOMENT_TITLES[moment], lambda record: held_bytes(record, moment) / t.GIB)


def _now_gib(record: Record) -> float:
    return held_bytes(record, record.factors["moment"]) / t.GIB


def kind_column(kind: str) -> str:
    """Return the name of a kind's column."""
    return f"{kind.replace(', ', '_').replace(' ', '_')}_gib"


def _of_kind(kind: str) -> t.Column:
    def get(record: Record) -> float:
        return float(record.series[f"{record.factors['moment']}_bytes"][m.KINDS.index(kind)]) / t.GIB

    return t.derived(kind_column(kind), f"{kind[0].upper()}{kind[1:]} (GiB)", get)


def _saved_gib(record: Record) -> float:
    unsharded: int = sum(record.series[f"{m.UNSHARDED}_{record.factors['moment']}_bytes"])
    return unsharded / t.GIB - _now_gib(record)


def _predicted_gib(record: Record) -> float:
    """Return the predicted saving of sharding."""
    names = (m.UNSHARDED, record.factors["implementation"])
    plain, ours = (predicted_bytes(record, record.factors["moment"], name) for name in names)
    return (plain - ours) / t.GIB


def _is_ours(record: Record) -> bool:
    return bool(record.factors["implementation"] == m.SHARDED)


OFF_BY = t.derived("off_by", "Off by", lambda record: f"{record.values['difference']:.2g}", exact=True)
MEMORY = [
    *_factors(AVERAGING),
    *map(_held_gib, m.MOMENTS),
    t.gib("outside", "Beyond the allocator", without="no GPU"),
    *(_published(metric, title) for metric, title in PUBLISHED_MEMORY.items()),
]
KINDS = [*_factors(), MOMENT, *map(_of_kind, m.KINDS), t.derived("sum_gib", "Sum (GiB)", _now_gib)]
SAVED = [
    *_factors(),
    MOMENT,
    t.derived("saved_gib", "Saved (GiB)", _saved_gib),
    t.derived("predicted_gib", "Predicted (GiB)", _predicted_gib),
]
TIMES = [
    *_factors(AVERAGING),
    *t.timed("step_ms", "Step (ms)", "n, step"),
    *t.timed("optimizer_ms", "Optimizer (ms)", "n, optimizer"),
    *t.only(_is_ours, "not apart", t.median("update_ms", "Update (ms)"), t.median("exchange_ms", "Exchange (ms)")),
    *t.only(_is_ours, "not compared", OFF_BY),
    t.timer("step_ms"),
    _published("step_ms", f"Step, {SOURCE} (ms)"),
]
SCHEMES = [
    *t.factors(size="Size", world_size="Processes", scheme="Scheme"),
    t.gib("state", "Optimizer state, fullest rank"),
    t.value("collectives", "Collectives", exact=True),
    t.gib("gradient", "Gradients sent", "gradients"),
    t.gib("parameter", "Parameters sent", "parameters"),
    t.gib("sent", "Sent in all"),
    t.value("messages", "Messages", exact=True),
]


# --- figure -----------------------------------------------------------------------------------------------------

SETTING = ["size", "seq_len", "batch", "dtype", "backend"]
SHORT = {NAMES[m.UNSHARDED]: "unsharded", NAMES[m.SHARDED]: "ours", NAMES[m.PEER]: "torch's"}
TITLE_CHARACTERS = 20  # per line of a panel's title
COLOURS = dict(zip(m.KINDS, ("#0072B2", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#999999"), strict=True))
TIMED = {"step_ms": "Whole step", "optimizer_ms": "Optimizer step alone"}


def figures(tables: Mapping[str, t.Table]) -> list[f.Figure]:
    """Return the figure of memory by kind, and times, for each model and context."""
    kinds, times = tables["cs336.sharding_kinds"].ok, tables["cs336.sharding_times"].ok
    models = list(dict.fromkeys(zip(kinds["size"], kinds["seq_len"], strict=True)))

    def draw(canvas: Any, _: pd.DataFrame) -> None:
        panels = canvas.subfigures(2 * len(models), 1, height_ratios=(4.4, 3.4) * len(models))
        for (size, seq_len), above, below in zip(models, panels[::2], panels[1::2], strict=True):
            for panel, rows, draw_rows in ((above, kinds, _draw_memory), (below, times, _draw_times)):
                f.of(rows[(rows["size"] == size) & (rows["seq_len"] == seq_len)], draw_rows)(panel)

    return [
        f.Figure(FIGURES[0], CAPTION, f.of(kinds, draw), (7.0, 7.8 * max(1, len(models))), sample="sharded_step_ms")
    ]


def _of_one_setting(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return rows and name of the setting with most rows, preferring the homework's fp32."""
    _, chosen = max(rows.groupby(SETTING, sort=False), key=lambda group: (group[0][3] == "fp32", len(group[1])))
    size, context, batch, dtype, backend = (chosen.iloc[0][name] for name in SETTING)
    named = f"size {size}, context {context}, global batch {batch}, {dtype}, {backend}"
    return chosen.sort_values("world_size", kind="stable"), named


def _places(rows: pd.DataFrame) -> list[float]:
    """Return the bars' positions, grouped by number of processes."""
    ranks = list(dict.fromkeys(rows["world_size"]))
    return [place + 0.7 * ranks.index(rank) for place, rank in enumerate(rows["world_size"])]


def _name_bars(axes: Any, rows: pd.DataFrame, places: list[float]) -> None:
    labels = [f"{SHORT[row['implementation']]}, {row['world_size']}" for _, row in rows.iterrows()]
    axes.set_xticks(places, labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.grid(axis="x", visible=False)


def _draw_memory(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw stacked bars, a panel per moment that is predicted."""
    panels = canvas.subplots(1, len(MODELS), sharey=True)
    rows, setting = _of_one_setting(rows)
    unit, name = f.memory_unit(rows["sum_gib"].astype(float).max() * t.GIB)
    for axes, moment in zip(panels, (MOMENT_NAMES[moment] for moment in MODELS), strict=True):
        chosen = rows[rows["moment"] == moment]
        places, bottom = _places(chosen), pd.Series(0.0, chosen.index)
        for kind, colour in COLOURS.items():
            height = chosen[kind_column(kind)].astype(float) * t.GIB / unit
            axes.bar(places, height, 0.8, bottom, color=colour, label=kind)
            bottom += height
        _name_bars(axes, chosen, places)
        axes.set_title(textwrap.fill(moment, TITLE_CHARACTERS), fontsize=8)
    panels[0].set_ylabel(f"Memory ({name})")
    canvas.suptitle(setting, fontsize=8, x=0.01, ha="left")
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)


def _draw_times(canvas: Any, rows: pd.DataFrame) -> None:
    """Draw medians ± half the interquartile range, a panel for whole steps and one for the optimizer's step."""
    rows, _ = _of_one_setting(rows)
    places = _places(rows)
    for axes, (column, title) in zip(canvas.subplots(1, len(TIMED)), TIMED.items(), strict=True):
        spread = pd.to_numeric(rows[f"{column}_iqr"], errors="coerce") / 2
        axes.bar(places, rows[column].astype(float), 0.8, yerr=spread, color=f.COLOURS[1], capsize=2)
        _name_bars(axes, rows, places)
        axes.set_title(title)
        axes.set_ylabel("Time (ms)")
