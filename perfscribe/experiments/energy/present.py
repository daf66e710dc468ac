"""Table and answer of energy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from perfscribe import ceilings
from perfscribe import tables as t
from perfscribe.counters.flops import palm_flop_per_token
from perfscribe.experiments.energy.measure import IDLE, PRODUCT, STEP
from perfscribe.experiments.nsys_profile import busy
from perfscribe.findings import CannotTell, Finding, find, from_to, is_number, need
from perfscribe.models.shapes import SIZES
from perfscribe.records import Record
from perfscribe.statistics import format_figure
from perfscribe.tables import Table

TABLES = ("cs336.energy",)
FIGURES = ()
READS = ("nsys_profile",)  # for the kernels' time of the same steps
STEP_PHASES = ("forward", "backward", "optimizer")
TERA = 1e12
NARROW, WIDE = ("bf16", "fp16"), ("fp32", "tf32")
NO_WORK, NO_TOKENS, NOT_COUNTED = "no work", "no tokens", "not counted"
# How a longer step in a narrower dtype is told.
LONGER = {
    busy.DEVICE: "Slower in the narrower dtype",
    busy.LAUNCHES: "Longer in the narrower dtype, but bound by the host's launches, so that it is no verdict on dtypes",
    busy.SHORTER_LAUNCHES: "Longer in the narrower dtype, but the host's launches bound the wider one's step and the "
    "narrower one's was not traced, so that no verdict on dtypes is drawn",
    busy.UNKNOWN: "Longer in the narrower dtype; whether the host's launches bound that was not traced",
}
TITLES = {IDLE: "nothing", PRODUCT: "product", STEP: "training step"}
NOTE = (
    "The counter's difference over a window, by the number of calls in it: NVML's total energy of the GPU (board and "
    "memory, not the host), or RAPL's of the processor packages (not their memory, and whoever runs on them). A window "
    "lasts a second or more, after a warm-up; the device is synchronised after each call. Where there is no counter, "
    "time alone is measured, over a few calls. FLOP: 2 n³ of a product; of a step PaLM, appendix B. Rates are "
    "those that last: products repeated for seconds may meet a limit of power that one of milliseconds does not. MFU: "
    "of the data sheet's dense peak."
)


def tables(records: Mapping[str, list[Record]]) -> list[Table]:
    """A row a workload."""
    traced = busy.device_ms(records.get("nsys_profile", []), STEP_PHASES)
    notes = [NOTE, *ceilings.peak_notes(records["energy"]), *_refusals(records["energy"])]
    return [t.make(TABLES[0], "Energy of a step and of a product", records["energy"], _columns(traced), notes)]


def _refusals(cells: list[Record]) -> list[str]:
    """Why devices have no counter."""
    why = {f"{one.factors['device']}: {one.values['why']}" for one in cells if one.values.get("why")}
    return [f"Not counted on {'; '.join(sorted(why))}."] if why else []


def what(record: Record) -> str:
    """The work in words."""
    f = record.factors
    if f["workload"] == PRODUCT:
        return f"n = {f['matrix_size']}"
    return f"{f['size']}, context {f['seq_len']}, batch {f['batch']}" if f["workload"] == STEP else "idle"


def tokens(record: Record) -> int:
    """Of a call."""
    f = record.factors
    return int(f["batch"]) * int(f["seq_len"]) if f["workload"] == STEP else 0


def flop(record: Record) -> float:
    """Of a call."""
    f = record.factors
    if f["workload"] == PRODUCT:
        return 2 * float(f["matrix_size"]) ** 3
    return float(palm_flop_per_token(SIZES[f["size"]], f["seq_len"]) * tokens(record)) if tokens(record) else 0.0


def _counted(get: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """A figure made of joules; without a counter why there is none."""

    def figure(record: Record) -> Any:
        if not record.samples:
            return None
        return get(record) if "call_j" in record.samples else NOT_COUNTED

    return figure


def _iqr(sample: str) -> Callable[[Record], Any]:
    def get(record: Record) -> Any:
        found = t.summary(record, sample)
        return t.ONE_SAMPLE if found.n == 1 else found.iqr

    return _counted(get)


def _joules(record: Record) -> float:
    return t.summary(record, "call_j").median


def _of_call(record: Record) -> Any:
    return _joules(record) if record.factors["workload"] != IDLE else NO_WORK


def _tokens_per_j(record: Record) -> Any:
    return tokens(record) / _joules(record) if tokens(record) else NO_TOKENS


def _j_per_tflop(record: Record) -> Any:
    return _joules(record) / (flop(record) / TERA) if flop(record) else NO_WORK


def _tflop_per_s(record: Record) -> Any:
    return flop(record) / t.summary(record, "call_ms").median * 1e3 / TERA if flop(record) else NO_WORK


def _printed(record: Record) -> Any:
    if not flop(record):
        return NO_WORK
    found = ceilings.sheet_product(record.gpu, str(record.factors["dtype"]))
    return "not known" if found is None else found.per_s / TERA


def _share_of_sheet(record: Record) -> Any:
    printed = _printed(record)
    return 100 * _tflop_per_s(record) / printed if isinstance(printed, float) else printed


def _why(record: Record) -> str | None:
    return str(record.values.get("why", "counted")) if record.samples else None


def _busy_percent(traced: Mapping[busy.Place, float]) -> Callable[[Record], Any]:
    """Share of a step in which kernels run, by nsys_profile's trace of the same step."""

    def get(record: Record) -> Any:
        if record.factors["workload"] != STEP:
            return busy.NOT_TRACED
        return busy.busy_percent(record.factors, t.summary(record, "call_ms").median, traced)

    return t.if_timed(get)


def _columns(traced: Mapping[busy.Place, float]) -> list[t.Column]:
    return [
        t.Column("work", "Work", lambda r: TITLES[r.factors["workload"]], kind="factor", exact=True),
        t.Column("what", "Of", what, kind="factor", exact=True),
        t.Column("dtype", "Dtype", lambda r: r.factors.get("dtype", "none"), kind="factor", exact=True),
        t.factor("device", "Device"),
        t.median("call_ms", "Time of a call (ms)"),
        t.derived("power_w", "Mean power (W)", _counted(lambda r: t.summary(r, "power_w").median), "power_w_iqr"),
        t.derived("power_w_iqr", "IQR (W)", _iqr("power_w")),
        t.derived("call_j", "Energy of a call (J)", _counted(_of_call), spread="call_j_iqr"),
        t.derived(
            "call_j_iqr", "IQR (J)", lambda r: NO_WORK if r.ok and r.factors["workload"] == IDLE else _iqr("call_j")(r)
        ),
        t.derived("tokens_per_j", "Tokens/J", _counted(_tokens_per_j)),
        t.derived("j_per_tflop", "J/TFLOP", _counted(_j_per_tflop)),
        t.rate("tflop_per_s", "Rate (TFLOP/s)", t.if_timed(_tflop_per_s), "call_ms"),
        t.derived("printed", "Data sheet (TFLOP/s)", t.if_timed(_printed)),
        t.rate("share_percent", "MFU (%)", t.if_timed(_share_of_sheet), "call_ms"),
        t.Column("call_tflop", "FLOP", t.if_timed(lambda r: flop(r) / TERA), kind="unshown"),
        t.Column("busy_percent", "Device busy (%)", _busy_percent(traced), kind="unshown"),
        t.count("call_ms", "Windows"),
        t.factor("window_s", "Window, at least (s)"),
        t.value("counter", "Counted by", exact=True),
        t.Column("why", "Why not counted", _why, kind="unshown", exact=True),
    ]


def findings(tables: Mapping[str, Table]) -> list[Finding]:
    """What a step and a FLOP cost by dtype."""
    return [find("cs336.energy", TABLES, lambda: costs(tables[TABLES[0]].ok))]


def costs(rows: pd.DataFrame) -> str:
    """Power at rest and under load; J a TFLOP of products; tokens/J of steps, best and worst dtype of each model."""
    need(rows, 1, "workloads")
    counted = rows[pd.to_numeric(rows["power_w"], errors="coerce").notna()]
    if counted.empty:
        raise CannotTell(f"no energy was counted: {rows.iloc[0]['why']}")
    parts = []
    for device, group in counted.groupby("device", sort=False):
        idle, loaded = group[group["what"] == "idle"]["power_w"], group[group["what"] != "idle"]["power_w"]
        at_rest = f", {format_figure(float(idle.iloc[0]))} W with nothing to do" if len(idle) else ""
        if len(loaded):
            parts.append(f"The {device} device draws {from_to(loaded.astype(float))} W under these loads{at_rest}.")
    products = counted[counted["work"] == TITLES[PRODUCT]]
    if len(products):
        told = [f"{format_figure(float(row['j_per_tflop']))} J in {row['dtype']}" for _, row in products.iterrows()]
        parts.append(f"A TFLOP of products costs {', '.join(told)}.")
    parts += [_of_model(str(model), group) for model, group in _steps(counted)]
    return " ".join([*parts, *_slower(rows)])


def _slower(rows: pd.DataFrame) -> list[str]:
    """The steps that take longer in a dtype of fewer bytes than in a wider one, by more than both spread.

    Where launches by the host bound them, their times are the host's, and no verdict on the dtypes.
    """
    told: dict[str, list[str]] = {}
    for (model, _), group in rows[rows["work"] == TITLES[STEP]].groupby(["what", "device"], sort=False):
        by_dtype = {str(row["dtype"]): row for _, row in group.iterrows()}
        for narrow, wide in ((narrow, wide) for narrow in NARROW for wide in WIDE):
            if narrow not in by_dtype or wide not in by_dtype:
                continue
            one, other = by_dtype[narrow], by_dtype[wide]
            spreads = [float(row["call_ms_iqr"]) if is_number(row["call_ms_iqr"]) else 0.0 for row in (one, other)]
            if float(one["call_ms"]) - float(other["call_ms"]) > sum(spreads) / 2:
                bound_by = busy.what_bounds(one["busy_percent"], other["busy_percent"])
                told.setdefault(bound_by, []).append(f"{model}, {_timed(one)}, {_timed(other)}")
    return [f"{LONGER[bound_by]}: {'; '.join(steps)}." for bound_by, steps in told.items()]


def _timed(row: pd.Series) -> str:
    """A step's dtype and time, and how much of it kernels fill, where that was traced."""
    filled = f" (filled with kernels to {row['busy_percent']:.0f} %)" if is_number(row["busy_percent"]) else ""
    return f"{row['dtype']} {format_figure(float(row['call_ms']))} ms{filled}"


def _steps(rows: pd.DataFrame) -> Any:
    return rows[rows["work"] == TITLES[STEP]].groupby("what", sort=False)


def _of_model(model: str, rows: pd.DataFrame) -> str:
    told = [
        f"{format_figure(float(joules))} J or {format_figure(float(rate))} tokens/J in {dtype}"
        for joules, rate, dtype in zip(rows["call_j"], rows["tokens_per_j"], rows["dtype"], strict=True)
    ]
    return f"A training step of {model} takes {', '.join(told)}."
