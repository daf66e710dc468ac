"""Roofline of training steps and of attention, with and without stored N × N matrices.

Measures nothing: its points are cells of other experiments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.analytic import flops, roofline
from perfscribe.analytic.peaks import GB
from perfscribe.analytic.shapes import SIZES
from perfscribe.attention import backends
from perfscribe.experiments.cs336.flash_benchmarking.show import flop as attention_flop
from perfscribe.records.form import STATUSES
from perfscribe.records.records import Record
from perfscribe.show import tables as t
from perfscribe.show.ceilings import TERA, Ceilings

STEP, EAGER, FUSED = "training step", "attention, N × N stored", "attention, N × N not stored"
PASSES = ("forward", "backward")
TF32_PRODUCTS = 3  # per fp32 product in Triton's kernels
NOT_KNOWN = "not known"
NOTE = (
    "Bound: the lower of peak rate and FLOP/byte times the memory's bandwidth, both measured where calibration ran, "
    "else the data sheet's; bytes are the least that has to move. Triton's kernels multiply fp32 as three TF32 "
    "products, so their peak is a third of TF32's."
)
FACTORS = {"work": "Work", "name": "Model or implementation", "pass": "Pass", "seq_len": "Length", "batch": "Batch"}
FACTORS |= {"head_dim": "d", "dtype": "Dtype", "device": "Device"}


def table(table_id: str, records: Mapping[str, list[Record]]) -> t.Table:
    """Return the table, one row per kind of work and pass."""
    known = Ceilings(records)
    found = _steps(records.get("end_to_end", []))
    found += _eager(records.get("attention", []))
    found += _flash(t.having(records.get("flash_benchmarking", []), workload="grid"))
    rows = [_with_ceilings(one, known) for one in found]
    return t.make(table_id, "Rates against the roofline", rows, COLUMNS, [NOTE])


# Rows; values: flop, bytes


def _steps(cells: Sequence[Record]) -> list[Record]:
    """Return each size and dtype at its longest context that ran; if none ran, the cell with the first status."""
    found = []
    same = t.grouped(cells, lambda one: one.levels("device", "size", "dtype"))
    for group in same.values():
        cell = min(group, key=lambda one: (STATUSES.index(one.status), -one.factors["seq_len"] if one.ok else 0))
        of = cell.factors
        shape = SIZES[of["size"]]
        flop = flops.palm_flop_per_token(shape, of["seq_len"]) * of["batch"] * of["seq_len"]
        moved = roofline.step_bytes(shape, of["batch"], of["seq_len"], of["dtype"], of["device"])
        found.append(_row(cell, STEP, of["size"], "step", "full_step_ms", flop, moved))
    return found


def _eager(cells: Sequence[Record]) -> list[Record]:
    """Return pytorch_attention's cells at the smallest and largest head dimension that ran; FLOP/byte grow with it."""
    dims = {one.factors["head_dim"] for one in cells if one.ok} or {one.factors["head_dim"] for one in cells}
    chosen = [one for one in cells if one.factors["head_dim"] in (min(dims), max(dims))]
    return [_attention(one, EAGER, "eager, no heads", name) for one in chosen for name in PASSES]


def _flash(cells: Sequence[Record]) -> list[Record]:
    """Return eager, ours and SDPA's flash backend at the shortest and longest length that ours ran, by dtype."""
    found = []
    for group in t.grouped(cells, lambda one: one.levels("device", "dtype")).values():
        ours = backends.ours(group[0].factors["device"])
        of_ours = t.having(group, implementation=ours)
        ran = [one for one in of_ours if one.ok] or of_ours
        if not ran:
            continue
        widest = max(one.factors["head_dim"] for one in ran)
        lengths = [one.factors["seq_len"] for one in ran if one.factors["head_dim"] == widest]
        for name in ("eager", ours, "sdpa_flash"):
            work = EAGER if name == "eager" else FUSED
            for length in sorted({min(lengths), max(lengths)}):
                same = t.having(group, implementation=name, head_dim=widest, seq_len=length)
                found += [_attention(one, work, backends.named(name).title, p) for one in same[:1] for p in PASSES]
    return found


def _attention(cell: Record, work: str, title: str, one: str) -> Record:
    """Return the row of a pass. Stored N × N matrices are computed whole, masked or not, and their backward needs four
    products: it reads forward's softmax, which a fused backward recomputes.
    """
    of = {"heads": 1, "causal": False, **cell.factors}
    if work == EAGER:
        flop = attention_flop({**of, "causal": False}, one) * (4 / 5 if one == "backward" else 1)
        count = roofline.eager_attention_bytes
    else:
        flop, count = attention_flop(of, one), roofline.fused_attention_bytes
    moved = count(of["batch"], of["heads"], of["seq_len"], of["head_dim"], of["dtype"])[one]
    device_time = f"{one}_device_ms"
    return _row(cell, work, title, one, device_time if device_time in cell.samples else f"{one}_ms", flop, moved)


def _row(cell: Record, work: str, name: str, one: str, sample: str, flop: float, moved: float) -> Record:
    """Return the cell's time of one pass under a name that all rows share."""
    factors = {"head_dim": "model's", **cell.factors, "work": work, "name": name, "pass": one}
    timed = {"time_ms": cell.samples[sample]} if sample in cell.samples else {}
    timers = {"time_ms": cell.timers[sample]} if sample in cell.timers else {}
    values = {"flop": float(flop), "bytes": float(moved)} if timed else {}
    return replace(cell, factors=factors, samples=timed, timers=timers, values=values, warmup={}, series={})


def _with_ceilings(row: Record, known: Ceilings) -> Record:
    """Return the row with the ceilings of its device and dtype and its bound, if known."""
    if not row.samples:
        return row
    device, dtype = row.factors["device"], row.factors["dtype"]
    by_triton = row.factors["name"] == backends.named("triton").title and dtype == "fp32"
    peak, memory = known.product(device, "tf32" if by_triton else dtype, row.gpu), known.memory(device, row.gpu)
    flop, moved = row.values["flop"], row.values["bytes"]
    values: dict[str, Any] = {**row.values, "tflop": flop / TERA, "gb": moved / GB, "intensity": flop / moved}
    if peak is not None:
        peak /= TF32_PRODUCTS if by_triton else 1
        values["peak_tflop_per_s"] = peak / TERA
    if memory is not None:
        values["memory_gb_per_s"] = memory / GB
    if peak is not None and memory is not None:
        reached, by = roofline.bound(flop / moved, peak, memory)
        values |= {"bound_tflop_per_s": reached / TERA, "bound_by": by}
    return replace(row, values=values)


# Columns


def _tflop_per_s(record: Record) -> float:
    return float(record.values["flop"]) / t.summary(record, "time_ms").median * 1e3 / TERA


def _share_percent(record: Record) -> float | str:
    bound = record.values.get("bound_tflop_per_s")
    return NOT_KNOWN if bound is None else 100 * _tflop_per_s(record) / bound


COLUMNS = [
    *t.factors(**FACTORS),
    *t.timed("time_ms", "Time (ms)", "n"),
    *t.values(tflop="FLOP (TFLOP)", gb="Bytes, least (GB)", intensity="FLOP/byte"),
    t.rate("tflop_per_s", "Rate (TFLOP/s)", _tflop_per_s, "time_ms"),
    t.value("peak_tflop_per_s", "Peak (TFLOP/s)", without=NOT_KNOWN),
    t.value("memory_gb_per_s", "Memory (GB/s)", without=NOT_KNOWN),
    t.value("bound_tflop_per_s", "Bound (TFLOP/s)", without=NOT_KNOWN),
    t.value("bound_by", "Bound by", without=NOT_KNOWN),
    t.rate("share_percent", "Share of the bound (%)", _share_percent, "time_ms"),
    t.timer("time_ms"),
]
