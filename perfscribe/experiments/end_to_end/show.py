"""Tables of benchmarking_script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfscribe.analytic import flops, peaks
from perfscribe.analytic.shapes import SIZES
from perfscribe.experiments.end_to_end.levels import SHOWN
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA, share_of_product
from perfscribe.show.tables import Table

TABLES = SHOWN.tables
TIMER_NOTE = (
    "Host clock, the device synchronised before and after each phase; backward by difference is forward and backward "
    "timed as one, minus forward. damek's forward is without a graph."
)
RATE_NOTE = (
    "FLOP of a step by PaLM, appendix B, without the embedding and without a causal discount; MFU divides by the "
    "device's dense datasheet peak. Of the measured product: by the highest rate of a square product of that dtype."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """Times as asked, beside published ones; rates."""
    cells = records["end_to_end"]
    rates = [*_rate_columns(), share_of_product(records, lambda r: _tflop_per_s(r) * TERA, "full_step_ms")]
    return [
        t.make(TABLES[0], "Forward, backward and AdamW step", cells, _time_columns(), [TIMER_NOTE]),
        t.make(TABLES[1], "Tokens a second and model FLOP utilisation", cells, rates, [RATE_NOTE]),
    ]


def _factors() -> list[t.Column]:
    return [
        t.factor("size", "Size"),
        t.factor("seq_len", "Context"),
        t.factor("batch", "Batch"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
    ]


def _spread_columns(sample: str, title: str) -> list[t.Column]:
    return [
        t.mean(sample, f"{title}, mean (ms)"),
        t.std(sample, "Std (ms)"),
        t.median(sample, f"{title}, median (ms)"),
        t.iqr(sample, "IQR (ms)"),
    ]


def _time_columns() -> list[t.Column]:
    return [
        *_factors(),
        *_spread_columns("forward_ms", "Forward"),
        *_spread_columns("backward_ms", "Backward"),
        t.derived(
            "backward_by_difference_ms",
            "Backward by difference (ms)",
            _backward_by_difference_ms,
            spread="backward_ms_iqr",
        ),
        *_spread_columns("optimizer_ms", "Optimizer"),
        t.median("forward_no_grad_ms", "Forward under no_grad (ms)"),
        t.median("full_step_ms", "Full step (ms)"),
        t.iqr("full_step_ms", "IQR (ms)"),
        t.count("forward_ms"),
        _published("forward_ms", "brandon-snider", "Forward, brandon-snider (ms)", "warmup_steps"),
        _published("backward_ms", "brandon-snider", "Backward, brandon-snider (ms)", "warmup_steps"),
        _published("forward_no_grad_ms", "damek", "Forward under no_grad, damek (ms)"),
        _published("forward_backward_ms", "damek", "Forward and backward, damek (ms)"),
    ]


def _published(metric: str, source: str, title: str, *more: str) -> t.Column:
    return t.published("end_to_end", metric, source, title, ("size", "seq_len", "batch", "dtype", *more))


def _rate_columns() -> list[t.Column]:
    return [
        *_factors(),
        t.median("full_step_ms", "Full step (ms)"),
        t.iqr("full_step_ms", "IQR (ms)"),
        t.rate("tokens_per_s", "Tokens/s", _tokens_per_s, "full_step_ms"),
        t.derived("step_tflop", "FLOP of a step (TFLOP)", _step_tflop),
        t.rate("tflop_per_s", "TFLOP/s", _tflop_per_s, "full_step_ms"),
        t.rate("mfu_percent", "MFU (%)", _mfu_percent, "full_step_ms"),
        t.derived("peak_tflop_per_s", "Peak (TFLOP/s)", _peak_tflop_per_s),
        t.count("full_step_ms"),
    ]


def _backward_by_difference_ms(record: Record) -> float:
    """Forward and backward timed as one, minus forward."""
    return t.summary(record, "forward_backward_ms").median - t.summary(record, "forward_ms").median


def _step_s(record: Record) -> float:
    return t.summary(record, "full_step_ms").median / 1e3


def _tokens(record: Record) -> int:
    return int(record.factors["batch"]) * int(record.factors["seq_len"])


def _tokens_per_s(record: Record) -> float:
    return _tokens(record) / _step_s(record)


def _step_flop(record: Record) -> float:
    """PaLM's convention."""
    size, seq_len = record.factors["size"], record.factors["seq_len"]
    return float(flops.palm_flop_per_token(SIZES[size], seq_len) * _tokens(record))


def _step_tflop(record: Record) -> float:
    return _step_flop(record) / TERA


def _tflop_per_s(record: Record) -> float:
    return _step_tflop(record) / _step_s(record)


def _peak(record: Record) -> peaks.PeakRate | None:
    gpu = record.values.get("gpu_name")
    return peaks.peak_flops(str(gpu), str(record.factors["dtype"])) if gpu else None


def _peak_tflop_per_s(record: Record) -> Any:
    peak = _peak(record)
    return "not known" if peak is None else peak.flop_per_s / TERA


def _mfu_percent(record: Record) -> Any:
    share = peaks.mfu(_step_flop(record), _step_s(record), _peak(record))
    return "no peak known" if share is None else 100 * share
