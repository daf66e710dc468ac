"""What stands against the roofline: training steps, attention that stores N x N matrices, attention that does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfscribe.analytic import flops, roofline
from perfscribe.analytic.shapes import SIZES
from perfscribe.attention import backends
from perfscribe.experiments.flash_benchmarking.show import flop as attention_flop
from perfscribe.records.records import STATUSES, Record
from perfscribe.show.ceilings import Ceiling, Ceilings, sheet_memory, sheet_product

STEP, EAGER, FUSED = "training step", "attention, N × N stored", "attention, N × N not stored"
PASSES = ("forward", "backward")
TF32_PRODUCTS = 3  # that Triton's kernels make of one in fp32


def rows(records: Mapping[str, list[Record]]) -> list[Record]:
    """A record a work and pass; values: flop, bytes, ceilings of its device and dtype where they are known."""
    known = Ceilings(records)
    found = _steps(records.get("end_to_end", []))
    found += _eager(records.get("attention", []))
    found += _flash([one for one in records.get("flash_benchmarking", []) if one.factors["workload"] == "grid"])
    return [_with_ceilings(one, known) for one in found]


def _longest(cells: Sequence[Record]) -> Record:
    """The cell of the longest sequence that is ok; where none is, the one with the first status."""
    ok = [one for one in cells if one.ok]
    return (
        max(ok, key=lambda one: one.factors["seq_len"])
        if ok
        else min(cells, key=lambda one: STATUSES.index(one.status))
    )


def _groups(cells: Iterable[Record], names: Sequence[str]) -> list[list[Record]]:
    found: dict[tuple[Any, ...], list[Record]] = {}
    for one in cells:
        found.setdefault(tuple(one.factors[name] for name in names), []).append(one)
    return list(found.values())


def _steps(cells: Sequence[Record]) -> list[Record]:
    """Each size and dtype at its longest context."""
    found = []
    for group in _groups(cells, ("device", "size", "dtype")):
        cell = _longest(group)
        f = cell.factors
        shape = SIZES[f["size"]]
        flop = flops.palm_flop_per_token(shape, f["seq_len"]) * f["batch"] * f["seq_len"]
        moved = roofline.step_bytes(shape, f["batch"], f["seq_len"], f["dtype"], f["device"])
        found.append(_row(cell, STEP, f["size"], "step", "full_step_ms", flop, moved))
    return found


def _eager(cells: Sequence[Record]) -> list[Record]:
    """Every length of pytorch_attention at the smallest and the largest head dimension that ran: FLOP a byte grow with
    it, so that the memory may bound the one and the products the other."""
    dims = {one.factors["head_dim"] for one in cells if one.ok} or {one.factors["head_dim"] for one in cells}
    chosen = [one for one in cells if one.factors["head_dim"] in (min(dims), max(dims))]
    return [_attention(one, EAGER, "eager, no heads", name) for one in chosen for name in PASSES]


def _flash(cells: Sequence[Record]) -> list[Record]:
    """Eager, ours and SDPA's flash backend, at the shortest and the longest length that ours ran, by dtype."""
    found = []
    for group in _groups(cells, ("device", "dtype")):
        ours = backends.ours(group[0].factors["device"])
        of_ours = [one for one in group if one.factors["implementation"] == ours]
        ran = [one for one in of_ours if one.ok] or of_ours
        if not ran:
            continue
        widest = max(one.factors["head_dim"] for one in ran)
        lengths = [one.factors["seq_len"] for one in ran if one.factors["head_dim"] == widest]
        for name in ("eager", ours, "sdpa_flash"):
            work = EAGER if name == "eager" else FUSED
            for length in sorted({min(lengths), max(lengths)}):
                wanted = {"implementation": name, "head_dim": widest, "seq_len": length}
                cell = next((one for one in group if one.has(**wanted)), None)
                if cell is not None:
                    found += [_attention(cell, work, backends.named(name).title, one) for one in PASSES]
    return found


def _attention(cell: Record, work: str, title: str, one: str) -> Record:
    f = cell.factors
    shape = {"heads": 1, "causal": False, **f}
    size = (f["batch"], shape["heads"], f["seq_len"], f["head_dim"], f["dtype"])
    count = roofline.eager_attention_bytes if work == EAGER else roofline.fused_attention_bytes
    device_time = f"{one}_device_ms"
    sample = device_time if device_time in cell.samples else f"{one}_ms"
    return _row(cell, work, title, one, sample, _flop(shape, work, one), count(*size)[one])


def _flop(shape: Mapping[str, Any], work: str, one: str) -> float:
    """What a pass computes. Where N × N matrices are stored that is all of them, whatever a mask hides of it, and
    backward makes four products: it finds the softmax that forward kept, which a fused one computes again."""
    if work != EAGER:
        return float(attention_flop(shape, one))
    return float(attention_flop({**shape, "causal": False}, one)) * (4 / 5 if one == "backward" else 1)


def _row(cell: Record, work: str, name: str, one: str, sample: str, flop: float, moved: float) -> Record:
    """The cell's time of one pass under a name that all rows share."""
    f = cell.factors
    head_dim = {"head_dim": f["head_dim"]} if "head_dim" in f else {"head_dim": "model's"}
    factors = {"work": work, "name": name, "pass": one, "seq_len": f["seq_len"], "batch": f["batch"], **head_dim}
    factors |= {"dtype": f["dtype"], "device": f["device"]}
    timed = {"time_ms": cell.samples[sample]} if sample in cell.samples else {}
    timers = {"time_ms": cell.timers[sample]} if sample in cell.timers else {}
    values = {"flop": float(flop), "bytes": float(moved)} if timed else {}
    return replace(cell, factors=factors, samples=timed, timers=timers, values=values, warmup={}, series={})


def _with_ceilings(row: Record, known: Ceilings) -> Record:
    if not row.samples:
        return row
    f = row.factors
    peak = _peak(row, known)
    memory = known.memory(f["device"], row.gpu)
    values: dict[str, Any] = {**row.values, "peak": peak, "memory": memory, **_apart(row, known)}
    if peak is not None and memory is not None:
        values["bound"] = roofline.bound(row.values["flop"] / row.values["bytes"], peak.per_s, memory.per_s)
    return replace(row, values=values)


def _apart(row: Record, known: Ceilings) -> dict[str, Ceiling | None]:
    """What was measured and what is printed, of the dtype as it stands."""
    device, dtype = row.factors["device"], row.factors["dtype"]
    on_gpu = device == "cuda"
    return {
        "measured_peak": known.measured_product(device, dtype),
        "measured_memory": known.measured_memory(device),
        "sheet_peak": sheet_product(row.gpu, dtype) if on_gpu else None,
        "sheet_memory": sheet_memory(row.gpu) if on_gpu else None,
    }


def _peak(row: Record, known: Ceilings) -> Ceiling | None:
    """That of the row's dtype; of Triton's fp32, which multiplies as three TF32 products, a third of TF32's."""
    device, dtype = row.factors["device"], row.factors["dtype"]
    if row.factors["name"] == backends.named("triton").title and dtype == "fp32":
        tf32 = known.product(device, "tf32", row.gpu)
        if tf32 is not None:
            return Ceiling(tf32.per_s / TF32_PRODUCTS, tf32.by, f"a third of TF32's: {tf32.detail}")
    return known.product(device, dtype, row.gpu)
