"""Each dtype's figures over fp32's of the same width and target length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfscribe import tables as t
from perfscribe.records import Record

NO_BASE = "fp32 not measured"


def _setting(record: Record) -> tuple[tuple[str, Any], ...]:
    return tuple((name, level) for name, level in record.factors.items() if name != "dtype")


def _epoch_s(record: Record) -> float:
    return t.summary(record, "epoch_s").median


def _peak(record: Record) -> float:
    return float(record.values["peak_allocated_bytes"])


def columns(cells: Sequence[Record]) -> list[t.Column]:
    """Of the table that compares; cells: those that it shows."""
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
            over(_epoch_s),
            spread="time_ratio_spread",
            spread_get=spread,
        ),
        t.derived("epochs_apart", "Its later epochs", apart, exact=True),
        t.derived("memory_ratio", "Peak memory against fp32 (×)", over(_peak)),
        t.value("final_loss", "Final loss"),
        t.derived("loss_percent", "Against fp32's (%)", loss_percent),
        t.value("skipped_steps", "Skipped steps", exact=True),
    ]
