"""Columns of optimizer_state_sharding's tables of times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfscribe import tables as t
from perfscribe.experiments.optimizer_state_sharding.columns import factors, implementation, named
from perfscribe.experiments.optimizer_state_sharding.names import SHARDED
from perfscribe.experiments.optimizer_state_sharding.rows import TIME_NAMES
from perfscribe.records import Record


def times() -> list[t.Column]:
    """Step and optimizer times."""
    return [
        *factors(("wrapper", "Averaging")),
        implementation(),
        t.median("step_ms", "Step (ms)"),
        t.iqr("step_ms", "IQR (ms)"),
        t.count("step_ms"),
        t.median("optimizer_ms", "Optimizer (ms)"),
        t.iqr("optimizer_ms", "IQR (ms)"),
        t.count("optimizer_ms"),
        t.derived("update_ms", "Update (ms)", _of_ours("update_ms"), spread="update_ms_iqr"),
        t.derived("exchange_ms", "Exchange (ms)", _of_ours("exchange_ms"), spread="exchange_ms_iqr"),
        *(_unshown_iqr(name) for name in ("update_ms", "exchange_ms")),
        t.derived("off_by", "Off by", _difference, exact=True),
        t.timer("step_ms"),
    ]


def _of_ours(sample: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        step = record.samples["step_ms"]
        return t.summary(record, sample).median if step and sample in record.samples else "not apart"

    return get


def _unshown_iqr(sample: str) -> t.Column:
    def get(record: Record) -> Any:
        if record.samples["step_ms"] and sample not in record.samples:
            return "not apart"
        found = t.summary(record, sample)
        return t.ONE_SAMPLE if found.n == 1 else found.iqr

    return t.Column(f"{sample}_iqr", f"spread of {sample}", get, kind="unshown")


def _difference(record: Record) -> Any:
    if record.samples["step_ms"] and record.factors["implementation"] != SHARDED:
        return "not compared"
    return f"{record.values['difference']:.2g}"


def speed() -> list[t.Column]:
    """Ratios of times."""
    return [
        *factors(),
        implementation(),
        named("timed", "Timed", TIME_NAMES),
        t.Column(
            "ratio",
            "Sharded over unsharded (×)",
            lambda r: r.values["ratio"],
            spread="ratio_spread",
            spread_get=lambda r: r.values["ratio_spread"],
        ),
        t.value("interval", "95 % interval", exact=True),
        t.value("verdict", "Sharded is", exact=True),
        t.value("self_percent", "Unsharded against itself, up to (%)"),
        t.value("turns", "Turns", exact=True),
        t.count("time_ms"),
        *map(_unshown, ("low", "high")),
    ]


def _unshown(name: str) -> t.Column:
    """A value for the CSV and the figures alone."""
    return t.Column(name, name, lambda record: record.values[name], kind="unshown")
