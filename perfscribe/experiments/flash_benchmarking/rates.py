"""Rates of attention, and of the square product that is their ceiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfscribe import tables as t
from perfscribe.attention import backends
from perfscribe.counters.flops import attention_backward_flop, attention_forward_flop
from perfscribe.counters.peaks import peak_flops
from perfscribe.experiments.flash_benchmarking import joining as j
from perfscribe.experiments.flash_benchmarking.columns import PASSES, if_timed, problem
from perfscribe.records import Record
from perfscribe.tables import Column

TERA = 1e12
NO_PEAK = "no product measured"


def flop(factors: Mapping[str, Any], one: str) -> float:
    """FLOP of a pass of causal attention: forward, backward or both."""
    size = (factors["batch"], factors["heads"], factors["seq_len"], factors["head_dim"])
    forward = attention_forward_flop(*size, causal=bool(factors["causal"]))
    backward = attention_backward_flop(*size, causal=bool(factors["causal"]))
    return float({"forward": forward, "backward": backward, "both": forward + backward}[one])


def tflop_per_s(record: Record, one: str) -> float:
    """Rate of a pass by its median device time, TFLOP/s."""
    return flop(record.factors, one) / t.summary(record, f"{one}_ms").median * 1e3 / TERA


def columns(names: Sequence[str], peaks: Mapping[tuple[str, str], float]) -> list[Column]:
    """TFLOP/s of both passes of each implementation, and the share of the measured product's rate that ours reach."""

    def peak(row: Record) -> Any:
        return peaks.get((row.factors["device"], row.factors["dtype"]), NO_PEAK)

    def share(one: str) -> Callable[[Record], Any]:
        def get(row: Record) -> Any:
            ceiling, cell = peak(row), j.cell_of(row, j.OURS)
            if not isinstance(ceiling, float) or cell is None or not cell.samples.get(f"{one}_ms"):
                return NO_PEAK if not isinstance(ceiling, float) else cell.status if cell else j.NOT_PLANNED
            return 100 * tflop_per_s(cell, one) / ceiling

        return get

    shown = problem()
    for one in ("forward", "backward"):
        shown += [j.of_cell(name, _rate(one, backends.named(name).title)) for name in names]
    shown.append(t.derived("matmul_tflop_per_s", "Product, measured (TFLOP/s)", peak))
    for one in ("forward", "backward"):
        shown.append(t.derived(f"share_{one}_percent", f"Ours, {one}, of the product (%)", share(one)))
    return shown


def _rate(one: str, title: str) -> Column:
    name = f"{one}_tflop_per_s"
    return t.rate(name, f"{PASSES[one]}, {title} (TFLOP/s)", lambda record: tflop_per_s(record, one), f"{one}_ms")


def product_tflop_per_s(record: Record) -> float:
    """Rate of a product by its median device time, TFLOP/s."""
    operations = 2 * float(record.factors["matrix_size"]) ** 3
    return operations / t.summary(record, "product_ms").median * 1e3 / TERA


def measured_peaks(products: Sequence[Record]) -> dict[tuple[str, str], float]:
    """The highest rate of a measured product by device and dtype, TFLOP/s."""
    found: dict[tuple[str, str], float] = {}
    for record in products:
        if record.ok:
            key = (str(record.factors["device"]), str(record.factors["dtype"]))
            found[key] = max(found.get(key, 0.0), product_tflop_per_s(record))
    return found


def products() -> list[Column]:
    """The measured products beside the data sheet."""

    def printed(record: Record) -> Any:
        known = peak_flops(record.gpu, str(record.factors["dtype"]))
        return "not known" if known is None else known.flop_per_s / TERA

    def share(record: Record) -> Any:
        found = printed(record)
        return 100 * product_tflop_per_s(record) / found if isinstance(found, float) else found

    return [
        t.factor("matrix_size", "Rows and columns"),
        t.factor("dtype", "Dtype"),
        t.factor("device", "Device"),
        t.median("product_ms", "Time (ms)"),
        t.iqr("product_ms", "IQR (ms)"),
        t.count("product_ms"),
        t.rate("tflop_per_s", "Rate (TFLOP/s)", product_tflop_per_s, "product_ms"),
        t.derived("printed_tflop_per_s", "Data sheet (TFLOP/s)", if_timed(printed)),
        t.derived("share_percent", "Share (%)", if_timed(share)),
        t.value("relative_error", "Error against float64"),
        t.timer("product_ms"),
    ]
