"""Tables and figure of optimizer_state_sharding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from perfscribe.experiments.optimizer_state_sharding import drawings, names, rows
from perfscribe.experiments.optimizer_state_sharding.levels import SHOWN
from perfscribe.experiments.optimizer_state_sharding.names import KINDS, MOMENTS, SHARDED
from perfscribe.instruments.statistics import Summary
from perfscribe.records.records import Record
from perfscribe.show import figures as f
from perfscribe.show import references
from perfscribe.show import tables as t
from perfscribe.show.tables import GIB, Column, Table

TABLES, FIGURES = SHOWN.tables, SHOWN.figures
SOURCE = "brandon-snider"
MOMENT_TITLES = {
    names.INIT: "After model initialisation (GiB)",
    names.PASSES: "Peak up to the step (GiB)",
    names.BEFORE_STEP: "Directly before the step (GiB)",
    names.STEP: "Peak of the step (GiB)",
    names.AFTER_STEP: "Directly after the step (GiB)",
}
# What the source prints is the peak of the stretch before each moment.
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
    "the optimizer's step alone, medians by the host clock, bars as long as the interquartile range. In groups by "
    "number of processes: AdamW unsharded, sharded by our optimizer, sharded by torch's."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Memory by moment and kind, what is saved, times, ZeRO by arithmetic."""
    cells = records["optimizer_state_sharding"]
    each, moments = rows.by_implementation(cells), rows.by_moment(cells)
    return [
        t.make(TABLES[0], "Memory with and without sharding", each, _memory(), [MEMORY_NOTE]),
        t.make(TABLES[1], "What the memory consists of", moments, _kinds(), [KIND_NOTE]),
        t.make(TABLES[2], "Memory saved", rows.savings(cells), _saved(), [SAVED_NOTE]),
        t.make(TABLES[3], "Times with and without sharding", each, _times(), [TIME_NOTE]),
        t.make(TABLES[4], "Beside ZeRO stage 1", rows.by_scheme(cells), _scheme(), [SCHEME_NOTE]),
    ]


def _factors(*more: tuple[str, str]) -> list[Column]:
    """Size to number of processes, then those named, then the optimizer."""
    titles = (
        ("size", "Size"),
        ("seq_len", "Context"),
        ("batch", "Global batch"),
        ("dtype", "Dtype"),
        ("backend", "Backend"),
        ("world_size", "Processes"),
    )
    return [*(t.factor(*one) for one in (*titles, *more)), _named("implementation", "Optimizer", rows.NAMES)]


def _named(name: str, title: str, words: dict[str, str]) -> Column:
    """A factor shown in words."""
    return Column(name, title, lambda record: words[record.factors[name]], kind="factor", exact=True)


def _moment() -> Column:
    return _named("moment", "When", rows.MOMENT_NAMES)


def _published(metric: str, title: str) -> Column:
    known = references.load("optimizer_state_sharding")

    def get(record: Record) -> Any:
        found = references.of_source(known, SOURCE, metric, record.factors)
        return "none" if found is None else found.shown

    return Column(f"{metric}_{SOURCE}", title, get, kind="published", exact=True)


def _held(record: Record, moment: str) -> float:
    return rows.held_bytes(record, moment) / GIB


def _memory() -> list[Column]:
    """Memory at each moment."""

    # A text stands in rows of cells that were measured alone: the others raise KeyError.
    def outside(record: Record) -> Any:
        _held(record, names.INIT)
        found = record.values.get("outside_bytes")
        return "no GPU" if found is None else found / GIB

    return [
        *_factors(("wrapper", "Averaging")),
        *(t.derived(f"{one}_gib", MOMENT_TITLES[one], partial(_held, moment=one)) for one in MOMENTS),
        t.derived("outside_gib", "Beyond the allocator (GiB)", outside),
        *(_published(metric, title) for metric, title in PUBLISHED_MEMORY.items()),
    ]


def _kinds() -> list[Column]:
    """Memory by kind."""

    def of_kind(record: Record, kind: str) -> float:
        return float(record.series[f"{record.factors['moment']}_bytes"][KINDS.index(kind)]) / GIB

    each = [
        t.derived(drawings.kind_column(kind), f"{kind[0].upper()}{kind[1:]} (GiB)", partial(of_kind, kind=kind))
        for kind in KINDS
    ]
    return [*_factors(), _moment(), *each, t.derived("sum_gib", "Sum (GiB)", lambda r: _held(r, r.factors["moment"]))]


def _saved() -> list[Column]:
    """What sharding saves, and what it should."""

    def saved(record: Record) -> int:
        return int(record.values["unsharded_bytes"]) - rows.held_bytes(record, record.factors["moment"])

    def predicted(record: Record) -> int:
        moment = record.factors["moment"]
        _held(record, moment)
        return rows.predicted_bytes(record, moment, names.UNSHARDED) - rows.predicted_bytes(record, moment)

    def error(record: Record) -> float | str:
        found = saved(record)
        return round(100 * (predicted(record) / found - 1), 3) + 0.0 if found else "nothing measured"

    return [
        *_factors(),
        _moment(),
        t.derived("unsharded_gib", "Unsharded (GiB)", lambda r: r.values["unsharded_bytes"] / GIB),
        t.derived("sharded_gib", "Sharded (GiB)", lambda r: _held(r, r.factors["moment"])),
        t.derived("saved_gib", "Saved (GiB)", lambda r: saved(r) / GIB),
        t.derived("predicted_gib", "Predicted (GiB)", lambda r: predicted(r) / GIB),
        t.derived("error_percent", "Error (%)", error),
    ]


def _times() -> list[Column]:
    """Step and optimizer times."""

    def difference(record: Record) -> Any:
        if record.samples["step_ms"] and record.factors["implementation"] != SHARDED:
            return "not compared"
        return f"{record.values['difference']:.2g}"

    return [
        *_factors(("wrapper", "Averaging")),
        t.median("step_ms", "Step (ms)"),
        t.iqr("step_ms", "IQR (ms)"),
        t.count("step_ms"),
        t.median("optimizer_ms", "Optimizer (ms)"),
        t.iqr("optimizer_ms", "IQR (ms)"),
        t.count("optimizer_ms"),
        t.derived("update_ms", "Update (ms)", _of_ours("update_ms", lambda one: one.median), spread="update_ms_iqr"),
        t.derived(
            "exchange_ms", "Exchange (ms)", _of_ours("exchange_ms", lambda one: one.median), spread="exchange_ms_iqr"
        ),
        *(
            Column(f"{name}_iqr", f"spread of {name}", _of_ours(name, _iqr), kind="unshown")
            for name in ("update_ms", "exchange_ms")
        ),
        t.derived("off_by", "Off by", difference, exact=True),
        t.timer("step_ms"),
        _published("step_ms", f"Step, {SOURCE} (ms)"),
    ]


def _of_ours(sample: str, part: Callable[[Summary], Any]) -> Callable[[Record], Any]:
    """A part of what is timed of our optimizer alone."""

    def get(record: Record) -> Any:
        is_timed = record.samples["step_ms"] and sample in record.samples
        return part(t.summary(record, sample)) if is_timed else "not apart"

    return get


def _iqr(found: Summary) -> float | str:
    return t.ONE_SAMPLE if found.n == 1 else found.iqr


def _scheme() -> list[Column]:
    """Memory and traffic by arithmetic."""
    return [
        t.factor("size", "Size"),
        t.factor("world_size", "Processes"),
        t.factor("scheme", "Scheme"),
        t.value("state_bytes", "Optimizer state, fullest rank (GiB)", 1 / GIB, "state_gib"),
        t.value("balance", "of the mean (×)"),
        t.value("held_bytes", "with weights and gradients (GiB)", 1 / GIB, "held_gib"),
        t.value("collectives", "Collectives", exact=True),
        t.value("gradient_bytes", "Gradients sent (GiB)", 1 / GIB, "gradients_gib"),
        t.value("parameter_bytes", "Parameters sent (GiB)", 1 / GIB, "parameters_gib"),
        t.value("sent_bytes", "Sent in all (GiB)", 1 / GIB, "sent_gib"),
        t.value("messages", "Messages", exact=True),
        t.value("weights_bytes", "Gradients, predicted (GiB)", 1 / GIB, "weights_gib"),
        t.value("averaged_bytes", "counted (GiB)", 1 / GIB, "averaged_gib"),
    ]


def figures(tables: Mapping[str, Table]) -> list[f.Figure]:
    """Memory by kind, and times."""
    memory = partial(drawings.memory, rows=tables["cs336.sharding_kinds"].ok)
    times = partial(drawings.times, rows=tables["cs336.sharding_times"].ok)
    draw = f.stacked(memory, times, heights=(4.4, 3.4))
    return [f.Figure(FIGURES[0], CAPTION, draw, (7.0, 7.8), sample="sharded_step_ms")]
