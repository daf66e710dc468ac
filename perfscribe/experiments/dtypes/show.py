"""Tables and figure of the Polaris homework's data types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from perfscribe.experiments import epoch_columns as columns
from perfscribe.experiments.dtypes import drawings
from perfscribe.experiments.dtypes.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.tables import Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
SEED = "polaris-homework-001"
# Of write-up 001's script, which divides 2,048 samples among an unstated number of ranks.
HOMEWORK = {"layers": 6, "d_ff": 2048, "source_length": 1, "batch": 16, "epochs": 3}
SAMPLES = 2048
NO_BASE = "fp32 not measured"
NOTE = (
    "fp16 and bf16 are autocast with fp32 weights, fp16 with a loss scaler; fp32 is without TF32. Host clock; peak "
    "memory is of torch's allocator in one untimed step."
)
AGAINST_NOTE = (
    "Against fp32 of the same width and target length. Skipped: steps in which fp16's scaled gradients overflowed."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """As asked; each dtype against fp32."""
    cells = records["dtypes"]
    return [
        t.make(TABLES[0], "Training by data type, target length and width", cells, _columns(), [NOTE]),
        t.make(TABLES[1], "Each data type against fp32", cells, [*_factors(), *_ratios(cells)], [AGAINST_NOTE]),
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("device", "Device"),
        t.factor("d_model", "Features (d_model)"),
        t.factor("target_length", "Target length"),
        t.factor("dtype", "Data type"),
    ]


def _published(metric: str, title: str) -> t.Column:
    """Write-up 001's figure for this width, target length and dtype."""
    known = references.load("dtypes")

    def get(record: Record) -> Any:
        levels = {**record.factors, "seq_len": record.factors["target_length"]}
        found = references.of_source(known, SEED, metric, levels) if record.has(**HOMEWORK) else None
        return "none" if found is None else found.shown

    return t.Column(f"{metric}_published", title, get, kind="published", exact=True)


def _why_unlike(record: Record) -> str:
    return (
        columns.RANKS_NOT_STATED if record.has(samples=SAMPLES) else f"of {SAMPLES} samples, {columns.RANKS_NOT_STATED}"
    )


def _columns() -> list[t.Column]:
    return [
        *_factors(),
        t.factor("samples", "Samples"),
        t.factor("epochs", "Epochs"),
        columns.total(),
        columns.unlike(_published("training_s", "Training time, write-up 001 (s)"), _why_unlike),
        *columns.later_epochs(),
        columns.peak_gib(),
        _published("peak_memory_gib", "Peak memory, write-up 001 (GiB)"),
        t.timer("epoch_s"),
    ]


def _setting(record: Record) -> tuple[tuple[str, Any], ...]:
    return tuple((name, level) for name, level in record.factors.items() if name != "dtype")


def _ratios(cells: Sequence[Record]) -> list[t.Column]:
    """Each dtype's figures over fp32's of the same width and target length."""
    bases = {_setting(record): record for record in cells if record.ok and record.has(dtype="fp32")}

    def over(figure: Callable[[Record], float]) -> Callable[[Record], Any]:
        def get(record: Record) -> Any:
            own, base = figure(record), bases.get(_setting(record))
            return NO_BASE if base is None else own / figure(base)

        return get

    def spread(record: Record) -> Any:
        """How far a ratio of times may be off; fp32 against itself is not."""
        base = bases.get(_setting(record))
        if base is None or base is record:
            return NO_BASE if base is None else 0.0
        own, other = (t.summary(one, "epoch_s") for one in (record, base))
        return t.ratio_spread(own.median / other.median, own, other)

    def apart(record: Record) -> Any:
        """Whether all of its later epochs lie on one side of all of fp32's: a fact, no inference."""
        own, base = t.summary(record, "epoch_s"), bases.get(_setting(record))
        if base is None or base is record:
            return NO_BASE if base is None else "is fp32"
        other = t.summary(base, "epoch_s")
        if own.maximum < other.minimum:
            return "all quicker"
        return "all slower" if own.minimum > other.maximum else "overlap"

    def loss_percent(record: Record) -> Any:
        own, base = record.values["final_loss"], bases.get(_setting(record))
        if base is None:
            return NO_BASE
        other = base.values["final_loss"]
        return f"{own} against {other}" if isinstance(own, str) or isinstance(other, str) else 100 * (own / other - 1)

    return [
        t.median("epoch_s", "A later epoch (s)"),
        t.iqr("epoch_s", "IQR (s)"),
        t.count("epoch_s"),
        t.Column(
            "time_ratio",
            "Time against fp32 (×)",
            over(lambda r: t.summary(r, "epoch_s").median),
            spread="time_ratio_spread",
            spread_get=spread,
        ),
        t.derived("epochs_apart", "Its later epochs", apart, exact=True),
        t.derived(
            "memory_ratio", "Peak memory against fp32 (×)", over(lambda r: float(r.values["peak_allocated_bytes"]))
        ),
        t.value("final_loss", "Final loss"),
        t.derived("loss_percent", "Against fp32's (%)", loss_percent),
        t.value("skipped_steps", "Skipped steps", exact=True),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Throughput and peak memory over target length."""
    table = tables[TABLES[0]]
    rate = (
        "Over target length, one panel a width, one line a data type. Above: samples a second, from the median time of "
        "the epochs after the first, host clock."
    )
    peak = "Below: peak memory of a training step."
    draw = f.stacked(
        partial(drawings.panels, table=table, y="samples_per_s", label="Samples/s"),
        partial(drawings.panels, table=table, y="peak_gib", label="Peak memory (GiB)"),
    )
    return [f.Figure(FIGURES[0], f"{rate} {peak}", draw, (7.0, 6.4), "epoch_s")]
